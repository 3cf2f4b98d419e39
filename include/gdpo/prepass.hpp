#pragma once
/// \file
/// Pre-passes: what is decided from whole rows or the batch before the loss, such as dropping
/// truncated completions or correcting for the log-probs of the sampling engine.
///
/// **What it computes.** A pre-pass gives each valid token a weight u_it. Its `reach` says what the
/// weight acts on:
///
///     Reach::None             nothing, the pre-pass is off
///     Reach::Surrogate        TokenBatch::weights *= u
///     Reach::SurrogateAndKl   TokenBatch::weights *= u and kl_weights *= u
///     Reach::Denominator      TokenBatch::mask = mask and u != 0, so that count() counts fewer
///
/// The pre-passes, with the default reach:
///
///     prepass::Overlong          u = 0 in truncated rows (DAPO, 2503.14476)           Denominator
///     prepass::DegenerateGroups  u = 0 in rows of groups without a signal             None
///     prepass::TopEntropy        u = [entropy >= quantile of the batch] (2506.01939)  Surrogate
///     prepass::Importance        u = clip(exp(old_logp - rollout_logp))               Surrogate
///     prepass::Gate              u = [min <= ratio, KL or total variation <= max]     Surrogate
///
/// **Example.**
///
/// <!-- build: door_prepass run -->
/// ```cpp
/// const int B = 2, T = 3;  // completions and tokens; log-probs are in nats
/// const std::vector<float> logp = {-0.9f, -1.4f, -0.2f, -0.5f, -0.7f, -0.3f};
/// const std::vector<float> rollout_logp = {-1.0f, -2.4f, -0.2f, -0.6f, -0.4f, -0.3f};
/// const std::vector<unsigned char> truncated = {0, 1};
/// gdpo::TokenBatch<float> batch;
/// batch.logp = gdpo::view(logp.data(), B, T);
/// batch.rollout_logp = gdpo::view(rollout_logp.data(), B, T);
/// gdpo::prepass::Importance correction;
/// correction.clip.hi = 2;
/// gdpo::PrepassMemory<float> memory;  // holds the masks and weights; kept between steps
/// const auto prepared = gdpo::prepare(
///     batch, memory, gdpo::prepass::Overlong{gdpo::view(truncated)}, correction);
/// for (int t = 0; t < T; ++t) std::printf("%.3f ", double{prepared.weights.at(0, 0, t)});
/// std::printf("in row 0, mask %d in row 1\n", prepared.mask.at(1, T, 0));
/// // prints 1.105 2.000 1.000 in row 0, mask 0 in row 1
/// ```
///
/// Then, with gdpo/loss.hpp: `loss(prepared, gdpo::count(prepared), gradient)`.
///
/// **Order.** Pre-passes with Reach::Denominator run first, wherever they stand among the
/// arguments; each sees the mask as given. The others follow in the order of the arguments, on the
/// mask that is left. Masks and weights of the caller are kept, and 0 of either drops the token.
/// Count the prepared batch, not the one that went in: prepare, count, loss. A loss refuses counts
/// from before a pre-pass with Reach::Denominator.
///
/// **Inputs.** A TokenBatch as for the loss. Needed is what a pre-pass reads, and before the
/// forward pass an array that has the shape of the tokens, such as the mask:
/// - Importance, and Gate on Pair::Mismatch: `rollout_logp`; without `old_logp` they take logp.
/// - Gate with another `when` than When::Always: `advantages` or `token_advantages`.
/// - TopEntropy: `entropies` (tokens, nats).
/// - Overlong and DegenerateGroups have a column of flags (B) of their own; those of degenerate
///   groups are `gdpo::per_row(groups, rows, report.degenerate)`, from the report of advantages.
///
/// **Cost.** Linear in the tokens for each pre-pass (TopEntropy: on average), on the calling
/// thread. The prepared batch points into PrepassMemory, which must outlive it; the next call with
/// that memory overwrites it, and the batch is then refused. After a first call of the same shape
/// nothing is allocated.
///
/// **Errors.** gdpo::invalid_input for settings (also of a pre-pass that is off), shapes and
/// missing arrays. Data never throws: a NaN drops the token in Importance, in TopEntropy, and in a
/// Gate that has bounds. The metrics of the loss count rollout_logp that are not finite.
///
/// **Read on.** prepass/prepare.hpp, drop_rows.hpp, top_entropy.hpp, importance.hpp and gate.hpp;
/// prepass/args.hpp for one of your own; loss/README.md; presets/trl.hpp and ms_swift.hpp for the
/// trainers' rollout corrections.
#include <gdpo/prepass/drop_rows.hpp>
#include <gdpo/prepass/gate.hpp>
#include <gdpo/prepass/importance.hpp>
#include <gdpo/prepass/prepare.hpp>
#include <gdpo/prepass/top_entropy.hpp>
