#pragma once
/// \file
/// The mismatch report: how far the log-probs of the sampling engine are from the trainer's.
///
/// Engine and trainer compute different log-probs for the same weights of the model, because of
/// other kernels, another precision, or weights that are a step old. For each valid token let o be
/// its log-prob under the trainer (old_logp, or logp where the batch has none), q that of the
/// engine (rollout_logp), and
///
///     x = o - q in nats,  r = e^clamp(x),  w = the token's weight (1 where the batch has none)
///     s = sum of x over a row,  p = e^clamp(s),  g = e^clamp(s / n),  n tokens in the row
///
/// <!-- build: door_mismatch run -->
/// ```cpp
/// const std::vector<float> old_logp = {-0.9f, -1.4f, -0.2f, -0.5f, -3.0f, -0.3f};
/// const std::vector<float> rollout_logp = {-1.0f, -1.4f, -0.2f, -0.6f, -1.0f, -0.3f};
/// gdpo::TokenBatch<float> batch;  // two completions, three tokens each
/// batch.old_logp = gdpo::view(old_logp.data(), 2, 3);
/// batch.rollout_logp = gdpo::view(rollout_logp.data(), 2, 3);
/// const gdpo::MismatchReport r = gdpo::mismatch(batch);
/// std::printf("KL %.3f nats, effective sample size %.2f\n", r.k3_kl(), r.token_ess());
/// // prints KL 0.191 nats, effective sample size 0.87
/// std::printf("smallest ratio %.3f at row %d, token %d\n", r.ratio_min.value,
///             static_cast<int>(r.ratio_min.row), static_cast<int>(r.ratio_min.token));
/// // prints smallest ratio 0.135 at row 1, token 1
///
/// // The same after a correction, which gives the batch weights, under verl's keys:
/// gdpo::prepass::Importance correction;
/// correction.clip.hi = 2;
/// gdpo::PrepassMemory<float> memory;
/// const auto prepared = gdpo::prepare(batch, memory, correction);
/// const auto keys = gdpo::MismatchKeys::Verl;
/// const auto log = gdpo::mismatch(prepared, gdpo::mismatch_settings(keys, 2)).to_map(keys);
/// std::printf("%.3f\n", log.at("rollout_corr/rollout_is_mean"));  // prints 0.891
/// ```
///
/// **Calls.**
///
///     mismatch(batch)                        the report; optional arguments: settings, first_row
///     merge(report, report)                  of micro-batches or ranks: the bits of one report of
///                                            all rows, in any order; dist::all_merge takes it too
///     mismatch_settings(keys, bound)         the conventions of a trainer
///     report.to_map(keys, prefix)            the metrics under the keys that a trainer logs
///     diagnose(report)                       what is wrong with it, with gdpo/diagnose.hpp
///     cuda::mismatch_into(on, batch, ...)    the same report on a GPU, with gdpo/cuda.hpp
///
/// **Inputs.** A TokenBatch with rollout_logp, and old_logp or logp; optional mask, weights,
/// completion_mask and offsets. Before prepare(), or after it: then the mask is what corrections
/// have left, and the weights are theirs.
///
/// **Results.** A MismatchReport has counts, exact sums and extremes with their place. Its member
/// functions are the metrics, each a double:
///
///     kl, k3_kl                      KL(rollout || old): mean of -x (k1); of e^x - 1 - x (k3)
///     reverse_kl, reverse_k3_kl      KL(old || rollout): mean of r x; of e^-x - 1 + x, which is k3
///                                    with the two exchanged, as in NeMo-RL
///     js_divergence                  Jensen-Shannon: mean of log cosh(x / 2), which is k3 of both
///                                    against log((e^o + e^q) / 2), as in NeMo-RL
///     abs_log_diff, mult_prob_error, prob_diff
///                                    means of |x|, of e^|x| (NeMo-RL) and of |e^o - e^q|
///     ratio_mean, ratio_std, chi2_token, token_ess, token_fraction_low, token_fraction_high
///                                    of r over tokens; chi2: mean of r^2 - 1
///     mean_ppl, mean_log_ppl, mean_rollout_ppl, mean_rollout_log_ppl, mean_ppl_ratio,
///     mean_log_ppl_diff, mean_abs_log_ppl_diff
///                                    of rows: log ppl = -sum o / n, or q; old minus rollout
///     product_mean, _std, _ess, _fraction_low, _fraction_high, chi2_product
///                                    of p over rows; geometric_... the same of g;
///                                    mean_fraction_... of the mean of r in the row
///     weight_mean, weight_std, weight_ess, bounded_weight_ess, row_weight_mean, row_weight_std,
///     row_weight_ess                 of w over tokens; of its mean in each row
///     weight_dropped, rows_dropping  shares of tokens of weight 0, and of rows with one
///     dropped_share, dropped_row_share, missing_share
///                                    shares that corrections dropped, by weight or mask; share of
///                                    tokens without a rollout_logp
///
/// An effective sample size is the share (sum w)^2 / (n sum w^2), 1 where all are equal. An empty
/// batch gives 0 everywhere. Where both log-probs are equal, all divergences are exactly 0 and all
/// ratios exactly 1. Extremes, such as ratio_max or row_weight_deviation, have a value, a row and a
/// token.
///
/// **Keys.** mismatch_settings() gives the trainer's conventions: counts with eps, and rows without
/// a token, which verl counts as perplexity 1, ratio 1 and weight 0.
///
///     Verl, VerlSequence         rollout_corr/   of compute_offpolicy_metrics, and rollout_is_*
///     MsSwift, MsSwiftSequence   rollout_correction/
///     NemoRl                     token_mult_prob_error, gen_kl_error, policy_kl_error,
///                                js_divergence_error
///     OpenRlhf                   vllm_kl
///     SkyRl                      is_ratio_*; std, max and min include padding: give `positions`
///     Trl                        sampling/sampling_logp_difference, importance_sampling_ratio
///     Unsloth                    sampling/rollout_kl_*, importance_sampling_*
///
/// **Cost.** Linear in the tokens, on the calling thread: about five exponentials a token (30 ns),
/// and 29 exact additions a row (4 ns each). A report is 9 kB.
///
/// **Errors.** gdpo::invalid_input for settings out of range, shapes that do not fit, arrays that
/// are missing, and a merge of reports with different settings. Data never throws: a rollout_logp
/// of NaN counts as missing, another log-prob that is not finite in `non_finite`; both are left
/// out.
///
/// **Read on.** mismatch/report.hpp: the lists of all numbers. mismatch/settings.hpp: bounds and
/// conventions. gdpo/prepass.hpp: corrections.
#include <gdpo/mismatch/mismatch.hpp>
#include <gdpo/prepass.hpp>
