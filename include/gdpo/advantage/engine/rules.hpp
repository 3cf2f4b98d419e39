#pragma once
// What stands between the policies and a member, on every target: what size and degeneracy leave to the policies, the term of
// a column, and when combined values count as equal. one_group.hpp and cuda/advantage/one_group.hpp loop over members.
#include <gdpo/advantage/baseline.hpp>
#include <gdpo/advantage/engine/column_moments.hpp>
#include <gdpo/advantage/missing.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a row is to the batch statistics.
enum class RowState : unsigned char {
  Counted,  ///< in all of them
  Unused,   ///< valid == 0: in none; gets what its group's moments give
  Excluded  ///< no reward at all, used or not: in none; gets 0
};

/// What a column of a group gives its members.
enum class Rule : unsigned char { Policies, Zero, Raw, Nan, Refused };

template <class Baseline>
constexpr bool centres_v = !std::is_same_v<Baseline, baseline::None>;
template <class Baseline, class Scale>
constexpr bool once_a_group_v = one_a_group_v<Baseline>&& one_a_group_v<Scale>;
/// The combined values of a group sum to 0, groups with a raw singleton apart.
template <class Baseline, class Scale>
constexpr bool values_sum_to_zero_v = zero_sum_v<Baseline>&& one_a_group_v<Scale>;
/// A policy overwrites scratch memory.
template <class Baseline, class Scale>
constexpr bool need_scratch_v = per_group_values_v<Baseline> || per_group_values_v<Scale>;

template <class Baseline>
GDPO_INLINE Rule rule_of(const GroupStat& stat, Singleton singleton) {
  if (centres_v<Baseline> && stat.unknown) return Rule::Nan;
  if (stat.n == 0) return Rule::Zero;
  if (centres_v<Baseline> && stat.n == 1) {
    switch (singleton) {
      case Singleton::Zero:
        return Rule::Zero;
      case Singleton::Nan:
        return Rule::Nan;
      case Singleton::Raw:
        return Rule::Raw;
      case Singleton::Error:
        return Rule::Refused;
    }
  }
  return stat.degenerate && from_group_v<Baseline> ? Rule::Zero : Rule::Policies;
}

/// The baseline of a member. scratch: where the policies need it.
template <class Baseline>
GDPO_INLINE Split<double> base_of(const Baseline& baseline, Rule rule, const MemberArgs& args,
                                  double* scratch) {
  if (rule != Rule::Policies) return {rule == Rule::Nan ? math::nan() : 0.0, 0.0};
  const auto base = ask(baseline, args, scratch);
  if constexpr (std::is_same_v<decltype(base), const Split<double>>) {
    return base;
  } else {
    return {static_cast<double>(base), 0.0};
  }
}

/// The multiplier of a member that is `centred` above its baseline.
template <class Scale>
GDPO_INLINE double factor_of(const Scale& scale, Rule rule, const MemberArgs& args, double centred,
                             double* scratch) {
  if (rule == Rule::Zero) return 0.0;
  if (rule == Rule::Nan) return 1.0;
  return static_cast<double>(ask(scale, ScaleArgs{args, centred}, scratch));
}

/// What a column adds to a member's combined value: a factor 0 selects 0, and -0 becomes 0.
GDPO_INLINE double term_of(double centred, double factor) {
  return (math::is_zero(factor) ? 0.0 : math::mul(centred, factor)) + 0.0;
}

/// Of sums of `terms` rewards whose range may be rounding alone. magnitude: the largest sum of |terms| of a used row.
GDPO_INLINE void equate_sums(GroupStat& stat, index_t terms, double magnitude) {
  if (stat.n == 0 || stat.degenerate || stat.unknown || math::is_inf(magnitude)) return;
  stat.degenerate = stat.max - stat.min <= rounding_of_sum(terms, magnitude);
  if (stat.degenerate) stat.m2 = 0;
}

/// The range of the combined values of a group's used members, in any order.
struct CombinedRange {
  double low = math::infinity, high = -math::infinity, magnitude = 0;
  bool unknown = false;
  GDPO_INLINE void add(double score, double of_terms) {
    unknown = unknown || math::is_nan(score);
    low = (math::min)(low, score);
    high = (math::max)(high, score);
    magnitude = (math::max)(magnitude, of_terms);
  }
  GDPO_INLINE void add(const CombinedRange& o) {
    unknown = unknown || o.unknown;
    low = (math::min)(low, o.low);
    high = (math::max)(high, o.high);
    magnitude = (math::max)(magnitude, o.magnitude);
  }
  /// `columns` terms each; of sums that were normalised the sum itself is the only term.
  GDPO_INLINE bool equal(bool sums_first, index_t columns) const {
    if (unknown) return false;
    if (!(low < high)) return true;
    return !sums_first && !math::is_inf(magnitude) &&
           high - low <= rounding_of_sum(columns, magnitude);
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
