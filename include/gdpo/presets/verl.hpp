#pragma once
// Presets of verl.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/logits/distillation_loss.hpp>
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/value/token_advantage.hpp>
#include <gdpo/value/token_baseline.hpp>
#include <gdpo/value/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
/// The estimators of verl, core_algos.py, over rows and over tokens, its aggregates and losses.
///
/// A group of one row keeps its reward, times 1 / (1 + eps) where the std divides. Missing (NaN)
/// rewards are not handled: NaN propagates. The advantage of a row goes to its valid tokens
/// (broadcast_into). The estimator is chosen by algorithm.adv_estimator.
namespace verl {
inline constexpr const char* version = "verl-project/verl@1dda039b";
/// The release that these presets were last tested against.
inline constexpr const char* release = "verl 0.9.1";

/// masked_whiten, for whiten_into(): it divides by sqrt(var + 1e-8), and adds 1e-8 to the count of
/// tokens. shift_mean=False is keep_mean = true.
inline constexpr Renorm masked_whiten = renorm::token_weighted_batch(1, 1e-8, EpsAt::Var, 1e-8);

namespace detail {
// This type has its policies' own default settings, and the values below have verl's. So it is not
// public under verl's names.
template <class Baseline, class Scale>
using OfSum = GroupAdvantage<Baseline, Scale, combine::SumThenNormalize>;

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

/// adv_estimator=grpo or grpo_vectorized (compute_grpo_outcome_advantage): centered, divided by the
/// std of the group + 1e-6.
inline constexpr Grpo grpo = detail::conventions(detail::scaled(Grpo{}));
/// adv_estimator=grpo with norm_adv_by_std_in_grpo=False: the reward minus the mean of the group.
inline constexpr DrGrpo grpo_no_std = detail::conventions(DrGrpo{});
/// adv_estimator=gdpo (compute_gdpo_outcome_advantage): the second stage counts every row as often
/// as it has tokens.
inline constexpr Gdpo gdpo = detail::whitened(detail::scaled(Gdpo{}));
/// compute_gdpo_outcome_advantage with norm_adv_by_std_in_grpo=False: the first stage only centers.
/// verl's trainer does not pass this option on to gdpo; it is for who calls the function.
inline constexpr auto gdpo_no_std = detail::whitened(GroupAdvantage<baseline::Mean, scale::None>{});
/// adv_estimator=rloo (compute_rloo_outcome_advantage): a group of one keeps its reward.
inline constexpr Rloo rloo = detail::conventions(Rloo{});
/// adv_estimator=rloo_vectorized: as `rloo`, but a group of one gives 0.
inline constexpr Rloo rloo_vectorized = detail::conventions(Rloo{}, Singleton::Zero);
/// adv_estimator=reinforce_plus_plus_baseline: centered in the group, then whitened over the tokens
/// of the batch (compute_reinforce_plus_plus_baseline_outcome_advantage).
inline constexpr DrGrpo reinforce_plus_plus_baseline = detail::whitened(DrGrpo{});
/// adv_estimator=opo (compute_opo_outcome_advantage): the reward minus the mean of the group in
/// which each completion counts by its length (OPO, arXiv 2505.23585). RewardBatch::tokens.
inline constexpr auto opo =
    detail::conventions(detail::OfSum<baseline::LengthWeighted, scale::None>{});
/// adv_estimator=gpg (compute_gpg_outcome_advantage) with f_norm 1: centered in the group, times
/// the number of rewards over that of rewards that are not 0 (GPG, arXiv 2504.02546).
inline constexpr auto gpg =
    detail::conventions(detail::OfSum<baseline::Mean, scale::NonzeroShare>{});
/// adv_estimator=grpo_passk (compute_grpo_passk_outcome_advantage): the best completion of a group
/// gets its distance to the second best, divided by the std of the group + 1e-6; the others get 0.
inline constexpr auto grpo_passk =
    detail::conventions(detail::scaled(detail::OfSum<baseline::SecondBest, scale::StdDev>{}));
/// adv_estimator=grpo_passk with norm_adv_by_std_in_grpo=False.
inline constexpr auto grpo_passk_no_std =
    detail::conventions(detail::OfSum<baseline::SecondBest, scale::None>{});

/// adv_estimator=gae (compute_gae_advantage_return): GAE over the valid tokens with lam 1, then
/// masked_whiten over the tokens. Token rewards that have paid for their KL are `rewards`; the
/// penalty here is off.
inline constexpr TokenAdvantage<returns::Gae, AnyKl> gae{
    {}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}, {}, masked_whiten};
/// adv_estimator=reinforce_plus_plus (compute_reinforce_plus_plus_outcome_advantage): discounted
/// rewards to go over the valid tokens, then masked_whiten.
inline constexpr TokenAdvantage<returns::RewardToGo, AnyKl> reinforce_plus_plus{
    {}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}, {}, masked_whiten};

