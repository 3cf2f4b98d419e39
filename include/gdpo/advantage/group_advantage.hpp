#pragma once
// GroupAdvantage: an estimator composed of a baseline, a scale, an order of the sum and a second
// normalization.
#include <gdpo/advantage/baseline.hpp>
#include <gdpo/advantage/combine.hpp>
#include <gdpo/advantage/log_mean_exp.hpp>
#include <gdpo/advantage/missing.hpp>
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/advantage/robust_baseline.hpp>
#include <gdpo/advantage/robust_scale.hpp>
#include <gdpo/advantage/scale.hpp>
#include <gdpo/advantage/shrunk_std.hpp>
#include <gdpo/core/list.hpp>
#include <gdpo/math/bounds.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The renormalization that an estimator has unless another is set.
template <class Combine, class Renorm>
constexpr Renorm default_renorm() {
  if constexpr (std::is_same_v<Renorm, gdpo::Renorm>) {
    return Combine::default_renorm;
  } else {
    return {};
  }
}

}  // namespace detail

/// A group-relative advantage estimator over rows: the type is the algorithm, the members its
/// settings. It is an aggregate and trivially copyable (a kernel argument). A *column* is what is
/// centered and scaled by itself: each reward with NormalizeThenSum, the weighted sum with
/// SumThenNormalize. The order of operations:
///
///     NormalizeThenSum  gates, missing rewards, reward_clip of each reward, penalty on one reward;
///                       baseline and scale of each reward in its group; weighted sum; renorm; clip
///     SumThenNormalize  gates, missing rewards; weighted sum, reward_clip and penalty on the sum;
///                       baseline and scale of the sum in its group; renorm; clip
///
/// The defaults are those of the papers: sample std without eps, and a renormalization over the
/// batch with NormalizeThenSum (GDPO, arXiv 2601.05242, eq. 4 to 7), none with SumThenNormalize
/// (GRPO). gdpo/advantages.hpp has the math.
template <class Baseline = baseline::Mean, class Scale = scale::StdDev,
          class Combine = combine::NormalizeThenSum, class Renorm = gdpo::Renorm>
struct GroupAdvantage {
  static_assert(is_baseline_v<Baseline> || detail::per_group_values_v<Baseline>,
                "a Baseline needs: double operator()(const gdpo::BaselineArgs&) const");
  static_assert(
      is_baseline_v<Baseline> || !detail::per_group_values_v<Baseline>,
      "a Baseline with per_group_values needs: double operator()(const gdpo::GroupArgs&) const");
  static_assert(is_scale_v<Scale> || detail::per_group_values_v<Scale>,
                "a Scale needs: double operator()(const gdpo::ScaleArgs&) const");
  static_assert(
      is_scale_v<Scale> || !detail::per_group_values_v<Scale>,
      "a Scale with per_group_values needs: double operator()(const gdpo::GroupArgs&) const");
  static_assert(
      !detail::from_group_v<Scale> && !detail::zero_sum_v<Scale>,
      "from_group and zero_sum are declarations of a Baseline, which comes before the Scale");
  static_assert(std::is_same_v<Combine, combine::SumThenNormalize> ||
                    std::is_same_v<Combine, combine::NormalizeThenSum>,
                "Combine is combine::SumThenNormalize or combine::NormalizeThenSum");
  static_assert(is_renorm_v<Renorm>,
                "a Renorm needs: RenormOver over; gdpo::Affine operator()(const "
                "gdpo::RenormArgs&) const");

