#pragma once
// How several rewards become one value: standardized and then summed, or summed first.
#include <gdpo/advantage/renorm.hpp>

GDPO_BEGIN_NAMESPACE

/// How several rewards become one value: the order of the weighted sum and the standardization.
/// Both use `GroupAdvantage::weights`, w_c. A reward of weight 0 is not read, except as the
/// `given` of a gate: NaN in it changes no bit of the advantages. The sums take the rewards in
/// blocks of 8, those of weight 0 left out; the terms of a block are added as the tree
/// ((0+4)+(2+6))+((1+5)+(3+7)), and the blocks in order.
namespace combine {

/// First the weighted sum x_i = sum_c w_c r_ic, then baseline and scale of x.
/// This is GRPO (GDPO paper, arXiv 2601.05242, eq. 1 and 2): combinations of rewards with the
/// same sum get the same advantage.
struct SumThenNormalize {
  static constexpr Renorm default_renorm = renorm::none();  ///< Of an estimator with this policy.
};

/// First baseline and scale of each reward by itself, z_ic, then s_i = sum_c w_c z_ic.
/// This is GDPO (arXiv 2601.05242, eq. 4, 5 and 7): combinations with the same sum stay apart
/// where the rewards spread differently in the group.
struct NormalizeThenSum {
  static constexpr Renorm default_renorm = renorm::batch();  ///< Of an estimator with this policy.
};

}  // namespace combine

namespace detail {
/// The rewards are summed before they are standardized: there is one column, their weighted sum.
template <class Combine>
constexpr bool sums_first_v = std::is_same_v<Combine, combine::SumThenNormalize>;
}  // namespace detail
GDPO_END_NAMESPACE

namespace gdpo {
/// A condition on a reward: it counts only where another reward is high enough.
/// GDPO (arXiv 2601.05242), eq. 8. Where rewards(i, given) < at_least, rewards(i, reward) becomes
/// 0: a value, not a missing one. Where rewards(i, given) is missing, rewards(i, reward) is
/// missing too. The condition reads the array as it is, whatever gates stand on `given`. Several
/// gates on one reward must all be passed.
struct Gate {
  index_t reward = 0,   ///< The reward that is gated.
      given = 0;        ///< The reward of the condition; its weight may be 0.
  double at_least = 0;  ///< The least value of the condition, in units of that reward; not NaN.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("reward", s.reward, gdpo::at_least(0), "the reward that is gated");
    field("given", s.given, gdpo::at_least(0), "the reward of the condition");
    field("at_least", s.at_least, anything(), "the least value of the condition");
  }
};
}  // namespace gdpo