/// adv_estimator=remax (compute_remax_outcome_advantage): the reward to go minus the baseline of
/// the row, the reward of the greedy completion of its prompt, which is bound as `values`:
/// gdpo::repeated(view). The returns are the reward to go.
inline constexpr TokenAdvantage<returns::Gae, AnyKl> remax{
    {}, {0, {0, Against::Ref, {}, {}, KlEstimator::K1}}};

// The aggregates of loss_agg_mode. Without a global batch they divide by the counts of the
// micro-batch. With one, set over = Over::Given, Normalizer::given = the summed batch_num_tokens or
// global_batch_size, and scale = dp_size.

/// loss_agg_mode="token-mean": the mean over tokens.
inline constexpr Aggregate token_mean = aggregate::token_mean();
/// loss_agg_mode="token-sum": the sum over tokens.
inline constexpr Aggregate token_sum = aggregate::token_sum();
/// loss_agg_mode="seq-mean-token-sum": the mean over rows with tokens of their token sums.
inline constexpr Aggregate seq_mean_token_sum = aggregate::seq_mean_token_sum(Over::NonEmptyRows);
/// loss_agg_mode="seq-mean-token-mean": the mean over rows with tokens of their token means, with
/// 1e-8 added to the number of tokens.
inline constexpr Aggregate seq_mean_token_mean{Aggregate::Mode::SeqMeanTokenMean,
                                               Over::NonEmptyRows, 0, 1, 1e-8};
/// loss_agg_mode="seq-mean-token-sum-norm" without loss_scale_factor: divided by the padded width
/// of the micro-batch. With it, set constant = loss_scale_factor and padded_width = false.
inline constexpr Aggregate seq_mean_token_sum_norm{
    Aggregate::Mode::SeqMeanTokenSumNorm, Over::NonEmptyRows, 0, 1, 0, 0, true};

// use_kl_loss=True is kl.beta = kl_loss_coef in the losses below, for kl_loss_type="low_var_kl".
// For another kl_loss_type use with_kl(), without the clamps, which verl has for k3 alone; a "+" at
// its end is kl::StraightThroughK2. Bind rollout_is_weights as TokenBatch::weights.

/// The KL term "low_var_kl", switched off: K3 with its input clamped to +-20 and its value to +-10.
inline constexpr Kl<kl::K3> clamped_kl{0.0, Against::Ref, {-20, 20}, {-10, 10}};
/// policy_loss.loss_mode=vanilla (compute_policy_loss_vanilla): the log ratio clamped to +-20, clip
/// 0.2, dual clip 3, and loss_agg_mode="token-mean".
inline constexpr PolicyLoss<level::Token<map::Clamp>> vanilla_loss{
    {{-20, 20}}, {0.2, 0.2, math::infinity, 3}, clamped_kl, aggregate::token_mean()};
/// policy_loss.loss_mode=gspo (compute_policy_loss_gspo): GSPO-token with the log ratio of the
/// sequence at most 10, and loss_agg_mode="token-mean", which verl's configuration has.
inline constexpr PolicyLoss<level::SequenceToken<>> gspo_loss{
    {{}, {}, {-math::infinity, 10}}, {}, clamped_kl, aggregate::token_mean()};
/// policy_loss.loss_mode=cispo (compute_policy_loss_cispo): the log ratio clamped to +-20, the
/// detached ratio between 1 - clip_ratio_low and 1 + clip_ratio_high, 0.2 both, and
/// loss_agg_mode="token-mean".
inline constexpr CispoLoss<level::Token<map::Clamp>> cispo_loss{
    {{-20, 20}}, {}, clamped_kl, aggregate::token_mean(), {{1 - 0.2, 1 + 0.2}, {}}};

