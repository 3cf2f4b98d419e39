#pragma once
// The operator of diagnose().
#include <gdpo/diagnose.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/mismatch.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

/// What an operator of this name declares.
inline constexpr const char* diagnose_schema =
    "diagnose(Tensor? result, Tensor? report, str settings, str[] reward_names, "
    "Tensor? mismatch=None) -> str";
/// diagnose() of a result of policy_loss, a report of advantages, a report of mismatch, or several
/// of them (gdpo/diagnose.hpp).
///
/// `settings`: members of DiagnoseSettings in one line, such as "first_step=true truncated=0.5".
/// Returns the findings, one a line: the members of Finding, separated by tabulators.
/// Errors: those of gdpo::diagnose, and `invalid_input` where all tensors are absent.
inline std::string diagnose(const Array& result, const Array& report, const std::string& settings,
                            const std::vector<std::string>& reward_names, const Array& mismatch) {
  constexpr const char* function = "gdpo::diagnose";
  DiagnoseSettings s;
  s.reward_names = reward_names;
  runtime::detail::Words next{settings};
  runtime::detail::apply_settings(function, s, next(), next);
  if (!result && !report && !mismatch)
    contract::fail(function, "metrics, report, mismatch", "none", "one of them at least");
  LossResult r;
  GroupReport g;
  if (result) detail::read_numbers(function, "metrics", *result, r);
  if (report) g = detail::report_from(function, "report", *report);
  std::vector<Finding> findings;
  if (result && report) {
    findings = gdpo::diagnose(r, g, s);
  } else if (result || report) {
    findings = result ? gdpo::diagnose(r, s) : gdpo::diagnose(g, s);
  }
  if (mismatch) {
    for (Finding& f : gdpo::diagnose(detail::mismatch_from(function, "mismatch", *mismatch), s))
      findings.push_back(std::move(f));
  }
  std::string lines;
  for (const Finding& f : findings) {
    lines += (lines.empty() ? "" : "\n") + f.name + "\t" + f.subject + "\t" +
             contract::text(f.figure) + "\t" + contract::text(f.bound) + "\t" + f.text + "\t" +
             f.cause;
  }
  return lines;
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
