#pragma once
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE

/// What is subtracted from a value: `double operator()(const BaselineArgs&) const` (or Split<double>); one that
/// declares takes_lanes is a template over its argument, so that one call serves the lanes of several rewards. Called
/// for groups of two and more used members; a group of one follows GroupAdvantage::singleton (baseline None excepted,
/// which leaves it its value).
namespace baseline {

/// Group mean: x_i - mean_j x_j. GRPO (arXiv 2402.03300), GDPO (arXiv 2601.05242, eq. 4).
struct Mean {
  static constexpr bool per_group = true, takes_lanes = true, from_group = true, zero_sum = true;
  bool reads_batch() const { return false; }
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    return Split<std::decay_t<decltype(a.group.mean)>>{a.group.mean, a.group.mean_low};
  }
};

/// Mean of the other members: x_i - (sum_{j != i} x_j) / (n - 1). RLOO (arXiv 2402.14740). An unused row is compared
/// with all used members.
struct LeaveOneOut {
  static constexpr bool own_value = true, from_group = true, zero_sum = true;
  bool reads_batch() const { return false; }
  GDPO_DEVICE Split<double> operator()(const BaselineArgs& a) const {
    if (a.own < 0) return {a.group.mean, a.group.mean_low};
    const Moments others = a.group.without(a.value);
    return {others.mean, others.mean_low};
  }
};

/// Nothing: the value itself.
struct None {
  static constexpr bool per_group = true, takes_lanes = true;
  bool reads_batch() const { return false; }
  template <class Args>
  GDPO_DEVICE double operator()(const Args&) const {
    return 0.0;
  }
};

}  // namespace baseline
GDPO_END_NAMESPACE
