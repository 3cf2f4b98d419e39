#pragma once
// A ContrastiveLoss from a line of text, by the names that the operators have for it.
#include <gdpo/runtime.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// A ContrastiveLoss whose KL term is chosen by a line.
using NamedContrastive = ContrastiveLoss<AnyKl, metrics::Means>;

/// All of them: "real", as the paper has it, and those of trainers.
inline const runtime::detail::Table<NamedContrastive>& contrastive_losses() {
  static const auto entries = presets::with_contrastive_losses([](const auto&... preset) {
    runtime::detail::Table<NamedContrastive> table;
    const auto named = [](const auto& loss) -> NamedContrastive {
      return {loss.tau, loss.count_empty_rows, runtime::detail::any_kl(loss.kl), loss.aggregate};
    };
    (runtime::detail::add(table, preset.name, named(preset.value)), ...);
    return table;
  });
  return entries;
}
/// The loss of that name. Errors: `invalid_input` for an unknown one, with a list of the names.
inline NamedContrastive contrastive_loss_named(std::string_view name) {
  return runtime::detail::named("gdpo::ContrastiveLoss", "name", name, contrastive_losses());
}
/// The loss of a line NAME [SETTING=VALUE ...], as runtime::configured_estimator reads one.
inline runtime::detail::Configured<NamedContrastive> configured_contrastive(std::string_view line) {
  return runtime::detail::configured("gdpo::ContrastiveLoss", line, &contrastive_loss_named);
}

}  // namespace detail

}  // namespace torch_stable
GDPO_END_NAMESPACE
