#pragma once
// The loss of rows by blocks of threads: the loops over tokens on a device. TokenTerms has the
// formulas of a token; cuda/loss/device_loss.hpp launches the kernel.
#include <gdpo/cuda/loss/block_tally.hpp>
#include <gdpo/cuda/loss/device_token.hpp>
#include <gdpo/cuda/tokens/run_rows.hpp>
#include <gdpo/loss/policy_loss.hpp>
#include <gdpo/loss/shared/positive_logp.hpp>
#include <gdpo/loss/shared/token_terms.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::General;
using gdpo::detail::of_metric, gdpo::detail::RowSums;
using gdpo::detail::SegmentRatio;
using gdpo::detail::Tally;

/// The least number that a thread found; INT_MAX: none found one.
struct Least {
  int value = INT_MAX;
  GDPO_INLINE void add(const Least& o) { value = o.value < value ? o.value : value; }
};

/// LossMetrics::positive_logp of a row, as on the host. `first`: RowLengths::first. Not inlined, so
/// that the loops over tokens keep their registers.
template <class S>
GDPO_DEVICE GDPO_NOINLINE double positive_logp(const DeviceBatch<S>& batch, const RowSpan& span,
                                               int tokens, int first) {
  if (tokens == 0) return math::nan();
  while (!batch.valid(span, first)) ++first;
  bool positive = false;
#define GDPO_X(in_batch, ...)                                                                    \
  positive = positive || (batch.in_batch &&                                                      \
                          static_cast<double>(DeviceBatch<S>::at(batch.in_batch, span, first)) > \
                              gdpo::detail::most_logp);
  GDPO_LOGPS(GDPO_X)
#undef GDPO_X
  return positive ? 1.0 : 0.0;
}

/// Sum and number of the log ratios of a segment.
struct DeviceRowSum {
  double sum = 0;
  long long n = 0;
  GDPO_INLINE void add(const DeviceRowSum& o) { sum += o.sum, n += o.n; }
};

/// The weighted entropies of a row, and its weights of entropies that are not finite.
struct EntropySum {
  double sum = 0;
  index_t bad = 0;
  int first = INT_MAX;
  GDPO_INLINE void note(int t) { bad += 1, first = t < first ? t : first; }
  GDPO_INLINE void add(const EntropySum& o) {
    sum += o.sum, bad += o.bad;
    first = o.first < first ? o.first : first;
  }
};
/// EntropyBonus::row_scale of row i, whose W_i is `weight`; 0 without a valid token.
template <class Loss, class S>
GDPO_DEVICE double entropy_scale(const Loss& loss, const DeviceBatch<S>& batch, index_t i,
                                 index_t tokens, double weight,
                                 const DeviceNormalizer& normalizer) {
  const EntropyBonus bonus = gdpo::detail::entropy_of(loss);
  if (bonus.coef == 0 || tokens == 0) return 0;
  return bonus.row_scale(weight, batch.row_weights ? batch.row_weights(i) : 1.0, normalizer());
}

/// One block computes one unit of rows (compute_unit). Passes over a row:
///   - the mask, to count tokens;
///   - where the ratio is that of a segment, the sum of the log ratios of each segment, and that of
///     its level_log_weights where the batch has them;
///   - terms, gradient and metrics of all tokens;
///   - where the tokens of a segment share a derivative, the gradient once the derivative is known.
/// A later pass reads again what an earlier one left in the caches, and the data that come next are
/// prefetched into the L2 cache meanwhile.
template <class Shape, class S, class Loss>
class LossKernel {
 public:
  using Level = decltype(Loss::level);
  using C = std::conditional_t<Level::of_segment, double, S>;
  using Terms = gdpo::detail::TokenTerms<C, Loss>;
  using Kls = typename Terms::Kls;
  using Metrics = typename Terms::Metrics;
  using Parts = typename Terms::Parts;
  using Accumulated = ThreadTotals<Terms, Shape, Metrics>;
  /// Tokens whose sum is taken in C before it is added to a double.
  static constexpr int summed = std::is_same_v<C, float> ? quad_size : 1;
  // A kernel with fewer formulas and metrics needs fewer registers, so more of its blocks are to
  // fit a multiprocessor.
  static constexpr bool few_formulas =
      !Terms::maps && (gdpo::detail::has_plain_v<Kls> || std::is_same_v<Kls, gdpo::Kls<>>);
  static constexpr bool is_small = Shape::plain && sizeof(C) == 4 && few_formulas;
  static constexpr int largest_block = loss_threads, blocks_at_once = !is_small             ? 2
                                                                      : Metrics::everything ? 3
                                                                                            : 4;
  static constexpr bool has_teams = true;
  static constexpr int ahead = 1024;  ///< how many tokens ahead of their use arrays are prefetched