/// policy_loss.loss_mode=clip_cov (compute_policy_loss_clip_cov): clip 0.2 and
/// loss_agg_mode="token-mean". The pre-pass `clip_cov` takes its picks out of the surrogate.
inline constexpr PolicyLoss<> clip_cov_loss{{}, {}, clamped_kl, aggregate::token_mean()};
/// policy_loss.loss_mode=kl_cov (compute_policy_loss_kl_cov): the ratio without a clip, plus
/// ppo_kl_coef |logp - old_logp| on the picks of the pre-pass `kl_cov`, without which it is on all
/// tokens; loss_agg_mode="token-mean". ppo_kl_coef, kl.beta here, is 0.1.
inline constexpr PolicyLoss<level::Token<>, surrogate::Ratio, Kl<kl::Abs>> kl_cov_loss{
    {}, {math::infinity, math::infinity}, {0.1, Against::Old}, aggregate::token_mean()};

/// policy_loss.loss_mode=dppo_tv and dppo_kl (compute_policy_loss_dppo_tv, DPPO, arXiv 2602.04879):
/// the log ratio clamped to +-20, the detached ratio at most clip_ratio_c, 3, and
/// loss_agg_mode="token-mean". The pre-pass `dppo_tv` or `dppo_kl` drops tokens.
inline constexpr CispoLoss<level::Token<map::Clamp>> dppo_loss{
    {{-20, 20}}, {}, clamped_kl, aggregate::token_mean(), {{0, 3}, {}}};
/// policy_loss.loss_mode=gpg (compute_policy_loss_gpg, GPG, arXiv 2504.02546) and the loss of
/// bypass mode with loss_type="reinforce" (compute_policy_loss_reinforce): REINFORCE, weighted by
/// TokenBatch::weights, and loss_agg_mode="token-mean".
inline constexpr PolicyLoss<level::Token<>, surrogate::Reinforce> reinforce_loss{
    {}, {}, clamped_kl, aggregate::token_mean()};
/// policy_loss.loss_mode=sapo (compute_policy_loss_sapo): the log ratio clamped to +-20, and SAPO's
/// gate; tau_pos 1 and tau_neg 1.05. Always "seq-mean-token-mean", whatever loss_agg_mode says.
inline constexpr PolicyLoss<level::Token<map::Clamp>, surrogate::Soft> sapo_loss{
    {{-20, 20}}, {}, clamped_kl, seq_mean_token_mean};
/// policy_loss.loss_mode=geo_mean (compute_policy_loss_geo_mean, GMPO, arXiv 2507.20673): log
/// ratios of tokens clipped on the side of the advantage, at -clip_ratio_low and clip_ratio_high,
/// and the geometric mean of the row's ratios. Both bounds are 0.4, as the paper has them; verl's
/// own default, 0.2, is that of all its losses. The mean over all rows, whatever loss_agg_mode
/// says, with 1e-8 added to the number of tokens.
inline constexpr GmpoLoss<> geo_mean_loss{
    {{}, {1e-8}},
    {math::infinity, math::infinity},
    clamped_kl,
    {Aggregate::Mode::SeqMeanTokenMean, Over::Rows, 0, 1, 1e-8}};
/// policy_loss.loss_mode=dro (compute_policy_loss_dro, DRO, arXiv 2405.19107; Kimi k1.5,
/// arXiv 2501.12599): REINFORCE plus dro_beta (logp - old_logp)^2 / 2, loss_agg_mode="token-mean".
/// verl has no default of dro_beta, here kl.beta, which is 0.5.
inline constexpr PolicyLoss<level::Token<>, surrogate::Reinforce, Kl<kl::K2>> dro_loss{
    {}, {}, {0.5, Against::Old}, aggregate::token_mean()};

// The pre-passes of clip_cov and kl_cov look at the tokens of one call of prepare(), as verl at
// those of a micro-batch.

