#pragma once
// The policy loss of one row on the host: the loops over its tokens, and what it adds to the tally.
#include <cstring>
#include <gdpo/core/exec.hpp>
#include <gdpo/lanes/segment_sums.hpp>
#include <gdpo/loss/engine/entropy_rows.hpp>
#include <gdpo/loss/shared/checked_loss.hpp>
#include <gdpo/loss/shared/positive_logp.hpp>
#include <gdpo/loss/shared/token_reader.hpp>
#include <gdpo/loss/shared/token_terms.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether the tokens t to t + 15 of a row are all valid.
inline bool all_valid(const unsigned char* mask, index_t t) {
  if (!mask) return true;
  std::uint64_t eight[2];
  std::memcpy(eight, mask + t, sizeof eight);
  constexpr std::uint64_t ones = 0x0101010101010101, high_bits = 0x8080808080808080;
  // A byte that is 0 takes from the high bit of itself or of a byte behind it.
  return ((((eight[0] - ones) & ~eight[0]) | ((eight[1] - ones) & ~eight[1])) & high_bits) == 0;
}
/// Moments of the advantages of the row's valid tokens, where each has its own. `scratch` has room
/// for the row.
template <class S>
GDPO_NOINLINE Moments advantages_of(const TokenRow<S>& row, double* scratch) {
  const S* const advantages = row.advantages;
  constexpr index_t set = math::logical_lanes;
  index_t n = 0;
  for (index_t t = 0; t < row.length; t += set) {
    const index_t length = (std::min)(row.length - t, set);
    if (length == set && all_valid(row.mask, t)) {
      for (index_t j = 0; j < set; ++j) scratch[n + j] = static_cast<double>(advantages[t + j]);
      n += set;
      continue;
    }
    // Without a branch on the mask, because such a branch would often be mispredicted.
    for (index_t j = t; j < t + length; ++j) {
      scratch[n] = static_cast<double>(advantages[j]);
      n += row.valid(j);
    }
  }
  return moments_of(InRowOrder{}, scratch, nullptr, n);
}

/// The V that formulas run on: lanes of S, or of double at levels of segments. With `seq` it is one
/// such number.
template <class Exec, class S, class Level>
using lanes_for =
    std::conditional_t<std::is_same_v<Exec, Seq>, std::conditional_t<Level::of_segment, double, S>,
                       math::Native<std::conditional_t<Level::of_segment, double, S>>>;

/// Computes the loss of one row on the host, as RowDriver runs it. It has the loops over tokens;
/// the formulas of a token are in TokenTerms.
///
/// S is the type of the batch and of the gradient. V is the type that the formulas run on: float,
/// double or lanes of them. V's scalar is S, or double at levels of segments. A segment is a run of
/// equal ids in TokenBatch::segments; without these ids it is the whole row.
///
/// A segment takes up to three passes:
///   1  At levels of segments, statistic() reads the log-probs and sums the log ratios, and the
///      level_log_weights where the batch has them.
///   2  At every level, block_of() reads all arrays, adds the sums and writes the gradient. At
///      level::Sequence it cannot complete the gradient, because the tokens of a segment share a
///      part of their derivative that is known only after the sum of this pass. It then writes the
///      rest of each derivative to `scratch`.
///   3  At level::Sequence, spread() adds the shared part and writes the gradient.
///
/// Pass 2 adds in this order: a segment is cut into blocks of 1024 tokens, the last of them
/// shorter. Token t of a segment goes to lane t mod 16, so a lane adds at most 64 tokens of a
/// block, in V's scalar. The 16 lanes are then added in double as a tree, and the sums of the
/// blocks in their order. The order is the same for every width of V, so the bits do not depend on
/// the width.
///
/// The ratios of a block are added in parts of 128 tokens, 8 to a lane, and then the sums of the
/// parts in their order. So a ratio passes through at most 15 additions in float. Their roundings,
/// 2^-24 each, and that of e^x, 1e-7, change the sum by less than 1e-6 of it.
template <class V, class S, class Loss>
class RowLoss {
 public:
  using C = math::scalar_t<V>;
  using L = math::Lanes<V>;
  using Reader = TokenReader<V, S>;
  using Terms = TokenTerms<V, Loss>;
  using Level = typename Terms::Level;
  using Surrogate = typename Terms::Surrogate;
  using Kls = typename Terms::Kls;
  using Factors = typename Terms::Factors;
  using Metrics = typename Terms::Metrics;

