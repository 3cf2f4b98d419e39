#pragma once
/// \file
/// Diagnosis: which of the usual mistakes show in the metrics of a step and the report of its
/// rewards.
///
/// Each finding is one comparison of numbers that the calls of the step have measured already. Its
/// threshold is a member of DiagnoseSettings, which says where the default is from.
///
///     finding           is there if                                              by default
///     counts            a loss was divided by fewer tokens or rows than it       any
///                       holds; of a whole step also by more, or by a `given`
///                       that was added twice
///     non_finite        an input has NaN or infinities (one finding for each),   any
///                       or rewards are infinite
///     positive_logp     this share of the rows begins with a log-prob above 0    over 5 %
///     first_step_ratio  in the first step after a rollout, ratios are off 1      over 0.1
///     ratio_one         in a later step every ratio is exactly 1                 any
///     swapped_logp      the mean of log r is positive, by more than chance       over 4 std errors
///     clip_fraction     this share of tokens is outside the clip range           over 25 %
///     kl_zero           the KL term is exactly 0, but not in the first step      any
///     no_effect         a KL term that is not 0 adds nothing to the loss of any  any
///                       token; in a whole step the surrogate is 0 although
///                       advantages are not and ratios are off 1, all weights of
///                       a correction are 1, or rollout_logp is old_logp
///                       everywhere
///     all_truncated     this share of completions has reached the length limit   all
///     entropy_collapse  the mean entropy of a token, in nats, is too low; or     under 0.05
///                       its share of that of the run's first step                under 6 %
///     dead_groups       this share of the groups with rewards has no spread      over half
///     silent_reward     a reward has no value, or no spread in any group         any
///     missing_rollout   valid tokens have no rollout_logp                        any
///     rollout_mismatch  engine and trainer differ by this KL, in nats per token  over 0.1
///                       or by this factor between their probabilities            over 1.05
///     effective_sample_size  the weights of corrections, or else the ratios,     under 30 %
///                       count like equal ones of this share of the tokens
///     dropped           corrections take out this share of the tokens            over half
///     returns_are_advantages  one array was bound as both: equal moments         any
///
/// All groups but one have equal rewards, and the trainer computes its log-probs at another
/// temperature than the rollout:
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
/// **Calls.** They return a std::vector<Finding>. Optional last argument: DiagnoseSettings.
///
///     diagnose(result, report)          a LossResult, and the GroupReport of its rewards
///     diagnose(metrics, report)         the same without the counts
///     diagnose(x)                       one of the three alone
///     diagnose(mismatch_report)         the sampling engine and its corrections (mismatch.hpp)
///     diagnose(value_result, metrics)   a critic, and the metrics of the policy loss
///     diagnose(value_result)            the critic alone
///     to_text(findings)                 one line each, as a std::string
///
/// Merge the results and reports of micro-batches and ranks first (gdpo::merge). The settings
/// `first_step`, `later_step` and `whole_step` say what the numbers do not show. What was not
/// measured gives no finding.
///
/// **Results.** Findings in the order of the table, rewards last; none is an empty vector. Each has
/// a name that never changes, the input or reward concerned, the figure, the bound, a sentence with
/// the figure, and the usual cause.
///
/// **Cost.** A few comparisons, one pass over the flags of the groups, and the memory of what was
/// found.
///
/// **Errors.** gdpo::invalid_input for thresholds out of their range and for names that do not fit
/// the rewards. No data throws.
///
/// **Read on.** "Diagnosis" in include/gdpo/loss/README.md: why healthy runs are not flagged, and
/// how ratios of a first step and swapped log-probs are told apart.
/// diagnose/diagnose_settings.hpp: thresholds and their sources.
#include <gdpo/advantages.hpp>
#include <gdpo/diagnose/diagnose.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/mismatch.hpp>
