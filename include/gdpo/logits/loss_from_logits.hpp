#pragma once
// policy_loss_from_logits: a policy loss and its gradient by the logits, in one pass over each row.
#include <gdpo/logits/shared/token_gradient.hpp>
#include <gdpo/logits/token_logprobs.hpp>
#include <gdpo/loss/policy_loss.hpp>
#include <gdpo/loss/shared/checked_loss.hpp>
#include <gdpo/loss/shared/token_reader.hpp>
#include <optional>

GDPO_BEGIN_NAMESPACE

namespace detail {
/// The current sequence of a worker, kept while its rows of logits belong to the same sequence.
struct LogitWorker {
  RowMemory<float> scratch;
  TokenRow<float> row;       ///< The arrays of the sequence.
  double weight = 0;         ///< W_i, its weight in the loss.
  double entropy_scale = 0;  ///< That of its entropies (EntropyBonus::row_scale).
  float row_advantage = 0;   ///< Mean advantage of its valid tokens, if the loss reads it.
  index_t sequence = -1;     ///< Its number; -1: none yet.
};
}  // namespace detail

/// Memory of `policy_loss_from_logits`, kept between calls, with the results of the last call.
/// After a first call with the same shapes and executor, nothing is allocated. The arrays have one
/// entry for each row of logits, in order. It serves one call at a time: threads that call at the
/// same time need one each.
struct LogitsWorkspace {
  std::vector<float> logp,          ///< Log-prob of the target, in nats; 0 where masked.
      entropies,                    ///< Entropy of the row, in nats; 0 where masked.
      dlogp,                        ///< d loss / d logp; 0 where masked.
      dentropies;                   ///< d loss / d entropies, for a loss with an EntropyBonus.
  std::vector<double> logsumexp;    ///< log sum e^(logit / temperature), in nats; 0 where masked.
  std::vector<unsigned char> mask;  ///< 1 where both masks let the token through, else 0.
  LossWorkspace<float> loss;        ///< Memory of the loss.
  std::vector<detail::LogitWorker> workers;  ///< Memory of the workers of the executor.
};

