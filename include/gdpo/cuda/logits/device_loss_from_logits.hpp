#pragma once
// From logits to dloss/dlogits on a device: policy_loss_from_logits with a device as its first
// argument, and its scratch_bytes and count_into.
#include <gdpo/cuda/logits/device_logprobs.hpp>
#include <gdpo/cuda/loss/device_loss.hpp>
#include <gdpo/logits/loss_from_logits.hpp>
#include <gdpo/logits/shared/token_gradient.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// What else policy_loss_from_logits writes on request: device arrays of the shape of the targets.
///
/// Each is optional, and 0 where a mask is 0.
struct FromLogits {
  TokenOut<float> logp;        ///< log-probability of the target, nats
  TokenOut<float> entropies;   ///< -sum p log p, nats
  TokenOut<float> dlogp;       ///< dloss/dlogp
  TokenOut<double> logsumexp;  ///< log sum e^(logit / temperature)
};

namespace detail {

/// An output array of a rank that is known to the compiler.
template <int Rank, class S>
View<S, Rank> view_of(const TokenOut<S>& out) {
  View<S, Rank> v;
  v.data = out.data();
  for (int r = 0; r < Rank; ++r)
    v.extent[r] = out.shape().extent[r], v.stride[r] = out.shape().stride[r];
  return v;
}

/// Blocks of a grid that computes n pieces of work.
inline index_t blocks_of(const Tuning& tuning, index_t n) {
  return n < tuning.blocks ? n : index_t{tuning.blocks};
}

/// The numbers of a sequence that its tokens need.
struct TokenWeight {
  double weight;         ///< weight W_i of the sequence; 0 where that is not finite
  double entropy_scale;  ///< EntropyBonus::row_scale of the sequence
  float advantage;       ///< of the sequence; 0 where its tokens have advantages of their own
  float row_advantage;   ///< mean of the advantages of its tokens
};
/// Scratch arrays of a call, with one number for each row of logits, and the scratch of the loss
/// call.
struct LogitsMemory {
  float *logp, *entropies, *dlogp, *dentropies;
  double* logsumexp;
  TokenWeight* weights;
  unsigned char *mask, *loss;
  LogitsMemory(ScratchCursor& cursor, index_t rows, std::size_t loss_bytes)
      : logp(cursor.take<float>(rows)),
        entropies(cursor.take<float>(rows)),
        dlogp(cursor.take<float>(rows)),
        dentropies(cursor.take<float>(rows)),
        logsumexp(cursor.take<double>(rows)),
        weights(cursor.take<TokenWeight>(rows)),
        mask(cursor.take<unsigned char>(rows)),
        loss(cursor.take<unsigned char>(static_cast<index_t>(loss_bytes))) {}
};

/// An array with one number for each row of logits: the one that the caller gave, or `memory`.
template <class T, int Rank, class S>
View<S, Rank - 1> tokens_of(const LogitBatch<T, Rank>& logits, S* memory,
                            const TokenOut<S>& given) {
  if (given) return view_of<Rank - 1>(given);
  if constexpr (Rank == 2) {
    return gdpo::view(memory, logits.logits.extent[0]);
  } else {
    return gdpo::view(memory, logits.logits.extent[0], logits.logits.extent[1]);
  }
}
/// The batch with log-probs, mask and entropies of this call, as bind_logits makes it on the host.
/// Checks shapes.
template <class T, int Rank>
TokenBatch<float> bind_shapes(const char* function, const LogitBatch<T, Rank>& logits,
                              const TokenBatch<float>& batch, const LogitsMemory& memory,
                              const FromLogits& out) {
  gdpo::detail::check_prepared(function, batch.prepared);
  gdpo::detail::check_logits_shape(function, logits, gdpo::detail::Targets::Unread);
  gdpo::detail::check_by_row<Rank>(function, "batch.mask", batch.mask, logits.logits.extent);
  TokenBatch<float> bound = batch;
  bound.logp = tokens_of(logits, memory.logp, out.logp);
  bound.mask = tokens_of(logits, memory.mask, TokenOut<unsigned char>{});
  if (!batch.entropies) bound.entropies = tokens_of(logits, memory.entropies, out.entropies);
  if (!batch.offsets) bound.offsets = logits.offsets;
  return bound;
}

/// Joins the masks of the logits and of the batch, one thread a token. A token that no sequence
/// holds, which offsets that decrease can leave, is masked.
template <class T>
struct LogitMaskKernel {
  DeviceLogits<T> logits;
  DeviceTokens<unsigned char> mask;
  DeviceBatch<float> batch;
  unsigned char* out;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      const index_t step = block.count() * block.threads();
      for (index_t i = block.index() * block.threads() + thread; i < logits.rows; i += step) {
        out[i] = has_sequence(i) && logits.valid(i) && (!mask || logits.token(mask, i) != 0);
      }
    });
  }

 private:
  GDPO_INLINE bool has_sequence(index_t i) const {
    if (!batch.offsets) return true;
    if (batch.rows == 0) return false;
    const RowSpan span = batch.span(gdpo::detail::sequence_of(batch.offsets, batch.rows, i));
    return i >= span.begin && i < span.begin + span.length;
  }
};

