#pragma once
// What a pre-pass is made of: what it is given, and how far its decisions reach.
#include <gdpo/loss/engine/rows.hpp>

namespace gdpo {
/// What the weights of a pre-pass multiply.
enum class Reach {
  None,  ///< nothing: the pre-pass is off
  Surrogate,  ///< the surrogate; KL terms and counts stay, and the token stays in the ratio of its segment
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
  PrepassRows(const TokenBatch<S>& batch, const detail::TokenLayout& layout,
              PrepassMemory<S>& memory)
      : batch_(batch), layout_(layout), memory_(memory) {}

  index_t size() const { return layout_.rows; }
  /// Row i, valid until the next call.
  TokenRow<S> operator()(index_t i) const {
    return detail::read_row(batch_, layout_, i, {}, memory_.rows);
  }
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

/// What a pre-pass is given.
///
/// A pre-pass is a struct with a member `reach` and
///   template <class S> void operator()(const PrepassArgs<S>& args) const;
/// It writes the weights of valid tokens; the others need not be written. Settings that can be wrong: `void check(const char* function)
/// const`, which throws invalid_input. Detached: no gradient goes through a weight.
template <class S>
struct PrepassArgs {
  const PrepassRows<S>& rows;
  double* weights;  ///< one a position of the batch, all 1 before

  /// Those of row i.
  double* weights_of(index_t i) const { return weights + rows.begin(i); }
};

/// What a pre-pass returns that took a threshold; `prepare` hands it to the metrics.
struct EntropyThreshold {
  double value;
};

GDPO_END_NAMESPACE