  static constexpr bool needs_scratch = true;

  RowLoss(const Loss& loss, const TokenBatch<S>& batch, Tally& tally)
      : level_(loss.level),
        surrogate_(loss.surrogate),
        kls_(loss.kl),
        factors_(loss.factor),
        batch_(batch),
        tally_(tally) {}
  RowLoss(const LossCall<S, Loss>& call, const TokenBatch<S>& batch, Tally& tally)
      : RowLoss(call.loss, batch, tally) {
    entropies_ = {entropy_of(call.loss), call.normalizer, call.entropies};
  }
  ~RowLoss() {
    if constexpr (Metrics::everything) ranges_.add_to(tally_);
  }
  RowLoss(const RowLoss&) = delete;
  RowLoss& operator=(const RowLoss&) = delete;

  NonFinite& bad_weights() { return tally_.non_finite.weights; }

  /// RowDriver gives several short rows at a time (RowDriver::run_queued). A row alone would be a
  /// chain of dependent steps, from its log-probs to the tally, that leaves a processor idle.
  static constexpr bool queues_rows = true;
  static constexpr int most_rows = 8;
  /// A row in the queue: what has been read, its memory, and its sums before its weight.
  struct QueuedRow {
    WeighedRow<S> weighed;
    RowSpan span;
    index_t used;          ///< Where its part of the memory of converted arrays begins.
    NonFinite bad_weight;  ///< Weights of the row itself that are not finite.
    S* gradient;           ///< Every position is written, with exactly 0 where the mask is 0.
    double* scratch;
    RowSums sums;
    C row_advantage;
    typename Terms::Parts parts;
  };
  int queued() const { return queued_; }
  QueuedRow& push() { return *new (&queue_.rows[queued_++]) QueuedRow{}; }

  /// Some KL term has an aggregate of its own: RowDriver calls weigh() before it computes a row.
  static constexpr bool weighs_rows = Terms::own_aggregates;
  /// Puts the weight that the gradient is multiplied by in the place of W_i. `given` is what
  /// TokenBatch::row_weights multiplies weights by.
  void weigh(QueuedRow& queued, const AggregateArgs& args, double given) {
    WeighedRow<S>& weighed = queued.weighed;
    weighed.weight = queued.parts.set(kls_, weighed.weight, args, given,
                                      [&] { note(queued.bad_weight, weighed.row.row, -1); });
  }

  /// Computes the rows in the queue and adds their losses. Calls finish(QueuedRow) for each row, in
  /// their order, when its gradient and sums are complete.
  template <class Finish>
  void run(const Finish& finish) {
    if (queued_ == 0) return;
    for (int r = 0; r < queued_; ++r) cut(r, finish);
    run_pieces(finish);
    enter(queued_ - 1, finish);
    complete(queue_.rows[queued_ - 1], finish);
    queued_ = entered_ = 0;
  }
  /// Adds the metrics of a row, and its entropy bonus.
  void add(const QueuedRow& queued, RowMemory<S>& memory) {
    const TokenRow<S>& row = queued.weighed.row;
    const RowSpan& span = queued.span;
    const index_t tokens = queued.weighed.tokens;
    if (tokens > 0 && row.advantages) {
      tally_.advantage = merge(tally_.advantage, advantages_of(row, queued.scratch));
    } else {
      Moments equal;  // of one advantage for all tokens
      equal.n = tokens, equal.weight = static_cast<double>(tokens);
      equal.mean = equal.min = equal.max = row.advantage;
      merge_into(tally_.advantage, equal);
    }
    const index_t completion =
        batch_.completion_mask
            ? count_row(batch_.completion_mask, span, memory.rows.completion_mask.data())
            : tokens;
    tally_.add(queued.sums, tokens, completion,
               batch_.truncated ? batch_.truncated(span.row) : math::nan(),
               positive_logp(row, tokens), Metrics::means);
    if (entropies_.on()) {
      tally_.entropy_loss += entropies_.row(span, queued.weighed, queued.parts.surrogate(),
                                            batch_.row_weights, tally_.non_finite.weights);
    }
  }
  /// Pass 1: computes the log ratio and the ratio that the tokens of a segment share. `tail`: the
  /// last tokens of the segment, fewer than 16, if they have been copied.
  void statistic(const TokenRow<S>& row, index_t begin, index_t end, C row_advantage,
                 const PaddedSpan<S>* tail, SegmentRatio& ratio) const {
    ratio = segment_ratio<S>(level_, sum_of(row, begin, end, row_advantage, tail));
    if (row.level_log_weights) weigh_segment<S>(level_, sum_of_log_weights(row, begin, end), ratio);
  }