/// The picks of loss_mode=clip_cov: 2e-4 of the tokens (clip_cov_ratio), at random among those with
/// a covariance between 1 and 5 (clip_cov_lb, clip_cov_ub). verl draws them from the generator of
/// torch; here set `seed` anew in each step.
inline constexpr prepass::Covariance clip_cov{};
/// The picks of loss_mode=kl_cov: the 2e-4 of the tokens (kl_cov_ratio) with the largest
/// covariance.
inline constexpr prepass::Covariance kl_cov = [] {
  prepass::Covariance pass{};
  pass.pick = prepass::CovariancePick::Top;
  pass.keep = prepass::CovarianceKeep::Picked;
  pass.reach = Reach::Kl;
  return pass;
}();

// ---- corrections between sampler and trainer: algorithm.rollout_correction ----
//
// Log ratios are clamped to +-20. In bypass mode old_logp is the sampler's, and both weights and
// rejections compare it with the current policy: set pair = prepass::Pair::Update, or by name
// "verl::token_is pair=update". Its loss_type="reinforce" is `reinforce_loss` with these weights;
// "ppo_clip" is `vanilla_loss` without them.

/// rollout_is="token": the ratio of each token, at most rollout_is_threshold, 2.
inline constexpr prepass::Importance token_is =
    presets::weight(prepass::Statistic::Token, {-math::infinity, 2}, {-20, 20});
/// rollout_is="sequence", verl's default: the product of the ratios of the row, at most 2.
inline constexpr prepass::Importance sequence_is =
    presets::weight(prepass::Statistic::SequenceSum, {-math::infinity, 2}, {-20, 20});
/// rollout_is="token" with rollout_is_threshold="0.5_5.0", as in IcePop (arXiv 2510.18855): the
/// ratio of each token, and 0 outside these bounds.
inline constexpr prepass::MaskedImportance token_icepop =
    presets::masked(presets::weight(prepass::Statistic::Token, {}, {-20, 20}),
                    presets::gate(prepass::Estimator::Ratio, prepass::Statistic::Token, 0.5, 5));
/// rollout_is="sequence" with rollout_is_threshold="0.5_5.0": the product of the ratios of the row,
/// and 0 outside these bounds.
inline constexpr prepass::MaskedImportance sequence_icepop = presets::masked(
    presets::weight(prepass::Statistic::SequenceSum, {}, {-20, 20}),
    presets::gate(prepass::Estimator::Ratio, prepass::Statistic::SequenceSum, 0.5, 5));
/// rollout_is="token" with rollout_is_batch_normalize: `token_is` divided by its mean over tokens.
inline constexpr auto token_is_normalized =
    presets::mean_one(token_is, prepass::MeanOf::Tokens, 1e-8, 1e-8);
/// rollout_is="sequence" with rollout_is_batch_normalize: `sequence_is` divided by its mean over
/// rows with tokens.
inline constexpr auto sequence_is_normalized =
    presets::mean_one(sequence_is, prepass::MeanOf::Rows, 1e-8, 1e-8);

// The options of rollout_rs. Tokens and rows that they drop leave the mask, and so the KL term and
// the counts too, but not verl's batch_num_tokens. Of a list all must pass: give one
// prepare() a gate for each, so that all see the mask of before. verl has no default of
// rollout_rs_threshold: set `max`, and for k1 `min` and `max` to the natural logarithms of its
// bounds. k1 is rollout - old: its bounds hold for the inverse of the ratio.

namespace detail {
/// Log ratios are clamped to +-20, and verl's mean of a row has the usual 1e-8 in its count. The
/// bounds of k1 are in nats, because verl's hold for e^k1.
constexpr prepass::Gate rejection(prepass::Estimator estimator, prepass::Statistic statistic,
                                  Bounds bounds) {
  prepass::Gate pass =
      presets::gate(estimator, statistic, bounds.lo, bounds.hi, Reach::Mask, {-20, 20});
  if (statistic == prepass::Statistic::SequenceMean) pass.count_eps = 1e-8;
  return pass;
}
/// The bounds 0.5 and 2 of a ratio, in nats.
inline constexpr Bounds half_to_twice{-0.69314718055994531, 0.69314718055994531};
/// The bounds 0.999 and 1.001 of a ratio, in nats.
inline constexpr Bounds per_mille{-0.0010005003335835344, 0.0009995003330834232};
}  // namespace detail
/// rollout_rs="token_k1" with rollout_rs_threshold="0.5_2.0": k1, of a token.
inline constexpr prepass::Gate token_k1 =
    detail::rejection(prepass::Estimator::K1, prepass::Statistic::Token, detail::half_to_twice);
