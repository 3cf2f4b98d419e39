#pragma once
#include <gdpo/logits/engine/token_gradient.hpp>
#include <gdpo/logits/token_logprobs.hpp>
#include <gdpo/loss/policy_loss.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {
/// What one worker knows of the sequence that it is in.
struct LogitWorker {
  LossScratch<float> scratch;
  TokenRow<float> row;
  double weight = 0;
  float row_advantage = 0;  ///< the mean over the sequence, where the loss reads it
  index_t sequence = -1;
};
}  // namespace detail

/// Memory of policy_loss_from_logits, kept between calls: after a first call of the same shape and executor nothing is
/// allocated. The arrays hold, one after the other in the order of the logits rows, what the last call computed.
struct LogitsWorkspace {
  std::vector<float> logp, entropies, dlogp;  ///< dlogp: dloss/dlogp
  std::vector<double> logsumexp;
  std::vector<unsigned char> mask;  ///< of the logits and of the batch, both
  LossWorkspace<float> loss;
  std::vector<detail::LogitWorker> workers;
};

namespace detail {

/// The batch with the log-probs of the workspace, and the mask of both.
template <class T, int Rank>
TokenBatch<float> bind_logits(const char* function, const LogitBatch<T, Rank>& logits,
                              const TokenBatch<float>& batch, LogitsWorkspace& workspace) {
  check_logits(function, logits, Targets::Unread);
  check_by_row<Rank>(function, "batch.mask", batch.mask, logits.logits.extent);
  const LogitRows<T, Rank> rows(logits);
  const auto n = static_cast<std::size_t>(rows.rows());
  workspace.logp.resize(n);
  workspace.entropies.resize(n);
  workspace.dlogp.resize(n);
  workspace.logsumexp.resize(n);
  workspace.mask.resize(n);
  for (index_t i = 0; i < rows.rows(); ++i) {
    workspace.mask[static_cast<std::size_t>(i)] =
        rows.valid(i) && (!batch.mask || rows.token(batch.mask, i) != 0);
  }
  TokenBatch<float> bound = batch;
  bound.logp = rows.dense(workspace.logp);
  bound.mask = rows.dense(workspace.mask);
  if (!batch.entropies) bound.entropies = rows.dense(workspace.entropies);
  if (!batch.offsets) bound.offsets = logits.offsets;
  return bound;
}

/// Of `rows` packed sequences the one that holds token i, which one of them must.
GDPO_CALLS_ANY
template <class Offsets>
GDPO_INLINE index_t sequence_of(const Offsets& offsets, index_t rows, index_t i) {
  index_t low = 0, high = rows;  // offsets(low) <= i < offsets(high)
  while (high - low > 1) {
    const index_t middle = low + (high - low) / 2;
    (offsets(middle) <= i ? low : high) = middle;
  }
  return low;
}

}  // namespace detail

/// The counts of a batch whose log-probs are those of logits: tokens where the masks of both let through. As count(batch).
template <class T, int Rank>
Normaliser count(const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch) {
  LogitsWorkspace workspace;
  return count(detail::bind_logits("gdpo::count", logits, batch, workspace));
}

