#pragma once
// The counts that a loss is divided by, and what an aggregate is given to weigh a row.
#include <gdpo/core/view.hpp>
#include <type_traits>

namespace gdpo {

/// Which batch count() has counted, so that a loss can refuse the counts that a batch had before
/// prepare() changed its mask.
struct CountedBatch {
  /// Prepared::mask_changes of that batch; -1: these are not the counts of one call of count().
  int mask_changes = -1;
  double tokens = 0,  ///< The tokens that were counted. Other counts have been changed since.
      rows = 0;       ///< The rows that were counted.
};

/// The counts that a loss is divided by.
///
/// They belong to the whole optimizer step: add the counts of all its micro-batches, on all ranks,
/// and give the sum to each call. The losses of the calls then add up to the loss of the step.
///
///     gdpo::Normalizer n = gdpo::count(batch);
///     n += gdpo::count(another);
///     loss(batch, n, gradient);
struct Normalizer {
  double tokens = 0;          ///< Number of valid tokens (mask not 0).
  double rows = 0;            ///< Number of rows, including those without a valid token.
  double non_empty_rows = 0;  ///< Number of rows that have a valid token.
  /// A count of the caller's own, which aggregates with `Over::Given` divide by: the trainer's
  /// num_items_in_batch or a global batch size. count() leaves it 0. Set it on the sum of the
  /// counts, because += adds it up as well.
  double given = 0;
  /// Written by count(). Sums, and counts filled in by hand, are those of no batch: a loss takes
  /// them as they are.
  CountedBatch counted{};

  /// Adds the counts of another micro-batch or rank, `given` included.
  GDPO_DATA_INLINE Normalizer& operator+=(const Normalizer& o) {
    tokens += o.tokens, rows += o.rows, non_empty_rows += o.non_empty_rows, given += o.given;
    counted = CountedBatch{};
    return *this;
  }
  /// The counts of two micro-batches or ranks together, `given` included.
  friend GDPO_DATA_INLINE Normalizer operator+(Normalizer a, const Normalizer& b) { return a += b; }
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The size of one row.
struct RowCounts {
  index_t tokens;  ///< Number of valid tokens in the row.
  index_t width;   ///< Padded width of the batch, in tokens; 0 in a packed batch.
  /// TokenBatch::group_tokens: number of valid tokens in the row's group; 0 without the column.
  double group_tokens = 0;
};

/// What an aggregate is given to compute the weight of a row.
struct AggregateArgs {
  RowCounts row;                 ///< Size of the row.
  const Normalizer& normalizer;  ///< Counts of the whole optimizer step.
};

/// Whether P meets the contract of an aggregate (tokens/aggregate.hpp).
template <class P>
constexpr bool is_aggregate_v = std::is_invocable_r_v<double, const P&, const AggregateArgs&>;

GDPO_END_NAMESPACE