/// Writes the TokenWeight of every token, one block a sequence, with the numbers that the loss
/// kernel computes.
template <class Loss>
struct TokenWeightKernel {
  using Terms = typename LossKernel<gdpo::detail::General, float, Loss>::Terms;
  static constexpr int largest_block = loss_threads;
  Loss loss;
  DeviceBatch<float> batch;
  DeviceNormalizer normalizer;
  TokenWeight* weights;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    for (index_t i = block.index(); i < batch.rows; i += block.count()) {
      const RowSpan span = batch.span(i);
      const RowLengths counts = count_row(block, batch, span);
      const double advantage = advantage_of(batch, i);
      TokenWeight token_weight{weight_of(loss, batch, i, counts.tokens, normalizer), 0,
                               static_cast<float>(advantage), 0};
      if (math::not_finite(token_weight.weight)) token_weight.weight = 0;
      token_weight.entropy_scale =
          entropy_scale(loss, batch, i, counts.tokens, token_weight.weight, normalizer);
      if constexpr (Terms::reads_row_advantage) {
        token_weight.row_advantage =
            static_cast<float>(advantages_of(block, batch, span, counts.tokens, advantage).mean);
      }
      block.each([&](int thread) {
        for (index_t t = thread; t < span.length; t += block.threads())
          weights[span.begin + t] = token_weight;
      });
    }
  }
};

/// dloss/dlogp of one valid token, at a level of tokens.
template <class Loss>
GDPO_DEVICE float token_gradient(const Loss& loss, const DeviceBatch<float>& batch,
                                 const gdpo::detail::LogitPlace& place, float logp,
                                 const TokenWeight& token_weight) {
  const RowSpan span{place.row, place.begin, 1};
  const DeviceToken<float, float> token{batch, span, place.t};
  Token<float> x = token.load(true, token_weight.advantage, token_weight.row_advantage);
  x.logp = logp;  // this kernel is only now writing batch.logp
  if (!token.has_old_logp()) x.old_logp = logp;
  x.token_log_ratio = token.has_old_logp() ? x.logp - x.old_logp : 0.0f;
  return gdpo::detail::token_gradient(loss, token, x, token_weight.weight);
}

/// dloss/dentropy of one valid token.
GDPO_DEVICE inline float entropy_gradient(const DeviceBatch<float>& batch,
                                          const gdpo::detail::LogitPlace& place, double scale) {
  const RowSpan span{place.row, place.begin, 1};
  const double given =
      batch.entropy_weights
          ? static_cast<double>(DeviceBatch<float>::at(batch.entropy_weights, span, place.t))
          : 1.0;
  return static_cast<float>(
      gdpo::detail::entropy_slope(scale, gdpo::detail::entropy_weight(given)));
}

