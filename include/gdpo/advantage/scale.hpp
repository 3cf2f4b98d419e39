#pragma once
// Scales: what a centered reward is divided by.
#include <gdpo/advantage/multiplier.hpp>
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// sum x^2 / dof: the sum of squares about the mean, and that of the mean.
template <class Stat>
GDPO_DEVICE auto about_zero(const Stat& m, index_t dof) {
  using V = std::decay_t<decltype(m.m2)>;
  const V squares =
      m.m2 + math::mul(math::mul(m.mean, m.mean), math::constant<V>(static_cast<double>(m.n)));
  return V(dof > 0 ? math::mul(squares, math::constant<V>(1.0 / static_cast<double>(dof)))
                   : math::constant<V>(0.0));
}

}  // namespace detail

/// Scales: the multiplier of a centered value.
/// A scale is a type with `double operator()(const ScaleArgs&) const`; what it may declare about
/// itself stands in advantage/stat.hpp. A multiplier of exactly 0 gives 0, whatever the centered
/// value is.
namespace scale {

/// The values whose spread `StdDev` divides by.
enum class Of {
  Group,          ///< The used values of the group. A group of one has variance 1.
  Batch,          ///< All used values of the column (TRL scale_rewards="batch", Lite-PPO).
  BatchCentered,  ///< All of them after the baseline (ms-swift REINFORCE++).
  /// All of them about the mean of their own group: the pooled variance of the groups. Only groups
  /// of two or more enter.
  Within,
  /// The used values of the group, each about the mean of the others: n / (n - 1) times Group. It
  /// is the std of what baseline::LeaveOneOut leaves (AReaL, mean_leave1out).
  GroupOthers,
  GroupRms,  ///< The used values of the group about 0: their root mean square.
  BatchRms   ///< All used values of the column about 0 (AReaL, mean_level=None).
};
/// The enumerators of Of with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Of) {
  using E = Enumerator<Of>;
  return std::array{E{"group", Of::Group},
                    E{"batch", Of::Batch},
                    E{"batch_centered", Of::BatchCentered},
                    E{"within", Of::Within},
                    E{"group_others", Of::GroupOthers},
                    E{"group_rms", Of::GroupRms},
                    E{"batch_rms", Of::BatchRms}};
}

/// The standard deviation: 1 / (sigma + eps), sigma being that of the values that `of` names:
///
///     sigma^2 = sum (x - mean)^2 / (n - ddof)
///     sigma^2 = sum_g sum (x - mean_g)^2 / sum_g (n_g - ddof)    Of::Within, over the groups g
///     sigma^2 = sum (x - mean_others)^2 / (n - ddof)             Of::GroupOthers
///     sigma^2 = sum x^2 / (n - ddof)                             Of::GroupRms, Of::BatchRms
///
/// The defaults are the GDPO paper's (arXiv 2601.05242, eq. 4): the sample std without eps. No
/// eps is needed, because a group of equal values is recognized by max == min and gets 0. Where
/// the spread is unknown (n <= ddof), or the denominator is 0, the multiplier is 0
/// (`multiplier`).
struct StdDev {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true;                  ///< Several rewards in one call.
  Of of = Of::Group;                       ///< Whose spread.
  int ddof = 1;    ///< Degrees of freedom taken off n, at least 0: 1 sample std, 0 population std.
  double eps = 0;  ///< At least 0; in units of the reward, squared under EpsAt::Var and ClampVar.
  EpsAt eps_at = EpsAt::Std;  ///< Where eps stands.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("of", s.of, "whose spread");
    field("ddof", s.ddof, at_least(0).with_note("0: population"), "degrees of freedom taken off n");
    field("eps", s.eps, at_least(0), "in units of the reward");
    field("eps_at", s.eps_at, "where eps stands");
  }

  /// What the spread needs of the batch: nothing, if it is one of the group.
  BatchParts reads_batch() const {
    return {of == Of::Batch || of == Of::BatchRms, false, of == Of::BatchCentered,
            of == Of::Within};
  }
  /// What the spread is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const {
    return of == Of::Group           ? "the std of the group"
           : of == Of::Batch         ? "the std of the batch"
           : of == Of::BatchCentered ? "the std of the batch after the baseline"
           : of == Of::Within        ? "the pooled std of the groups of the batch"
           : of == Of::GroupOthers ? "the std of the group, each value about the mean of the others"
           : of == Of::GroupRms    ? "the root mean square of the group"
                                   : "the root mean square of the batch";
  }
  /// Whether the spread is one of the group alone.
  GDPO_INLINE bool of_group() const {
    return of == Of::Group || of == Of::GroupOthers || of == Of::GroupRms;
  }
  /// The multiplier, if the spread is one of the batch.
  GDPO_DEVICE BatchNumbers<double, 1> of_batch(const BatchStat& batch) const {
    if (of == Of::Within) {
      const index_t dof = batch.within.all.degrees(ddof);
      return {{multiplier(eps, eps_at, batch.within.variance(dof), dof)}};
    }
    const Moments& m = of == Of::BatchCentered ? batch.centered : batch.raw;
    const index_t dof = m.n - ddof;
    const double v = of == Of::BatchRms ? gdpo::detail::about_zero(m, dof) : variance(m, ddof);
    return {{multiplier(eps, eps_at, v, dof)}};
  }
  /// The multiplier of the group.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using V = std::decay_t<decltype(a.group.m2)>;
    if (!of_group()) return V(numbers_of_batch(*this, a)[0]);
    V v = math::constant<V>(1.0);
    index_t dof = 1;
    if (a.group.n != 1) {
      dof = a.group.n - ddof;
      v = of == Of::GroupRms ? gdpo::detail::about_zero(a.group, dof) : variance(a.group, ddof);
      if (of == Of::GroupOthers) {
        const double n = static_cast<double>(a.group.n), ratio = n / (n - 1);
        v = math::mul(v, math::constant<V>(math::mul(ratio, ratio)));
      }
    }
    return multiplier(eps, eps_at, v, dof);
  }
};

