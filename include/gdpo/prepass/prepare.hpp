#pragma once
#include <gdpo/loss/engine/rows.hpp>

namespace gdpo {
/// What the weights of a pre-pass multiply.
enum class Reach {
  None,            ///< nothing: the pre-pass is off
  Surrogate,       ///< the surrogate; KL terms and counts stay, and the token stays in the ratio of its segment
  SurrogateAndKl,  ///< both; counts stay
  /// Weight 0 takes the token out of the batch: of the loss, the counts of tokens, the statistics of its row, the metrics.
  /// Its row stays one of Normaliser::rows, as in the trainers; Over::NonEmptyRows leaves out a row that lost all tokens.
  Denominator
};
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Masks and weights of one prepared batch; must outlive it, and the next prepare() with it overwrites them (a batch prepared
/// twice goes on from the first). Kept between calls: no allocation after a first one of the same shape.
template <class S>
struct PrepassMemory {
  std::vector<unsigned char> mask, kept, completion;
  std::vector<S> weights, kl_weights;
  std::vector<double> pass, values;
  detail::RowScratch<S> rows;
};

/// The rows of a batch as a pre-pass sees them.
template <class S>
class PrepassRows {
 public:
  PrepassRows(const TokenBatch<S>& batch, const detail::TokenLayout& layout, PrepassMemory<S>& memory)
      : batch_(batch), layout_(layout), memory_(memory) {}

  index_t size() const { return layout_.rows; }
  /// Row i, valid until the next call.
  TokenRow<S> operator()(index_t i) const { return detail::read_row(batch_, layout_, i, {}, memory_.rows); }
  bool has_advantages() const { return batch_.advantages || batch_.token_advantages; }
  /// Position of the row's first token in the weights.
  index_t begin(index_t i) const { return layout_(i).begin; }
  /// Valid tokens and positions of the batch.
  index_t positions() const { return layout_.tokens; }
  /// Memory that a pre-pass may use while it runs.
  std::vector<double>& scratch() const { return memory_.values; }

 private:
  const TokenBatch<S>& batch_;
  const detail::TokenLayout& layout_;
  PrepassMemory<S>& memory_;
};

/// The threshold that a pre-pass took; `prepare` hands it to the metrics.
struct EntropyThreshold {
  double value;
};

namespace detail {

template <class P, class S, class = void>
constexpr bool is_prepass_v = false;
template <class P, class S>
constexpr bool is_prepass_v<P, S, std::enable_if_t<std::is_same_v<Reach, decltype(P::reach)>>> =
    std::is_invocable_v<const P&, const PrepassRows<S>&, double*>;

/// Dense arrays of the batch's shape, in the order of its positions.
template <class S, class T>
TokenView<T> dense_like(const TokenView<S>& like, std::vector<T>& values) {
  T* data = values.data();
  if (like.rank() == 1) return gdpo::view(data, like.extent(0));
  if (like.rank() == 2) return gdpo::view(data, like.extent(0), like.extent(1));
  return gdpo::view(data, like.extent(0), like.extent(1), like.extent(2));
}

/// A pre-pass drops what the engine did not know; the loss counts it.
template <class S>
NonFinite non_finite_rollout(const TokenBatch<S>& batch, const TokenLayout& layout, RowScratch<S>& scratch) {
  NonFinite seen = batch.rollout_non_finite;
  if (!batch.rollout_logp || seen.count > 0) return seen;
  for (index_t i = 0; i < layout.rows; ++i) {
    const TokenRow<S> row = read_row(batch, layout, i, {}, scratch);
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t) && math::not_finite(row.rollout_logp[t])) note(seen, i, t);
    }
  }
  return seen;
}

/// A weight 0 drops, whatever the other is.
template <class S>
S weighed(S a, S b) {
  return math::is_zero(a) || math::is_zero(b) ? S(0) : math::mul(a, b);
}

template <class S, class Pass>
void run_prepass(const Pass& pass, const PrepassRows<S>& rows, std::vector<double>& weights,
                 double& entropy_threshold) {
  weights.assign(static_cast<std::size_t>(rows.positions()), 1.0);
  if constexpr (std::is_same_v<decltype(pass(rows, weights.data())), EntropyThreshold>) {
    entropy_threshold = pass(rows, weights.data()).value;
  } else {
    pass(rows, weights.data());
  }
}

}  // namespace detail

