#pragma once
// The operator of diagnose().
#include <gdpo/diagnose.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/result.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

/// What an operator of this name declares.
inline constexpr const char* diagnose_schema =
    "diagnose(Tensor? result, Tensor? report, str settings, str[] reward_names) -> str";
/// diagnose() of a result of policy_loss, a report of advantages, or both (gdpo/diagnose.hpp).
///
/// `settings`: members of DiagnoseSettings in one line, such as "first_step=true truncated=0.5".
/// Returns the findings, one a line: the members of Finding, separated by tabulators.
/// Errors: those of gdpo::diagnose, and `invalid_input` where both tensors are absent.
inline std::string diagnose(const Array& result, const Array& report, const std::string& settings,
                            const std::vector<std::string>& reward_names) {
  constexpr const char* function = "gdpo::diagnose";
  DiagnoseSettings s;
  s.reward_names = reward_names;
  runtime::detail::Words next{settings};
  runtime::detail::apply_settings(function, s, next(), next);
  if (!result && !report)
    contract::fail(function, "metrics, report", "neither", "one of them, or both");
  LossResult r;
  GroupReport g;
  if (result) detail::read_numbers(function, "metrics", *result, r);
  if (report) g = detail::report_from(function, "report", *report);
  const std::vector<Finding> findings = !report   ? gdpo::diagnose(r, s)
                                        : !result ? gdpo::diagnose(g, s)
                                                  : gdpo::diagnose(r, g, s);
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
