#pragma once
// What a pre-pass is given, and how far its decisions reach.
#include <gdpo/core/fields.hpp>
#include <gdpo/tokens/token_row.hpp>
#include <unordered_map>

namespace gdpo {
/// What the weights of a pre-pass act on.
enum class Reach {
  /// Nothing: the pre-pass is off. Its settings are checked all the same.
  None,
  /// The surrogate. KL terms and counts stay, and the token stays in the ratio of its segment.
  Surrogate,
  /// The surrogate and the KL terms. Counts and the ratio of the segment stay.
  SurrogateAndKl,
  /// The KL terms alone, all of them. Surrogate, counts and the ratio of the segment stay.
  Kl,
  /// The entropies of an EntropyBonus (TokenBatch::entropy_weights). Surrogate, KL terms and counts
  /// stay.
  Entropy,
  /// The ratio of the segment, whose log ratio gets the log of the weight added
  /// (TokenBatch::level_log_weights). Surrogate and KL terms see the ratio alone; counts stay. For
  /// levels of segments, and for weights: Importance, Gate, MeanOne and those of your own.
  Level,
  /// The mask. Weight 0 takes the token out of the batch: out of the loss, the count of tokens, the
  /// ratio of its segment, and all metrics but the length of its completion. Any other weight keeps
  /// it whole. A row that loses all its tokens still counts in Normalizer::rows, as in the
  /// trainers, but not in non_empty_rows.
  Mask
};
/// The enumerators of Reach with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Reach) {
  using E = Enumerator<Reach>;
  return std::array{E{"none", Reach::None},
                    E{"surrogate", Reach::Surrogate},
                    E{"surrogate_and_kl", Reach::SurrogateAndKl},
                    E{"kl", Reach::Kl},
                    E{"entropy", Reach::Entropy},
                    E{"level", Reach::Level},
                    E{"mask", Reach::Mask}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Most rows that a pre-pass is given at once.
constexpr int most_prepass_rows = 4;
/// How many rows are worked on at once: their numbers stay in the second-level cache.
constexpr index_t prepass_rows_at_once(index_t longest) {
  constexpr index_t tokens = 16384;
  const index_t fit = tokens / (longest < 1 ? 1 : longest);
  return fit < 1 ? 1 : fit > most_prepass_rows ? most_prepass_rows : fit;
}
/// The rows that a thread works on, and the weights of their tokens.
template <class S>
struct RowsAtOnce {
  RowScratch<S> rows[most_prepass_rows];
  std::vector<double> weights;
  NonFinite non_finite;  ///< What it has found in rollout_logp.

  void reserve(index_t longest) {
    const index_t at_once = prepass_rows_at_once(longest);
    for (index_t r = 0; r < at_once; ++r) rows[r].reserve(longest);
    const auto n = static_cast<std::size_t>(at_once * longest);
    if (weights.size() < n) weights.resize(n);
  }
};

}  // namespace detail

/// The masks and weights of one prepared batch, which prepare() writes and the batch points to.
///
/// It must outlive the prepared batch, and the next prepare() with the same memory overwrites that:
/// count() and losses then refuse it, so each batch that is in use needs a memory of its own. The
/// prepared batch itself may be prepared again, in the same memory or in another: the second call
/// goes on from the decisions of the first. Keep the memory between steps: after a first call of
/// the same shape, nothing is allocated. It serves one prepare() at a time, so threads that prepare
/// at the same time need one each; several threads may read one prepared batch.
template <class S>
struct PrepassMemory {
  std::vector<unsigned char> mask;        ///< The prepared mask, with Reach::Mask.
  std::vector<unsigned char> kept;        ///< The mask that a prepare() writes while it runs.
  std::vector<unsigned char> completion;  ///< All 1: the completion mask of a batch without masks.
  std::vector<S> weights;                 ///< The prepared weights of the surrogate.
  std::vector<S> kl_weights;              ///< The prepared weights of the KL terms.
  std::vector<S> entropy_weights;         ///< The prepared weights of the entropies.
  std::vector<S> level_log_weights;       ///< The prepared logs of weights, with Reach::Level.
  std::vector<S> level_weights;           ///< The product of the weights with Reach::Level.
  std::vector<double> pass;               ///< Weights of a pre-pass that writes the whole batch.
  std::vector<double> values;             ///< Scratch of the pre-pass that runs.
  std::vector<std::uint32_t> bins;        ///< Counts of the pre-pass that runs.
  detail::RowScratch<S> rows;             ///< Rows that have to be converted to be read.
  std::vector<detail::RowsAtOnce<S>> at_once;  ///< Of each thread, the rows that it works on.
  /// One number: how many prepared batches these arrays have belonged to (Prepared::uses).
  std::vector<std::uint64_t> uses;

  /// Called by prepare() and reports: room for rows of `longest` tokens on each of `threads`.
  void reserve(index_t longest, index_t threads = 1) {
    rows.reserve(longest);
    const auto n = static_cast<std::size_t>(threads);
    if (at_once.size() < n) at_once.resize(n);
    for (detail::RowsAtOnce<S>& of_thread : at_once) of_thread.reserve(longest);
  }
};

/// The rows of a batch, as a pre-pass reads them.
template <class S>
class PrepassRows {
 public:
  /// Called by prepare().
  PrepassRows(const TokenBatch<S>& batch, const detail::TokenLayout& layout,
              PrepassMemory<S>& memory)
      : batch_(batch), layout_(layout), memory_(memory) {}

