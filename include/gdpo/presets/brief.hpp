#pragma once
#include <gdpo/advantage/group_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// The GDPO brief taken by its letter: "a second group-relative normalisation (s - mu_s) / (sigma_s + eps)", inside
/// each group. It is not the paper's eq. 6 (over the batch) and loses what GDPO gains: with two rollouts and two binary
/// rewards it tells two kinds of groups apart, as GRPO does, where GDPO tells three. Offered so that the number can be
/// reproduced.
namespace brief {
using GroupGdpo = GroupAdvantage<baseline::Mean, scale::StdDev, combine::NormalizeThenSum, renorm::PerGroup>;
inline constexpr GroupGdpo gdpo{};
}  // namespace brief
GDPO_END_NAMESPACE