 private:
  using Mask = mask_t<V>;
  using Count = typename L::Count;
  static constexpr int registers = math::logical_lanes / L::width;  // V for the 16 lanes
  static constexpr index_t block = 1024;                            // tokens
  static constexpr index_t ratio_part = 128;                        // tokens
  static constexpr bool own_ratio = Terms::own_ratio, shares = Terms::shares, maps = Terms::maps,
                        has_kl = Terms::has_kl, several_kl = Terms::several_kl,
                        reads_row_advantage = Terms::reads_row_advantage,
                        one_shape = L::width == 1 || general_rows_v<typename Terms::Surrogate>;
  using Sums = typename Terms::Sums;
  using Ranges = typename Terms::Ranges;

  /// Calls f with the shape of a row: what its loops know about it when they are compiled (General
  /// and Plain in row_shape.hpp). The scalar loops of `seq` take General for every row.
  template <class F>
  void with_shape(const TokenRow<S>& row, const F& f) const {
    TokenArrays has = arrays_of(row);
    // A Plain loop does not read them, but add_entropies() does, and EntropyRows.
    has.entropies = has.entropy_weights = false;
    const PlainRows rows = plain_rows(kls_, has);
    if (one_shape || !rows.plain) return f(General{});
    if constexpr (!one_shape) {
      if constexpr (has_kl) {
        if (rows.with_kl) return row.mask ? f(Plain<true, true>{}) : f(Plain<false, true>{});
      }
      return row.mask ? f(Plain<true, false>{}) : f(Plain<false, false>{});
    }
  }

  // Copies one sum; Sums::with calls it for each.
  static constexpr auto take = [](auto& to, auto& from) { to = from; };

  // In the loops over tokens, t runs over sets of 16 logical lanes, and k over the registers of a
  // set. Each function below writes out these two loops. If one function had them and took their
  // body as an argument, the compiler would process each body three times.

  /// Whether register k of a set begins a cache line of 64 bytes, if the array begins one.
  static constexpr bool begins_line(int k) {
    return k * L::width * static_cast<int>(sizeof(S)) % 64 == 0;
  }

  /// At most `block` tokens of a segment of a row in the queue.
  struct Piece {
    int row;                      ///< In the queue.
    index_t segment, begin, end;  ///< Where the segment begins, and the tokens of the piece.
    bool begins, ends;            ///< Whether the segment begins here, or ends.
    const SegmentRatio* of_segment;
    S* ratio;  ///< Its part of the buffer of ratios.
    /// Its last tokens, fewer than 16, are those of padded_.
    bool has_tail() const { return (end - begin) % math::logical_lanes != 0; }
  };
  /// Consecutive tokens that fill whole sets of lanes, as the loops read them.
  struct Run {
    const TokenRow<S>* row;
    S *gradient, *ratio;  ///< ratio[0] belongs to token `begin`.
    double* scratch;
    index_t begin, end;
    const QueuedRow* queued;
    const SegmentRatio* of_segment;
    Sums* sums;  ///< One for each register.
  };
  TokenSpan<S> span_of(const QueuedRow& queued) const {
    return {queued.weighed.row, queued.gradient, shares ? queued.scratch : nullptr};
  }