/// What one launch reads and writes at the rows of logits, whatever the loss.
template <class T, class U>
struct RowsOfLogits {
  DeviceLogits<T> logits;  ///< with the joined mask
  DeviceBatch<float> batch;
  DeviceRows<U> dlogits;
  TokenWeight* weights;
  DeviceOut<float> logp, entropies;
  DeviceOut<double> logsumexp;
  std::size_t cache_bytes;  ///< bytes of a row that stay in shared memory until its gradient

  GDPO_INLINE void put(index_t i, double log_prob, double row_entropy, double log_sum) const {
    logits.put(logp, i, log_prob);
    logits.put(entropies, i, row_entropy);
    logits.put(logsumexp, i, log_sum);
  }
};

/// One block computes one row of logits: its sums, the gradient of its token by the log-prob, and
/// from that the gradient of the row.
template <class Loss, class T, class U>
struct LogitsLossKernel {
  using S = typename LogitVector<T>::S;
  static constexpr int largest_block = logit_threads, blocks_at_once = row_blocks_at_once<T, U>;
  struct alignas(16) Shared {
    PowerLine<S> line;
  };
  Loss loss;
  RowsOfLogits<T, U> rows;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t i = block.index();
    const DeviceLogits<T>& logits = rows.logits;
    Shared& shared = *block.template shared<Shared>();
    const T* x = logits.row(i);
    RowVectors<T> row(x, logits.vocabulary, block.threads());
    if (!logits.valid(i)) {
      block.each([&](int thread) {
        if (thread == 0) rows.put(i, 0, 0, 0);
      });
      return fill_of_row(block, row, S(0), rows.dlogits(i));
    }
    row.keep(&shared + 1, rows.cache_bytes);
    const int target = logits.target(i);
    const RowStats<S> stats = sums_of_row(block, row, logits.temperature);
    block.each([&](int thread) {
      if (thread == 0) shared.line = line_of(i, stats, logit_at(x, target), target);
    });
    gradient_of_row(block, row, shared.line, rows.dlogits(i));
  }

 private:
  /// Run by one thread: writes the numbers of the token, and returns the line of the row's
  /// gradient.
  GDPO_DEVICE PowerLine<S> line_of(index_t i, const RowStats<S>& stats, S x_target,
                                   int target) const {
    const LogitRow row = logit_row_of(stats, rows.logits, x_target, target);
    const double log_prob = gdpo::logp(row), log_sum = gdpo::logsumexp(row),
                 row_entropy = gdpo::entropy(row);
    rows.put(i, log_prob, row_entropy, log_sum);
    const float g = token_gradient(loss, rows.batch, rows.logits.place(i),
                                   static_cast<float>(log_prob), rows.weights[i]);
    gdpo::detail::RowGradient gradient;
    gradient.g = static_cast<double>(g), gradient.logsumexp = log_sum, gradient.target = target;
    if (rows.weights[i].entropy_scale != 0) {
      // In float, as the loss call and the backward would pass them on.
      gradient.g_entropy = static_cast<double>(
          entropy_gradient(rows.batch, rows.logits.place(i), rows.weights[i].entropy_scale));
      gradient.entropy = static_cast<double>(static_cast<float>(row_entropy));
    }
    return PowerLine<S>(gradient, static_cast<double>(x_target), rows.logits.temperature);
  }
};

/// A loss as policy_loss_from_logits(device, ...) calls it. The code around the kernels of the
/// loss is compiled once for all losses.
template <class Device, class T, class U>
class LossOfLogits {
 public:
  virtual ~LossOfLogits() = default;
  /// Whether a gradient needs its whole segment, so that all rows are read first.
  virtual bool of_segment() const = 0;
  /// The arrays that the loss reads. Throws unless it takes the batch and the counts.
  virtual gdpo::detail::TokenReads check(const char* function, const TokenBatch<float>& batch,
                                         const gdpo::detail::TokenLayout& layout,
                                         const DeviceNormalizer& normalizer) const = 0;
  /// Writes log-probs and gradients of the rows; not for a loss of segments.
  virtual void visit(const Device& device, const gdpo::detail::TokenLayout& layout,
                     const DeviceNormalizer& normalizer, const RowsOfLogits<T, U>& rows) const = 0;
  /// Whether the loss has a gradient by the entropies.
  virtual bool has_entropy() const = 0;
  virtual void operator()(const Device& device, const TokenBatch<float>& batch,
                          const DeviceNormalizer& normalizer, const LossGradient<float>& gradient,
                          LossResult* result, const Scratch& scratch) const = 0;
};
template <class Device, class Loss, class T, class U>
class LossOfLogitsAs final : public LossOfLogits<Device, T, U> {
 public:
  explicit LossOfLogitsAs(const Loss& loss) : loss_(loss) {}