/// The batch with the decisions of its pre-passes in mask, weights and kl_weights; everything else, and what the caller had put
/// there, is kept. First those of reach Denominator, each on the mask as given, then the others, in order, on the mask that
/// is left: counts and row statistics see only that. Call count() on the result.
///
/// A pre-pass is a struct with a member `reach` and
///   template <class S> void operator()(const PrepassRows<S>& rows, double* weights) const;
/// weights: one a position, all 1 before; only valid tokens need be written. Settings: `void check(const char*) const`.
/// Detached: no gradient goes through a weight. Errors: invalid_input for settings and arrays that are missing.
template <class S, class... Passes>
TokenBatch<S> prepare(const TokenBatch<S>& batch, PrepassMemory<S>& memory, const Passes&... passes) {
  static_assert(
      (detail::is_prepass_v<Passes, S> && ...),
      "a pre-pass needs: reach, template <class S> void operator()(const gdpo::PrepassRows<S>&, double* weights) "
      "const");
  constexpr const char* function = "gdpo::prepare";
  const detail::TokenLayout layout = detail::layout_of(function, batch);
  (detail::Checks<Passes>::run(passes, function), ...);
  memory.rows.reserve(layout.longest);
  TokenBatch<S> prepared = batch;

  const auto n = static_cast<std::size_t>(layout.tokens);
  const auto gather = [&](const auto& tokens, auto& into) {  // the caller's array, or all 1
    using T = typename std::decay_t<decltype(into)>::value_type;
    if (!tokens) return into.assign(n, T(1));
    into.resize(n);  // not cleared: the batch may have been prepared with this memory
    for (index_t i = 0; i < layout.rows; ++i) {
      const detail::RowSpan at = layout(i);
      T* to = into.data() + at.begin;
      const T* from = tokens.row(i, at.begin, at.length, to);
      if (from != to) std::copy(from, from + at.length, to);
    }
  };

  if (!batch.completion_mask && batch.mask) prepared.completion_mask = batch.mask;
  prepared.rollout_non_finite = detail::non_finite_rollout(batch, layout, memory.rows);
  if (((passes.reach == Reach::Denominator) || ...)) {
    if (!batch.completion_mask && !batch.mask) {
      memory.completion.assign(n, 1);
      prepared.completion_mask = detail::dense_like(batch.logp, memory.completion);
    }
    gather(batch.mask, memory.mask);
    const PrepassRows<S> rows(batch, layout, memory);
    [[maybe_unused]] const auto remove = [&](const auto& pass) {
      if (pass.reach != Reach::Denominator) return;
      detail::run_prepass(pass, rows, memory.pass, prepared.entropy_threshold);
      for (std::size_t k = 0; k < n; ++k) memory.kept[k] = memory.kept[k] && memory.pass[k] != 0;
    };
    memory.kept.assign(n, 1);  // the mask as given stays until all have decided
    (remove(passes), ...);
    for (std::size_t k = 0; k < n; ++k) memory.mask[k] = memory.mask[k] && memory.kept[k];
    prepared.mask = detail::dense_like(batch.logp, memory.mask);
  }

  const bool kl = ((passes.reach == Reach::SurrogateAndKl) || ...);
  if (kl || ((passes.reach == Reach::Surrogate) || ...)) {
    gather(batch.weights, memory.weights);
    if (kl) gather(batch.kl_weights, memory.kl_weights);
    const TokenBatch<S> left = prepared;
    const PrepassRows<S> rows(left, layout, memory);
    [[maybe_unused]] const auto weigh = [&](const auto& pass) {
      if (pass.reach != Reach::Surrogate && pass.reach != Reach::SurrogateAndKl) return;
      detail::run_prepass(pass, rows, memory.pass, prepared.entropy_threshold);
      for (std::size_t k = 0; k < n; ++k) {
        const S w = memory.pass[k] > (std::numeric_limits<S>::max)() ? std::numeric_limits<S>::infinity()
                                                                     : static_cast<S>(memory.pass[k]);
        memory.weights[k] = detail::weighed(memory.weights[k], w);
        if (pass.reach == Reach::SurrogateAndKl) memory.kl_weights[k] = detail::weighed(memory.kl_weights[k], w);
      }
    };
    (weigh(passes), ...);
    prepared.weights = detail::dense_like(batch.logp, memory.weights);
    if (kl) prepared.kl_weights = detail::dense_like(batch.logp, memory.kl_weights);
  }
  return prepared;
}

GDPO_END_NAMESPACE
