#pragma once
// Presets of the GDPO paper.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// The GDPO paper (arXiv 2601.05242), section 2. Its estimators are the library's defaults: sample
/// std, no eps.
namespace paper {
inline constexpr const char* version = "arXiv 2601.05242";
/// GDPO, eq. 4-7: each reward standardized in its group, summed, standardized over the batch.
inline constexpr Gdpo gdpo{};
/// GRPO, eq. 1-2: the sum of the rewards standardized in its group.
inline constexpr Grpo grpo{};
/// "GRPO w/o std": the sum of the rewards minus the mean of its group.
inline constexpr DrGrpo grpo_no_std{};
/// MO-GRPO (arXiv 2509.22047): each reward standardized in its group, and summed, without a second
/// normalization.
inline constexpr Gdpo mo_grpo = before_renorm(Gdpo{});
// The losses of other papers (loss/named.hpp). Where a paper names no clip range it is 0.2.
using gdpo::dapo_loss;
using gdpo::dr_grpo_loss;
using gdpo::grpo_loss;
using gdpo::gspo_loss;
using gdpo::gspo_token_loss;

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"paper::gdpo", gdpo, "eq. 4-7", version},
           Preset{"paper::grpo", grpo, "eq. 1-2", version},
           Preset{"paper::grpo_no_std", grpo_no_std, "GRPO w/o std", version},
           Preset{"paper::mo_grpo", mo_grpo, "", "arXiv 2509.22047"});
};
}  // namespace paper
GDPO_END_NAMESPACE
