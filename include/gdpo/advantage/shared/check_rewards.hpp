#pragma once
// What a call of an estimator checks before it reads the rewards. Host and device share the
// messages.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/advantage/reward_batch.hpp>
#include <gdpo/advantage/shared/reward_rules.hpp>
#include <gdpo/stats/count_column.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Throws unless the column, which a setting or a policy reads, is there. Without rows it may be
/// absent. needed: what the message asks for; null: what the list of columns says.
template <class Batch>
void check_present(const char* function, const Batch& batch, Column Batch::*column,
                   const char* needed = nullptr) {
  if (batch.*column || batch.rewards.extent[0] == 0) return;
  contract::fail(function, listed(column).name, "no column",
                 needed ? needed : listed(column).needed);
}

/// Throws unless the bounds of the advantages hold 0.
GDPO_COLD inline void check_clip(const char* function, const Bounds& clip) {
  check_bounds(function, "clip", clip);
  if (clip.lo <= 0 && clip.hi >= 0) return;
  contract::fail(function, "clip.lo, clip.hi",
                 contract::text(clip.lo) + " and " + contract::text(clip.hi),
                 "lo <= 0 <= hi, so that a row that gets 0 keeps it");
}

/// The settings by which an estimator reads rewards.
template <class B, class S, class C, class R>
RewardSettings reward_settings(const GroupAdvantage<B, S, C, R>& e) {
  return {sums_first_v<C>,
          reads_tokens_v<B> || reads_tokens_v<S>,
          reads_external_v<B> || reads_external_v<S>,
          e.missing,
          e.singleton,
          e.penalty,
          e.weights,
          e.gates,
          e.reward_clip,
          e.clip};
}

/// Checks shapes and settings. It reads no number of the batch, except that
/// check_groups(function, rows) of the host reads the offsets of by_offsets.
template <class T, class Groups, class CheckGroups>
void check_rewards(const char* function, const RewardBatch<T, Groups>& batch,
                   const RewardSettings& e, const CheckGroups& check_groups) {
  using contract::text;
  using Batch = RewardBatch<T, Groups>;
  contract::check_extents(function, "rewards", 2, batch.rewards.extent);
  const index_t rows = batch.rewards.extent[0], reward_count = batch.rewards.extent[1];
  const auto check_finite = [function](const contract::Text& name, double value) {
    if (math::not_finite(value)) contract::fail(function, name, text(value), "a finite number");
  };
  check_groups(function, rows);
  if (!e.weights.empty() && e.weights.size() != reward_count) {
    contract::fail(function, "weights", text(e.weights.size()) + " weights",
                   "one for each of the " + text(reward_count) + " rewards, or none");
  }
  for (index_t c = 0; c < e.weights.size(); ++c)
    check_finite("weights[" + text(c) + "]", e.weights[c]);
  for (const Gate& gate : e.gates) {
    for (const index_t c : {gate.reward, gate.given}) {
      if (c < 0 || c >= reward_count) {
        contract::fail(function, "gates", "reward " + text(c),
                       "a reward from 0 to " + text(reward_count - 1));
      }
    }
    check_fields(function, "gates", gate);
  }
  check_fields(function, "missing", e.missing);
  check_fields(function, "singleton", e.singleton);
  check_bounds(function, "reward_clip", e.reward_clip);
  check_clip(function, e.clip);
  check_finite("penalty.coef", e.penalty.coef);
  if (e.penalty.coef != 0) {
    check_present(function, batch, &Batch::penalty);
    if (e.sums_first && e.penalty.reward != -1) {
      contract::fail(function, "penalty.reward", text(e.penalty.reward),
                     "-1: with SumThenNormalize the penalty is on the sum");
    }
    if (!e.sums_first && (e.penalty.reward < 0 || e.penalty.reward >= reward_count)) {
      contract::fail(function, "penalty.reward", text(e.penalty.reward),
                     "the reward that carries the penalty, from 0 to " + text(reward_count - 1) +
                         ": with NormalizeThenSum each reward is standardized by itself");
    }
  }
  if (e.reads_tokens)
    check_present(function, batch, &Batch::tokens, "token counts, because a policy reads them");
  if (e.reads_external) check_present(function, batch, &Batch::baseline);
  check_column_sizes(function, batch);
}

/// Checks the numbers of the columns that hold counts. Only the host does: it must read them.
template <class T, class Groups>
void check_counts(const char* function, const RewardBatch<T, Groups>& batch) {
  const index_t rows = batch.rewards.extent[0];
  for (const auto& entry : reward_columns<RewardBatch<T, Groups>>) {
    const Column& column = batch.*entry.of_batch;
    if (entry.counts && column) check_count_column(function, entry.name, column, rows);
  }
}

/// Throws if the settings reject reward c of a used row, `value` after gates.
inline void check_reward(const char* function, const Missing& missing, double value, index_t row,
                         index_t c) {
  const bool infinite = math::is_inf(value), absent = math::is_nan(settled(missing, value));
  const bool rejected = infinite && missing.infinite == InfiniteEntry::Reject;
  if (!rejected && !(absent && missing.entry == MissingEntry::Reject)) return;
  contract::fail(function, "rewards",
                 (infinite ? contract::text(value) : contract::Text("NaN")) + " in row " +
                     contract::text(row) + ", reward " + contract::text(c),
                 rejected ? "a finite number, because missing.infinite is Reject"
                          : "a number, because missing.entry is Reject");
}

/// Checks the settings of the renormalization, and that the column that it reads is there.
template <class T, class Groups, class Renorm>
void check_batch_step(const char* function, const RewardBatch<T, Groups>& batch,
                      const Renorm& renorm) {
  check_fields(function, "renorm", renorm);
  if (renorm.over == RenormOver::Tokens)
    check_present(function, batch, &RewardBatch<T, Groups>::tokens);
}

/// Checks that the rewards are there, and that advantages can be written to `out`.
template <class Batch, class R>
void check_out(const char* function, const Batch& batch, View<R, 1> out) {
  static_assert(!std::is_const_v<R>,
                "`out` is a read-only view: advantages cannot be written to it");
  static_assert(std::is_same_v<std::remove_const_t<R>, float> ||
                    std::is_same_v<std::remove_const_t<R>, double>,
                "advantages are written as float or double");
  contract::check_array(function, "rewards", batch.rewards);
  contract::check_entries(function, "out", out.extent[0], batch.rewards.extent[0]);
  contract::check_written(function, "out", out);
}

}  // namespace detail
GDPO_END_NAMESPACE