  /// Number of rows.
  index_t size() const { return layout_.rows; }
  /// The arrays of row i, read with all conversions. They are valid until the next call.
  TokenRow<S> operator()(index_t i) const {
    return detail::read_row(batch_, layout_, i, {}, memory_.rows);
  }
  /// Whether the batch has advantages, of rows or of tokens.
  bool has_advantages() const { return batch_.advantages || batch_.token_advantages; }
  /// Position in PrepassArgs::weights of the first token of row i.
  index_t begin(index_t i) const { return layout_(i).begin; }
  /// Number of positions of the batch, masked ones included: the length of PrepassArgs::weights.
  index_t positions() const { return layout_.tokens; }
  /// The shape of the batch, for checks of columns.
  const detail::TokenLayout& layout() const { return layout_; }
  /// Whether no row has a token.
  bool empty() const { return layout_.longest == 0; }
  /// The arrays of the batch.
  const TokenBatch<S>& batch() const { return batch_; }
  /// The arrays of row i. Those with different `place`, below most_prepass_rows, are valid at the
  /// same time.
  TokenRow<S> at_once(index_t i, int place) const {
    return detail::read_row(batch_, layout_, i, {}, memory_.at_once[0].rows[place]);
  }
  /// Room for a number of each token of a row. Those with different `place` are apart.
  double* numbers(int place) const {
    return memory_.at_once[0].weights.data() + place * layout_.longest;
  }
  /// Memory that a pre-pass may use while it runs.
  std::vector<double>& scratch() const { return memory_.values; }
  /// Memory for counts of numbers by their bits, for the same.
  std::vector<std::uint32_t>& bins() const { return memory_.bins; }

 private:
  const TokenBatch<S>& batch_;
  const detail::TokenLayout& layout_;
  PrepassMemory<S>& memory_;
};

/// What a pre-pass is given: the rows to read and the weights to write.
///
/// A pre-pass, also one of your own, is a struct with a member `Reach reach` and
///
///     template <class S> void operator()(const PrepassArgs<S>& args) const;
///
/// which writes the weights of valid tokens. The others need not be written. Arrays of a row that
/// the batch does not have are null; before the forward pass `logp` is one of them. No gradient
/// flows through a weight. Settings are checked by the list of fields of a pre-pass
/// (core/fields.hpp), or by `void check(const char* function) const`, which throws invalid_input.
///
/// A pre-pass whose weight is one number for all tokens of a segment, row or group says so by a
/// member `bool is_shared() const`: with Reach::Level the ratio of a segment then takes that number
/// once. Without the member each token has a weight of its own, and the ratio takes their product.
template <class S>
struct PrepassArgs {
  const PrepassRows<S>& rows;  ///< The rows of the batch.
  double* weights;             ///< One per position of the batch, row by row; all 1 at first.

  /// The weights of row i.
  double* weights_of(index_t i) const { return weights + rows.begin(i); }
};

/// A pre-pass that takes a threshold of the entropies returns it instead of void. prepare() writes
/// it into TokenBatch::entropy_threshold, from where it reaches the metrics.
struct EntropyThreshold {
  double value;  ///< In nats.
};

namespace detail {

/// What a pre-pass of the library that writes row by row has found in the whole batch before.
struct BatchDecision {
  double number = 0;                          ///< A threshold or a factor.
  bool is_threshold = false;                  ///< Whether that is a threshold of the entropies.
  std::unordered_map<double, double> groups;  ///< The statistic of each group.
};

/// The weights of one row: `each` has one for each token, or is null; then valid tokens have the
/// weight `valid`, and `masked` stands at the others.
struct RowWeights {
  const double* each;
  double valid, masked;
};
inline RowWeights weight_of_row(double weight) { return {nullptr, weight, weight}; }

/// Throws unless the batch has log-probs, which the pre-pass `name` reads.
inline void need_logp(bool has_logp, const char* name) {
  if (has_logp) return;
  contract::fail("gdpo::prepare", "batch.logp", "no array",
                 contract::Text("the log-probs of the policy being trained, because of ") + name);
}
/// Throws unless the batch has advantages, which `reader` reads: a pre-pass or its setting.
inline void need_advantages(bool has_advantages, const char* reader) {
  if (has_advantages) return;
  contract::fail("gdpo::prepare", "batch.advantages, batch.token_advantages", "neither",
                 contract::Text("one of them, because of ") + reader);
}
/// Throws for Reach::Mask, in a pre-pass whose weights are not 0 or 1.
inline void refuse_mask(Reach reach, const char* function, const FieldPath& path) {
  if (reach != Reach::Mask) return;
  contract::fail(function, path.text("reach"), "mask, which only takes tokens out",
                 "surrogate, surrogate_and_kl or kl: its weights are no mask");
}
/// Throws for Reach::Level, in a pre-pass that picks or drops tokens: a weight 0 would only put the
/// ratio of the segment at its lower bound.
inline void refuse_level(Reach reach, const char* function, const FieldPath& path) {
  if (reach != Reach::Level) return;
  contract::fail(function, path.text("reach"), "level, for the weights of a ratio",
                 "another reach: its weights are no ratio");
}

}  // namespace detail

GDPO_END_NAMESPACE
