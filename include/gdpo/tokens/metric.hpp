#pragma once
// A metric that merges over micro-batches and ranks, counters of inputs that are not finite, and
// the sets of metrics that a loss can measure.
#include <gdpo/stats/moments.hpp>
#include <gdpo/tokens/array_list.hpp>

namespace gdpo {  // plain data, which is sent between ranks

/// A mean that can be merged over micro-batches and ranks.
///
/// It holds the sum and the range of a quantity over the valid tokens, and the sum and the range of
/// its means in the rows. A row without valid tokens counts as a row whose mean is 0. Quantities of
/// a whole row, such as its length, have only the row half; their `count` is 0.
///
/// Ranges leave NaN out. Under -ffast-math they mean nothing where a token is NaN. Sums are rounded
/// while they are added, in float in a float batch, so a mean may lie outside of its range by that
/// much: for `ratio`, whose sum is exact to 1e-6 of itself, by at most 1e-6 of the mean.
struct Metric {
  double sum = 0;    ///< Sum over the valid tokens.
  double count = 0;  ///< Number of valid tokens; 0: not measured over tokens.
  double min = std::numeric_limits<double>::infinity();   ///< Smallest value at a token.
  double max = -std::numeric_limits<double>::infinity();  ///< Largest value at a token.
  double row_sum = 0;                                     ///< Sum over rows of the mean in the row.
  double rows = 0;                                        ///< Number of rows.
  double row_min = std::numeric_limits<double>::infinity();   ///< Smallest mean of a row.
  double row_max = -std::numeric_limits<double>::infinity();  ///< Largest mean of a row.

  /// Mean over tokens; 0 if none was counted. `count_eps` is added to the count: a trainer's 1e-8.
  GDPO_DATA_INLINE double mean(double count_eps = 0) const {
    return count + count_eps > 0 ? sum / (count + count_eps) : 0.0;
  }
  /// Mean over rows of the mean in the row; 0 without rows.
  GDPO_DATA_INLINE double row_mean() const { return rows > 0 ? row_sum / rows : 0.0; }
};

/// How many values of one input are NaN or infinite, and where the first of them is.
///
/// Only valid tokens count. After a merge the place is that in the first batch that has one.
struct NonFinite {
  index_t count = 0;   ///< Number of values that are not finite.
  index_t row = -1;    ///< Row of the first one; -1: none.
  index_t token = -1;  ///< Its position in the row; -1: none, or the weight of the whole row.
};

/// One NonFinite for each input of a loss: the log-probs, `advantages`, `weights` and `entropies`.
///
/// An advantage of a row counts at each of its valid tokens. `weights` counts the products of
/// factors and weights, KL weights and weights of rows; where one is not finite, the loss takes 0.
struct NonFiniteInputs {
#define GDPO_X(in_batch, in_row, ...) NonFinite in_row;
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Sets of metrics: what a loss call measures besides the loss.
///
/// A set is the last parameter of PolicyLoss; change it by with_metrics(). A smaller set saves
/// work and changes no bit of the loss or its gradient. Metrics that are not in the set have
/// count 0.
namespace metrics {
/// Everything in LossMetrics.
struct All {
  static constexpr bool means = true;       ///< Keeps sums and the means of rows.
  static constexpr bool everything = true;  ///< Keeps ranges over tokens and rarer shares too.
};
/// Sums and the means of rows, without ranges over tokens (`min` and `max`; those of rows stay) and
/// without `clip_fraction_any`, `dual_clip_fraction`, `log_ratio_bounded` and `kl_bounded`.
struct Means {
  static constexpr bool means = true;        ///< Keeps sums and the means of rows.
  static constexpr bool everything = false;  ///< Leaves out ranges over tokens and rarer shares.
};
/// Only counts of rows, lengths of completions, advantages, and inputs that are not finite.
struct None {
  static constexpr bool means = false;       ///< Leaves out sums and the means of rows.
  static constexpr bool everything = false;  ///< Leaves out ranges over tokens and rarer shares.
};
}  // namespace metrics

/// Whether P is a set of metrics.
template <class P, class = void>
constexpr bool is_metrics_v = false;
template <class P>
constexpr bool is_metrics_v<P, std::void_t<decltype(P::means), decltype(P::everything)>> = true;

/// The metric of two micro-batches or ranks together.
GDPO_DEVICE inline Metric merge(const Metric& a, const Metric& b) {
  Metric m;
  m.sum = a.sum + b.sum, m.count = a.count + b.count;
  m.min = (math::min)(a.min, b.min), m.max = (math::max)(a.max, b.max);
  m.row_sum = a.row_sum + b.row_sum, m.rows = a.rows + b.rows;
  m.row_min = (math::min)(a.row_min, b.row_min), m.row_max = (math::max)(a.row_max, b.row_max);
  return m;
}
/// The counts of both; the place is that of `a`, unless `a` has none.
GDPO_DEVICE inline NonFinite merge(const NonFinite& a, const NonFinite& b) {
  return {a.count + b.count, a.count > 0 ? a.row : b.row, a.count > 0 ? a.token : b.token};
}

namespace detail {
/// Counts a value that is not finite; the first one sets the place.
GDPO_DEVICE inline void note(NonFinite& counter, index_t row, index_t token) {
  if (counter.count++ == 0) counter.row = row, counter.token = token;
}

/// A function of the input: counts a value that is not finite at one token of that input.
struct NoteAt {
  NonFiniteInputs& inputs;
  index_t row, token;
  GDPO_INLINE void operator()(NonFinite NonFiniteInputs::*input) const {
    note(inputs.*input, row, token);
  }
};

#define GDPO_ONE_MORE(...) +1
constexpr int counted_inputs = 0 GDPO_COUNTED_INPUTS(GDPO_ONE_MORE);
#undef GDPO_ONE_MORE
/// The counter of input `number`, which is 0 to counted_inputs - 1 in the order of the list.
GDPO_INLINE auto input_counter(int number) -> NonFinite NonFiniteInputs::* {
  int before = 0;
#define GDPO_X(in_batch, in_row, ...) \
  if (number == before++) return &NonFiniteInputs::in_row;
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
  return nullptr;
}

}  // namespace detail

GDPO_END_NAMESPACE
