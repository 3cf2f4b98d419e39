#pragma once
// GDPO with its second normalization inside each group.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// GDPO whose second stage runs inside each group, as some descriptions of GDPO have it.
///
/// The paper's second stage (eq. 6) runs over the batch. The form per group loses what GDPO gains:
/// with two rollouts and two binary rewards it distinguishes two kinds of groups, as GRPO does, and
/// GDPO distinguishes three. It is offered so that its numbers can be reproduced. No trainer has an
/// option for it.
namespace per_group {
inline constexpr const char* version = "a description of GDPO";
/// The paper's settings, sample std and no eps in both stages, with the second over each group.
inline constexpr Gdpo gdpo = [] {
  Gdpo e{};
  e.renorm = renorm::per_group();
  return e;
}();

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"per_group::gdpo", gdpo, "", version});
};
}  // namespace per_group
GDPO_END_NAMESPACE