  Loss loss;
  DeviceBatch<S> batch;
  DeviceOut<S> gradient, entropies;  ///< The parts of LossGradient.
  DeviceNormalizer normalizer;
  RowUnits units;
  int team_threads;  ///< RowThreads::of_team
  Tally* tallies;

  /// What is known of a row before the pass over its terms.
  struct Row {
    RowSpan span{};
    int tokens = 0, completion = 0, first = 0;
    double weight = 0;         ///< W_i, or what Parts has in its place
    double entropy_scale = 0;  ///< EntropyBonus::row_scale
    Parts parts;               ///< of the surrogate and the KL terms
    double advantage = 0;      ///< of the row; 0 where its tokens have advantages of their own
    Moments advantages;        ///< of the advantages of its tokens
    C row_advantage{};         ///< mean of the advantages of its tokens
    /// False where the weight is 0: the row then adds nothing to the loss and its gradient is 0,
    /// whatever stands in its arrays.
    bool counts = false;
  };
  /// State of a run of rows. It stands in the block's shared memory, because all threads have the
  /// same and registers are scarce.
  struct State {
    Tally tally;
    RowSums sums;
    Row row;
  };

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    compute_unit<State>(block, units, team_threads, tallies,
                        [&](auto& team, State& state, int row, int end)
                            GDPO_INLINE_LAMBDA { rows(team, state, row, end); });
  }

 private:
  template <class Block>
  GDPO_DEVICE void rows(Block& block, State& state, int row, int end) const {
    block.each([&](int thread) {
      if (thread == 0) state.tally = Tally{};
      if (row < end) prefetch_row(block, row, thread);
    });
    // A reference: a copy would take registers that the loops over tokens need.
    const Row& begun = state.row;
    while (row < end) {
      begin_row(block, state, row, end);
      for (int first = 0; first < begun.span.length;) {
        int next = static_cast<int>(begun.span.length);
        if constexpr (!Shape::plain) {
          if (batch.segments) next = segment_end(block, begun.span, first);
        }
        segment(block, state, first, next);
        first = next;
      }
      if constexpr (!Shape::plain) {
        if (begun.entropy_scale != 0 || entropies) entropy_of_row(block, state);
      }
      // Read before the barriers of finish_row: the next begin_row writes state.row again.
      row = static_cast<int>(begun.span.row) + 1;
      finish_row(block, state);
    }
  }

  template <class Block>
  GDPO_DEVICE void begin_row(Block& block, State& state, int i, int end) const {
    const RowSpan span = batch.span(i);
    const RowLengths counted = count_row(block, batch, span);
    const double advantage = advantage_of(batch, i);
    const Moments advantages =
        advantages_of<!Shape::plain>(block, batch, span, counted.tokens, advantage);
    block.each([&](int thread) {
      if (i + 1 < end) prefetch_row(block, i + 1, thread);
      if (thread != 0) return;
      double weight = weight_of(loss, batch, i, counted.tokens, normalizer);
      if (math::not_finite(weight))
        gdpo::detail::note(state.tally.non_finite.weights, i, -1), weight = 0;
      Row& row = state.row;
      row.entropy_scale = entropy_scale(loss, batch, i, counted.tokens, weight, normalizer);
      if constexpr (Terms::own_aggregates) {
        const Normalizer divisor = normalizer();
        weight = row.parts.set(loss.kl, weight, args_of(batch, i, counted.tokens, divisor),
                               batch.row_weights ? batch.row_weights(i) : 1.0,
                               [&] { gdpo::detail::note(state.tally.non_finite.weights, i, -1); });
      }
      row.span = span;
      row.tokens = counted.tokens, row.completion = counted.completion, row.first = counted.first;
      row.weight = weight, row.counts = weight != 0;
      row.advantage = advantage, row.advantages = advantages;
      row.row_advantage = static_cast<C>(advantages.mean);
      state.sums = RowSums{};
      state.sums.advantage = !batch.token_advantages &&
                             (!batch.advantages || !math::is_zero(static_cast<C>(advantage)));
    });
  }

  /// Prefetches this thread's share of the first `ahead` tokens of row i.
  template <class Block>
  GDPO_DEVICE void prefetch_row(const Block& block, index_t i, int thread) const {
    if constexpr (Shape::plain) {
      const RowSpan span = batch.span(i);
      const int length = span.length < ahead ? static_cast<int>(span.length) : ahead;
      const auto array = [&](const auto& tokens, auto element) {
        constexpr int line = 128 / sizeof element;
        if (!tokens) return;
        const auto* const first =
            static_cast<const decltype(element)*>(tokens.data) + tokens.first(span.row, span.begin);
        for (int t = thread * line; t < length; t += block.threads() * line) prefetch(first + t);
      };
      array(batch.mask, static_cast<unsigned char>(0));
      array(batch.logp, S(0)), array(batch.old_logp, S(0));
      if constexpr (Shape::with_kl) array(batch.ref_logp, S(0));
    }
  }

  /// Adds the sums of a row to the tally of its run, one quantity by each thread.
  template <class Block>
  GDPO_DEVICE void finish_row(Block& block, State& state) const {
    const Row& row = state.row;
    block.each([&](int thread) {
      if (thread != 0) return;
      RowSums& sums = state.sums;
      Terms::finish(loss.kl, row.parts, static_cast<bool>(batch.kl_weights), sums);
      Tally& tally = state.tally;
      if (row.counts) {
        if (row.parts.surrogate())
          tally.policy_loss += math::mul(row.weight, sums.sum[of_metric<&LossMetrics::surrogate>]);
        tally.kl_loss += math::mul(row.weight, sums.kl_loss);
      }
      tally.tokens += static_cast<double>(row.tokens);
    });
    block.each([&](int thread) {
      if constexpr (Metrics::means) {
        for (int q = thread; q < gdpo::detail::quantities; q += block.threads())
          state.tally.add_quantity(q, state.sums, row.tokens);
      }
      if (thread == block.threads() - 1) {
        const double truncated = batch.truncated ? batch.truncated(row.span.row) : math::nan();
        state.tally.add_row(state.sums, row.tokens, row.completion, truncated,
                            positive_logp(batch, row.span, row.tokens, row.first));
        state.tally.advantage = merge(state.tally.advantage, row.advantages);
      }
      if (gradient && !row.counts) {
        const index_t first = gradient.first(row.span.row, row.span.begin);
        for (index_t t = thread; t < row.span.length; t += block.threads())
          gradient.at(first, t) = S(0);
      }
    });
  }

  /// Adds the entropy bonus of a row, and writes its gradient.
  template <class Block>
  GDPO_DEVICE void entropy_of_row(Block& block, State& state) const {
    const Row& row = state.row;
    const RowSpan& span = row.span;
    const double scale = row.entropy_scale;
    const auto found = block.template reduce<EntropySum>([&](int thread) {
      EntropySum mine;
      for (int t = thread; t < span.length; t += block.threads()) {
        double weight = scale != 0 && batch.valid(span, t) ? 1.0 : 0.0;
        if (weight != 0 && batch.entropy_weights) {
          const auto given =
              static_cast<double>(DeviceBatch<S>::at(batch.entropy_weights, span, t));
          if (math::not_finite(given)) mine.note(t);
          weight = gdpo::detail::entropy_weight(given);
        }
        if (entropies) {
          entropies.at(entropies.first(span.row, span.begin), t) =
              static_cast<S>(gdpo::detail::entropy_slope(scale, weight));
        }
        if (weight != 0) {
          const auto entropy = static_cast<double>(DeviceBatch<S>::at(batch.entropies, span, t));
          mine.sum += math::mul(weight, entropy);
        }
      }
      return mine;
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      if (scale != 0) state.tally.entropy_loss += math::mul(-scale, found.sum);
      if (found.bad == 0) return;
      NonFinite& weights = state.tally.non_finite.weights;
      weights = merge(weights, NonFinite{found.bad, span.row, found.first});
    });
  }

  /// Where the segment that begins at token `begin` ends: TokenRow::segment_end on a device.
  template <class Block>
  GDPO_DEVICE int segment_end(Block& block, const RowSpan& span, int begin) const {
    const int length = static_cast<int>(span.length);
    const int first = find(block, span, begin, [](int) { return true; });
    if (first == length) return length;
    const std::int64_t id = DeviceBatch<S>::at(batch.segments, span, first);
    return find(block, span, first + 1,
                [&](int t) { return DeviceBatch<S>::at(batch.segments, span, t) != id; });
  }
  /// The first valid token t >= begin with f(t), or the length of the row.
  template <class Block, class F>
  GDPO_DEVICE int find(Block& block, const RowSpan& span, int begin, const F& f) const {
    const int length = static_cast<int>(span.length);
    for (; begin < length; begin += block.threads()) {
      const Least found = block.template reduce<Least>([&](int thread) {
        const int t = begin + thread;
        return t < length && batch.valid(span, t) && f(t) ? Least{t} : Least{};
      });
      if (found.value < length) return found.value;
    }
    return length;
  }

  /// Tokens begin .. end - 1 of a row, which share a ratio at levels of segments.
  template <class Block>
  GDPO_DEVICE void segment(Block& block, State& state, int begin, int end) const {
    const Row& row = state.row;
    SegmentRatio of_segment;
    if constexpr (Level::of_segment) {
      const DeviceRowSum sum = block.template reduce<DeviceRowSum>([&](int thread) {
        DeviceRowSum mine;
        for_each_quad(block, row, begin, end, thread,
                      [&](auto&, int, bool valid, const Token<C>& x) {
                        if (valid)
                          mine.sum += static_cast<double>(loss.level.map(x).log_ratio), mine.n += 1;
                      });
        return mine;
      });
      of_segment =
          gdpo::detail::segment_ratio<S>(loss.level, RowSum{sum.sum, static_cast<double>(sum.n)});
      if constexpr (!Shape::plain) {
        if (batch.level_log_weights) {
          gdpo::detail::weigh_segment<S>(
              loss.level, sum_of_log_weights(block, row.span, begin, end), of_segment);
        }
      }
    }
    const Accumulated accumulated = block.template reduce<Accumulated>([&](int thread) {
      Accumulated mine;
      typename Terms::Ranges ranges;
      typename Terms::Sums of_some;
      for_each_quad(
          block, row, begin, end, thread, [&](auto& quad, int j, bool valid, Token<C>& x) {
            if (j % summed == 0) of_some = {};
            const auto slopes = terms(quad, row.parts, of_segment, valid, x, of_some, ranges);
            if constexpr (!Terms::shares) {
              quad.write(gradient, j,
                         static_cast<S>(Terms::template gradient<Shape>(
                             slopes, valid, static_cast<C>(row.weight))));
            }
            if (j % summed == summed - 1) mine.add(of_some);
          });
      mine.take(ranges);
      return mine;
    });
    const auto totals = accumulated.totals();
    const bool needs_scan =
        totals.needs_scan() || math::not_finite(static_cast<C>(row.advantage)) ||
        (Level::of_segment && (math::is_nan(of_segment.log_ratio) || of_segment.bad_weights));
    block.each([&](int thread) {
      if (thread == 0) {
        totals.add_to(state.sums);
        if constexpr (Level::of_segment) of_segment.add_to(state.sums, state.tally);
      }
      if constexpr (Metrics::everything) {
        if (thread == block.threads() - 1) accumulated.add_ranges_to(state.tally);
      }
    });
    const bool any_nan = needs_scan && scan_non_finite(block, state, row, begin, end, of_segment);
    if constexpr (Terms::shares) {
      const double shared = any_nan ? math::nan() : totals.sum[Terms::shared];
      spread(block, row, begin, end, of_segment,
             of_segment.held ? 0.0 : math::mul(shared, of_segment.share));
    }
    if (any_nan && gradient) write_nan(block, row, begin, end, of_segment);
  }

  /// The sum of the level_log_weights of a segment.
  template <class Block>
  GDPO_DEVICE double sum_of_log_weights(Block& block, const RowSpan& span, int begin,
                                        int end) const {
    const DeviceRowSum all = block.template reduce<DeviceRowSum>([&](int thread) {
      DeviceRowSum mine;
      for (int t = begin + thread; t < end; t += block.threads()) {
        if (batch.valid(span, t))
          mine.sum += static_cast<double>(DeviceBatch<S>::at(batch.level_log_weights, span, t));
      }
      return mine;
    });
    return all.sum;
  }

  /// Adds the terms of one token to `sums` and `ranges` and returns its derivatives.
  template <class TokenQuad>
  GDPO_INLINE typename Terms::Slopes terms(const TokenQuad& quad, const Parts& parts,
                                           const SegmentRatio& of_segment, bool valid, Token<C>& x,
                                           typename Terms::Sums& sums,
                                           typename Terms::Ranges& ranges) const {
    return Terms::template of_token<Shape, S>(loss, parts, of_segment, quad.from(), valid, x, sums,
                                              ranges);
  }

  /// The gradient where the tokens of a segment share a derivative: `each` is the derivative by the
  /// log ratio of one token, which is known only after all of them.
  template <class Block>
  GDPO_DEVICE void spread(Block& block, const Row& row, int begin, int end,
                          const SegmentRatio& of_segment, double each) const {
    if (!gradient) return;
    block.each([&](int thread) {
      typename Terms::Ranges ranges;
      typename Terms::Sums sums;
      for_each_quad(
          block, row, begin, end, thread, [&](auto& quad, int j, bool valid, Token<C>& x) {
            const Mapped<C> mapped = loss.level.map(x);
            const auto own = terms(quad, row.parts, of_segment, valid, x, sums, ranges);
            const C slope = Terms::shared_gradient(static_cast<C>(each), own.d_logp, mapped, valid,
                                                   static_cast<C>(row.weight));
            quad.write(gradient, j, static_cast<S>(slope));
          });
    });
  }

  /// Counts the inputs of a segment that are not finite, and sets to NaN the sums that they make
  /// NaN. Returns whether some gradient of the segment is NaN.
  template <class Block>
  GDPO_DEVICE bool scan_non_finite(Block& block, State& state, const Row& row, int begin, int end,
                                   const SegmentRatio& of_segment) const {
    NonFiniteScan found;
    // One input at a time: the pass is rare, and counting all inputs at once would take registers
    // from the loops that are not.
    for (int i = 0; i < gdpo::detail::counted_inputs; ++i) {
      const auto input = gdpo::detail::input_counter(i);
      found = block.template reduce<NonFiniteScan>([&](int thread) {
        NonFiniteScan mine;
        for (int t = begin + thread; t < end; t += block.threads()) {
          if (!valid(row, t)) continue;
          const auto token = token_at(row, t);
          Token<C> x = token.load(true, static_cast<C>(row.advantage), row.row_advantage);
          const auto see = [&](NonFinite NonFiniteInputs::*counter) {
            if (counter != input) return;
            mine.count += 1;
            mine.first = t < mine.first ? t : mine.first;
          };
          const auto nan_flags =
              Terms::scan_non_finite(loss.level, loss.surrogate, loss.kl, loss.factor, row.parts,
                                     of_segment, token, x, see);
          mine.surrogate |= nan_flags.surrogate, mine.kl |= nan_flags.kl,
              mine.kl_loss |= nan_flags.kl_loss, mine.gradient |= nan_flags.gradient;
        }
        return mine;
      });
      block.each([&](int thread) {
        if (thread != 0 || found.count == 0) return;
        state.tally.non_finite.*input =
            merge(state.tally.non_finite.*input, NonFinite{found.count, row.span.row, found.first});
      });
    }
    block.each([&](int thread) {
      if (thread != 0) return;
      if (found.surrogate) state.sums.sum[of_metric<&LossMetrics::surrogate>] = math::nan();
      if (found.kl) state.sums.sum[of_metric<&LossMetrics::kl>] = math::nan();
      if (found.kl_loss) state.sums.kl_loss = math::nan();
    });
    return found.gradient != 0;
  }

  /// Writes NaN into the gradient of the tokens whose own inputs make it NaN.
  template <class Block>
  GDPO_DEVICE void write_nan(Block& block, const Row& row, int begin, int end,
                             const SegmentRatio& of_segment) const {
    block.each([&](int thread) {
      for (int t = begin + thread; t < end; t += block.threads()) {
        if (!valid(row, t)) continue;
        const auto token = token_at(row, t);
        Token<C> x = token.load(true, static_cast<C>(row.advantage), row.row_advantage);
        const auto ignore = [](NonFinite NonFiniteInputs::*) {};
        if (!Terms::scan_non_finite(loss.level, loss.surrogate, loss.kl, loss.factor, row.parts,
                                    of_segment, token, x, ignore)
                 .gradient)
          continue;
        gradient.at(gradient.first(row.span.row, row.span.begin), t) = math::nan<S>();
      }
    });
  }

  // ---- one token ----

  /// Token t of a Plain row, whose arrays are of S.
  struct PlainToken : PlainArrays<C, Shape::with_kl> {
    const DeviceBatch<S>& batch;
    RowSpan row;
    index_t t;
    GDPO_INLINE PlainToken(const DeviceBatch<S>& from_batch, const RowSpan& span, index_t token)
        : batch(from_batch), row(span), t(token) {}
    GDPO_INLINE Token<C> load(bool, C advantage, C row_advantage) const {
      Token<C> x{};
      x.logp = read(batch.logp), x.old_logp = read(batch.old_logp);
      if constexpr (Shape::with_kl) x.ref_logp = read(batch.ref_logp);
      x.advantage = advantage, x.row_advantage = row_advantage;
      x.token_log_ratio = x.logp - x.old_logp;
      return x;
    }

   private:
    GDPO_INLINE C read(const DeviceTokens<S>& tokens) const {
      return static_cast<C>(
          static_cast<const S*>(tokens.data)[tokens.first(row.row, row.begin) + t]);
    }
  };
  GDPO_INLINE auto token_at(const Row& row, index_t t) const {
    if constexpr (Shape::plain) {
      return PlainToken(batch, row.span, t);
    } else {
      return DeviceToken<C, S>{batch, row.span, t};
    }
  }
  GDPO_INLINE bool valid(const Row& row, index_t t) const {
    if constexpr (Shape::plain) {
      return !batch.mask ||
             static_cast<const unsigned char*>(
                 batch.mask.data)[batch.mask.first(row.span.row, row.span.begin) + t] != 0;
    } else {
      return batch.valid(row.span, t);
    }
  }

  // ---- the quads of a thread ----

  /// Four tokens of a General row. Each is read by itself, whatever its storage type and stride.
  struct GeneralQuad {
    const LossKernel& kernel;
    const Row& row;
    int t, n;
    int token = 0;
    GDPO_INLINE DeviceToken<C, S> from() const { return {kernel.batch, row.span, token}; }
    GDPO_INLINE void write(const DeviceOut<S>& out, int j, S slope) const {
      if (out && j < n) out.at(out.first(row.span.row, row.span.begin), token) = slope;
    }
  };
  /// Four tokens of a Plain row: one access to each array where it is aligned.
  struct PlainQuad {
    int n;
    bool whole;
    S* gradient;
    S slopes[quad_size];
    GDPO_INLINE PlainArrays<C, Shape::with_kl> from() const { return {}; }
    GDPO_INLINE void write(const DeviceOut<S>& out, int j, S slope) {
      slopes[j] = slope;
      if (out && j == quad_size - 1) store_quad(gradient, whole, n, slopes);
    }
  };

  /// f(at, j, valid, token) for j = 0 .. 3 of every quad of this thread. Tokens at `end` and beyond
  /// are not valid.
  template <class Block, class F>
  GDPO_INLINE void for_each_quad(const Block& block, const Row& row, int begin, int end, int thread,
                                 const F& f) const {
    const int step = block.threads() * quad_size, last = end;
    const C advantage = static_cast<C>(row.advantage);
    if constexpr (!Shape::plain) {
      for (int t = begin + thread * quad_size; t < last; t += step) {
        GeneralQuad quad{*this, row, t, last - t < quad_size ? last - t : quad_size};
        GDPO_ROLLED
        for (int j = 0; j < quad_size; ++j) {
          // The terms may read arrays at tokens that are not valid, so the place stays in the row.
          quad.token = j < quad.n ? t + j : t;
          const bool valid = j < quad.n && batch.valid(row.span, quad.token);
          Token<C> x = quad.from().load(valid, advantage, row.row_advantage);
          f(quad, j, valid, x);
        }
      }
    } else {
      const auto begin_of = [&](const DeviceTokens<S>& tokens) {
        return static_cast<const S*>(tokens.data) + tokens.first(row.span.row, row.span.begin);
      };
      const S* const logp = begin_of(batch.logp);
      const S* const old_logp = begin_of(batch.old_logp);
      const S* const ref_logp = Shape::with_kl ? begin_of(batch.ref_logp) : logp;
      const unsigned char* const mask = batch.mask
                                            ? static_cast<const unsigned char*>(batch.mask.data) +
                                                  batch.mask.first(row.span.row, row.span.begin)
                                            : nullptr;
      S* const out =
          gradient ? gradient.data + gradient.first(row.span.row, row.span.begin) : nullptr;
      const bool aligned = is_aligned(logp) && is_aligned(old_logp) && is_aligned(ref_logp) &&
                           is_aligned(mask) && is_aligned(static_cast<const S*>(out));
      for (int t = begin + thread * quad_size; t < last; t += step) {
        const bool whole = aligned && t + quad_size <= last;
        const int n = last - t < quad_size ? last - t : quad_size;
        PlainQuad quad{n, whole, out ? out + t : nullptr, {}};
        S x_logp[quad_size], x_old[quad_size], x_ref[quad_size];
        unsigned char x_mask[quad_size] = {1, 1, 1, 1};
        const auto load = [&](auto is_whole) {  // all loads are issued before anything is computed
          constexpr bool in_one = decltype(is_whole)::value;
          load_quad(logp + t, in_one, n, x_logp);
          load_quad(old_logp + t, in_one, n, x_old);
          if constexpr (Shape::with_kl) load_quad(ref_logp + t, in_one, n, x_ref);
          if (mask) load_quad(mask + t, in_one, n, x_mask);
        };
        whole ? load(std::true_type{}) : load(std::false_type{});
        if (t + ahead < last) {
          prefetch(logp + t + ahead), prefetch(old_logp + t + ahead);
          if constexpr (Shape::with_kl) prefetch(ref_logp + t + ahead);
          if (mask) prefetch(mask + t + ahead);
        }
        GDPO_UNROLL
        for (int j = 0; j < quad_size; ++j) {
          const bool valid = j < n && x_mask[j] != 0;
          Token<C> x{};
          x.logp = static_cast<C>(x_logp[j]);
          x.old_logp = static_cast<C>(x_old[j]);
          if constexpr (Shape::with_kl) x.ref_logp = static_cast<C>(x_ref[j]);
          x.advantage = advantage;
          x.row_advantage = row.row_advantage;
          x.token_log_ratio = valid ? x.logp - x.old_logp : C(0);
          f(quad, j, valid, x);
        }
      }
    }
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
