#pragma once
// Scales that outliers do not move.
#include <gdpo/advantage/multiplier.hpp>
#include <gdpo/advantage/order_values.hpp>

namespace gdpo {
/// What a robust scale does where its measure of the spread is 0 although the values differ: more
/// than half of them are equal, as in 0, 0, 0, 1.
enum class AtZero {
  /// It falls back to the sample std of the group. Groups in which one of many answers is right are
  /// the rule in this field; without a fallback they would lose their signal.
  Std,
  Zero  ///< The multiplier is 0, whatever eps is: the group gets 0.
};
/// The enumerators of AtZero with their words.
GDPO_DATA_INLINE constexpr auto enumerators(AtZero) {
  using E = Enumerator<AtZero>;
  return std::array{E{"std", AtZero::Std}, E{"zero", AtZero::Zero}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The settings of a robust scale, and the edges that all of them share.
struct RobustScale {
  double eps;
  EpsAt eps_at;
  AtZero at_zero;

  /// Whether the group has the multiplier `edge()` and its values need not be sorted: eps is not
  /// used, the group has one value or equal ones, or some value is not finite.
  GDPO_DEVICE bool at_edge(const GroupStat& group) const {
    return eps_at == EpsAt::None || group.n < 2 || group.unknown || group.degenerate;
  }
  GDPO_DEVICE double edge(const GroupStat& group) const {
    if (group.n < 2) return multiplier(eps, eps_at, 1.0, 1);
    return multiplier(eps, eps_at, group.unknown ? math::nan() : 0.0, 1);
  }
  /// The same for lanes, whose values are finite and of which some may be equal.
  template <class Stat>
  GDPO_INLINE bool at_edge(const Stat& group) const {
    return eps_at == EpsAt::None || group.n < 2;
  }
  template <class Stat>
  GDPO_INLINE auto edge(const Stat& group) const {
    using V = std::decay_t<decltype(group.mean)>;
    return multiplier(eps, eps_at, math::constant<V>(group.n < 2 ? 1.0 : 0.0), 1);
  }
  /// The multiplier by `factor` times a measure of the spread, in place of a std. The formula of
  /// the multiplier takes a variance; the root of a rounded square is the number itself, so the
  /// detour costs no bit. V: double, or lanes.
  template <class V, class Stat>
  GDPO_DEVICE V operator()(const Stat& group, double factor, const V& measure) const {
    using math::mul, math::select;
    const index_t dof = group.n - 1;
    const V std = mul(math::constant<V>(factor), measure), zero = math::constant<V>(0.0),
            without = at_zero == AtZero::Zero ? zero
                                              : multiplier(eps, eps_at, V(variance(group, 1)), dof),
            scaled = select(measure <= group.rounding, without,
                            multiplier(eps, eps_at, mul(std, std), dof));
    if constexpr (std::is_same_v<V, double>) {
      return scaled;
    } else {
      return select(group.degenerate, edge(group), scaled);
    }
  }
};

}  // namespace detail

/// These scales measure the spread of the bulk of a group, where a std follows its outliers: a
/// value of 1e12 divides the centered values of all others by about 1e12 / sqrt n. They are
/// computed once for a group, from its used values in ascending order, so that rows in another
/// order give the same bits (a fallback to the std adds in the order of the grouping). Their factor
/// makes them the standard deviation where the values are many and normal.
///
/// A group of one has the measure 1, as under StdDev; equal values have the measure 0, which the
/// place of eps turns into a multiplier; weighted sums that differ by rounding alone count as equal
/// (`GroupStat::rounding`). A value that is not finite gives NaN.
namespace scale {

/// The median absolute deviation: 1 / (c MAD + eps) with MAD = median |x_i - median x| and
/// c = 1 / Phi^-1(3/4), Phi being the standard normal distribution. Fewer than half of the values,
/// however large, cannot make it unbounded. (`scipy.stats.median_abs_deviation(scale="normal")`)
struct Mad {
  static constexpr bool per_group_values = true,       ///< Once for a group, from its values.
      takes_lanes = true;                              ///< Several rewards in one call.
  static constexpr double factor = 1.482602218505602;  ///< c, 1 / Phi^-1(3/4).
  double eps = 0;                ///< At least 0; in units of the reward, or squared (EpsAt).
  EpsAt eps_at = EpsAt::Std;     ///< Where eps stands; the variance is (c MAD)^2.
  AtZero at_zero = AtZero::Std;  ///< What counts where MAD is 0 although the values differ.

  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const {
    return "the median absolute deviation of the group as a std";
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("eps", s.eps, at_least(0), "in units of the reward");
    field("eps_at", s.eps_at, "where eps stands");
    field("at_zero", s.at_zero, "what counts where the measure is 0");
  }
  /// The multiplier of the group.
  GDPO_CALLS_ANY
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    const detail::RobustScale scale{eps, eps_at, at_zero};
    if (scale.at_edge(a.group)) return scale.edge(a.group);
    const auto x = detail::sorted_values(a);
    const auto median = detail::median_of_sorted(x);
    return scale(a.group, factor, detail::median_deviation(x, median, a.scratch));
  }
};

/// The interquartile range: 1 / (c (Q3 - Q1) + eps) with c = 1 / (2 Phi^-1(3/4)), Phi being the
/// standard normal distribution. The quartiles are interpolated linearly, as by NumPy's `quantile`
/// (definition 7 of Hyndman and Fan). Fewer than a quarter of the values, however large, cannot
/// make it unbounded. (`scipy.stats.iqr(scale="normal")`)
struct Iqr {
  static constexpr bool per_group_values = true,        ///< Once for a group, from its values.
      takes_lanes = true;                               ///< Several rewards in one call.
  static constexpr double factor = 0.7413011092528009;  ///< c, 1 / (2 Phi^-1(3/4)).
  double eps = 0;                ///< At least 0; in units of the reward, or squared (EpsAt).
  EpsAt eps_at = EpsAt::Std;     ///< Where eps stands; the variance is (c (Q3 - Q1))^2.
  AtZero at_zero = AtZero::Std;  ///< What counts where Q3 = Q1 although the values differ.

  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the interquartile range of the group as a std"; }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("eps", s.eps, at_least(0), "in units of the reward");
    field("eps_at", s.eps_at, "where eps stands");
    field("at_zero", s.at_zero, "what counts where the measure is 0");
  }
  /// The multiplier of the group.
  GDPO_CALLS_ANY
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using detail::quantile_of_sorted;
    const detail::RobustScale scale{eps, eps_at, at_zero};
    if (scale.at_edge(a.group)) return scale.edge(a.group);
    const auto x = detail::sorted_values(a);
    // Quartiles of differences from a middle value lose no digits to an offset of the values.
    const detail::number_in_t<decltype(x)> middle = x(x.extent[0] / 2);
    return scale(a.group, factor,
                 quantile_of_sorted(x, middle, 0.75) - quantile_of_sorted(x, middle, 0.25));
  }
};

}  // namespace scale
GDPO_END_NAMESPACE
