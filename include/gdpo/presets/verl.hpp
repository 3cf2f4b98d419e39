#pragma once
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>

GDPO_BEGIN_NAMESPACE
/// verl, core_algos.py. A group of one keeps its reward (Raw); missing rewards are not handled:
/// NaN propagates. The row's advantage goes to its valid tokens (broadcast_into).
namespace verl {
inline constexpr const char* version = "verl-project/verl@1dda039b";

/// masked_whiten (whiten_into): rsqrt(var + 1e-8), counts + 1e-8. shift_mean=False is keep_mean.
inline constexpr renorm::TokenWeightedBatch masked_whiten{1, 1e-8, EpsAt::Var, 1e-8};

namespace detail {
// Types with their policies' own settings, so they carry no name of verl's: the values below have verl's settings.
using Whitened = GroupAdvantage<baseline::Mean, scale::StdDev, combine::NormalizeThenSum,
                                renorm::TokenWeightedBatch>;
using WhitenedNoStd = GroupAdvantage<baseline::Mean, scale::None, combine::NormalizeThenSum,
                                     renorm::TokenWeightedBatch>;
using ReinforceBaseline = GroupAdvantage<baseline::Mean, scale::None, combine::SumThenNormalize,
                                         renorm::TokenWeightedBatch>;

template <class Estimator>
constexpr Estimator conventions(Estimator e, Singleton singleton = Singleton::Raw) {
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  e.singleton = singleton;
  return e;
}
template <class Estimator>
constexpr Estimator whitened(Estimator e) {
  e.renorm = masked_whiten;
  return conventions(e);
}
template <class Estimator>
constexpr Estimator scaled(Estimator e, double eps = 1e-6) {
  e.scale.eps = eps;
  return e;
}
}  // namespace detail

/// compute_grpo_outcome_advantage and its vectorized twin.
inline constexpr Grpo grpo = detail::conventions(detail::scaled(Grpo{}));
/// The same with norm_adv_by_std_in_grpo=False.
inline constexpr DrGrpo grpo_no_std = detail::conventions(DrGrpo{});
/// compute_gdpo_outcome_advantage: the second stage counts every row as often as it has tokens.
inline constexpr auto gdpo = detail::whitened(detail::scaled(detail::Whitened{}));
inline constexpr auto gdpo_no_std = detail::whitened(detail::WhitenedNoStd{});
/// compute_rloo_outcome_advantage keeps the reward of a group of one, its vectorized twin gives 0.
inline constexpr Rloo rloo = detail::conventions(Rloo{});
inline constexpr Rloo rloo_vectorized = detail::conventions(Rloo{}, Singleton::Zero);
/// compute_reinforce_plus_plus_baseline_outcome_advantage.
inline constexpr auto reinforce_plus_plus_baseline = detail::whitened(detail::ReinforceBaseline{});

/// loss_agg_mode. Without a global batch they divide by the local counts; with one, over = Over::Given (the summed
/// batch_num_tokens or global_batch_size) and scale = dp_size.
inline constexpr aggregate::TokenMean token_mean{};
inline constexpr aggregate::TokenSum token_sum{};
inline constexpr aggregate::SeqMeanTokenSum seq_mean_token_sum{Over::NonEmptyRows};
inline constexpr aggregate::SeqMeanTokenMean seq_mean_token_mean{Over::NonEmptyRows, 0, 1, 1e-8};
/// Without loss_scale_factor (constant = it, padded_width = false) verl divides by the padded width of the micro-batch.
inline constexpr aggregate::SeqMeanTokenSumNorm seq_mean_token_sum_norm{0, true,
                                                                        Over::NonEmptyRows};

/// compute_policy_loss_vanilla: log ratio within +-20, dual clip 3, "token-mean". use_kl_loss: kl.beta = kl_loss_coef, of
/// low_var_kl between clamps; another kl_loss_type: with_kl, "+" is kl::StraightThroughK2. rollout_is_weights are
/// TokenBatch::weights.
inline constexpr Kl<kl::K3> clamped_kl{0.0, Against::Ref, {-20, 20}, {-10, 10}};
inline constexpr PolicyLoss<level::Token<map::Clamp>, surrogate::Ratio, Kl<kl::K3>,
                            aggregate::TokenMean>
    vanilla_loss{{{-20, 20}}, {0.2, 0.2, math::infinity, 3}, clamped_kl};
/// compute_policy_loss_gspo: GSPO-token with the log ratio of the sequence at most 10, always "seq-mean-token-mean".
inline constexpr PolicyLoss<level::SequenceToken<>, surrogate::Ratio, Kl<kl::K3>,
                            aggregate::SeqMeanTokenMean>
    gspo_loss{{{}, {}, {-math::infinity, 10}}, {}, clamped_kl, seq_mean_token_mean};
}  // namespace verl
GDPO_END_NAMESPACE
