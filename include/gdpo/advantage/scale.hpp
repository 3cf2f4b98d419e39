#pragma once
#include <gdpo/advantage/multiplier.hpp>
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE

/// Scales: the multiplier of a centred value.
/// A scale is a type with `double operator()(const ScaleArgs&) const`; what it may declare about
/// itself stands in advantage/stat.hpp. A multiplier of exactly 0 gives 0, whatever the centred
/// value is.
namespace scale {

/// The values whose spread `StdDev` divides by.
enum class Of {
  Group,        ///< The used values of the group. A group of one has variance 1.
  Batch,        ///< All used values of the column (TRL scale_rewards="batch", Lite-PPO).
  BatchCentred  ///< All of them after the baseline (ms-swift REINFORCE++).
};

/// The standard deviation: 1 / (sigma + eps), sigma being that of the values that `of` names:
///
///     sigma^2 = sum (x - mean)^2 / (n - ddof)
///
/// The defaults are the GDPO paper's (arXiv 2601.05242, eq. 4): the sample std without eps. No
/// eps is needed, because a group of equal values is recognised by max == min and gets 0. Where
/// the spread is unknown (n <= ddof), or the denominator is 0, the multiplier is 0
/// (`multiplier`).
struct StdDev {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true;                  ///< Several rewards in one call.
  Of of = Of::Group;                       ///< Whose spread.
  int ddof = 1;    ///< Degrees of freedom taken off n, at least 0: 1 sample std, 0 population std.
  double eps = 0;  ///< At least 0; in units of the reward, squared under EpsAt::Var and ClampVar.
  EpsAt eps_at = EpsAt::Std;  ///< Where eps stands.

  /// Whether the spread is one of the batch.
  bool reads_batch() const { return of != Of::Group; }
  void check(const char* function) const {
    detail::check_ddof(function, "scale.ddof", ddof);
    detail::check_eps(function, "scale.eps", eps);
  }
  /// The multiplier of the group.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using V = std::decay_t<decltype(a.group.m2)>;
    V v = math::constant<V>(1.0);
    index_t dof = 1;
    if (of != Of::Group) {
      const Moments& m = of == Of::Batch ? a.batch.raw : a.batch.centred;
      v = math::constant<V>(variance(m, ddof));
      dof = m.n - ddof;
    } else if (a.group.n != 1) {
      v = variance(a.group, ddof);
      dof = a.group.n - ddof;
    }
    return multiplier(eps, eps_at, v, dof);
  }
};

/// No scale: the centred value itself (Dr.GRPO, arXiv 2503.20783; RLOO, arXiv 2402.14740).
struct None {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true;                  ///< Several rewards in one call.
  /// It reads nothing.
  bool reads_batch() const { return false; }
  /// 1.
  template <class Args>
  GDPO_DEVICE double operator()(const Args&) const {
    return 1.0;
  }
};

}  // namespace scale
GDPO_END_NAMESPACE
