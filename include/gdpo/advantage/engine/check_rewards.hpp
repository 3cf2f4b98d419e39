#pragma once
// What a call of an estimator checks before it reads anything: on every target the same words.
#include <gdpo/advantage/batch.hpp>
#include <gdpo/advantage/group_advantage.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Shapes and settings. No number of the batch is read, but the offsets of by_offsets and the ids of by_id.
template <bool sums_first, class T, class Groups, class Estimator, class CheckGroups>
void check_rewards(const char* function, const RewardBatch<T, Groups>& batch, const Estimator& e,
                   const CheckGroups& check_groups) {
  using contract::text;
  const index_t rows = batch.rewards.extent[0], channels = batch.rewards.extent[1];
  const auto check_finite = [function](const std::string& name, double value) {
    if (math::not_finite(value)) contract::fail(function, name, text(value), "a finite number");
  };
  const auto check_rows = [function, rows](const char* name, const Column& column) {
    if (column && column.size() != rows) {
      contract::fail(function, name, text(column.size()) + " entries", "one for each of the " + text(rows) + " rows");
    }
  };
  check_groups(function, rows);
  if (!e.weights.empty() && e.weights.size() != channels) {
    contract::fail(function, "weights", text(e.weights.size()) + " weights",
                   "one for each of the " + text(channels) + " rewards, or none");
  }
  for (index_t c = 0; c < e.weights.size(); ++c) check_finite("weights[" + text(c) + "]", e.weights[c]);
  for (const Gate& gate : e.gates) {
    for (const index_t c : {gate.reward, gate.given}) {
      if (c < 0 || c >= channels) {
        contract::fail(function, "gates", "reward " + text(c), "a reward from 0 to " + text(channels - 1));
      }
    }
    if (math::is_nan(gate.at_least)) contract::fail(function, "gates", "a threshold that is NaN", "a number");
  }
  check_finite("penalty.coef", e.penalty.coef);
  if (e.penalty.coef != 0) {
    if (!batch.penalty && rows > 0) {
      contract::fail(function, "batch.penalty", "no column", "the KL of each row, because penalty.coef is not 0");
    }
    if (sums_first && e.penalty.reward != -1) {
      contract::fail(function, "penalty.reward", text(e.penalty.reward),
                     "-1: with SumThenNormalize the penalty is on the sum");
    }
    if (!sums_first && (e.penalty.reward < 0 || e.penalty.reward >= channels)) {
      contract::fail(function, "penalty.reward", text(e.penalty.reward),
                     "the reward that carries the penalty, from 0 to " + text(channels - 1) +
                         ": with NormalizeThenSum each reward is standardised by itself");
    }
  }
  check_rows("batch.tokens", batch.tokens);
  check_rows("batch.valid", batch.valid);
  check_rows("batch.baseline", batch.baseline);
  check_rows("batch.penalty", batch.penalty);
  check_rows("batch.weights", batch.weights);
}

/// What only the host can check: it reads the counts.
template <class T, class Groups>
void check_token_counts(const char* function, const RewardBatch<T, Groups>& batch) {
  for (index_t i = 0; batch.tokens && i < batch.rewards.extent[0]; ++i) {
    const double tokens = batch.tokens(i);
    if (!(tokens >= 0) || math::not_finite(tokens)) {
      contract::fail(function, "batch.tokens(" + contract::text(i) + ")", contract::text(tokens),
                     "a count of at least 0");
    }
  }
}

template <class T, class Groups, class Renorm>
void check_renormalisation(const char* function, const RewardBatch<T, Groups>& batch, const Renorm& renorm) {
  Checks<Renorm>::run(renorm, function);
  if (std::is_same_v<Renorm, renorm::TokenWeightedBatch> && !batch.tokens && batch.rewards.extent[0] > 0) {
    contract::fail(function, "batch.tokens", "no column", "token counts, because renorm is TokenWeightedBatch");
  }
}

template <class R>
void check_out_entries(const char* function, index_t rows, View<R, 1> out) {
  static_assert(!std::is_const_v<R>, "`out` is a read-only view: advantages cannot be written to it");
  static_assert(std::is_same_v<std::remove_const_t<R>, float> || std::is_same_v<std::remove_const_t<R>, double>,
                "advantages are written as float or double");
  if (out.extent[0] != rows) {
    contract::fail(function, "out", contract::text(out.extent[0]) + " entries",
                   "one for each of the " + contract::text(rows) + " rows");
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