/// rollout_rs="token_k2" with rollout_rs_threshold=0.1: k2, of a token.
inline constexpr prepass::Gate token_k2 =
    detail::rejection(prepass::Estimator::K2, prepass::Statistic::Token, {-math::infinity, 0.1});
/// rollout_rs="token_k3" with rollout_rs_threshold=0.1: k3, of a token.
inline constexpr prepass::Gate token_k3 =
    detail::rejection(prepass::Estimator::K3, prepass::Statistic::Token, {-math::infinity, 0.1});
/// rollout_rs="seq_sum_k1" with rollout_rs_threshold="0.5_2.0": k1, summed over the row.
inline constexpr prepass::Gate seq_sum_k1 = detail::rejection(
    prepass::Estimator::K1, prepass::Statistic::SequenceSum, detail::half_to_twice);
/// rollout_rs="seq_sum_k2" with rollout_rs_threshold=0.1: k2, summed over the row.
inline constexpr prepass::Gate seq_sum_k2 = detail::rejection(
    prepass::Estimator::K2, prepass::Statistic::SequenceSum, {-math::infinity, 0.1});
/// rollout_rs="seq_sum_k3" with rollout_rs_threshold=0.1: k3, summed over the row.
inline constexpr prepass::Gate seq_sum_k3 = detail::rejection(
    prepass::Estimator::K3, prepass::Statistic::SequenceSum, {-math::infinity, 0.1});
/// rollout_rs="seq_mean_k1" with rollout_rs_threshold="0.999_1.001": k1, mean of the row.
inline constexpr prepass::Gate seq_mean_k1 =
    detail::rejection(prepass::Estimator::K1, prepass::Statistic::SequenceMean, detail::per_mille);
/// rollout_rs="seq_mean_k2" with rollout_rs_threshold=0.01: k2, mean of the row.
inline constexpr prepass::Gate seq_mean_k2 = detail::rejection(
    prepass::Estimator::K2, prepass::Statistic::SequenceMean, {-math::infinity, 0.01});
/// rollout_rs="seq_mean_k3" with rollout_rs_threshold=0.01: k3, mean of the row.
inline constexpr prepass::Gate seq_mean_k3 = detail::rejection(
    prepass::Estimator::K3, prepass::Statistic::SequenceMean, {-math::infinity, 0.01});
/// rollout_rs="seq_max_k2" with rollout_rs_threshold=0.1: k2, largest of the row.
inline constexpr prepass::Gate seq_max_k2 = detail::rejection(
    prepass::Estimator::K2, prepass::Statistic::SequenceMax, {-math::infinity, 0.1});
/// rollout_rs="seq_max_k3" with rollout_rs_threshold=0.1: k3, largest of the row.
inline constexpr prepass::Gate seq_max_k3 = detail::rejection(
    prepass::Estimator::K3, prepass::Statistic::SequenceMax, {-math::infinity, 0.1});

/// policy_loss.loss_mode=dppo_tv: drops the tokens whose probability has moved by more than 0.2
/// (clip_ratio_low, clip_ratio_high) in the direction of their advantage.
inline constexpr prepass::Gate dppo_tv =
    presets::outward(prepass::Estimator::ProbabilityGain, prepass::Pair::Update, 0.2, 0.2);
/// policy_loss.loss_mode=dppo_kl: the same by the binary KL of the token against all others.
inline constexpr prepass::Gate dppo_kl =
    presets::outward(prepass::Estimator::SignedBinaryKl, prepass::Pair::Update, 0.2, 0.2, 1e-8);

/// What releases up to 0.9.0 compute in another way.
namespace v0_9_0 {
/// policy_loss.loss_mode=gspo: always "seq-mean-token-mean", whatever loss_agg_mode says.
inline constexpr auto gspo_loss = [] {
  auto loss = verl::gspo_loss;
  loss.aggregate = seq_mean_token_mean;
  return loss;
}();
}  // namespace v0_9_0