/// From logits to dloss/dlogits: token_logprobs, the loss, token_logprobs_backward, without the caller in between.
///
///   gdpo::LogitsWorkspace workspace;
///   const auto logits = gdpo::aligned(table, ids, completion_mask);
///   gdpo::policy_loss_from_logits(gdpo::simd, loss, logits, batch, gdpo::count(logits, batch), dlogits, workspace);
///
/// batch: as for the loss, of the shape of logits.targets; what stands in its logp is not read. Packed (rank-1 arrays, offsets)
/// for logits (N, V); offsets and mask may stand in either of the two, and a token counts where both masks let it through.
/// Entropies are measured unless the batch has them. dlogits: as for token_logprobs_backward; the logits themselves if wanted,
/// and exactly 0 where the mask is 0 or the loss has no gradient (a clipped token). Same bits as the three calls one by one.
///
/// Traffic, of a logits row of V entries: at level::Token each row is visited once, forward and backward while it is in cache: one
/// read and one write of memory. At levels of segments all rows are read before the first gradient is known, and a second
/// time for it: two reads and a write. Beside its arguments it needs 21 bytes a row, and what the loss needs. At level::Token the
/// term of a token is computed twice: alone, for the gradient of its row while that is in the cache, and by the loss call, whose sums
/// take the tokens in the order of the lanes, which rows on several threads do not keep.
///
/// A batch that pre-passes have prepared works as it is. Pre-passes that read log-probs or entropies (Gate, Importance,
/// TopEntropy) need them first: call token_logprobs_into, prepare, the loss and token_logprobs_backward by turns.
/// Errors: invalid_input of the three, before anything is written.
template <class Exec, class Loss, class T, int Rank, class U>
LossResult policy_loss_from_logits(const Exec& exec, const Loss& loss,
                                   const LogitBatch<T, Rank>& logits,
                                   const TokenBatch<float>& batch, const Normaliser& normaliser,
                                   View<U, Rank> dlogits, LogitsWorkspace& workspace) {
  static_assert(detail::needs_exec<Exec>());
  static_assert(detail::needs_loss<Loss>());
  static_assert(!std::is_const_v<U>, "dlogits are written: their view must not be of const");
  constexpr const char* function = "gdpo::policy_loss_from_logits";
  const TokenBatch<float> bound = detail::bind_logits(function, logits, batch, workspace);
  LogitBatch<T, Rank> visited = logits;
  const detail::LogitRows<T, Rank> rows(visited);
  visited.mask = rows.dense(workspace.mask);
  visited.offsets = {};
  detail::check_whole(function, visited);
  detail::check_logits(function, visited, detail::Targets::OfVocabulary);
  detail::check_table(function, "dlogits", dlogits, logits.logits.extent);
  const TokenOut<float> no_gradient;
  using Batch = detail::BatchLoss<Seq, float, Loss>;
  const Batch checked(function, loss, bound, normaliser, no_gradient);

  if constexpr (decltype(loss.level)::of_segment) {
    const auto dense = [&](auto& values) { return rows.dense(values); };
    token_logprobs_into(
        exec, visited,
        {dense(workspace.logp), dense(workspace.entropies), dense(workspace.logsumexp)});
    const LossResult result =
        evaluate(exec, loss, bound, normaliser, dense(workspace.dlogp), workspace.loss);
    token_logprobs_backward(exec, visited, {dense(workspace.dlogp), {}}, dense(workspace.logsumexp),
                            dlogits);
    return result;
  } else {
    using Terms = detail::TokenTerms<float, Loss>;
    const detail::TokenLayout& layout = checked.layout();
    const index_t workers = detail::workers_for(exec, rows.rows(), rows.numbers());
    if (static_cast<index_t>(workspace.workers.size()) < workers) {
      workspace.workers.resize(static_cast<std::size_t>(workers));
    }
    for (detail::LogitWorker& worker : workspace.workers) {
      checked.reserve(worker.scratch);
      worker.sequence = -1;
    }
    detail::for_each_unit(exec, workers, rows.rows(), [&](index_t w, index_t i) {
      const auto at = static_cast<std::size_t>(i);
      U* out = rows.begin(dlogits, i);
      const bool valid = workspace.mask[at] != 0;
      const LogitRow row = valid ? detail::visit_row<Exec>(visited, rows, i) : LogitRow{};
      workspace.logp[at] = valid ? static_cast<float>(logp(row)) : 0.0f;
      workspace.entropies[at] = valid ? static_cast<float>(entropy(row)) : 0.0f;
      workspace.logsumexp[at] = valid ? logsumexp(row) : 0.0;
      float g = 0;
      if (valid) {
        detail::LogitWorker& worker = workspace.workers[static_cast<std::size_t>(w)];
        const index_t sequence =
            layout.offsets ? detail::sequence_of(layout.offsets, layout.rows, i) : i / layout.width;
        detail::Tally unused;  // the loss call below counts
        if (worker.sequence != sequence) {
          const auto read = checked.read(sequence, worker.scratch, unused);
          worker.row = read.row, worker.weight = read.weight, worker.sequence = sequence;
          if constexpr (Terms::reads_row_advantage) {
            worker.row_advantage = static_cast<float>(worker.row.mean_advantage());
          }
        }
        const detail::RowTokens<float, float> token{worker.row, i - layout(sequence).begin};
        Token<float> x;
        detail::TokenReader<float, float>::template load<detail::General>(
            x, token.row, token.at, true, static_cast<float>(worker.row.advantage),
            worker.row_advantage);
        g = detail::token_gradient(loss, token, x, worker.weight);
      }
      if (math::is_zero(g)) return detail::fill_row(out, rows.vocabulary(), 0.0);
      detail::RowGradient of;
      of.g = static_cast<double>(g), of.logsumexp = workspace.logsumexp[at],
      of.target = rows.target(i);
      detail::gradient_row<detail::logit_lanes_t<Exec, T>>(rows.begin(i), out, rows.vocabulary(),
                                                           logits.temperature, of);
    });
    return evaluate(exec, loss, bound, normaliser, rows.dense(workspace.dlogp), workspace.loss);
  }
}
/// The same with its own memory, on one thread in lanes.
template <class Loss, class T, int Rank, class U>
LossResult policy_loss_from_logits(const Loss& loss, const LogitBatch<T, Rank>& logits,
                                   const TokenBatch<float>& batch, const Normaliser& normaliser,
                                   View<U, Rank> dlogits) {
  LogitsWorkspace workspace;
  return policy_loss_from_logits(simd, loss, logits, batch, normaliser, dlogits, workspace);
}

GDPO_END_NAMESPACE
