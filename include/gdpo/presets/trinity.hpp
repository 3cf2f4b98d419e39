#pragma once
// The estimators and policy losses of Trinity-RFT as presets, and their masks.
#include <cmath>
#include <gdpo/advantage/gigpo.hpp>
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/prepass/entropy_clip.hpp>
#include <gdpo/presets/correction.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/value/mixture_penalty.hpp>
#include <gdpo/value/outcome_advantage.hpp>

GDPO_BEGIN_NAMESPACE
/// The losses of Trinity-RFT, algorithm/policy_loss_fn, the terms of its KL loss, kl_fn, its masks
/// and its distillation.
///
/// Each mean over tokens adds 1e-8 to their number. Its loss_agg_mode:
///
///     token-mean               aggregate::token_mean() with count_eps = 1e-8
///     seq-mean-token-sum       aggregate::seq_mean_token_sum(), over all rows
///     seq-mean-token-mean      aggregate::seq_mean_token_mean() with row_count_eps = 1e-8
///     seq-mean-token-sum-norm  aggregate::token_mean(Over::Given) with count_eps = 1e-8, given the
///                              padded width: it is not divided by the number of rows
namespace trinity {
inline constexpr const char* version = "trinity 0.6.0";
namespace detail {
inline constexpr Aggregate token_mean{Aggregate::Mode::TokenMean, Over::Tokens, 1e-8};
inline constexpr Aggregate seq_mean_token_mean{Aggregate::Mode::SeqMeanTokenMean, Over::Rows, 0, 1,
                                               1e-8};
// Trinity-RFT does not handle missing rewards: NaN propagates. A group of one has baseline 0.
template <class Baseline, class Scale = scale::None>
constexpr auto of_sum(const Baseline& baseline, const Scale& scale = {}) {
  GroupAdvantage<Baseline, Scale, combine::SumThenNormalize> e{};
  e.baseline = baseline;
  e.scale = scale;
  e.missing = {MissingEntry::Propagate, MissingRow::Keep};
  e.singleton = Singleton::Raw;
  return e;
}
}  // namespace detail

/// GRPOGroupedAdvantage: centered, divided by the std of the group + 1e-6 (epsilon). A group of one
/// keeps its reward, divided by 1 + 1e-6.
inline constexpr Grpo grpo = detail::of_sum(baseline::Mean{}, scale::StdDev{{}, 1, 1e-6});
/// GRPOGroupedAdvantage with std_cal_level="batch": divided by the std of all rewards + 1e-6.
inline constexpr Grpo grpo_batch_std =
    detail::of_sum(baseline::Mean{}, scale::StdDev{scale::Of::Batch, 1, 1e-6});
/// RECGroupedAdvantage: the reward minus the mean of the group.
inline constexpr DrGrpo rec = detail::of_sum(baseline::Mean{});
/// RECGroupedAdvantage with std_normalize: divided by the population std of the group + 1e-6.
inline constexpr Grpo rec_std = detail::of_sum(baseline::Mean{}, scale::StdDev{{}, 0, 1e-6});
/// OPMDGroupAdvantage: the reward minus the mean of the group.
inline constexpr DrGrpo opmd = rec;
/// OPMDGroupAdvantage with opmd_baseline="logavgexp": the reward minus tau log mean e^{reward /
/// tau} of the group, with tau 1 (baseline.tau).
inline constexpr auto opmd_logavgexp = detail::of_sum(baseline::LogMeanExp{});
/// ASYMREGroupAdvantage: the reward minus the mean of the group shifted by -0.1 (baseline_shift,
/// here baseline.shift). A group of one keeps its reward.
inline constexpr auto asymre = detail::of_sum(baseline::ShiftedMean{-0.1});
/// REINFORCEGroupAdvantage: the reward.
inline constexpr auto reinforce = detail::of_sum(baseline::None{});

/// REINFORCE times a detached factor.
template <class Factor>
using ReinforceLoss =
    PolicyLoss<level::Token<>, surrogate::Reinforce, Kl<>, Aggregate, Factors<Factor>>;
/// PPOPolicyLossFn: the log ratio clamped to +-20, clip 0.2, dual clip 3, and "token-mean".
/// enable_sequence_masking is the pre-pass `sequence_masking`. For fallback_to_policy_gradient
/// leave old_logp out: the ratio is then 1, with its gradient.
inline constexpr PolicyLoss<level::Token<map::Clamp>> ppo_loss{
    {{-20, 20}}, {0.2, 0.2, math::infinity, 3}, {0.0}, detail::token_mean};
/// GSPOLossFn: GSPO-token, clip 3e-4 below and 4e-4 above, and "seq-mean-token-mean".
inline constexpr PolicyLoss<level::SequenceToken<>> gspo_loss{
    {{}, {1e-8}}, {3e-4, 4e-4}, {0.0}, detail::seq_mean_token_mean};
/// CISPOPolicyLossFn: the detached ratio between 1 - clip_range_low and 1 + clip_range_high, which
/// are 1 (no lower bound) and 0.28, and "token-mean". enable_mask_clip is the pre-pass `mask_clip`.
inline constexpr CispoLoss<> cispo_loss{
    {}, {}, {0.0}, detail::token_mean, {{1 - 1.0, 1 + 0.28}, {}}};
/// SAPOPolicyLossFn: -sg(gate) A log p with the gate of SAPO, tau_pos 1 and tau_neg 1.05, and
/// "token-mean". It is another loss than SAPO (factor::SoftGate).
inline constexpr ReinforceLoss<factor::SoftGate> sapo_loss{{}, {}, {0.0}, detail::token_mean};
/// TOPRPolicyLossFn: -sg(w) A log p, where w is 1 if A > advantage_threshold (0), and else the
/// ratio, at most 1; "token-mean".
inline constexpr ReinforceLoss<factor::SignedRatio> topr_loss{{}, {}, {0.0}, detail::token_mean};
/// ImportanceSamplingLossFn: -A r with the log ratio clamped to +-20, without a clip; "token-mean".
inline constexpr PolicyLoss<level::Token<map::Clamp>> importance_sampling_loss{
    {{-20, 20}}, {math::infinity, math::infinity}, {0.0}, detail::token_mean};
/// sPPOPolicyLossFn: -A log r where r is within 1 / (1 + epsilon) and 1 + epsilon, with epsilon
/// 0.3; "token-mean".
inline constexpr PolicyLoss<level::Token<>, surrogate::LogRatio> sppo_loss{
    {}, {}, {0.0}, detail::token_mean};
/// OPMDPolicyLossFn: -A log p / (1 + tau) with tau 1, and "token-mean". aggregate.scale is
/// 1 / (1 + tau).
inline constexpr PolicyLoss<level::Token<>, surrogate::Reinforce> opmd_loss{
    {}, {}, {0.0}, {Aggregate::Mode::TokenMean, Over::Tokens, 1e-8, 0.5}};
/// RECPolicyLossFn (arXiv 2509.24203): -A w log p, with a mean over tokens. By default w is 1 for
/// every token. factor::Ring has its clip_mode, its bounds and weight importance_sampling or
/// advantage. Its regularizers, each with regularizer_coef c, are KL terms:
///
///     k2           kl.beta = 2 c, because K2 is half the square
///     forward-kl   kl.estimator = ForwardK1, kl.against = Against::Data, kl.beta = c
///
/// clip_mode "gspo-one-side" and weight "gspo_importance_sampling" look at the ratio of the row:
/// with_level(rec_loss, gspo_loss.level) with the aggregate of gspo_loss.
inline constexpr PolicyLoss<level::Token<>, surrogate::Reinforce, Kl<kl::K2>, Aggregate,
                            Factors<factor::Ring>>
    rec_loss{{}, {}, {0.0, Against::Old}, detail::token_mean};
/// SFTLossFn: -log p, and "token-mean". It needs no advantages.
inline constexpr PolicyLoss<level::Token<>, surrogate::Likelihood> sft_loss{
    {}, {}, {0.0}, detail::token_mean};
/// The type of the losses below.
using WeighedLikelihoodLoss = PolicyLoss<level::Token<>, surrogate::Likelihood, Kl<>, Aggregate,
                                         Factors<factor::Probability>>;
/// SFTISLossFn: -sg(p) log p, and "token-mean".
inline constexpr WeighedLikelihoodLoss sft_is_loss{{}, {}, {0.0}, detail::token_mean};
/// SFTPhiLossFn: -sg(p (1 - p)) log p, and "token-mean". cutoff_prob, 1 by default, is
/// surrogate.floor = -log cutoff_prob.
inline constexpr WeighedLikelihoodLoss sft_phi_loss{{}, {}, {0.0}, detail::token_mean, {{1.0}, {}}};
/// MIXPolicyLossFn: (1 - mu) ppo_loss of the usual rows plus mu sft_loss of the expert rows. Call
/// each with a mask of its rows and the counts of that, and add up losses and gradients.
/// MIXCHORDPolicyLossFn is the same with sft_phi_loss, unless enable_phi_function is off, and with
/// the mu of the step (chord_mu).
///
/// The weight of a part goes into aggregate.scale: `share`, which is 1 - mu or mu, times the rows
/// of the part in the micro-batch, times `micro_batches` / `train_batch_size`. The latter is
/// train_batch_size_usual or _expert, the rows of the part in the step. `micro_batches` are those
/// of the step; with use_dynamic_bsz, the rows of the step over those of the micro-batch.
constexpr double mix_scale(double share, double rows, double micro_batches,
                           double train_batch_size) {
  return share * rows * micro_batches / train_batch_size;
}
/// The mu of MIXCHORDPolicyLossFn: linear from 0 to `peak` over the first `warmup` steps, then half
/// a cosine down to `valley` over `decay` steps, where it stays. It is 0 in step 0 of a warm-up.
inline double chord_mu(double step, double warmup, double decay, double peak, double valley) {
  if (step < warmup) return step / warmup * peak;
  if (step >= warmup + decay) return valley;
  constexpr double pi = 3.14159265358979323846;
  return (peak - valley) * 0.5 * (1 + std::cos(pi * (step - warmup) / decay)) + valley;
}

// The KL loss of Trinity-RFT, calculate_kl_loss, is kl_coef times the mean of one of these, apart
// from the policy loss. Set `kl` of a loss; for the KL loss alone use surrogate::None. K1Fn, K2Fn
// and AbsFn are K1, K2 and Abs without a clamp. kl_coef, kl.beta here, is 0.001.

/// K3Fn, kl_fn="k3": K3 against the reference policy.
inline constexpr Kl<kl::K3> k3_kl{0.001};
/// LowVarKLFn, kl_fn="low_var_kl": K3 with its input clamped to +-20 and its value to +-10.
inline constexpr Kl<kl::K3> low_var_kl{0.001, Against::Ref, {-20, 20}, {-10, 10}};
/// CorrectedK3Fn, kl_fn="corrected_k3": K3 times the ratio to old_logp, at most 2, with the
/// gradient of both.
inline constexpr Kl<kl::K3, kl::ClippedImportanceWeighted> corrected_k3_kl{
    0.001, Against::Ref, {}, {}, {2}};

/// PPOPolicyLossFn with enable_sequence_masking: drops the tokens with A < 0 of rows whose mean of
/// old_logp - logp is above delta_sequence_masking, 0.1. They still count.
inline constexpr prepass::Gate sequence_masking = [] {
  prepass::Gate pass = prepass::off_policy_sequence_mask(0.1);
  pass.pair = prepass::Pair::Update, pass.clamp = {-20, 20}, pass.count_eps = 1e-10;
  return pass;
}();
/// CISPOPolicyLossFn with enable_mask_clip: drops tokens whose ratio is outside 1 -
/// mask_clip_range_low and 1 + mask_clip_range_high, which are 1 (no lower bound) and 0.28, where
/// the update would push it further.
inline constexpr prepass::Gate mask_clip = [] {
  prepass::Gate pass =
      presets::gate(prepass::Estimator::Ratio, prepass::Statistic::Token, 1 - 1.0, 1 + 0.28);
  pass.pair = prepass::Pair::Update, pass.when = prepass::When::Outward;
  return pass;
}();

/// PPOAdvantageFn: GAE with gamma 1 and lam 1 in which every position is a step, masked ones too,
/// with its reward and its value; then whitened over the valid tokens.
inline constexpr auto ppo_advantage = [] {
  auto e = verl::gae;
  e.returns.steps = Steps::Row;
  return e;
}();
/// REINFORCEPLUSPLUSAdvantageFn: discounted rewards to go with gamma 1, in which every position is
/// a step with its reward, then whitened over the valid tokens.
inline constexpr auto reinforce_plus_plus = [] {
  auto e = verl::reinforce_plus_plus;
  e.returns.steps = Steps::Row;
  return e;
}();
/// REMAXAdvantageFn: the reward to go minus the baseline of the row, as in verl.
inline constexpr auto remax = verl::remax;
/// RLOOAdvantageFn: the reward minus the mean of the others of its group, at every token. A group
/// of one keeps its reward. The reward of a row is the sum of those of its tokens.
inline constexpr auto rloo_outcome = [] {
  auto tokens = verl::reinforce_plus_plus;
  tokens.returns.gamma = 0, tokens.renorm = {};
  return OutcomeAdvantage<Rloo, decltype(tokens)>{verl::rloo, tokens, Placement::EveryToken};
}();
/// GiGPOAdvantageFn: omega and gamma 1, states pooled over the tasks, eps 1e-6. fnorm="none", which
/// divides by 1 + eps, is gigpo_no_std with pool_states and weights of 1 / (1 + eps).
inline constexpr Gigpo<Grpo> gigpo = [] {
  Gigpo<Grpo> e;
  e.episode.scale.eps = e.step.scale.eps = 1e-6;
  e.pool_states = true;
  return e;
}();
/// ClipBAdvantageFn, the mask after the advantages of its GRPO: mu 2.5, by the sampler's log-probs.
inline constexpr prepass::EntropyClip clip_b{2.5, EntropyCenter::Batch, 1, false, Against::Rollout};
/// ClipVAdvantageFn: mu 8.5, max_frac 1e-4, by old_logp, with its `necs` as TokenBatch::tags. It
/// also drops tokens with A = 0, and max_frac does not limit those.
inline constexpr prepass::EntropyClip clip_v{8.5, EntropyCenter::Tags, 1e-4, true, Against::Old};

/// JSDAdvantage: lambda_coef 0.5 is penalty.kl.lambda, kl_coef 1 is penalty.coef, temperature 1.
inline constexpr auto jsd = mixture_advantage;
/// OnPolicyDistillAdvantage: the teacher's log ratio times kl_coef, 1, and no reward.
inline constexpr auto on_policy_distill = distillation_advantage;

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"trinity::grpo", grpo, "GRPOGroupedAdvantage", version},
           Preset{"trinity::grpo_batch_std", grpo_batch_std,
                  "GRPOGroupedAdvantage std_cal_level=batch", version},
           Preset{"trinity::rec", rec, "RECGroupedAdvantage", version},
           Preset{"trinity::rec_std", rec_std, "RECGroupedAdvantage std_normalize=True", version},
           Preset{"trinity::opmd", opmd, "OPMDGroupAdvantage", version},
           Preset{"trinity::opmd_logavgexp", opmd_logavgexp,
                  "OPMDGroupAdvantage opmd_baseline=logavgexp", version},
           Preset{"trinity::asymre", asymre, "ASYMREGroupAdvantage baseline_shift=-0.1", version},
           Preset{"trinity::reinforce", reinforce, "REINFORCEGroupAdvantage", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"trinity::ppo", ppo_loss, "PPOPolicyLossFn", version},
           Preset{"trinity::gspo", gspo_loss, "GSPOLossFn", version},
           Preset{"trinity::cispo", cispo_loss, "CISPOPolicyLossFn", version},
           Preset{"trinity::sapo", sapo_loss, "SAPOPolicyLossFn", version},
           Preset{"trinity::topr", topr_loss, "TOPRPolicyLossFn", version},
           Preset{"trinity::importance_sampling", importance_sampling_loss,
                  "ImportanceSamplingLossFn", version},
           Preset{"trinity::sppo", sppo_loss, "sPPOPolicyLossFn", version},
           Preset{"trinity::opmd", opmd_loss, "OPMDPolicyLossFn", version},
           Preset{"trinity::rec", rec_loss, "RECPolicyLossFn", version},
           Preset{"trinity::sft", sft_loss, "SFTLossFn", version},
           Preset{"trinity::sft_is", sft_is_loss, "SFTISLossFn", version},
           Preset{"trinity::sft_phi", sft_phi_loss, "SFTPhiLossFn", version});
};
/// The estimators over tokens by name.
inline constexpr auto token_advantages = [](const auto& f) {
  return f(
      Preset{"trinity::on_policy_distill", on_policy_distill, "OnPolicyDistillAdvantage", version},
      Preset{"trinity::ppo", ppo_advantage, "PPOAdvantageFn", version},
      Preset{"trinity::reinforce_plus_plus", reinforce_plus_plus, "REINFORCEPLUSPLUSAdvantageFn",
             version},
      Preset{"trinity::remax", remax, "REMAXAdvantageFn", version},
      Preset{"trinity::jsd", jsd, "JSDAdvantage", version});
};
/// The estimators from rows to tokens by name.
inline constexpr auto outcome_advantages = [](const auto& f) {
  return f(Preset{"trinity::rloo", rloo_outcome, "RLOOAdvantageFn", version});
};
/// The estimators of the steps of agents by name.
inline constexpr auto step_advantages = [](const auto& f) {
  return f(Preset{"trinity::gigpo", gigpo, "GiGPOAdvantageFn", version});
};
/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(
      Preset{"trinity::sequence_masking", sequence_masking, "enable_sequence_masking", version},
      Preset{"trinity::mask_clip", mask_clip, "enable_mask_clip", version},
      Preset{"trinity::clip_b", clip_b, "ClipBAdvantageFn", version},
      Preset{"trinity::clip_v", clip_v, "ClipVAdvantageFn", version});
};
}  // namespace trinity
GDPO_END_NAMESPACE
