#pragma once
/// \file
/// Policy losses with their analytic gradient and metrics, for trainers that bring log-probs.
///
/// **What it computes.** For token t of row i (a completion), with A its advantage:
///
///     r_it = exp(logp_it - old_logp_it), or one ratio per segment of the row (GSPO)
///     s_it = max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)), at most -A dual where A < 0
///     loss = sum over rows i of W_i sum over valid tokens t of
///                (w_it s_it + sum over KL terms k of beta_k w'_it kl_k,it)
///     dlogp_it = d loss / d logp_it
///
/// W_i is the weight of the row, such as 1 / tokens of the step; w (with the factors) and w' are
/// weights of the token. The clip is eq. 7 of PPO (arXiv 1707.06347). A loss is a value of type
/// `PolicyLoss<Level, Surrogate, Kl, Aggregate, Factors, Metrics>`, whose members are its settings:
/// grpo_loss (2402.03300), dapo_loss (2503.14476), dr_grpo_loss (2503.20783), gspo_loss and
/// gspo_token_loss (2507.18071), and the losses of the trainers in presets/.
///
/// **Example.**
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
/// The short form `loss(batch, normaliser, gradient)` runs on simd with memory of its own.
///
/// **Order of calls.** prepare, count, loss. Pre-passes (gdpo/prepass.hpp) drop or weigh tokens;
/// count() counts what is left; add the counts of all micro-batches and ranks of the step and give
/// that sum to each loss call: losses and gradients then add up to those of the step. count() needs
/// no log-probs, so a step can be counted before its forward pass. A loss refuses what count() has
/// returned for a batch before prepare() changed its mask; sums of counts are taken as they are.
/// `normaliser.given` is a count that the batch does not show, for aggregates with Over::Given.
/// trl::dapo_loss needs it (so do ms_swift's and open_instruct's): set it to num_items_in_batch, on
/// the sum of the counts (on one process without pre-passes: normaliser.given = normaliser.tokens).
/// count() leaves it 0, which such a loss refuses.
///
/// **Inputs.** Members of TokenBatch. "Tokens" is the shape of logp: (B, T), (prompts, completions,
/// T), or packed (N) with `offsets` (B + 1). (B) may be (prompts, completions). Numbers are 16-bit
/// floats, float, or double (in a `TokenBatch<double>`); masks and flags have any type of number.
/// - Required: `logp` (tokens, nats), and `advantages` (B) or `token_advantages` (tokens).
/// - Without `old_logp` the ratio is 1, without `mask` all tokens count, without `row_weights` (B),
///   `weights` or `kl_weights` (tokens) these are 1.
/// - `ref_logp`, `teacher_logp`, `rollout_logp` are needed if a KL term with beta > 0 is against
///   that policy. `rollout_logp` is what the sampling engine reported; pre-passes read it too.
/// - `segments` (tokens, integers): runs of equal ids, such as turns, share one ratio at
///   level::Sequence and level::SequenceToken. Without them the row is one segment.
/// - `tags` (tokens): for factors that read them. A factor is a detached multiplier of the
///   surrogate, computed from one token; they stand in `Factors<...>` (loss/factor.hpp).
/// - `entropies` (tokens, nats) and `truncated` (B) are for metrics.
///
/// **Cost.** Linear in the tokens. level::Token reads each array once and writes the gradient once;
/// levels of segments read the log-probs again. The long form allocates nothing after its first
/// call with a workspace and shape. It starts no threads; parallel(executor) uses the caller's.
/// Metrics come from the same pass. metrics::All is the default; less is measured, at less cost,
/// with `gdpo::with_metrics<gdpo::metrics::Means>(loss)` or metrics::None.
///
/// **Errors.** gdpo::invalid_input, before anything is written, for settings, shapes, missing
/// arrays, and a count of 0 that would divide a batch with tokens. Data never throws: NaN and
/// infinities show in the loss and are counted in `metrics.non_finite`.
///
/// **Read on.** loss/policy_loss.hpp (the call), loss/surrogate.hpp, kl.hpp, level.hpp,
/// aggregate.hpp, factor.hpp and metrics.hpp (the policies), loss/README.md (denominators,
/// `aggregate.scale`, keys of metrics), examples/raw_pointers.cpp and examples/trainer_step.cpp.
#include <gdpo/loss/count.hpp>
#include <gdpo/loss/named.hpp>
