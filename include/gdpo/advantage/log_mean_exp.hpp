#pragma once
// The baseline of OPMD: a mean that leans towards the best values of the group.
#include <gdpo/advantage/stat.hpp>
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/math/log1p.hpp>

GDPO_BEGIN_NAMESPACE
namespace baseline {

/// The logarithm of the mean exponential of the group: x_i - tau log mean_j e^{x_j / tau}. OPMD
/// (arXiv 2505.17826); Trinity-RFT's opmd_baseline="logavgexp". It lies between the mean, its limit
/// for a large tau, and the largest value, its limit for a small one.
///
/// It is computed from the differences from the largest value, as tau log1p(mean_j expm1(d_j /
/// tau)), so that nothing overflows, an offset of the values costs no digits, and it is accurate
/// for a large tau too. The sum is a TwoSum: rows in another order give the same bits. Centered
/// values do not sum to 0, so a second normalization over the batch subtracts their mean. A group
/// with an infinite value is NaN.
struct LogMeanExp {
  static constexpr bool per_group_values = true,  ///< Once for a group, from its values.
      from_group = true;                          ///< A degenerate group gets exactly 0.
  double tau = 1;  ///< The temperature, in units of the reward; more than 0.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("tau", s.tau, more_than(0), "the temperature, in units of the reward");
  }
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "tau log mean e^(x / tau) over the group"; }
  /// The largest value, and how far the baseline is below it.
  GDPO_DEVICE Split<double> operator()(const GroupArgs& a) const {
    TwoSum<double> sum;
    for (index_t j = 0; j < a.values.extent[0]; ++j)
      sum.add(math::exp_parts((a.values(j) - a.group.max) / tau).expm1);
    return {a.group.max,
            math::mul(tau, math::log1p(sum.value() / static_cast<double>(a.values.extent[0])))};
  }
};

}  // namespace baseline
GDPO_END_NAMESPACE