  /// A loss whose KL terms have aggregates of their own takes the same way.
  static constexpr bool reads_first =
      decltype(Loss::level)::of_segment ||
      gdpo::detail::own_aggregates_v<std::decay_t<decltype(Loss::kl)>>;
  bool of_segment() const override { return reads_first; }
  gdpo::detail::TokenReads check(const char* function, const TokenBatch<float>& batch,
                                 const gdpo::detail::TokenLayout& layout,
                                 const DeviceNormalizer& normalizer) const override {
    return check_call(function, loss_, batch, layout, normalizer);
  }
  void visit(const Device& device, const gdpo::detail::TokenLayout& layout,
             const DeviceNormalizer& normalizer, const RowsOfLogits<T, U>& rows) const override {
    if constexpr (!reads_first) {
      using Kernel = LogitsLossKernel<Loss, T, U>;
      device.launch(blocks_of(device.tuning(), layout.rows), threads_for(layout.width), 0,
                    TokenWeightKernel<Loss>{loss_, rows.batch, normalizer, rows.weights});
      device.launch(rows.logits.rows, threads_of<T>(rows.logits.vocabulary),
                    sizeof(typename Kernel::Shared) + rows.cache_bytes, Kernel{loss_, rows});
    }
  }
  bool has_entropy() const override { return gdpo::detail::entropy_of(loss_).coef != 0; }
  void operator()(const Device& device, const TokenBatch<float>& batch,
                  const DeviceNormalizer& normalizer, const LossGradient<float>& gradient,
                  LossResult* result, const Scratch& scratch) const override {
    evaluate(device, loss_, batch, normalizer, gradient, result, scratch);
  }

 private:
  const Loss& loss_;
};

/// Number of sequences of a batch. It is 0 without offsets; shape_of then throws.
template <class T, int Rank>
index_t sequences_of(const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch) {
  if constexpr (Rank == 3) return logits.logits.extent[0];
  const IndexColumn& offsets = batch.offsets ? batch.offsets : logits.offsets;
  return offsets && offsets.size() > 0 ? offsets.size() - 1 : 0;
}
inline std::size_t bytes_of_loss(index_t sequences) {
  const RowUnits units(sequences);
  const std::size_t loss = bytes_of<LossMemory>(units), count = bytes_of<CountMemory>(units);
  return loss < count ? count : loss;
}

/// A call after its checks: its scratch arrays, and the batches that are bound to them.
template <class T, int Rank>
struct BoundLogits {
  LogitsMemory memory;
  Scratch loss_scratch;
  LogitBatch<T, Rank> masked_logits;  ///< the logits with the joined mask
  TokenBatch<float> batch;
  gdpo::detail::TokenLayout layout;

