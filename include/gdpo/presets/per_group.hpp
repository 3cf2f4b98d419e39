#pragma once
#include <gdpo/advantage/group_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// GDPO whose second stage runs inside each group: "a second group-relative normalisation (s - mu_s) / (sigma_s + eps)", as
/// some descriptions of GDPO say it. The paper's second stage (eq. 6) runs over the batch. The form per group loses what GDPO
/// gains: with two rollouts and two binary rewards it tells two kinds of groups apart, as GRPO does, where GDPO tells three.
/// It is offered so that its numbers can be reproduced.
namespace per_group {
inline constexpr const char* version = "a description of GDPO";
using Gdpo =
    GroupAdvantage<baseline::Mean, scale::StdDev, combine::NormalizeThenSum, renorm::PerGroup>;
inline constexpr Gdpo gdpo{};
}  // namespace per_group

/// Former names.
namespace brief {
using GroupGdpo [[deprecated("use gdpo::per_group::Gdpo")]] = per_group::Gdpo;
[[deprecated("use gdpo::per_group::gdpo")]] inline constexpr per_group::Gdpo gdpo{};
}  // namespace brief
GDPO_END_NAMESPACE