/// The standard deviation of the other members: 1 / (sigma + eps) with the sample variance of the
/// group without the member itself,
///
///     sigma^2 = sum_{j != i} (x_j - mean_others)^2 / (n - 1 - ddof)
///
/// NeMo-RL (leave_one_out_baseline), with EpsAt::StdOrOne: others without a spread leave the value
/// as it is. An unused row (RewardBatch::valid) is scaled by all used members, as baseline
/// LeaveOneOut compares it with all of them. A group of one has variance 1, as under StdDev.
///
/// The others are equal if their order statistics say so, for weighted sums up to rounding. Their
/// sum of squares comes from that of the group (`GroupStat::without`), within 2^-50 of the latter.
/// Beside an outlier that is a large error, so it is kept between R^2 / 2 and (n - 1) R^2 / 4, R
/// being the range of the others, where every sum of squares of n - 1 numbers with this range lies.
///
/// With a multiplier for each member the combined values of a group do not sum to 0, and a
/// renormalization over the batch subtracts their mean. Two rewards that cancel each other leave
/// their rounding, some 1e-16 of a term, where scale::StdDev leaves exactly 0: RenormOver::Batch
/// scales it to full size if the whole batch holds nothing else.
struct LeaveOneOutStd {
  static constexpr bool own_value = true,  ///< Depends on the group and the member's own value.
      takes_lanes = true;                  ///< Several rewards in one call.
  int ddof = 1;                            ///< Degrees of freedom taken off n - 1, at least 0.
  double eps = 0;  ///< At least 0; in units of the reward, squared under EpsAt::Var and ClampVar.
  EpsAt eps_at = EpsAt::Std;  ///< Where eps stands.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("ddof", s.ddof, at_least(0).with_note("0: population"), "degrees of freedom taken off n");
    field("eps", s.eps, at_least(0), "in units of the reward");
    field("eps_at", s.eps_at, "where eps stands");
  }

  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "the std of the other members"; }
  /// The multiplier of the member.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using math::mul;
    using V = std::decay_t<decltype(a.group.mean)>;
    const auto& group = a.group;
    if constexpr (std::is_same_v<V, double>) {
      if (group.n == 1) return multiplier(eps, eps_at, 1.0, 1);
      if (group.unknown) return multiplier(eps, eps_at, math::nan(), 1);
      if (a.own < 0) return multiplier(eps, eps_at, variance(group, ddof), group.n - ddof);
    }
    auto others = group.without(a.value);
    const V range = others.max - others.min, square = mul(range, range);
    const V least = mul(math::constant<V>(0.5), square),
            most = mul(math::constant<V>(math::mul(0.25, static_cast<double>(others.n))), square);
    const V within = (math::min)((math::max)(others.m2, least), most);
    others.m2 = math::select(range <= group.rounding, math::constant<V>(0.0), within);
    return multiplier(eps, eps_at, V(variance(others, ddof)), others.n - ddof);
  }
};