/// compute_value_loss: half the larger squared error, with clip 0.5 (cliprange_value) and
/// loss_agg_mode="token-mean".
inline constexpr ValueLoss<> value_loss{0.5};

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(
      Preset{"verl::grpo", grpo, "adv_estimator=grpo", version},
      Preset{"verl::grpo_no_std", grpo_no_std, "adv_estimator=grpo norm_adv_by_std_in_grpo=False",
             version},
      Preset{"verl::gdpo", gdpo, "adv_estimator=gdpo", version},
      Preset{"verl::gdpo_no_std", gdpo_no_std,
             "compute_gdpo_outcome_advantage norm_adv_by_std_in_grpo=False", version},
      Preset{"verl::rloo", rloo, "adv_estimator=rloo", version},
      Preset{"verl::rloo_vectorized", rloo_vectorized, "adv_estimator=rloo_vectorized", version},
      Preset{"verl::reinforce_plus_plus_baseline", reinforce_plus_plus_baseline,
             "adv_estimator=reinforce_plus_plus_baseline", version},
      Preset{"verl::opo", opo, "adv_estimator=opo", version},
      Preset{"verl::gpg", gpg, "adv_estimator=gpg", version},
      Preset{"verl::grpo_passk", grpo_passk, "adv_estimator=grpo_passk", version},
      Preset{"verl::grpo_passk_no_std", grpo_passk_no_std,
             "adv_estimator=grpo_passk norm_adv_by_std_in_grpo=False", version});
};
/// distillation_loss.loss_mode="forward_kl_topk" (compute_forward_kl_topk): the forward KL over the
/// teacher's tokens, whose log-probs are at least log_prob_min_clamp, -10, and whose sum is from 0
/// to loss_max_clamp, 10. loss_agg_mode is `aggregate`. It is for distillation_from_logits().
inline constexpr DistillationLoss forward_kl_topk_loss{0, Rest::Drop, 1, -10, {0, 10}};

/// adv_estimator="optimal_token_baseline" (compute_optimal_token_baseline_advantage), with the
/// default handle_zero_tail=True; False is tail = BaselineTail::Cancel. The returns are those of
/// RewardToGo with gamma 1; rollout_is_weights are TokenBaselineBatch::weights.
inline constexpr OptimalTokenBaseline optimal_token_baseline{
    1e-8, BaselinePlace::Column, BaselineMembers::All, BaselineTail::Raw};
/// adv_estimator="tir_optimal_token_baseline"
/// (compute_multi_turn_optimal_token_baseline_advantage): the tokens of all turns side by side; its
/// handle_zero_tail is True by default too.
inline constexpr OptimalTokenBaseline multi_turn_optimal_token_baseline{
    1e-8, BaselinePlace::Ordinal, BaselineMembers::NonEmpty, BaselineTail::Raw};

