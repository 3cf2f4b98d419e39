#pragma once
#include <gdpo/core/errors.hpp>

GDPO_BEGIN_NAMESPACE

/// How several rewards become one value: the order of weighted sum and standardisation. Both use
/// GroupAdvantage::weights. A reward of weight 0 is not read, except as the `given` of a gate:
/// NaN in it changes no bit.
/// Order of the sums: rewards in blocks of 8 (those of weight 0 left out), the terms of a block as the tree
/// ((0+4)+(2+6))+((1+5)+(3+7)), block after block.
namespace combine {

/// x_i = sum_c w_c r_ic, then baseline and scale on x. GRPO: reward combinations with the same sum become one.
struct SumThenNormalize {};

/// Baseline and scale on each reward by itself, then s_i = sum_c w_c z_ic. GDPO, eq. 4, 5, 7.
struct NormalizeThenSum {};

}  // namespace combine
GDPO_END_NAMESPACE

namespace gdpo {
/// Reward r_reward counts only where r_given >= at_least (GDPO, eq. 8); elsewhere it is 0, which is not missing. A
/// missing r_given makes r_reward missing. `given` is compared as it is in the array, whatever gates stand on it.
struct Gate {
  index_t reward = 0, given = 0;
  double at_least = 0;
};
}  // namespace gdpo
