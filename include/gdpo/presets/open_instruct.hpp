#pragma once
#include <gdpo/advantage/group_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// allenai/open-instruct @e6c3044, DataPreparationActor. Missing rewards are not handled: NaN propagates.
namespace open_instruct {
/// advantage_normalization_type="standard": population std + 1e-8.
inline constexpr Grpo standard = [] {
  Grpo e{};
  e.scale.ddof = 0;
  e.scale.eps = 1e-8;
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return e;
}();
/// advantage_normalization_type="centered" (the default): no std.
inline constexpr DrGrpo centered = [] {
  DrGrpo e{};
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  return e;
}();
}  // namespace open_instruct
GDPO_END_NAMESPACE
