#pragma once
/// \file
/// Pre-passes: masks and weights that are decided from whole rows or the batch before the loss,
/// such as dropping truncated completions or correcting for the sampling engine's log-probs.
///
/// A pre-pass gives each valid token a weight u_it:
///
///     pre-pass            u                                                       default reach
///     Overlong            0 in truncated rows (DAPO, 2503.14476)                  Mask
///     DegenerateGroups    0 in rows of groups without a signal                    None
///     TopEntropy          [entropy >= quantile of the batch] (2506.01939)         Surrogate
///     Importance          clip(exp(old_logp - rollout_logp))                      Surrogate
///     Gate                [min <= ratio, KL or probability difference <= max]     Surrogate
///     MeanOne             1 / mean of the weights so far                          Surrogate
///     SecondMoment        [of the smallest (rollout - old)^2, mean < threshold]   Mask
///     Covariance          [(A - mean A)(logp - mean logp) is not picked]          Surrogate
///     EntropyClip         [pi (H + log pi) is no low outlier where A < 0]          Mask
///     FutureKl            clip(exp(decayed sum of this and later log ratios))     Surrogate
///     TeacherRatio        1 - mix + mix clip(exp(sign(A) (teacher - old)))        Surrogate
///     TeacherPrefix       1 + gain (share of |teacher - rollout| from it on)      Surrogate
///
/// A correction of a trainer is a value of these: `statistic` (token, or product, mean, geometric
/// mean or largest of a segment, row or group), `pair` (old and rollout, logp and old, logp and
/// rollout), `estimator`, bounds, `when`. Chain puts several into one value: a weight and a mask.
///
/// `reach` says what the weight acts on:
///
///     Reach::None             nothing, the pre-pass is off
///     Reach::Surrogate        TokenBatch::weights *= u
///     Reach::SurrogateAndKl   TokenBatch::weights *= u and kl_weights *= u
///     Reach::Kl               TokenBatch::kl_weights *= u
///     Reach::Level            TokenBatch::level_log_weights += clamp(log u, log 1e-8, 20): u is
///                             part of the ratio of a segment (Importance, Gate and MeanOne)
///     Reach::Mask             TokenBatch::mask = mask and u != 0, so that count() counts fewer
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
/// **Calls.**
///
///     prepare(batch, memory, passes...)          the batch with the new masks and weights
///     per_row(groups, rows, report.degenerate)   the flags that DegenerateGroups takes
///     off_policy_sequence_mask(max)              the Gate of DeepSeek-V3.2
///     gate_report(batch, gate or importance)     what it compares with its bounds, for logs:
///                                                means, extremes and shares of tokens and rows
///     entropy_clip_report(batch, entropy_clip)   its measure and what it drops, for logs
///     proximal_logp(logp, rollout_logp, ...)     old_logp between sampler and trained policy
///
/// Then, with gdpo/loss.hpp: `loss(prepared, gdpo::count(prepared), gradient)`. The order of a step
/// and of the pre-passes in a call: "One step" and "Pre-passes and their order" in
/// include/gdpo/loss/README.md.
///
/// **Inputs.** A TokenBatch as for the loss, with the arrays that the pre-passes read. Before the
/// forward pass some array must give the shape of the tokens, such as the mask.
///
///     Overlong, DegenerateGroups   a column of flags (B) as their member; not 0: drop the row
///     TopEntropy                   entropies (tokens, nats)
///     Pair::Mismatch               rollout_logp, and old_logp or else logp
///     Pair::Update, Drift          logp
///     Statistic::Group...          a column of ids (B) as the member `groups`
///     Gate, not When::Always       advantages or token_advantages too
///     SecondMoment                 as Pair::Mismatch
///     Covariance, FutureKl         logp, advantages or token_advantages; old_logp if there is one
///     EntropyClip                  entropies, old_logp or else logp, and advantages; perhaps tags
///     TeacherRatio                 teacher_logp, old_logp or else logp, and advantages
///     TeacherPrefix                teacher_logp; rollout_logp, or else old_logp, or else logp
///
/// The result points into `memory`, which must outlive it. The next call with that memory
/// overwrites it, and the old result is then refused.
///
/// **Cost.** Linear in the tokens for each pre-pass (TopEntropy and Covariance: on average;
/// SecondMoment sorts), on the calling thread. No allocation after a first call of the same shape,
/// but for statistics of groups. On a GPU, cuda/prepass/device_prepare.hpp runs all of them on a
/// stream.
///
/// **Errors.** gdpo::invalid_input for settings (also of a pre-pass that is off), shapes and
/// missing arrays. Data never throws: a NaN drops the token in Importance, SecondMoment and
/// TopEntropy, and in a Gate that has bounds; Covariance does not pick it, in FutureKl and
/// TeacherPrefix it adds nothing, and TeacherRatio leaves its weight at 1. The metrics of the loss
/// count the values of rollout_logp that are not finite.
///
/// **Read on.** prepass/pair.hpp, estimator.hpp and statistic.hpp: the axes of a correction.
/// drop_rows.hpp, top_entropy.hpp, importance.hpp, gate.hpp, mean_one.hpp, chain.hpp,
/// second_moment.hpp, covariance.hpp, entropy_clip.hpp, future_kl.hpp, teacher_ratio.hpp and
/// teacher_prefix.hpp: settings. gate_report.hpp: the numbers that trainers log of a gate or a
/// weight, and their keys. args.hpp: a pre-pass of your own.
/// presets/trl.hpp, ms_swift.hpp, ...: rollout corrections of the trainers.
#include <gdpo/prepass/chain.hpp>
#include <gdpo/prepass/covariance.hpp>
#include <gdpo/prepass/drop_rows.hpp>
#include <gdpo/prepass/entropy_clip.hpp>
#include <gdpo/prepass/future_kl.hpp>
#include <gdpo/prepass/gate.hpp>
#include <gdpo/prepass/gate_report.hpp>
#include <gdpo/prepass/importance.hpp>
#include <gdpo/prepass/mean_one.hpp>
#include <gdpo/prepass/prepare.hpp>
#include <gdpo/prepass/proximal_logp.hpp>
#include <gdpo/prepass/second_moment.hpp>
#include <gdpo/prepass/teacher_prefix.hpp>
#include <gdpo/prepass/teacher_ratio.hpp>
#include <gdpo/prepass/top_entropy.hpp>
