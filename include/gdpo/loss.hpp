#pragma once
/// \file
/// Policy losses over log-probs, with their analytic gradient and metrics.
///
/// For token t of row i (a completion) with advantage A:
///
///     r_it = exp(logp_it - old_logp_it), or one ratio per segment of the row (GSPO)
///     s_it = max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)), at most -A dual where A < 0
///     loss = sum over rows i of W_i sum over valid tokens t of
///                (w_it s_it + sum over KL terms k of beta_k w'_it kl_k,it)
///     dlogp_it = d loss / d logp_it
///
/// W_i is the weight of the row, such as 1 / tokens of the step; w (the array weights, times the
/// factors) and w' (kl_weights) are weights of the token. The clip is eq. 7 of PPO (arXiv
/// 1707.06347). A loss is a value of type `PolicyLoss<Level, Surrogate, Kl, Aggregate, Factors,
/// Metrics>`, whose members are its settings.
///
/// <!-- build: door_loss run -->
/// ```cpp
/// const int B = 2, T = 3;  // completions and padded tokens; log-probs are in nats
/// const std::vector<float> logp = {-0.9f, -1.4f, -0.2f, -0.5f, -0.7f, 0};
/// const std::vector<float> old_logp = {-1.0f, -1.1f, -0.2f, -0.6f, -0.4f, 0};
/// const std::vector<unsigned char> mask = {1, 1, 1, 1, 1, 0};
/// const std::vector<float> advantages = {1, -1};
/// std::vector<float> dlogp(B * T);  // the gradient, for the trainer's backward pass
/// gdpo::TokenBatch<float> batch;
/// batch.logp = gdpo::view(logp.data(), B, T);
/// batch.old_logp = gdpo::view(old_logp.data(), B, T);
/// batch.mask = gdpo::view(mask.data(), B, T);
/// batch.advantages = gdpo::view(advantages);
/// gdpo::LossWorkspace<float> workspace;  // kept between steps
/// const auto r = gdpo::dapo_loss(gdpo::simd, batch, gdpo::count(batch),
///                                gdpo::view(dlogp.data(), B, T), workspace);
/// std::printf("loss %.4f, clipped %.2f\n", r.loss, r.metrics.clip_fraction.mean());
/// // prints loss -0.1882, clipped 0.20
/// ```
///
/// **Calls.**
///
///     count(batch)                               what a loss is divided by: tokens and rows
///     loss(batch, n, gradient)                   loss and metrics, and dlogp in gradient; on simd
///     loss(exec, batch, n, gradient, workspace)  no allocation after the first such call
///     merge(result, result)                      results of micro-batches or ranks
///     with_level<L>(loss), with_kl(loss, kl)     the loss with one part exchanged
///     with_metrics<M>(loss)                      M: metrics::All (default), Means or None
///     contrastive(batch, groups, n, gradient)    a ContrastiveLoss; exec and workspace as above
///
/// n is the sum of count() over all micro-batches and ranks of the step; gradient has the shape of
/// logp, and `{}` computes none. The order of a step: "One step" in include/gdpo/loss/README.md.
/// Losses of papers: grpo_loss (2402.03300), dapo_loss (2503.14476), dr_grpo_loss (2503.20783),
/// gspo_loss and gspo_token_loss (2507.18071), cispo_loss, sapo_loss, vespo_loss, gmpo_loss,
/// topr_loss, up_grpo_loss and distillation_loss (loss/named.hpp); of trainers: gdpo/presets/.
///
/// **Over groups.** REAL (2602.05630) contrasts the good rows of a group with its bad ones. It is
/// no sum over rows, so a `ContrastiveLoss` takes the groups too. It is divided by their number in
/// the step, which count(batch, groups) adds to the counts.
///
/// <!-- build: door_loss_groups run -->
/// ```cpp
/// const int B = 4, T = 2;  // two prompts with two completions each
/// const std::vector<float> logp = {-0.9f, -1.4f, -0.5f, -0.7f, -1, -1, -2, -2};
/// const std::vector<float> old_logp = {-1.0f, -1.5f, -0.5f, -0.9f, -1, -1, -2, -2};
/// const std::vector<float> advantages = {1, -1, 1, 1};  // the second prompt has good rows alone
/// std::vector<float> dlogp(B * T);
/// gdpo::TokenBatch<float> batch;
/// batch.logp = gdpo::view(logp.data(), B, T);
/// batch.old_logp = gdpo::view(old_logp.data(), B, T);
/// batch.advantages = gdpo::view(advantages);
/// gdpo::ContrastiveLoss<> loss;  // gdpo::ms_swift::real_loss has ms-swift's settings
/// loss.kl.beta = 0;
/// const auto groups = gdpo::groups_of(2);
/// const gdpo::Normalizer n = gdpo::count(batch, groups);  // summed over the step
/// const auto r = loss(batch, groups, n, gdpo::view(dlogp.data(), B, T));
/// std::printf("loss %.4f, gradient %.4f %.4f %.4f\n", r.loss, dlogp[0], dlogp[2], dlogp[4]);
/// // prints loss 0.6981, gradient -0.2251 0.2749 0.0000
/// ```
///
/// **Arrays of TokenBatch.** "tokens" is the shape of logp: (B, T), (prompts, completions, T), or
/// packed (N) with offsets. Where tokens have rank 3, (B) may be (prompts, completions). Numbers
/// are float, 16-bit floats, or double (in a `TokenBatch<double>`); masks and flags have any type.
/// Log-probs and entropies are in nats.
///
///     array                 shape     without it
///     logp                  tokens    required
///     advantages            (B)       required, unless token_advantages are there or the surrogate
///                                     reads none (surrogate::None, surrogate::Likelihood)
///     token_advantages      tokens    required, unless advantages are there; not both
///     old_logp              tokens    on-policy: the ratio is 1
///     ref_logp              tokens    required by a KL term against it whose beta is not 0
///     teacher_logp          tokens    the same, and by factor::TeacherGate
///     rollout_logp          tokens    the same, and by pre-passes; of the sampling engine
///     mask                  tokens    all tokens count
///     offsets               (B + 1)   the batch is padded; any integers
///     segments              tokens    a row is one segment
///     row_weights           (B)       1
///     group_tokens          (B)       required by a mean over groups (count_group_tokens)
///     weights, kl_weights   tokens    1; pre-passes fill them
///     entropy_weights       tokens    1; the same, for an EntropyBonus
///     level_log_weights     tokens    0; logs of weights in the ratio, at levels of segments alone
///     tags                  tokens    required by a policy that declares reads_tag
///     entropies             tokens    not measured; an EntropyBonus and prepass::TopEntropy need
///                                     them
///     truncated             (B)       not measured
///     completion_mask       tokens    mask: what counts as length; prepare() fills it
///
/// **Cost.** Linear in the tokens. level::Token reads each array once and writes the gradient once;
/// levels of segments read the log-probs again. parallel(executor) uses the caller's threads.
///
/// **Errors.** gdpo::invalid_input, before anything is written, for settings, shapes, missing
/// arrays, counts from before prepare(), and a count of 0 that would divide a batch with tokens. A
/// count that is less than what a mask leaves is refused after the gradient is written. Values
/// never throw: NaN and infinities show in the loss and are counted in `metrics.non_finite`.
///
/// **Read on.** include/gdpo/loss/README.md: denominators, policies and papers, metrics and keys.
/// include/gdpo/prepass.hpp: prepare. examples/raw_pointers.cpp, examples/trainer_step.cpp.
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/loss/contrastive.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/tokens/count_groups.hpp>
