#pragma once
// The value loss of rows by blocks of threads: the loops over tokens on a device. ValueFormula has
// the formula of a token; cuda/value/device_value_loss.hpp launches the kernels.
#include <gdpo/cuda/tokens/run_rows.hpp>
#include <gdpo/value/shared/centered_sums.hpp>
#include <gdpo/value/shared/value_tally.hpp>
#include <gdpo/value/shared/value_term.hpp>
#include <gdpo/value/value_loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::CenteredSums;
using gdpo::detail::ValueTally;

/// A ValueBatch in device memory.
template <class S>
struct DeviceValues {
  /// Mask, offsets and weights of rows, which have the same names in both batches.
  DeviceBatch<S> rows;
  DeviceTokens<S> values, old_values, returns;

  /// Without `reads_old` old_values stays absent.
  DeviceValues(const char* function, const ValueBatch<S>& b,
               const gdpo::detail::TokenLayout& layout, bool reads_old)
      : rows(function, marks_of(function, b, layout), layout, gdpo::detail::TokenReads::none()),
        values(function, "batch.values", b.values),
        returns(function, "batch.returns", b.returns) {
    if (reads_old) old_values = {function, "batch.old_values", b.old_values};
  }
  static TokenBatch<S> marks_of(const char* function, const ValueBatch<S>& b,
                                const gdpo::detail::TokenLayout& layout) {
    if (layout.rows > INT_MAX) {
      contract::fail(function, "batch.values", contract::text(layout.rows) + " rows",
                     "fewer than 2^31");
    }
    TokenBatch<S> marks;
    marks.mask = b.mask, marks.offsets = b.offsets, marks.row_weights = b.row_weights;
    marks.group_tokens = b.group_tokens;
    return marks;
  }
  /// Whether the tokens of each row stand side by side as S, masks as bytes, so that four of them
  /// are read by one access.
  bool is_plain(const DeviceOut<S>& gradient) const {
    const auto dense = [](const auto& tokens, StoredAs type) {
      return !tokens || (tokens.type == type && tokens.shape.step == 1);
    };
    const StoredAs type = stored_as<S>();
    return dense(values, type) && dense(old_values, type) && dense(returns, type) &&
           dense(rows.mask, StoredAs::UInt8) && (!gradient || gradient.shape.step == 1);
  }
};

/// One thread's part of the sums over a row's tokens.
template <class S>
struct ThreadValues {
  static constexpr int quantities = gdpo::detail::value_quantities;
  double sum[quantities] = {};
  double old_value = 0;  ///< Not finite if an old value is not.
  S low[quantities], high[quantities];
  int clipped = 0, unused = 0;

  GDPO_INLINE ThreadValues() {
    for (S& x : low) x = math::constant<S>(math::infinity);
    for (S& x : high) x = math::constant<S>(-math::infinity);
  }
  GDPO_INLINE void add(const ThreadValues& o) {
    for (int q = 0; q < quantities; ++q) {
      sum[q] += o.sum[q];
      low[q] = (math::min)(low[q], o.low[q]), high[q] = (math::max)(high[q], o.high[q]);
    }
    old_value += o.old_value, clipped += o.clipped;
  }
  /// Adds x to the range of quantity q, unless it is NaN.
  GDPO_INLINE void add_range(int q, S x) {
    if (math::is_nan(x)) return;
    low[q] = (math::min)(low[q], x), high[q] = (math::max)(high[q], x);
  }
};

/// The inputs of a row that are not finite: how many, and the first token that has one. In the
/// order values, old_values, returns.
struct ValueNonFiniteScan {
  int count[3] = {}, first[3] = {INT_MAX, INT_MAX, INT_MAX};
  GDPO_INLINE void add(const ValueNonFiniteScan& o) {
    for (int i = 0; i < 3; ++i) {
      count[i] += o.count[i], first[i] = o.first[i] < first[i] ? o.first[i] : first[i];
    }
  }
};

