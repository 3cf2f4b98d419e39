#pragma once
/// \file
/// Diagnosis: what the metrics of a step and the report of its rewards say about the mistakes
/// that runs usually fail by.
///
/// **What it computes.** One comparison a finding, on numbers that the calls of the step have
/// measured already. The thresholds are members of DiagnoseSettings, which says where each default
/// is from. Several are of one checklist: that of "Implementing GRPO from Scratch", the published
/// tutorial whose numbers gdpo/presets/textbook.hpp reproduces.
///
///     finding           is there if                                                   by default
///     counts            a loss was divided by fewer tokens or rows than it holds; of a   any
///                       whole step also by more, or by a `given` that was added twice
///     non_finite        an input has NaN or infinities, one finding for each; or         any
///                       rewards are infinite
///     positive_logp     more of the rows begin with a log-prob above 0                  5 %
///     first_step_ratio  in the first step after a rollout, ratios are off 1 by more      0.1
///     ratio_one         in a later step every ratio is exactly 1                         0
///     swapped_logp      the mean of log r is positive, by more than chance            4 errors
///     clip_fraction     the share of tokens outside the clip range is outside        0 .. 0.25
///     kl_zero           the KL term is exactly 0, but not in the first step              0
///     all_truncated     so many completions have reached the length limit                all
///     entropy_collapse  the mean entropy of a token is below, in nats; or below       0.05 nats;
///                       this share of that of the run's first step                       6 %
///     dead_groups       more of the groups that have rewards have no spread             half
///     silent_reward     a reward has no value, or no spread in any group                 any
///     returns_are_advantages  one array was bound as both, so their moments are the same any
///
/// **The ratio of the first step.** Before the first update the policy is still the one that
/// sampled, so each ratio r = p / p_old should be 1. Its mean does not tell: under p_old it is
/// sum_v p_old(v) p(v) / p_old(v) = 1 for every p, also where p has another temperature. So the
/// figure is the larger of |mean r - 1| and sqrt(2 mean k3), with `approx_kl_k3` = r - 1 - log r.
/// With x = log r that is e^x - 1 - x = x^2 / 2 + x^3 / 6 + ..., so the root is about the root mean
/// square of log r, which is about that of r - 1. The mean is looked at too, because it does move
/// where the tokens are not those that p_old sampled (a mask that is off by one).
///
/// **Example.** All groups but one have equal rewards, and the trainer computes its log-probs at
/// another temperature than the rollout:
///
/// <!-- build: door_diagnose run -->
/// ```cpp
/// const std::vector<float> rewards = {1, 1, 0, 0, 1, 0};  // three prompts, two completions each
/// gdpo::GroupReport report;
/// const std::vector<float> advantages =
///     gdpo::advantages(gdpo::view(rewards), gdpo::groups_of(2), gdpo::Gdpo{}, &report);
/// const std::vector<float> old_logp(12, -0.9f), logp(12, -0.7f);  // two tokens each, nats
/// gdpo::TokenBatch<float> batch;
/// batch.logp = gdpo::view(logp.data(), 6, 2);
/// batch.old_logp = gdpo::view(old_logp.data(), 6, 2);
/// batch.advantages = gdpo::view(advantages);
/// const gdpo::LossResult r = gdpo::dapo_loss(batch, gdpo::count(batch));
///
/// gdpo::DiagnoseSettings settings;
/// settings.first_step = true;  // no update since the rollout
/// const std::vector<gdpo::Finding> findings = gdpo::diagnose(r.metrics, report, settings);
/// std::printf("%s", gdpo::to_text(findings).c_str());
/// // prints first_step_ratio: In the first step
/// // prints dead_groups: 66.67 % of the groups have no spread
/// ```
///
/// **Healthy runs.** No default bound flags a run in which nothing is wrong; a test simulates
/// such runs of every loss by name. So clip_fraction_min is 0, and a share above
/// clip_fraction_max counts only where the ratios of the tokens themselves are off 1
/// (near_ratio). What only the caller knows is a setting: `first_step`, `later_step` and
/// `whole_step`.
///
/// **Swapped log-probs.** With r = p / p_old, the mean of log r over tokens of p_old is minus a
/// KL divergence, so at most 0, and swapped log-probs change its sign. The rule is silent near
/// 1, where a ratio and its inverse are alike, and where a positive mean of the advantages
/// explains the sign.
///
/// **Inputs.** LossMetrics or a LossResult, a GroupReport, or both; those of micro-batches and
/// ranks are merged first (gdpo::merge). Only a LossResult has counts. The result of a critic
/// (ValueLossResult) is taken by itself or with the metrics of the policy loss. A quantity that
/// was not measured gives no finding: without `TokenBatch::entropies` there is no
/// entropy_collapse, without `truncated` no all_truncated, without a KL term no kl_zero. With
/// metrics::Means clip_fraction counts only tokens that the advantage lets the clip hold, as
/// `clip_fraction_any` is not measured. The share is not judged from below in the first step,
/// or where all ratios are 1. Without a report, dead_groups counts the completions whose
/// advantages are all 0. With one, rewards of weight 0 are described too, so they can be a
/// silent_reward; an empty group and one of a single completion have no spread.
///
/// **Results.** One Finding each, in the order of the table, rewards last: a name that never
/// changes, the input or reward concerned, the figure, the bound, and sentences with the figure
/// and the usual cause. Nothing found is an empty vector. `to_text` writes one line for each.
///
/// **Cost.** A few comparisons, one pass over the flags of the groups, and the memory of what was
/// found.
///
/// **Errors.** gdpo::invalid_input for thresholds out of their range and for names that do not fit
/// the rewards. No data throws.
///
/// **Read on.** diagnose/settings.hpp has every threshold with its source, diagnose/finding.hpp
/// what a finding holds; loss/metrics.hpp and advantage/report.hpp what is measured.
#include <gdpo/advantages.hpp>
#include <gdpo/diagnose/diagnose.hpp>
#include <gdpo/loss.hpp>