  BoundLogits(const char* function, const LogitBatch<T, Rank>& logits,
              const TokenBatch<float>& given, const FromLogits& out, const Scratch& scratch)
      : memory(take_memory<LogitsMemory>(function, scratch,
                                         gdpo::detail::LogitRows<T, Rank>(logits).rows(),
                                         bytes_of_loss(sequences_of(logits, given)))),
        loss_scratch{memory.loss, bytes_of_loss(sequences_of(logits, given))},
        masked_logits(logits),
        batch(bind_shapes(function, logits, given, memory, out)),
        layout(gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::Yes)) {
    // The mask hides the last row of packed sequences, which may have no target.
    masked_logits.targets =
        masked_logits.targets.with_tokens(gdpo::detail::LogitRows<T, Rank>(logits).rows());
    masked_logits.offsets = {};
    masked_logits.mask = batch.mask;
  }
  template <class Device>
  void launch_masks(const Device& device, const char* function, const LogitBatch<T, Rank>& logits,
                    const TokenBatch<float>& given) const {
    constexpr int threads = 256;
    const LogitMaskKernel<T> kernel{
        DeviceLogits<T>(function, logits),
        DeviceTokens<unsigned char>(function, "batch.mask", given.mask),
        DeviceBatch<float>(function, batch, layout, {false, false, false, false}), memory.mask};
    device.launch(blocks_of(device.tuning(), (kernel.logits.rows + threads - 1) / threads), threads,
                  0, kernel);
  }
};

/// policy_loss_from_logits(device, ...) of any loss.
template <class Device, class T, int Rank, class U>
void visit_logits(const Device& device, const LossOfLogits<Device, T, U>& loss,
                  const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch,
                  const DeviceNormalizer& normalizer, const View<U, Rank>& dlogits,
                  LossResult* result, const Scratch& scratch, const FromLogits& out) {
  constexpr const char* function = "gdpo::policy_loss_from_logits";
  gdpo::detail::check_whole(function, logits);
  gdpo::detail::check_logits_shape(function, logits, gdpo::detail::Targets::OfVocabulary);
  const index_t* const shape = logits.logits.extent;
  gdpo::detail::check_written_table(function, "dlogits", dlogits, shape);
  gdpo::detail::check_by_row<Rank>(function, "out.logp", out.logp, shape);
  gdpo::detail::check_by_row<Rank>(function, "out.entropies", out.entropies, shape);
  gdpo::detail::check_by_row<Rank>(function, "out.dlogp", out.dlogp, shape);
  gdpo::detail::check_by_row<Rank>(function, "out.logsumexp", out.logsumexp, shape);
  const BoundLogits<T, Rank> bound(function, logits, batch, out, scratch);
  if (loss.has_entropy()) gdpo::detail::refuse_entropies(function, batch.entropies);
  const auto reads = loss.check(function, bound.batch, bound.layout, normalizer);
  if (!result) contract::fail(function, "result", "no memory", "a LossResult on the device");

  const auto logp = tokens_of(logits, bound.memory.logp, out.logp);
  const auto entropies = tokens_of(logits, bound.memory.entropies, out.entropies);
  const auto logsumexp = tokens_of(logits, bound.memory.logsumexp, out.logsumexp);
  bound.launch_masks(device, function, logits, batch);
  if (loss.of_segment()) {
    const auto dlogp = tokens_of(logits, bound.memory.dlogp, out.dlogp);
    token_logprobs_into(device, bound.masked_logits, {logp, entropies, logsumexp});
    LossGradient<float> gradient = dlogp;
    gdpo::TokenLogprobsGrad by_tokens{dlogp, {}};
    if (loss.has_entropy()) {
      const auto dentropies = tokens_of(logits, bound.memory.dentropies, TokenOut<float>{});
      gradient.entropies = dentropies, by_tokens.entropy = dentropies;
    }
    loss(device, bound.batch, normalizer, gradient, result, bound.loss_scratch);
    token_logprobs_backward(device, bound.masked_logits, by_tokens, logsumexp, entropies, dlogits);
  } else {
    const DeviceLogits<T> rows(function, bound.masked_logits);
    const std::size_t row_bytes =
        (static_cast<std::size_t>(rows.vocabulary) * sizeof(T) + 15) / 16 * 16;
    loss.visit(
        device, bound.layout, normalizer,
        {rows, DeviceBatch<float>(function, bound.batch, bound.layout, reads),
         DeviceRows<U>(dlogits), bound.memory.weights, DeviceOut<float>(function, "out.logp", logp),
         DeviceOut<float>(function, "out.entropies", entropies),
         DeviceOut<double>(function, "out.logsumexp", logsumexp),
         (std::min)(device.tuning().shared_bytes, row_bytes)});
    loss(device, bound.batch, normalizer, out.dlogp, result, bound.loss_scratch);
  }
}

}  // namespace detail