/// One block computes one unit of rows (compute_unit). Passes over a row: the mask, to count
/// tokens; terms, gradient and metrics; with metrics the moments, about centers from the sums
/// before. A later pass reads what an earlier one left in the caches. The order of the sums is that
/// of cuda/tokens/device_rows.hpp.
template <bool Plain, bool Clips, class S, class Loss>
class ValueKernel {
 public:
  using Metrics = std::remove_const_t<decltype(Loss::metrics)>;
  using Accumulated = ThreadValues<S>;
  static constexpr int largest_block = loss_threads, blocks_at_once = 2;
  static constexpr bool has_teams = true;
  /// Tokens whose sum is taken in S before it is added to a double.
  static constexpr int summed = std::is_same_v<S, float> ? quad_size : 1;

  Loss loss;
  DeviceValues<S> batch;
  DeviceOut<S> gradient;
  DeviceNormalizer normalizer;
  RowUnits units;
  int team_threads;  ///< RowThreads::of_team
  ValueTally* tallies;

  /// State of a run of rows, in the block's shared memory.
  struct State {
    ValueTally tally;
  };

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    compute_unit<State>(block, units, team_threads, tallies,
                        [&](auto& team, State& state, int row, int end) GDPO_INLINE_LAMBDA {
                          team.each([&](int thread) {
                            if (thread == 0) state.tally = ValueTally{};
                          });
                          for (; row < end; ++row) add_row(team, state.tally, row);
                        });
  }

 private:
  /// Four tokens of a row, or the `n` that are left.
  struct FourTokens {
    int n;
    bool whole;  ///< They may be accessed at once.
    S value[quad_size], old_value[quad_size], target[quad_size];
    bool valid[quad_size];
  };

  /// f(first token, four) for the quads of this thread. Members of tokens that are not valid may
  /// hold anything; only where the arrays are not plain are these tokens never read.
  template <class Block, class F>
  GDPO_INLINE void for_each_quad(const Block& block, const RowSpan& span, int thread,
                                 const F& f) const {
    const int length = static_cast<int>(span.length), step = block.threads() * quad_size;
    FourTokens four{};
    if constexpr (Plain) {
      const auto begin_of = [&](const DeviceTokens<S>& tokens) {
        return static_cast<const S*>(tokens.data) + tokens.first(span.row, span.begin);
      };
      const S *const values = begin_of(batch.values), *const targets = begin_of(batch.returns),
                     *const old_values = Clips ? begin_of(batch.old_values) : values;
      const DeviceTokens<unsigned char>& marks = batch.rows.mask;
      const unsigned char* const mask =
          marks ? static_cast<const unsigned char*>(marks.data) + marks.first(span.row, span.begin)
                : nullptr;
      const S* const out =
          gradient ? gradient.data + gradient.first(span.row, span.begin) : nullptr;
      const bool aligned = is_aligned(values) && is_aligned(targets) && is_aligned(old_values) &&
                           is_aligned(mask) && is_aligned(out);
      for (int t = thread * quad_size; t < length; t += step) {
        four.n = length - t < quad_size ? length - t : quad_size;
        four.whole = aligned && four.n == quad_size;
        unsigned char of_mask[quad_size] = {1, 1, 1, 1};
        load_quad(values + t, four.whole, four.n, four.value);
        load_quad(targets + t, four.whole, four.n, four.target);
        if constexpr (Clips) load_quad(old_values + t, four.whole, four.n, four.old_value);
        if (mask) load_quad(mask + t, four.whole, four.n, of_mask);
        for (int j = 0; j < quad_size; ++j) four.valid[j] = j < four.n && of_mask[j] != 0;
        f(t, four);
      }
    } else {
      for (int t = thread * quad_size; t < length; t += step) {
        four.n = length - t < quad_size ? length - t : quad_size;
        for (int j = 0; j < quad_size; ++j) {
          four.valid[j] = j < four.n && batch.rows.valid(span, t + j);
          if (!four.valid[j]) continue;
          four.value[j] = DeviceBatch<S>::at(batch.values, span, t + j);
          four.target[j] = DeviceBatch<S>::at(batch.returns, span, t + j);
          if constexpr (Clips)
            four.old_value[j] = DeviceBatch<S>::at(batch.old_values, span, t + j);
        }
        f(t, four);
      }
    }
  }

  /// Adds one row to the tally of its run.
  template <class Block>
  GDPO_DEVICE void add_row(Block& block, ValueTally& tally, int i) const {
    const RowSpan span = batch.rows.span(i);
    const int tokens = count_row(block, batch.rows, span).tokens;
    const double given = weight_of(loss, batch.rows, i, tokens, normalizer);
    const bool known = !math::not_finite(given);
    const double weight = known ? given : 0.0;
    const Accumulated sums = block.template reduce<Accumulated>(
        [&](int thread) { return of_thread(block, span, weight, thread); });
    CenteredSums about;
    if constexpr (Metrics::means) {
      if (tokens > 0) {
        about = CenteredSums::about(sums.sum[gdpo::detail::value_of_value],
                                    sums.sum[gdpo::detail::value_of_error], tokens);
        about = centered(block, span, about);
        if (!about.near_enough(tokens)) about = centered(block, span, about.about_means(tokens));
      }
    }
    ValueNonFiniteScan found;
    if (math::not_finite(sums.sum[gdpo::detail::value_of_error]) ||
        math::not_finite(sums.old_value)) {
      found = block.template reduce<ValueNonFiniteScan>(
          [&](int thread) { return scan_non_finite(block, span, thread); });
    }
    block.each([&](int thread) {
      gdpo::detail::ValueSums row;
      for (int q = 0; q < Accumulated::quantities; ++q) row.sum[q] = sums.sum[q];
      row.clipped = static_cast<double>(sums.clipped);
      // The parts of a tally lie apart, so a warp can take each of them.
      for (int part = 0; part < 6; ++part) {
        if (thread == part * warp % block.threads())
          add_part(tally, part, row, sums, about, tokens);
      }
      if (thread != 0) return;
      tally.add_row(tokens);
      if (weight != 0) tally.loss += math::mul(weight, row.sum[gdpo::detail::value_of_loss]);
      ValueNonFinite& counters = tally.metrics.non_finite;
      if (!known) gdpo::detail::note(counters.weights, i, -1);
      const auto add = [&](NonFinite& counter, int k) {
        if (found.count[k] > 0) counter = merge(counter, {found.count[k], i, found.first[k]});
      };
      add(counters.values, 0), add(counters.old_values, 1), add(counters.returns, 2);
    });
  }
  /// Adds one metric of a row: those of ValueQuantity, the clipped tokens, returns, residuals.
  GDPO_INLINE static void add_part(ValueTally& tally, int part, const gdpo::detail::ValueSums& row,
                                   const Accumulated& sums, const CenteredSums& about, int tokens) {
    if constexpr (Metrics::means) {
      if (part < Accumulated::quantities) {
        tally.add_quantity(part, row, tokens);
        if constexpr (Metrics::everything) {
          tally.add_range(part, static_cast<double>(sums.low[part]),
                          static_cast<double>(sums.high[part]));
        }
      } else if (part == Accumulated::quantities) {
        tally.add_clipped(row, tokens);
      } else if (tokens > 0) {
        const int q = part - Accumulated::quantities - 1;
        Moments& to = q == 0 ? tally.metrics.returns : tally.metrics.residuals;
        to = merge(to, about.moments(q, tokens));
      }
    }
  }

  /// The sums over this thread's tokens; writes their gradient.
  template <class Block>
  GDPO_DEVICE Accumulated of_thread(const Block& block, const RowSpan& span, double weight,
                                    int thread) const {
    const gdpo::detail::ValueFormula formula{loss.clip, loss.half, loss.delta};
    const bool counts = weight != 0;
    const S w = static_cast<S>(weight);
    Accumulated mine;
    for_each_quad(block, span, thread, [&](int t, const FourTokens& four) {
      S slope[quad_size], of_loss = 0, of_value = 0, of_error = 0, of_old = 0;
      GDPO_UNROLL
      for (int j = 0; j < quad_size; ++j) {
        const bool valid = four.valid[j];
        const auto term =
            formula.template operator()<Clips, S>(four.value[j], four.old_value[j], four.target[j]);
        slope[j] = valid && counts ? math::mul(w, term.slope) : S(0);
        if (valid) {
          of_loss += term.loss, of_value += four.value[j], of_error += term.error;
          if constexpr (Clips) of_old += four.old_value[j], mine.clipped += term.clipped;
          if constexpr (Metrics::everything) {
            mine.add_range(gdpo::detail::value_of_loss, term.loss);
            mine.add_range(gdpo::detail::value_of_value, four.value[j]);
            mine.add_range(gdpo::detail::value_of_error, term.error);
          }
        }
        if (j % summed != summed - 1) continue;
        mine.sum[gdpo::detail::value_of_loss] += static_cast<double>(of_loss);
        mine.sum[gdpo::detail::value_of_value] += static_cast<double>(of_value);
        mine.sum[gdpo::detail::value_of_error] += static_cast<double>(of_error);
        mine.old_value += static_cast<double>(of_old);
        of_loss = of_value = of_error = of_old = 0;
      }
      if (!gradient) return;
      const index_t first = gradient.first(span.row, span.begin);
      if constexpr (Plain) {
        store_quad(gradient.data + first + t, four.whole, four.n, slope);
      } else {
        for (int j = 0; j < four.n; ++j) gradient.at(first, t + j) = slope[j];
      }
    });
    return mine;
  }

  /// The sums about the centers of `about`, known to all threads.
  template <class Block>
  GDPO_DEVICE CenteredSums centered(Block& block, const RowSpan& span,
                                    const CenteredSums& about) const {
    CenteredSums total = block.template reduce<CenteredSums>([&](int thread) {
      CenteredSums mine;
      for_each_quad(block, span, thread, [&](int, const FourTokens& four) {
        GDPO_UNROLL
        for (int j = 0; j < quad_size; ++j) {
          if (!four.valid[j]) continue;
          const double target = static_cast<double>(four.target[j]);
          const double quantity[2] = {target, target - static_cast<double>(four.value[j])};
          for (int q = 0; q < CenteredSums::quantities; ++q) {
            const double d = quantity[q] - about.center[q];
            mine.rest[q] += d, mine.square[q] += math::mul(d, d);
            mine.low[q] = (math::min)(mine.low[q], quantity[q]);
            mine.high[q] = (math::max)(mine.high[q], quantity[q]);
          }
        }
      });
      return mine;
    });
    for (int q = 0; q < CenteredSums::quantities; ++q) {
      total.center[q] = about.center[q];
      total.low[q] += 0.0, total.high[q] += 0.0;  // 0 instead of -0
    }
    return total;
  }

  /// What this thread's tokens have of inputs that are not finite.
  template <class Block>
  GDPO_DEVICE ValueNonFiniteScan scan_non_finite(const Block& block, const RowSpan& span,
                                                 int thread) const {
    ValueNonFiniteScan mine;
    for_each_quad(block, span, thread, [&](int t, const FourTokens& four) {
      for (int j = 0; j < quad_size; ++j) {
        if (!four.valid[j]) continue;
        const auto look = [&](int k, S x) {
          if (!math::not_finite(x)) return;
          ++mine.count[k];
          if (t + j < mine.first[k]) mine.first[k] = t + j;
        };
        look(0, four.value[j]), look(2, four.target[j]);
        if constexpr (Clips) look(1, four.old_value[j]);
      }
    });
    return mine;
  }
};

/// Writes the ValueLossResult, as FinishRows calls it.
struct WriteValueLossResult {
  index_t over;
  ValueLossResult* result;

  GDPO_DEVICE void operator()(const ValueTally& total, const DeviceNormalizer& normalizer,
                              int thread, int) const {
    if (thread != 0) return;
    result->loss = total.loss;
    result->normalizer = normalizer();
    result->over = over;
    result->metrics = total.metrics;
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
