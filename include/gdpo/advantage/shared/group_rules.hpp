#pragma once
// The rules between the policies and a member, for host and device: what the size and the
// degeneracy of a group leave to the policies, the term of a column, and when combined values
// count as equal. advantage/engine/one_group.hpp and cuda/advantage/group_kernel.hpp have the loops
// over members.
#include <gdpo/advantage/baseline.hpp>
#include <gdpo/advantage/missing.hpp>
#include <gdpo/advantage/scale.hpp>
#include <gdpo/advantage/shared/group_stats.hpp>
#include <gdpo/advantage/workspace.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What decides the terms of a column in a group.
enum class Rule : unsigned char {
  Policies,  ///< Baseline and scale.
  Zero,      ///< Every term is 0.
  Raw,       ///< The baseline is 0, the scale stays: a group of one under Singleton::Raw.
  Nan,       ///< Every term is NaN.
  Unknown,   ///< The values hold an infinity or a NaN: every term is NaN, but see base_of.
  Refused    ///< The call throws: a group of one under Singleton::Error.
};

/// The baseline compares a value with the other members of its group.
template <class Baseline>
constexpr bool compares_v = !needs_no_group_v<Baseline>;
/// Both policies are called once for a group.
template <class Baseline, class Scale>
constexpr bool once_a_group_v = one_a_group_v<Baseline>&& one_a_group_v<Scale>;
/// The combined values of a group sum to 0, except in groups with a raw singleton: the centered
/// values do, and all of a group have the same multiplier.
template <class Baseline, class Scale>
constexpr bool values_sum_to_zero_v = zero_sum_v<Baseline>&& one_a_group_v<Scale>;
/// One of the policies needs scratch memory.
template <class Baseline, class Scale>
constexpr bool need_scratch_v = per_group_values_v<Baseline> || per_group_values_v<Scale>;

/// The rule of a column with these moments. Where the baseline compares no member with others
/// (None, External), groups of one, groups of equal values and NaN are left to the policies.
template <class Baseline>
GDPO_INLINE Rule rule_of(const GroupStat& stat, Singleton singleton) {
  if (compares_v<Baseline> && stat.unknown) return Rule::Unknown;
  if (stat.n == 0) return Rule::Zero;
  if (compares_v<Baseline> && stat.n == 1) {
    switch (singleton) {
      case Singleton::Zero:
      case Singleton::Exclude:
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

/// Whether the baseline is the mean of the group, with or without a finite number added.
template <class Baseline>
constexpr bool is_mean_v = zero_sum_v<Baseline> || std::is_same_v<Baseline, baseline::ShiftedMean>;

/// The baseline of a member. scratch: memory for a policy with per_group_values. Of values that
/// hold an infinity, only a mean is known: it is that infinity, where they do not hold both.
template <class Baseline>
GDPO_INLINE Split<double> base_of(const Baseline& baseline, Rule rule, const MemberArgs& args,
                                  double* scratch) {
  if (rule == Rule::Unknown) return {is_mean_v<Baseline> ? args.group.mean : math::nan(), 0.0};
  if (rule != Rule::Policies) return {rule == Rule::Nan ? math::nan() : 0.0, 0.0};
  const auto base = ask(baseline, args, scratch);
  if constexpr (std::is_same_v<decltype(base), const Split<double>>) {
    return base;
  } else {
    return {static_cast<double>(base), 0.0};
  }
}

/// The multiplier of a member whose value minus its baseline is `centered`.
template <class Scale>
GDPO_INLINE double factor_of(const Scale& scale, Rule rule, const MemberArgs& args, double centered,
                             double* scratch) {
  if (rule == Rule::Zero) return 0.0;
  if (rule == Rule::Nan) return 1.0;
  if (rule == Rule::Unknown) return std::is_same_v<Scale, scale::None> ? 1.0 : math::nan();
  return static_cast<double>(ask(scale, ScaleArgs{args, centered}, scratch));
}

/// What a column adds to the combined value of a member. A factor of 0 selects 0, and -0 becomes
/// 0. replaces_nan: InfiniteEntry::NanToNum.
GDPO_INLINE double term_of(double centered, double factor, bool replaces_nan) {
  const double term = (math::is_zero(factor) ? 0.0 : math::mul(centered, factor)) + 0.0;
  return replaces_nan && math::is_nan(term) ? 0.0 : term;
}
/// The combined value of a member: with replaces_nan finite, a float's largest number standing for
/// infinity.
GDPO_INLINE double combined_of(double score, bool replaces_nan) {
  constexpr double most = 0x1.fffffep127;
  if (!replaces_nan || !math::not_finite(score)) return score;
  return math::is_nan(score) ? 0.0 : score < 0 ? -most : most;
}

/// Marks weighted sums as degenerate whose range may come from rounding alone. terms: products in
/// a sum. magnitude: the largest sum of |products| of a used row.
GDPO_INLINE void equate_sums(GroupStat& stat, index_t terms, double magnitude) {
  if (stat.n == 0 || stat.unknown || math::is_inf(magnitude)) return;
  stat.rounding = rounding_of_sum(terms, magnitude);
  if (stat.degenerate) return;
  stat.degenerate = stat.max - stat.min <= stat.rounding;
  if (stat.degenerate) stat.m2 = 0;
}

/// The range of the combined values of the used members of a group, and their number. Their order
/// does not matter.
struct CombinedRange {
  double low = math::infinity, high = -math::infinity, magnitude = 0;
  bool unknown = false;
  std::int32_t members = 0;
  /// Adds a member. terms_size: the sum of its |terms|.
  GDPO_INLINE void add(double score, double terms_size) {
    unknown = unknown || math::is_nan(score);
    ++members;
    low = (math::min)(low, score);
    high = (math::max)(high, score);
    magnitude = (math::max)(magnitude, terms_size);
  }
  GDPO_INLINE void add(const CombinedRange& o) {
    unknown = unknown || o.unknown;
    members += o.members;
    low = (math::min)(low, o.low);
    high = (math::max)(high, o.high);
    magnitude = (math::max)(magnitude, o.magnitude);
  }
  /// Whether the group has one used row, which this baseline and setting leave out.
  template <class Baseline>
  GDPO_INLINE bool is_lone(const Baseline&, Singleton singleton) const {
    return compares_v<Baseline> && singleton == Singleton::Exclude && members == 1;
  }
  /// Whether the values are equal, up to the rounding of `columns` terms each. With sums_first
  /// the normalized sum is the only term, so there is no such rounding.
  GDPO_INLINE bool equal(bool sums_first, index_t columns) const {
    if (unknown) return false;
    if (!(low < high)) return true;
    return !sums_first && !math::is_inf(magnitude) &&
           high - low <= rounding_of_sum(columns, magnitude);
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