  Baseline baseline{};  ///< What is subtracted from a value (baseline.hpp).
  Scale scale{};        ///< What a centered value is multiplied by (scale.hpp).
  Combine combine{};    ///< The order of sum and standardization (combine.hpp).
  /// The second normalization (renorm.hpp): by default over the batch with NormalizeThenSum, none
  /// with SumThenNormalize.
  Renorm renorm = detail::default_renorm<Combine, Renorm>();
  Missing missing{};                      ///< What NaN rewards and rows without rewards mean.
  Singleton singleton = Singleton::Zero;  ///< What a group with one used member gets.
  penalty::Row penalty{};                 ///< KL inside the reward of a row; off by default.
  /// One weight for each reward, finite and of any sign, at most 64, from braces or a
  /// std::vector. Empty: all 1. A reward of weight 0 is not read, except as the condition of a
  /// gate.
  List<double> weights{};
  List<Gate, 16> gates{};  ///< Conditions on rewards, at most 16.
  /// Bounds of what a column holds, before the penalty and every statistic: of each reward with
  /// NormalizeThenSum, of the weighted sum with SumThenNormalize (TRL's reward_clip_range of RLOO).
  /// In units of the column. NaN stays NaN. Off by default.
  Bounds reward_clip{};
  /// Bounds of the advantages, after everything else. They hold 0, so that rows that get 0 keep it.
  /// NaN stays NaN. Off by default.
  Bounds clip{};
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("baseline", s.baseline, "what is subtracted from a value");
    field("scale", s.scale, "what a value is divided by");
    field("combine", s.combine, "how the rewards become one value");
    field("renorm", s.renorm, "the second normalization");
    field("missing", s.missing, "missing and infinite rewards, unused rows");
    field("singleton", s.singleton, "what a group with one used member gets");
    field("penalty", s.penalty, "KL inside the reward");
    field("weights", s.weights, "one a reward; none: all 1");
    field("gates", s.gates, "conditions on rewards");
    field("reward_clip", s.reward_clip, "bounds of a reward, or of the sum that is normalized");
    field("clip", s.clip, "bounds of the advantages");
  }
};

namespace detail {

/// Whether the type is an estimator. Constrained estimators specialize it as well.
template <class X>
constexpr bool computes_advantages_v = false;
template <class B, class S, class C, class R>
constexpr bool computes_advantages_v<GroupAdvantage<B, S, C, R>> = true;

}  // namespace detail

/// GDPO (arXiv 2601.05242): each reward is standardized in its group, their sum over the batch.
using Gdpo = GroupAdvantage<>;
/// GRPO (arXiv 2402.03300): the weighted sum of the rewards is standardized in its group.
using Grpo = GroupAdvantage<baseline::Mean, scale::StdDev, combine::SumThenNormalize>;
/// Dr.GRPO (arXiv 2503.20783), "GRPO without std": the weighted sum minus its mean in the group.
using DrGrpo = GroupAdvantage<baseline::Mean, scale::None, combine::SumThenNormalize>;
/// RLOO (arXiv 2402.14740): the weighted sum minus its mean over the other members of the group.
using Rloo = GroupAdvantage<baseline::LeaveOneOut, scale::None, combine::SumThenNormalize>;
/// MaxRL (arXiv 2602.02710): the weighted sum minus its mean in the group, divided by that mean.
using MaxRl = GroupAdvantage<baseline::Mean, scale::GroupMean, combine::SumThenNormalize>;
/// No comparison: the weighted sum of the rewards itself, also in a group of one.
using RawReward = GroupAdvantage<baseline::None, scale::None, combine::SumThenNormalize>;
/// GDPO whose stds are shrunk towards the batch's, reward by reward: for groups of a few
/// completions, where a group's own std is a coin flip (advantage/shrunk_std.hpp).
using ShrunkGdpo = GroupAdvantage<baseline::Mean, scale::ShrunkStd>;
/// GRPO whose stds are shrunk towards the batch's (advantage/shrunk_std.hpp).
using ShrunkGrpo = GroupAdvantage<baseline::Mean, scale::ShrunkStd, combine::SumThenNormalize>;
static_assert(std::is_trivially_copyable_v<Gdpo>, "estimators are kernel arguments");

/// The same estimator without its renormalization and its `clip`: its advantages are the combined
/// values before them, those of `Workspace::sums`.
template <class B, class S, class C, class R>
constexpr GroupAdvantage<B, S, C, R> before_renorm(GroupAdvantage<B, S, C, R> e) {
  e.renorm.over = RenormOver::None;
  e.clip = {};
  return e;
}

GDPO_END_NAMESPACE