/// Bytes of Scratch that policy_loss_from_logits(device, ...) and its count_into() need.
///
/// That is 49 bytes for each row of logits, and what the loss needs for the sequences: as there, a
/// batch of fewer sequences can need more.
/// `function`: the call that messages name.
template <class T, int Rank>
std::size_t scratch_bytes(const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch,
                          const char* function = "gdpo::cuda::scratch_bytes") {
  const auto extents = gdpo::detail::to_count(function, logits, batch, -1);
  return detail::bytes_of<detail::LogitsMemory>(
      gdpo::detail::LogitRows<T, Rank>(extents).rows(),
      detail::bytes_of_loss(detail::sequences_of(extents, batch)));
}

/// The counts of a batch whose log-probs come from logits, written to `on_device`.
///
/// They are those of gdpo::count(logits, batch): a token counts where the masks of both let it
/// through. The logits are not read and may be absent, as in `aligned(completion_mask)`; offsets
/// alone do not give the number of rows, because the host cannot read them. Three launches;
/// `scratch`: scratch_bytes(logits, batch).
template <class Device, class T, int Rank,
          std::enable_if_t<gdpo::detail::is_device_v<Device>, int> = 0>
void count_into(const Device& device, const LogitBatch<T, Rank>& logits,
                const TokenBatch<float>& batch, Normalizer* on_device, const Scratch& scratch) {
  constexpr const char* function = "gdpo::cuda::count_into";
  const auto extents = gdpo::detail::to_count(function, logits, batch, -1);
  const detail::BoundLogits<T, Rank> bound(function, extents, batch, {}, scratch);
  bound.launch_masks(device, function, extents, batch);
  count_into(device, bound.batch, on_device, bound.loss_scratch);
}

}  // namespace cuda

/// From logits to dloss/dlogits on a device: log-probs, the loss and the gradient in one call.
///
///     const gdpo::cuda::On on{stream}; gdpo::policy_loss_from_logits(on, loss, logits, batch,
///     normalizer, dlogits, result, scratch);
///
/// **Arguments** have the meaning of logits/loss_from_logits.hpp. All views are of device memory,
/// and so are `result` and the arrays of `out`. `normalizer`: counts that the host knows, or a
/// pointer to those that cuda::count_into(device, logits, batch, ...) left on the device.
/// `scratch`: cuda::scratch_bytes(logits, batch).
///
/// **Cost.** At level::Token one kernel reads each row of logits once and writes its gradient once.
/// What does not fit tuning().shared_bytes is read again, while it is in the L2 cache. At levels of
/// segments a row is read twice and written once, because dloss/dlogp needs the log-probs of the
/// whole segment. Up to six launches: masks, weights of the tokens, rows, and two or three of the
/// loss; at levels of segments masks, rows, those of the loss, and rows again.
///
/// **Accuracy.** The bits are those of the calls one by one on this device;
/// cuda/logits/device_logprobs.hpp and cuda/loss/device_loss.hpp say how accurate these are.
///
/// **Errors.** invalid_input before anything is enqueued; cuda::error where a launch fails. Data
/// on the device is not checked (see those headers); a row of logits that no sequence holds counts
/// as masked.
template <class Device, class Loss, class T, int Rank, class U,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void policy_loss_from_logits(const Device& device, const Loss& loss,
                             const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch,
                             const cuda::DeviceNormalizer& normalizer, View<U, Rank> dlogits,
                             LossResult* result, const cuda::Scratch& scratch,
                             const cuda::FromLogits& out = {}) {
  static_assert(detail::needs_loss<Loss>());
  static_assert(!std::is_const_v<U>, "dlogits are written: their view must not be of const");
  const cuda::detail::LossOfLogitsAs<Device, Loss, T, U> logits_loss(loss);
  cuda::detail::visit_logits(device, logits_loss, logits, batch, normalizer, dlogits, result,
                             scratch, out);
}

GDPO_END_NAMESPACE