namespace detail {

/// The batch with arrays of the workspace: log-probs, the mask of logits and batch together, and
/// the entropies if the batch has none. Checks the logits (not the targets) and the shape of
/// batch.mask.
template <class T, int Rank>
TokenBatch<float> bind_logits(const char* function, const LogitBatch<T, Rank>& logits,
                              const TokenBatch<float>& batch, LogitsWorkspace& workspace) {
  check_prepared(function, batch.prepared);
  check_logits(function, logits, Targets::Unread);
  check_by_row<Rank>(function, "batch.mask", batch.mask, logits.logits.extent);
  const auto check = [&](const char* name, const TokenView<unsigned char>& mask) {
    const index_t mask_rows = mask.rank() == 2 ? mask.extent(0) : 1,
                  length = mask.rank() > 0 ? mask.extent(mask.rank() - 1) : 0;
    check_mask(function, name, mask, mask_rows, [length](index_t i) {
      return RowSpan{i, 0, length};
    });
  };
  check("mask", logits.mask), check("batch.mask", batch.mask);
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

/// The batch for a count: with the extents of its logits, but without them. Where the logits
/// are absent, the extents are those of the mask, of the targets or of batch.mask; where these are
/// absent too, `rows` are the rows of packed sequences. `rows` below 0: not known.
template <class T, int Rank>
LogitBatch<T, Rank> to_count(const char* function, LogitBatch<T, Rank> logits,
                             const TokenBatch<float>& batch, index_t rows) {
  index_t* const extent = logits.logits.extent;
  bool known = logits.logits.data != nullptr;
  for (const index_t length : logits.logits.extent) known = known || length != 0;
  for (const TokenShape& shape :
       {logits.mask.shape(), logits.targets.shape(), batch.mask.shape()}) {
    if (known || shape.rank != Rank - 1) continue;
    for (int r = 0; r < shape.rank; ++r) extent[r] = shape.extent[r];
    known = true;
  }
  if (!known && rows >= 0) extent[0] = rows, known = true;
  if (!known) {
    contract::fail(function, "logits, mask, targets, batch.mask", "none",
                   "one of them, which says how many rows there are");
  }
  logits.logits.data = nullptr;
  extent[Rank - 1] = 0;
  return logits;
}

/// The packed sequence that holds token i, out of `rows` sequences, one of which must hold it.
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

/// d loss / d logp and d loss / d entropy of one token.
struct TokenSlopes {
  float logp = 0, entropy = 0;
};

/// A loss as policy_loss_from_logits() calls it. The code that visits the logits is compiled once
/// for all losses: a row of logits is so long that a virtual call for it costs nothing.
template <class Exec>
class LossOfLogits {
 public:
  virtual ~LossOfLogits() = default;
  /// Whether a gradient needs its whole segment, so that all rows are read first.
  virtual bool of_segment() const = 0;
  /// Throws unless the loss takes the batch, which must outlive it.
  virtual void bind(const char* function, const TokenBatch<float>& batch,
                    const Normalizer& normalizer) = 0;
  /// Whether the loss has a gradient by the entropies.
  virtual bool has_entropy() const = 0;
  /// Makes a worker ready for the rows of this batch.
  virtual void reserve(LogitWorker& worker) const = 0;
  /// The derivatives of the loss at the valid token i, in the order of the rows of logits, once the
  /// batch has its log-prob; not for a loss of segments.
  virtual TokenSlopes slopes(LogitWorker& worker, index_t i) const = 0;
  virtual LossResult operator()(const Exec& exec, const LossGradient<float>& gradient,
                                LossWorkspace<float>& workspace) const = 0;
};
template <class Exec, class Loss>
class LossOfLogitsAs final : public LossOfLogits<Exec> {
 public:
  explicit LossOfLogitsAs(const Loss& loss) : loss_(loss) {}

  /// A loss whose KL terms have aggregates of their own takes the same way.
  static constexpr bool reads_first =
      decltype(Loss::level)::of_segment || own_aggregates_v<std::decay_t<decltype(Loss::kl)>>;
  bool of_segment() const override { return reads_first; }
  bool has_entropy() const override { return entropy_of(loss_).coef != 0; }
  void bind(const char* function, const TokenBatch<float>& batch,
            const Normalizer& normalizer) override {
    batch_ = &batch, normalizer_ = &normalizer;
    checked_.emplace(function, loss_, batch, normalizer, no_gradient_);
    check_all_seen(function, loss_, checked_->over(), normalizer,
                   count_rows(batch, checked_->layout()));
  }
  void reserve(LogitWorker& worker) const override {
    checked_->reserve(worker.scratch);
    worker.sequence = -1;
  }
  TokenSlopes slopes(LogitWorker& worker, index_t i) const override {
    if constexpr (reads_first) {
      return (void)worker, (void)i, TokenSlopes{};
    } else {
      const TokenLayout& layout = checked_->layout();
      const index_t sequence =
          layout.offsets ? sequence_of(layout.offsets, layout.rows, i) : i / layout.width;
      if (worker.sequence != sequence) {
        NonFinite unused;  // the loss call makes the counts
        const auto read = checked_->read(sequence, worker.scratch, unused);
        worker.row = read.row, worker.weight = read.weight, worker.sequence = sequence;
        if constexpr (TokenTerms<float, Loss>::reads_row_advantage)
          worker.row_advantage = static_cast<float>(worker.row.mean_advantage());
        const double given = batch_->row_weights ? batch_->row_weights(sequence) : 1.0;
        worker.entropy_scale = entropy_of(loss_).row_scale(worker.weight, given, *normalizer_);
      }
      const RowTokens<float, float> token{worker.row, i - layout(sequence).begin};
      Token<float> x;
      TokenReader<float, float>::template load<General>(x, token.row, token.first, true,
                                                        static_cast<float>(worker.row.advantage),
                                                        worker.row_advantage);
      TokenSlopes slopes{token_gradient(loss_, token, x, worker.weight)};
      if (worker.entropy_scale != 0) {
        const double weight = token.has_entropy_weights()
                                  ? entropy_weight(static_cast<double>(token.entropy_weights()))
                                  : 1.0;
        slopes.entropy = static_cast<float>(entropy_slope(worker.entropy_scale, weight));
      }
      return slopes;
    }
  }
  LossResult operator()(const Exec& exec, const LossGradient<float>& gradient,
                        LossWorkspace<float>& workspace) const override {
    return evaluate(exec, loss_, *batch_, *normalizer_, gradient, workspace);
  }

 private:
  const Loss& loss_;
  const LossGradient<float> no_gradient_{};
  const TokenBatch<float>* batch_ = nullptr;
  const Normalizer* normalizer_ = nullptr;
  std::optional<CheckedLoss<float, Loss>> checked_;
};

/// Throws if a batch has entropies of its own, for a loss with an EntropyBonus from logits.
inline void refuse_entropies(const char* function, const TokenView<float>& entropies) {
  if (!entropies) return;
  contract::fail(function, "batch.entropies", "an array, for a loss with an entropy bonus",
                 "none: the bonus reads the entropies of the logits, which get its gradient");
}

/// policy_loss_from_logits() of any loss.
template <class Exec, class T, int Rank, class U>
LossResult visit_logits(const Exec& exec, LossOfLogits<Exec>& loss,
                        const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch,
                        const Normalizer& normalizer, const View<U, Rank>& dlogits,
                        LogitsWorkspace& workspace) {
  constexpr const char* function = "gdpo::policy_loss_from_logits";
  const TokenBatch<float> bound = bind_logits(function, logits, batch, workspace);
  LogitBatch<T, Rank> masked_logits = logits;
  const LogitRows<T, Rank> rows(masked_logits);
  masked_logits.mask = rows.dense(workspace.mask);
  masked_logits.targets =
      masked_logits.targets.with_tokens(rows.rows());  // the mask hides the last row
  masked_logits.offsets = {};
  check_whole(function, masked_logits);
  check_logits(function, masked_logits, Targets::OfVocabulary);
  check_written_table(function, "dlogits", dlogits, logits.logits.extent);
  const bool has_entropy = loss.has_entropy();
  if (has_entropy) refuse_entropies(function, batch.entropies);
  loss.bind(function, bound, normalizer);

  const auto dense = [&](auto& values) { return rows.dense(values); };
  if (loss.of_segment()) {
    token_logprobs_into(
        exec, masked_logits,
        {dense(workspace.logp), dense(workspace.entropies), dense(workspace.logsumexp)});
    LossGradient<float> gradient = dense(workspace.dlogp);
    TokenLogprobsGrad by_tokens{dense(workspace.dlogp), {}};
    if (has_entropy) {
      workspace.dentropies.resize(workspace.dlogp.size());
      gradient.entropies = dense(workspace.dentropies);
      by_tokens.entropy = dense(workspace.dentropies);
    }
    const LossResult result = loss(exec, gradient, workspace.loss);
    token_logprobs_backward(exec, masked_logits, by_tokens, dense(workspace.logsumexp),
                            dense(workspace.entropies), dlogits);
    return result;
  }
  workspace.dentropies.assign(has_entropy ? workspace.dlogp.size() : 0, 0.0f);
  const index_t workers = workers_for(exec, rows.rows(), rows.numbers());
  if (static_cast<index_t>(workspace.workers.size()) < workers) {
    workspace.workers.resize(static_cast<std::size_t>(workers));
  }
  for (LogitWorker& worker : workspace.workers) loss.reserve(worker);
  for_each_unit(exec, workers, rows.rows(), [&](index_t w, index_t i) {
    const auto place = static_cast<std::size_t>(i);
    U* out = rows.begin(dlogits, i);
    const bool valid = workspace.mask[place] != 0;
    const LogitRow row = valid ? visit_row<Exec>(masked_logits, rows, i) : LogitRow{};
    workspace.logp[place] = valid ? static_cast<float>(logp(row)) : 0.0f;
    workspace.entropies[place] = valid ? static_cast<float>(entropy(row)) : 0.0f;
    workspace.logsumexp[place] = valid ? logsumexp(row) : 0.0;
    const TokenSlopes slopes =
        valid ? loss.slopes(workspace.workers[static_cast<std::size_t>(w)], i) : TokenSlopes{};
    if (has_entropy) workspace.dentropies[place] = slopes.entropy;
    if (math::is_zero(slopes.logp) && math::is_zero(slopes.entropy))
      return fill_row(out, rows.vocabulary(), 0.0);
    RowGradient gradient;
    gradient.g = static_cast<double>(slopes.logp);
    gradient.logsumexp = workspace.logsumexp[place];
    if (has_entropy) {
      gradient.g_entropy = static_cast<double>(slopes.entropy);
      gradient.entropy = static_cast<double>(workspace.entropies[place]);
    }
    gradient.target = rows.target(i);
    gradient_row<logit_lanes_t<Exec, T>>(rows.begin(i), out, rows.vocabulary(),
                                         masked_logits.temperature, gradient);
  });
  return loss(exec, dense(workspace.dlogp), workspace.loss);
}

}  // namespace detail

/// The counts of a batch whose log-probs come from logits, for the normalizer of the loss. A token
/// counts where the masks of both let it through. Otherwise as `count(batch)`: add the counts of
/// all micro-batches and ranks of the step. Allocates 21 bytes for each row of logits.
///
/// The logits are not read and may be absent. The number of rows is then that of the mask, of the
/// targets, of batch.mask, or of packed sequences. So a step can be counted before its first
/// forward pass, from the completion masks:
///
///     gdpo::count(gdpo::aligned(completion_mask))           // (B, T), or
///     gdpo::count(gdpo::aligned(completion_mask), batch)    // with a prepared batch
template <class T, int Rank>
Normalizer count(const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch = {}) {
  constexpr const char* function = "gdpo::count";
  const IndexColumn& offsets = batch.offsets ? batch.offsets : logits.offsets;
  const index_t packed = Rank == 2 && offsets.size() > 0 ? offsets(offsets.size() - 1) : -1;
  LogitsWorkspace workspace;
  return count(detail::bind_logits(function, detail::to_count(function, logits, batch, packed),
                                   batch, workspace));
}

/// A policy loss straight from logits, with its gradient by the logits.
/// It is `token_logprobs_into`, the loss and `token_logprobs_backward` in one call, with the same
/// bits as the three calls one by one.
///
///     gdpo::LogitsWorkspace workspace;
///     const auto logits = gdpo::aligned(table, ids, completion_mask);
///     gdpo::policy_loss_from_logits(gdpo::simd, loss, logits, batch,
///                                   gdpo::count(logits, batch), dlogits, workspace);
///
/// logits: the whole vocabulary, (B, T, V) or (N, V), with targets.
/// batch: as for the loss, in the shape of logits.targets; its logp is not read. For logits (N, V)
/// it is packed: rank-1 arrays and offsets. Offsets and mask may be in the logits, in the batch
/// or in both, and a token counts where both masks let it through. Entropies are those of
/// the logits unless the batch has its own, for metrics; a loss with an EntropyBonus refuses these.
/// normalizer: `count(logits, batch)`, added over the micro-batches and ranks of the step.
/// dlogits: as for `token_logprobs_backward`; it may be the logits themselves. A row is exactly 0
/// where the mask is 0 or where the loss has no gradient, as at a clipped token.
///
/// **Memory traffic.** At `level::Token` each row is visited once, forward and backward while it is
/// in the cache: one read and one write of the logits. At levels of sequences all rows are read
/// before the first gradient is known, and once more for the gradient: two reads and one write. The
/// call needs 21 bytes of the workspace for each row, and what the loss needs.
///
/// At `level::Token` the term of each token is computed twice. The first time gives the gradient
/// while the row of logits is in the cache. The second time is the loss call after all rows: its
/// sums take the tokens in a fixed order, which rows on several threads would not keep.
///
/// **Pre-passes.** A prepared batch works as it is. Pre-passes that read log-probs or entropies
/// (Gate, Importance, TopEntropy) need them first: call `token_logprobs_into`, `prepare`, the loss
/// and `token_logprobs_backward` one after the other.
///
/// Errors: `invalid_input` as from the three calls, before dlogits are written.
template <class Exec, class Loss, class T, int Rank, class U>
LossResult policy_loss_from_logits(const Exec& exec, const Loss& loss,
                                   const LogitBatch<T, Rank>& logits,
                                   const TokenBatch<float>& batch, const Normalizer& normalizer,
                                   View<U, Rank> dlogits, LogitsWorkspace& workspace) {
  static_assert(detail::needs_exec<Exec>());
  static_assert(detail::needs_loss<Loss>());
  static_assert(!std::is_const_v<U>, "dlogits are written: their view must not be of const");
  detail::LossOfLogitsAs<Exec, Loss> logits_loss(loss);
  return detail::visit_logits(exec, logits_loss, logits, batch, normalizer, dlogits, workspace);
}
/// The same with its own workspace, on one thread in lanes (`simd`).
template <class Loss, class T, int Rank, class U>
LossResult policy_loss_from_logits(const Loss& loss, const LogitBatch<T, Rank>& logits,
                                   const TokenBatch<float>& batch, const Normalizer& normalizer,
                                   View<U, Rank> dlogits) {
  LogitsWorkspace workspace;
  return policy_loss_from_logits(simd, loss, logits, batch, normalizer, dlogits, workspace);
}

GDPO_END_NAMESPACE
