#pragma once
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>

GDPO_BEGIN_NAMESPACE
/// GDPO, arXiv 2601.05242, section 2: sample std, no eps, batch renormalisation (eq. 4-7); its GRPO (eq. 1-2) and "GRPO
/// w/o std". These are the library's defaults under the paper's name.
namespace paper {
inline constexpr const char* version = "arXiv 2601.05242";
inline constexpr Gdpo gdpo{};
inline constexpr Grpo grpo{};
inline constexpr DrGrpo grpo_no_std{};
/// The losses of their own papers (loss/named.hpp); where a paper names no clip range it is 0.2.
using gdpo::dapo_loss;
using gdpo::dr_grpo_loss;
using gdpo::grpo_loss;
using gdpo::gspo_loss;
using gdpo::gspo_token_loss;
}  // namespace paper
GDPO_END_NAMESPACE
