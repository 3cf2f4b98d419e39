#pragma once
// A scale whose variance is shrunk towards that of the batch, for small groups.
#include <gdpo/advantage/multiplier.hpp>
#include <gdpo/advantage/stat.hpp>
#include <limits>

namespace gdpo {

/// As a number of degrees of freedom: the rewards of the batch decide (a NaN).
inline constexpr double from_batch = std::numeric_limits<double>::quiet_NaN();

/// Whether groups whose values are all equal enter what the batch says about the variance of a
/// group.
enum class EqualGroups {
  /// They are left out. A prompt that is too easy or too hard has no spread, and says nothing about
  /// the spread of the others; to count its 0 would pull the batch's variance down and so blow up
  /// the advantages of the others. The price: what is left is selected for having a spread, so that
  /// the batch's variance is too high where groups are equal by chance.
  Exclude,
  /// They count like all others: variance 0 with all their degrees of freedom.
  Include
};
/// The enumerators of EqualGroups with their words.
GDPO_DATA_INLINE constexpr auto enumerators(EqualGroups) {
  using E = Enumerator<EqualGroups>;
  return std::array{E{"exclude", EqualGroups::Exclude}, E{"include", EqualGroups::Include}};
}

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace scale {

/// The standard deviation of the group, its variance shrunk towards that of the batch: 1 / (sigma +
/// eps) with
///
///     sigma^2 = (nu m + d s^2) / (nu + d)
///
/// The group has n values, d = n - 1 degrees of freedom and the sample variance s^2. The batch has
/// the variance m, pooled over its groups. nu says how many degrees of freedom the batch counts
/// for: 0 gives `StdDev{}`, infinity the batch's variance alone (`StdDev{Of::Within}` with
/// EqualGroups::Include), bit for bit. Between the two every sigma lies between that of its group
/// and that of the batch. The reason to shrink: with few completions of a prompt s^2 is mostly
/// chance, and a group whose rewards are nearly equal by chance gets huge advantages. How much of
/// s^2 is chance shows in the other groups, so by default the batch decides nu.
///
/// nu is 2 or more where the batch decides it, and infinite where the groups differ no more than by
/// chance, or where there are fewer than two. "Few completions a prompt" in
/// include/gdpo/advantage/README.md derives the form and nu: with m2 = d s^2 of each group and sums
/// over the groups, D = sum d and F = sum d^2,
///
///     M = sum m2 / D,    Q = sum m2^2 / (d + 2) / D,    P = (D^2 M^2 - (F + 2 D) Q) / (D^2 - F)
///     m = M,             nu = 2 Q / (Q - P)
///
/// The computation takes Q / M^2 and P / M^2 from GroupSpreads::shares, so multiplying all rewards
/// by a number changes no weight.
///
/// **Edges.** A group of one under Singleton::Raw (d = 0) gets the batch's variance, unless
/// prior_dof is 0. Where the batch has no group of two or more values (under EqualGroups::Exclude:
/// none with a spread), the spread is unknown and the multiplier 0. An infinite reward, or a NaN
/// under MissingEntry::Propagate, in a group of two or more makes the batch's variance NaN, and
/// with it every advantage that is not 0 by rule, as under Of::Batch. Sums of squares that overflow
/// give the multiplier 0. The sums over the groups are added as sum_rows adds rows
/// (stats/reduce.hpp).
struct ShrunkStd {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true;                  ///< Several rewards in one call.
  /// nu: how many degrees of freedom the batch's variance counts for, at least 0; infinity: the
  /// batch's variance alone; from_batch: estimated for every column by itself.
  double prior_dof = from_batch;
  EqualGroups equal_groups = EqualGroups::Exclude;  ///< Which groups m and nu are taken from.
  double eps = 0;             ///< At least 0; in units of the reward, as in StdDev.
  EpsAt eps_at = EpsAt::Std;  ///< Where eps stands.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("prior_dof", s.prior_dof,
          at_least(0).or_infinity("the batch alone").or_nan("NaN: from_batch"),
          "how many degrees of freedom the batch's variance counts for");
    field("equal_groups", s.equal_groups, "whether groups of equal values count");
    field("eps", s.eps, at_least(0), "in units of the reward");
    field("eps_at", s.eps_at, "where eps stands");
  }

  /// The spreads inside the groups, if the batch's variance has any weight.
  BatchParts reads_batch() const { return {false, false, false, !math::is_zero(prior_dof)}; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the std of the group shrunk towards the batch's"; }
  /// The groups that the batch's variance and nu are taken from.
  GDPO_INLINE const GroupSpreads::Count& counted(const GroupSpreads& spreads) const {
    return equal_groups == EqualGroups::Exclude ? spreads.unequal : spreads.all;
  }
  /// nu in a batch with these spreads: prior_dof, or the estimate where that is from_batch.
  GDPO_DEVICE double prior_in(const GroupSpreads& spreads) const {
    using math::mul;
    if (!math::is_nan(prior_dof)) return prior_dof;
    const GroupSpreads::Count& n = counted(spreads);
    if (n.groups < 2 || math::is_zero(spreads.shares)) return math::infinity;
    const auto dof = static_cast<double>(n.dof), dof_squares = static_cast<double>(n.dof_squares);
    // Q / M^2 and P / M^2 of the formulas above.
    const double q = mul(dof, spreads.shares), square = mul(dof, dof),
                 p = (square - mul(dof_squares + mul(2.0, dof), q)) / (square - dof_squares);
    if (!(q > p)) return math::infinity;
    return p > 0 ? mul(2.0, q) / (q - p) : 2.0;
  }
  /// The variance of the batch, nu, and the degrees of freedom of that variance.
  GDPO_DEVICE BatchNumbers<double, 3> of_batch(const BatchStat& batch) const {
    const index_t dof = counted(batch.within).dof;
    return {{batch.within.variance(dof), prior_in(batch.within), static_cast<double>(dof)}};
  }
  /// The multiplier of the group.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using math::is_inf, math::mul, math::select;
    using V = std::decay_t<decltype(a.group.m2)>;
    if (math::is_zero(prior_dof)) {
      const bool one = a.group.n == 1;
      return multiplier(eps, eps_at, one ? math::constant<V>(1.0) : V(variance(a.group)),
                        one ? 1 : a.group.n - 1);
    }
    const auto numbers = numbers_of_batch(*this, a);
    const auto &of_all = numbers[0], &nu = numbers[1], &dof = numbers[2];
    // Two weights of sum 1: nothing overflows, and nu = 2^53 is no special case.
    const V d = math::constant<V>(static_cast<double>(a.group.n - 1)), both = nu + d,
            mixed = mul(nu / both, of_all) + mul(d / both, V(variance(a.group)));
    const V v = a.group.n > 0 ? V(select(is_inf(nu), of_all, mixed)) : of_all;
    return V(select(dof <= math::constant<V>(0.0), multiplier(eps, eps_at, v, 0),
                    multiplier(eps, eps_at, v, 1)));
  }
};

}  // namespace scale
GDPO_END_NAMESPACE