  /// Cuts a row of the queue into pieces.
  template <class Finish>
  void cut(int r, const Finish& finish) {
    QueuedRow& queued = queue_.rows[r];
    const TokenRow<S>& row = queued.weighed.row;
    if constexpr (reads_row_advantage) queued.row_advantage = static_cast<C>(row.mean_advantage());
    queued.sums.advantage =
        !row.advantages && (!batch_.advantages || !math::is_zero(static_cast<C>(row.advantage)));
    const TokenSpan<S> span = span_of(queued);
    for (index_t first = 0; first < row.length;) {
      const index_t end = row.segment_end(first);
      const SegmentRatio* of_segment = nullptr;
      for (index_t begin = first; begin < end; begin += block) {
        const index_t last = (std::min)(begin + block, end);
        if (pieces_ == most_pieces || ratios_ + (last - begin) > block) {
          run_pieces(finish);
          if (begin > first) of_segment = &(segment_[0] = *of_segment);
        }
        const int p = pieces_++;
        Piece& piece = piece_[p];
        piece.row = r, piece.segment = first, piece.begin = begin, piece.end = last;
        piece.begins = begin == first, piece.ends = last == end;
        piece.ratio = ratio_ + ratios_, ratios_ += last - begin;
        if (piece.has_tail())
          padded_[p].fill(span, last - (last - begin) % math::logical_lanes, last);
        if (piece.begins) {
          of_segment = &segment_[p];
          if constexpr (Level::of_segment) {
            const bool is_copied = piece.ends && piece.has_tail();
            statistic(row, first, end, queued.row_advantage, is_copied ? &padded_[p] : nullptr,
                      segment_[p]);
            of_segment->add_to(queued.sums, tally_);
          }
        }
        piece.of_segment = of_segment;
      }
      first = end;
    }
  }

  /// Runs pass 2 over all pieces, and then, one piece after the other, adds their sums and runs
  /// pass 3.
  template <class Finish>
  void run_pieces(const Finish& finish) {
    if (pieces_ == 0) return;
    Run whole[most_pieces], tails[most_pieces];
    int wholes = 0, padded = 0;
    for (int p = 0; p < pieces_; ++p) {
      const Piece& piece = piece_[p];
      const QueuedRow& queued = queue_.rows[piece.row];
      const TokenSpan<S> span = span_of(queued);
      Sums* const sums = lanes_.sums[p];
      for (int k = 0; k < registers; ++k) new (sums + k) Sums{};
      const index_t end = piece.end - (piece.end - piece.begin) % math::logical_lanes;
      if (piece.begin < end) {
        whole[wholes++] = {&span.row, span.gradient, piece.ratio,      span.scratch, piece.begin,
                           end,       &queued,       piece.of_segment, sums};
      }
      if (piece.has_tail()) {
        const TokenSpan<S>& tail = padded_[p].span;
        tails[padded++] = {&tail.row,           tail.gradient, tail.ratio,       tail.scratch, 0,
                           math::logical_lanes, &queued,       piece.of_segment, sums};
      }
    }
    with_shape(queue_.rows[piece_[0].row].weighed.row, [&](auto shape) {
      using Shape = decltype(shape);
      using OfTails = typename Shape::MaskedShape;
      if (wholes > 0) {
        own_ratios<typename Shape::RatioShape>(whole, whole + wholes);
        terms<Shape>(whole, whole + wholes);
      }
      if (padded > 0) {
        own_ratios<typename OfTails::RatioShape>(tails, tails + padded);
        terms<OfTails>(tails, tails + padded);
      }
      if (Shape::plain && queue_.rows[piece_[0].row].weighed.row.entropies) {
        add_entropies(whole, whole + wholes);
        add_entropies(tails, tails + padded);
      }
    });
    for (int p = 0; p < pieces_; ++p) {
      enter(piece_[p].row, finish);
      end_piece(piece_[p], lanes_.sums[p], padded_[p]);
    }
    pieces_ = 0, ratios_ = 0;
  }
  /// Adds the sums of a piece to its row and completes its gradient.
  void end_piece(const Piece& piece, const Sums* sums, PaddedSpan<S>& tail) {
    QueuedRow& queued = queue_.rows[piece.row];
    const TokenSpan<S> span = span_of(queued);
    const SegmentRatio& of_segment = *piece.of_segment;
    if (piece.begins) shared_ = 0;
    const bool all_finite =
        add_totals(span.row, sums, queued.sums, shared_) &&
        !math::not_finite(static_cast<C>(span.row.advantage)) &&
        !(Level::of_segment && (math::is_nan(of_segment.log_ratio) || of_segment.bad_weights));
    const bool spreads_here = shares && piece.begins && piece.ends && all_finite;
    if (piece.has_tail() && !spreads_here) tail.copy_back();
    if (!all_finite) scan_non_finite(span, piece, queued);
    // Some sums are stored one by one here, and Tally::add() will load them as vectors, which has
    // to wait until such stores have reached the cache. The next piece gives them time.
    if (piece.end == span.row.length)
      Terms::finish(kls_, queued.parts, span.row.kl_weights, queued.sums);
    if constexpr (shares) {
      if (!piece.ends) return;
      const double each = of_segment.held ? 0.0 : math::mul(shared_, of_segment.share);
      if (spreads_here) {
        const index_t tail_tokens = (piece.end - piece.begin) % math::logical_lanes;
        spread(span, piece.begin, piece.end - tail_tokens, each, queued);
        if (!piece.has_tail()) return;
        spread(tail.span, 0, math::logical_lanes, each, queued);
        tail.copy_back();
      } else {
        in_registers(span, piece.segment, piece.end,
                     [&](const TokenSpan<S>& s, index_t first, index_t last, auto) {
                       spread(s, first, last, each, queued);
                     });
      }
    }
  }

