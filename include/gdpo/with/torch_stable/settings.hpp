#pragma once
// The operators that list settings and check lines of them.
#include <gdpo/constraint.hpp>
#include <gdpo/diagnose.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/contrastive_line.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {
/// Calls f with what a line of that kind describes.
template <class F>
auto with_named(const char* function, const std::string& what, const std::string& line,
                const F& f) {
  if (what == "loss") return f(runtime::configured_loss(line));
  if (what == "estimator") return f(runtime::configured_estimator(line));
  if (what == "contrastive") return f(configured_contrastive(line).value);
  if (what == "prepass") return f(runtime::configured_prepass(line));
  if (what == "token_advantages") return f(runtime::configured_token_advantage(line));
  if (what == "outcome_advantages") return f(runtime::configured_outcome_advantage(line));
  if (what == "step_advantages") return f(runtime::configured_step_advantage(line));
  if (what == "token_baseline") return f(runtime::configured_token_baseline(line));
  if (what == "value_loss") return f(runtime::configured_value_loss(line));
  if (what == "whitening") return f(runtime::configured_whitening(line));
  if (what == "shaping") return f(runtime::configured_shaping(line));
  if (what == "running") return f(runtime::configured_running(line));
  if (what == "pid") return f(PidGains{});
  if (what == "diagnose") return f(DiagnoseSettings{});
  contract::fail(function, "what", "'" + what + "'",
                 "loss, estimator, contrastive, prepass, token_advantages, outcome_advantages, "
                 "step_advantages, token_baseline, value_loss, whitening, shaping, running, pid or "
                 "diagnose");
}
/// The level of a loss as a setting.
inline runtime::Setting level_setting(const runtime::Loss& loss) {
  return {"level", runtime::detail::words_in(runtime::detail::levels()), runtime::level_name(loss),
          "", "whose ratio is compared"};
}
}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* settings_schema = "settings(str what, str line) -> str";
/// The settings of what a line describes, and then its shorthands (runtime::settings), one a line:
/// name, kind, value, what fits, and meaning, with tabs between them. A loss's level comes first.
///
/// `what`: "loss" or "estimator", with the line of runtime::configured_loss or
/// configured_estimator; "contrastive", with that of contrastive_loss; "prepass", "shaping" or
/// "running", with that of configured_prepass, configured_shaping or configured_running;
/// "token_advantages", "outcome_advantages", "step_advantages", "token_baseline", "value_loss" or
/// "whitening", with the line of that operator; "pid" or "diagnose", with an empty line. Errors:
/// `invalid_input` for another word, and those of reading the line.
inline std::string settings(const std::string& what, const std::string& line) {
  std::string lines;
  const auto add = [&lines](const std::vector<runtime::Setting>& list) {
    for (const runtime::Setting& s : list) {
      lines += (lines.empty() ? "" : "\n") + s.name + "\t" + s.kind + "\t" + s.value + "\t" +
               s.fits + "\t" + s.meaning;
    }
  };
  detail::with_named("gdpo::settings", what, line, [&add](const auto& named) {
    if constexpr (std::is_same_v<std::decay_t<decltype(named)>, runtime::Loss>)
      add({detail::level_setting(named)});
    add(runtime::settings(named)), add(runtime::shorthands(named));
  });
  return lines;
}

/// What an operator of this name declares.
inline constexpr const char* configure_schema =
    "configure(str what, str line, bool whole=True) -> str";
/// The line of a "loss", an "estimator", a "contrastive" loss, a "value_loss" or
/// "token_advantages" with the names that settings have in the library: "dapo low=0.1" as
/// "dapo surrogate.low=0.1". Each setting is checked, and what several decide together too, unless
/// the line is not the `whole`.
/// Errors: `invalid_input`, which calls settings as the line does.
inline std::string configure(const std::string& what, const std::string& line, bool whole) {
  const auto text = [whole](const char* function, auto configured) {
    if (whole) runtime::detail::check_configured(function, configured.value, configured.settings);
    std::string words = configured.words;
    for (std::size_t i = 0; i < configured.settings.values.size(); ++i)
      words += " " + configured.settings.names[i].first + "=" + configured.settings.values[i];
    return words;
  };
  constexpr const char *loss = "gdpo::PolicyLoss", *estimator = "gdpo::advantages";
  if (what == "loss") return text(loss, runtime::detail::configured_loss(loss, line));
  if (what == "estimator")
    return text(estimator, runtime::detail::configured(estimator, line, &runtime::estimator));
  if (what == "contrastive")
    return text("gdpo::ContrastiveLoss", detail::configured_contrastive(line));
  constexpr const char *value_loss = "gdpo::ValueLoss", *token = "gdpo::token_advantages";
  if (what == "value_loss")
    return text(value_loss, runtime::detail::configured(value_loss, line, &runtime::value_loss));
  if (what == "token_advantages")
    return text(token, runtime::detail::configured(token, line, &runtime::token_advantage));
  contract::fail("gdpo::configure", "what", "'" + what + "'",
                 "loss, estimator, contrastive, value_loss or token_advantages");
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