/// One over the share of rewards that say something: used / max(nonzero, 1), the numbers of used
/// values of the column in the batch and of those that are not 0. GPG (arXiv 2504.02546), verl's
/// compute_gpg_outcome_advantage: groups that are all wrong dilute the gradient of the batch, and
/// the factor undoes it. A batch of zeros has the factor `used`, and its centered values are 0.
struct NonzeroShare {
  static constexpr bool per_group = true,  ///< One value for the group, and for the batch.
      takes_lanes = true;                  ///< Several rewards in one call.
  /// It reads how many values of the batch are not 0.
  BatchParts reads_batch() const { return {false, true, false, false}; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "used values / nonzero values of the batch"; }
  /// The multiplier of the batch.
  GDPO_DEVICE BatchNumbers<double, 1> of_batch(const BatchStat& batch) const {
    const index_t nonzero = batch.nonzero > 0 ? batch.nonzero : 1;
    return {{static_cast<double>(batch.used) / static_cast<double>(nonzero)}};
  }
  /// The multiplier of the batch.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    return numbers_of_batch(*this, a)[0];
  }
};

/// Which means of a group `GroupMean` divides by.
enum class DivideBy {
  PositiveMeans,  ///< Those above 0; a group with another gets 0 (prime-rl).
  AnyMean         ///< All but mean + eps = 0: a negative one turns the signs round (SkyRL).
};
/// The enumerators of DivideBy with their words.
GDPO_DATA_INLINE constexpr auto enumerators(DivideBy) {
  using E = Enumerator<DivideBy>;
  return std::array{E{"positive_means", DivideBy::PositiveMeans}, E{"any_mean", DivideBy::AnyMean}};
}

/// The mean of the group: 1 / (mean + eps). MaxRL (arXiv 2602.02710), with baseline::Mean: with
/// rewards of 0 and 1 it follows the gradient of the log-likelihood of success up to the order of
/// the group size, where RLOO follows that of the success rate. prime-rl's MaxRLAlgorithm and
/// SkyRL's compute_maxrl_advantage. Where mean + eps is 0, or so small that 1 over it overflows,
/// the multiplier is 0. A group of one has the multiplier 1, so that Singleton::Raw leaves its
/// value as it is.
struct GroupMean {
  static constexpr bool per_group = true,        ///< One value for the group.
      takes_lanes = true;                        ///< Several rewards in one call.
  double eps = 0;                                ///< At least 0; in units of the reward.
  DivideBy divide_by = DivideBy::PositiveMeans;  ///< What happens to a mean of 0 or below.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("eps", s.eps, at_least(0), "in units of the reward");
    field("divide_by", s.divide_by, "what happens to a mean of 0 or below");
  }
  /// It reads the group alone.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "1 / (the mean of the group + eps)"; }
  /// The multiplier of the group.
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using math::select;
    using V = std::decay_t<decltype(a.group.mean)>;
    const V zero = math::constant<V>(0.0), one = math::constant<V>(1.0);
    if (a.group.n == 1) return one;
    if constexpr (std::is_same_v<V, double>) {
      if (a.group.unknown) return math::nan();
    }
    // NaN is no mean: that of finite values whose sum overflows.
    const V divisor = a.group.mean + math::constant<V>(eps), k = one / divisor;
    const V finite = select(math::is_zero(one / k), zero, k);
    if (divide_by == DivideBy::PositiveMeans) return V(select(a.group.mean <= zero, zero, finite));
    return finite;
  }
};

/// No scale: the centered value itself (Dr.GRPO, arXiv 2503.20783; RLOO, arXiv 2402.14740).
struct None {
  static constexpr bool per_group = true,  ///< One value for the group.
      takes_lanes = true;                  ///< Several rewards in one call.
  /// It reads nothing.
  bool reads_batch() const { return false; }
  /// What it is, in a phrase (advantage/explain.hpp).
  constexpr const char* phrase() const { return "1"; }
  /// 1.
  template <class Args>
  GDPO_DEVICE double operator()(const Args&) const {
    return 1.0;
  }
};

}  // namespace scale
GDPO_END_NAMESPACE