  /// Is called before row r of the queue is the first to note an input that is not finite: those
  /// before it are complete.
  template <class Finish>
  void enter(int r, const Finish& finish) {
    for (; entered_ <= r; ++entered_) {
      if (entered_ > 0) complete(queue_.rows[entered_ - 1], finish);
      const NonFinite& bad = queue_.rows[entered_].bad_weight;
      if (bad.count > 0) bad_weights() = merge(bad_weights(), bad);
    }
  }
  /// Adds the loss of a row whose sums are complete.
  template <class Finish>
  void complete(QueuedRow& queued, const Finish& finish) {
    const RowSums& sums = queued.sums;
    const WeighedRow<S>& weighed = queued.weighed;
    if (weighed.counts()) {
      if (queued.parts.surrogate()) {
        tally_.policy_loss +=
            math::mul(weighed.weight, sums.sum[of_metric<&LossMetrics::surrogate>]);
      }
      tally_.kl_loss += math::mul(weighed.weight, sums.kl_loss);
    }
    finish(queued);
  }

  /// Returns the sum and number of the mapped log ratios of a segment. Each lane adds all its
  /// tokens in double, without a cut into blocks. Then the lanes are added as a tree.
  RowSum sum_of(const TokenRow<S>& row, index_t begin, index_t end, C row_advantage,
                const PaddedSpan<S>* tail) const {
    V lanes[registers]{};
    Count valid_tokens[registers]{};
    const auto add = [&](const TokenSpan<S>& s, index_t first, index_t last, auto) {
      for (index_t t = first; t < last; t += math::logical_lanes) {
        for (int k = 0; k < registers; ++k) {
          const index_t token = t + k * L::width;
          const Mask valid = Reader::mask_of(s.row, token);
          lanes[k] =
              lanes[k] + math::select(valid, mapped(s.row, token, valid, row_advantage).log_ratio,
                                      math::constant<V>(0.0));
          valid_tokens[k].add(valid);
        }
      }
    };
    const TokenSpan<S> span{row};
    if (tail) {
      add(span, begin, end - (end - begin) % math::logical_lanes, std::false_type{});
      add(tail->span, 0, math::logical_lanes, std::false_type{});
    } else {
      in_registers(span, begin, end, add);
    }
    RowSum sum{math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return lanes[k]; }), 0};
    for (const Count& count : valid_tokens) sum.n += static_cast<double>(count.total());
    return sum;
  }

  /// Returns the sum of the level_log_weights of a segment: 16 lanes that are added as a tree, as
  /// the log ratios are. Not inlined, because few batches have them.
  GDPO_NOINLINE static double sum_of_log_weights(const TokenRow<S>& row, index_t begin,
                                                 index_t end) {
    double lanes[math::logical_lanes] = {};
    for (index_t first = begin; first < end; first += math::logical_lanes) {
      const index_t n = (std::min)(end - first, index_t{math::logical_lanes});
      for (index_t j = 0; j < n; ++j) {
        const auto log_weight = static_cast<double>(row.level_log_weights[first + j]);
        lanes[j] += row.valid(first + j) ? log_weight : 0.0;
      }
    }
    return tree_sum(math::Pack<math::logical_lanes>::load(lanes));
  }

  // Pass 2 takes the pieces in two loops with a buffer of ratios between them:
  //   own_ratios  reads logp and old_logp, writes the ratio of each token to the buffer and adds
  //               the metrics of the log ratios
  //   terms       reads the buffer and all arrays, adds the other sums and writes the gradient
  // In a single loop, each token would be a chain of dependent operations from the log-probs
  // through e^x to the gradient. Such a chain is longer than a processor can keep in flight, so
  // the chains of different tokens would hardly overlap. The buffer of 1024 ratios is small enough
  // for the first-level cache. At levels of segments the first loop has only metrics to add, and
  // the buffer is not used.

  /// The first loop computes the ratios of the tokens themselves and adds their metrics.
  template <class Shape>
  GDPO_NOINLINE void own_ratios(const Run* run, const Run* end) {
    using math::constant;
    const Level level = level_;
    Ranges ranges;
    ranges.template take<metric::Ratios>(ranges_);
    for (; run != end; ++run) {
      const TokenRow<S> row = *run->row;
      const index_t begin = run->begin, last = run->end;
      S *const ratio = run->ratio, *const gradient = run->gradient;
      const V advantage = constant<V>(row.advantage),
              row_advantage = constant<V>(run->queued->row_advantage);
      Sums local[registers];
      for (int k = 0; k < registers; ++k)
        local[k].template with<metric::Ratios, Shape>(run->sums[k], take);
      for (index_t t = begin; t < last; t += math::logical_lanes) {
        for (int k = 0; k < registers; ++k) {
          const index_t token = t + k * L::width;
          if (begins_line(k)) Reader::template prefetch_for_terms<Shape>(row, gradient, token);
          const Mask valid = Reader::template mask_in<Shape>(row, token);
          Token<V> x;
          Reader::template load<Shape>(x, row, token, valid, advantage, row_advantage);
          const V own = Terms::template own<S>(level.map(x).log_ratio, valid, x, local[k], ranges);
          if constexpr (!Level::of_segment) L::store(ratio + (token - begin), own);
        }
      }
      for (int k = 0; k < registers; ++k)
        run->sums[k].template with<metric::Ratios, Shape>(local[k], take);
    }
    ranges_.template take<metric::Ratios>(ranges);
  }

  /// The second loop adds the terms of the tokens to the sums and writes their gradient. At
  /// level::Sequence it writes each token's own part of the derivative to `scratch` instead.
  template <class Shape>
  GDPO_NOINLINE void terms(const Run* run, const Run* end) {
    // The loops read copies, so that the compiler keeps what is the same for all tokens in
    // registers.
    const Level level = level_;
    const Surrogate surrogate = surrogate_;
    const Kls kls = Terms::template of_shape<Shape>(kls_);
    const Factors factors = factors_;
    Ranges ranges;
    ranges.template take<metric::Terms>(ranges_);
    constexpr int of_ratio = of_metric<&LossMetrics::ratio>;
    constexpr bool adds_ratio = Terms::template adds_v<Shape, of_ratio>;
    for (; run != end; ++run) {
      const typename Terms::Parts parts = run->queued->parts;
      const SegmentRatio of_segment = *run->of_segment;
      const TokenRow<S> row = *run->row;
      const index_t begin = run->begin, last = run->end;
      S *const ratio = run->ratio, *const gradient = run->gradient;
      double* const scratch = run->scratch;
      const V w = math::constant<V>(run->queued->weighed.weight),
              advantage = math::constant<V>(row.advantage),
              row_advantage = math::constant<V>(run->queued->row_advantage);
      Sums local[registers];
      for (int k = 0; k < registers; ++k)
        local[k].template with<metric::Terms, Shape>(run->sums[k], take);
      V ratios[registers]{};  // of the parts that are complete
      index_t next_part = begin + ratio_part;
      for (index_t t = begin; t < last; t += math::logical_lanes) {
        if (adds_ratio && t == next_part) {
          next_part += ratio_part;
          for (int k = 0; k < registers; ++k) {
            ratios[k] = ratios[k] + local[k].sum[of_ratio];
            local[k].sum[of_ratio] = math::constant<V>(0.0);
          }
        }
        for (int k = 0; k < registers; ++k) {
          const index_t token = t + k * L::width;
          if (begins_line(k)) Reader::template prefetch_for_ratios<Shape>(row, token + 2 * block);
          const Mask valid = Reader::template mask_in<Shape>(row, token);
          Token<V> x;
          Reader::template load<Shape>(x, row, token, valid, advantage, row_advantage);
          if constexpr (!Level::of_segment) x.ratio = L::load(ratio + (token - begin));
          const auto slopes = Terms::template add<Shape>(surrogate, kls, factors, parts, of_segment,
                                                         RowTokens<V, S>{row, token}, valid, x,
                                                         level.map(x), local[k], ranges);
          if constexpr (shares) {
            L::store(scratch + token, slopes.d_logp);
          } else {
            L::store(gradient + token, Terms::template gradient<Shape>(slopes, valid, w));
          }
        }
      }
      for (int k = 0; adds_ratio && k < registers; ++k)
        local[k].sum[of_ratio] = ratios[k] + local[k].sum[of_ratio];
      for (int k = 0; k < registers; ++k)
        run->sums[k].template with<metric::Terms, Shape>(local[k], take);
    }
    ranges_.template take<metric::Terms>(ranges);
  }

  /// Adds the entropies of tokens whose other terms a Plain loop has added.
  GDPO_NOINLINE void add_entropies(const Run* run, const Run* end) {
    constexpr int q = of_metric<&LossMetrics::entropy>;
    for (; Metrics::means && run != end; ++run) {
      V sums[registers];
      for (int k = 0; k < registers; ++k) sums[k] = run->sums[k].sum[q];
      for (index_t t = run->begin; t < run->end; t += math::logical_lanes) {
        for (int k = 0; k < registers; ++k) {
          const index_t token = t + k * L::width;
          const Mask valid = Reader::mask_of(*run->row, token);
          const V entropy =
              math::select(valid, L::load(run->row->entropies + token), math::constant<V>(0.0));
          sums[k] = sums[k] + entropy;
          if constexpr (Metrics::everything) ranges_.add(q, valid, entropy);
        }
      }
      for (int k = 0; k < registers; ++k) {
        V& inputs = run->sums[k].sum[Terms::inputs];
        run->sums[k].sum[q] = sums[k], inputs = inputs + sums[k];
      }
    }
  }

  /// Adds the lanes of one sum of a block. It is for the sums that few losses have.
  GDPO_NOINLINE static double total_of(const Sums* sums, int q) {
    return math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return sums[k].sum[q]; });
  }
  /// Adds the lanes of every sum of a block to the row. Returns false if some input may not be
  /// finite, so that scan_non_finite() has to look at each token.
  ///
  /// Eight sums are added at a time, because each alone would end in additions of single numbers.
  bool add_totals(const TokenRow<S>& row, const Sums* sums, RowSums& row_sums,
                  double& shared) const {
    constexpr int sets = quantities / 8;
    double folded[sets][8][8];
    const auto fold = [&](int place, const auto& lanes_of) GDPO_INLINE_LAMBDA {
      C lanes[math::logical_lanes];
      for (int k = 0; k < registers; ++k) L::store(lanes + k * L::width, lanes_of(sums[k]));
      (math::Pack<8>::load(lanes) + math::Pack<8>::load(lanes + 8))
          .store(folded[place / 8][place % 8]);
    };
    const auto add = [&](auto q) GDPO_INLINE_LAMBDA {
      constexpr int count = q - measured;
      constexpr bool added = (q < token_sums || (count >= 0 && count < token_counts)) &&
                             Terms::template adds_v<General, (q < metrics_of_tokens ? q : 0)>;
      if constexpr (added && q < token_sums) {
        if (metric::list[q].where != metric::WithEntropies || row.entropies)
          return fold(q, [q](const Sums& s) GDPO_INLINE_LAMBDA { return s.sum[q]; });
      } else if constexpr (added) {
        return fold(
            q, [q](const Sums& s) GDPO_INLINE_LAMBDA { return s.count[q - measured].lanes(); });
      }
      math::Pack<8>::all(0).store(folded[q / 8][q % 8]);
    };
    with_places<quantities>([&](auto... q) GDPO_INLINE_LAMBDA { (add(q), ...); });
    double totals[quantities];
    for (int set = 0; set < sets; ++set) {
      double *const eight = totals + set * 8, *const of_row = row_sums.sum + set * 8;
      eight_tree_sums(folded[set], eight);
      (math::Pack<8>::load(of_row) + math::Pack<8>::load(eight)).store(of_row);
    }
    double kl_loss = 0;
    if (several_kl || (has_kl && row.kl_weights) || any_weighed(kls_))
      row_sums.kl_loss += kl_loss = total_of(sums, Terms::kl_loss);
    if constexpr (shares) shared += total_of(sums, Terms::shared);
    bool finite = Terms::is_finite(totals[of_metric<&LossMetrics::approx_kl_k1>],
                                   totals[of_metric<&LossMetrics::kl>], kl_loss);
    for (int k = 0; k < registers; ++k) {
      const Sums& s = sums[k];
      finite = finite && !math::any(math::not_finite(s.sum[Terms::inputs]));
      if (row.advantages)
        row_sums.advantage =
            row_sums.advantage || math::any(s.count[Terms::advantages].lanes() > V{});
    }
    return finite;
  }

  /// Pass 3: for every token of a segment, adds `each`, the derivative that they share, to the
  /// token's own part in `scratch`, and writes the gradient.
  GDPO_NOINLINE void spread(const TokenSpan<S>& span, index_t begin, index_t end, double each,
                            const QueuedRow& queued) const {
    const V w = math::constant<V>(queued.weighed.weight), of_each = math::constant<V>(each);
    const TokenRow<S> row = span.row;
    const double* const scratch = span.scratch;
    S* const gradient = span.gradient;
    for (index_t token = begin; token < end; token += L::width) {
      const Mask valid = Reader::mask_of(row, token);
      const V own = L::load(scratch + token);
      L::store(gradient + token,
               Terms::shared_gradient(of_each, own, mapped(row, token, valid, queued.row_advantage),
                                      valid, w));
    }
  }

  /// Looks one by one at the tokens of a block in which some input may not be finite. It counts
  /// such inputs in the tally, and writes NaN to the sums and gradients that have to be NaN because
  /// of them.
  GDPO_COLD void scan_non_finite(const TokenSpan<S>& span, const Piece& piece, QueuedRow& queued) {
    using OneToken = TokenTerms<C, Loss>;
    const TokenRow<S>& row = span.row;
    RowSums& sums = queued.sums;
    for (index_t t = piece.begin; t < piece.end; ++t) {
      if (!row.valid(t)) continue;
      Token<C> x;
      TokenReader<C, S>::template load<General>(x, row, t, true, static_cast<C>(row.advantage),
                                                queued.row_advantage);
      const auto nan_flags = OneToken::scan_non_finite(
          level_, surrogate_, kls_, factors_, queued.parts, *piece.of_segment,
          RowTokens<C, S>{row, t}, x, NoteAt{tally_.non_finite, row.row, t});
      if (nan_flags.surrogate) sums.sum[of_metric<&LossMetrics::surrogate>] = math::nan();
      if (nan_flags.kl) sums.sum[of_metric<&LossMetrics::kl>] = math::nan();
      if (nan_flags.kl_loss) sums.kl_loss = math::nan();
      if (!nan_flags.gradient) continue;
      if constexpr (shares) {
        shared_ = span.scratch[t] = math::nan();
      } else {
        span.gradient[t] = math::nan<S>();
      }
    }
  }

  /// Returns the log ratios of the tokens at, at + 1, ... after the level's map, and whether the
  /// map lets their gradients pass.
  GDPO_INLINE Mapped<V> mapped(const TokenRow<S>& row, index_t token, const Mask& valid,
                               C row_advantage) const {
    Token<V> x;
    Reader::template load<General>(x, row, token, valid, math::constant<V>(row.advantage),
                                   math::constant<V>(row_advantage));
    return level_.map(x);
  }

  const Level& level_;
  const Surrogate& surrogate_;
  const Kls& kls_;
  const Factors& factors_;
  const TokenBatch<S>& batch_;
  Tally& tally_;
  Ranges ranges_;
  EntropyRows<S> entropies_;

  // Not initialized before they are used, because a unit may be a single row.
  static constexpr int most_pieces = 8;
  union Queue {
    Queue() {}
    QueuedRow rows[most_rows];
  } queue_;
  union Lanes {
    Lanes() {}
    Sums sums[most_pieces][registers];
  } lanes_;
  int queued_ = 0, entered_ = 0, pieces_ = 0;
  Piece piece_[most_pieces];
  SegmentRatio segment_[most_pieces];  // of the segments that begin in the pieces
  PaddedSpan<S> padded_[most_pieces];  // the tail of each piece
  S ratio_[block];
  index_t ratios_ = 0;  // in use
  double shared_ = 0;   // what the tokens of the segment share, so far
};

}  // namespace detail
GDPO_END_NAMESPACE