/// The token baselines by name.
inline constexpr auto token_baselines = [](const auto& f) {
  return f(Preset{"verl::optimal_token_baseline", optimal_token_baseline,
                  "adv_estimator=optimal_token_baseline", version},
           Preset{"verl::multi_turn_optimal_token_baseline", multi_turn_optimal_token_baseline,
                  "adv_estimator=tir_optimal_token_baseline", version});
};
/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(Preset{"verl::gae", gae, "adv_estimator=gae", version},
           Preset{"verl::reinforce_plus_plus", reinforce_plus_plus,
                  "adv_estimator=reinforce_plus_plus", version},
           Preset{"verl::remax", remax, "adv_estimator=remax", version});
};
/// The whitenings by name.
inline constexpr auto whitenings = [](const auto& f) {
  return f(Preset{"verl::masked_whiten", masked_whiten, "masked_whiten", version});
};
/// The value losses by name.
inline constexpr auto value_losses = [](const auto& f) {
  return f(Preset{"verl::value_loss", value_loss, "compute_value_loss", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"verl::vanilla", vanilla_loss, "policy_loss.loss_mode=vanilla", version},
           Preset{"verl::gspo", gspo_loss, "policy_loss.loss_mode=gspo", release},
           Preset{"verl::v0_9_0::gspo", v0_9_0::gspo_loss, "policy_loss.loss_mode=gspo", version},
           Preset{"verl::cispo", cispo_loss, "policy_loss.loss_mode=cispo", version},
           Preset{"verl::clip_cov", clip_cov_loss, "policy_loss.loss_mode=clip_cov", version},
           Preset{"verl::kl_cov", kl_cov_loss, "policy_loss.loss_mode=kl_cov", version},
           Preset{"verl::dppo_tv", dppo_loss, "policy_loss.loss_mode=dppo_tv", release},
           Preset{"verl::dppo_kl", dppo_loss, "policy_loss.loss_mode=dppo_kl", release},
           Preset{"verl::gpg", reinforce_loss, "policy_loss.loss_mode=gpg", version},
           Preset{"verl::reinforce", reinforce_loss,
                  "rollout_correction.bypass_mode rollout_correction.loss_type=reinforce", version},
           Preset{"verl::sapo", sapo_loss, "policy_loss.loss_mode=sapo", version},
           Preset{"verl::geo_mean", geo_mean_loss, "policy_loss.loss_mode=geo_mean", version},
           Preset{"verl::dro", dro_loss, "policy_loss.loss_mode=dro", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"verl::clip_cov", clip_cov, "policy_loss.loss_mode=clip_cov", version},
           Preset{"verl::kl_cov", kl_cov, "policy_loss.loss_mode=kl_cov", version},
           Preset{"verl::token_is", token_is, "rollout_is=token", release},
           Preset{"verl::sequence_is", sequence_is, "rollout_is=sequence", release},
           Preset{"verl::token_icepop", token_icepop,
                  "rollout_is=token rollout_is_threshold=0.5_5.0", release},
           Preset{"verl::sequence_icepop", sequence_icepop,
                  "rollout_is=sequence rollout_is_threshold=0.5_5.0", release},
           Preset{"verl::token_is_normalized", token_is_normalized,
                  "rollout_is=token rollout_is_batch_normalize=True", release},
           Preset{"verl::sequence_is_normalized", sequence_is_normalized,
                  "rollout_is=sequence rollout_is_batch_normalize=True", release},
           Preset{"verl::token_k1", token_k1, "rollout_rs=token_k1", release},
           Preset{"verl::token_k2", token_k2, "rollout_rs=token_k2", release},
           Preset{"verl::token_k3", token_k3, "rollout_rs=token_k3", release},
           Preset{"verl::seq_sum_k1", seq_sum_k1, "rollout_rs=seq_sum_k1", release},
           Preset{"verl::seq_sum_k2", seq_sum_k2, "rollout_rs=seq_sum_k2", release},
           Preset{"verl::seq_sum_k3", seq_sum_k3, "rollout_rs=seq_sum_k3", release},
           Preset{"verl::seq_mean_k1", seq_mean_k1, "rollout_rs=seq_mean_k1", release},
           Preset{"verl::seq_mean_k2", seq_mean_k2, "rollout_rs=seq_mean_k2", release},
           Preset{"verl::seq_mean_k3", seq_mean_k3, "rollout_rs=seq_mean_k3", release},
           Preset{"verl::seq_max_k2", seq_max_k2, "rollout_rs=seq_max_k2", release},
           Preset{"verl::seq_max_k3", seq_max_k3, "rollout_rs=seq_max_k3", release},
           Preset{"verl::dppo_tv", dppo_tv, "policy_loss.loss_mode=dppo_tv", release},
           Preset{"verl::dppo_kl", dppo_kl, "policy_loss.loss_mode=dppo_kl", release});
};
/// The aggregates by name.
inline constexpr auto aggregates = [](const auto& f) {
  return f(
      Preset{"token-mean", token_mean, "loss_agg_mode=token-mean", version},
      Preset{"token-sum", token_sum, "loss_agg_mode=token-sum", version},
      Preset{"seq-mean-token-sum", seq_mean_token_sum, "loss_agg_mode=seq-mean-token-sum", version},
      Preset{"seq-mean-token-sum-norm", seq_mean_token_sum_norm,
             "loss_agg_mode=seq-mean-token-sum-norm", version},
      Preset{"seq-mean-token-mean", seq_mean_token_mean, "loss_agg_mode=seq-mean-token-mean",
             version});
};
}  // namespace verl
GDPO_END_NAMESPACE
