#pragma once
// The policy loss of one row on the host: the loops over its tokens, and what it adds to the tally.
#include <gdpo/core/exec.hpp>
#include <gdpo/lanes/segment_sums.hpp>
#include <gdpo/loss/engine/entropy_rows.hpp>
#include <gdpo/loss/shared/checked_loss.hpp>
#include <gdpo/loss/shared/positive_logp.hpp>
#include <gdpo/loss/shared/token_reader.hpp>
#include <gdpo/loss/shared/token_terms.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Moments of the advantages at the row's valid tokens.
template <class S>
Moments advantages_of(const TokenRow<S>& row, index_t tokens, std::vector<double>& scratch) {
  Moments m;
  if (tokens == 0) return m;
  if (row.advantages) {
    index_t n = 0;
    // This packs the advantages of the valid tokens without a branch on the mask, because such a
    // branch would often be mispredicted.
    for (index_t t = 0; t < row.length; ++t) {
      scratch[static_cast<std::size_t>(n)] = static_cast<double>(row.advantages[t]);
      n += row.valid(t);
    }
    return moments_of(InRowOrder{}, scratch.data(), nullptr, n);
  }
  m.n = tokens;
  m.weight = static_cast<double>(tokens);
  m.mean = m.min = m.max = row.advantage;
  return m;
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

  /// Some KL term has an aggregate of its own: RowDriver calls weigh() before it computes a row.
  static constexpr bool weighs_rows = Terms::own_aggregates;
  /// Puts the weight that the gradient is multiplied by in the place of W_i. `given` is what
  /// TokenBatch::row_weights multiplies weights by.
  void weigh(WeighedRow<S>& weighed, const AggregateArgs& args, double given) {
    weighed.weight = parts_.set(kls_, weighed.weight, args, given,
                                [&] { note(bad_weights(), weighed.row.row, -1); });
  }

  /// Computes one row and adds its loss. Every position of `gradient` is written, with exactly 0
  /// where the mask is 0. Returns the sums of the row, not yet multiplied by its weight.
  RowSums operator()(const WeighedRow<S>& weighed, S* gradient, RowMemory<S>& memory) {
    const TokenRow<S>& row = weighed.row;
    if constexpr (reads_row_advantage) row_advantage_ = static_cast<C>(row.mean_advantage());
    RowSums sums;
    sums.advantage =
        !row.advantages && (!batch_.advantages || !math::is_zero(static_cast<C>(row.advantage)));
    const TokenSpan<S> span{row, gradient, shares ? memory.tokens.data() : nullptr};
    for (index_t first = 0; first < row.length;) {
      const index_t end = row.segment_end(first);
      segment(span, first, end, weighed.weight, sums);
      first = end;
    }
    Terms::finish(kls_, parts_, row.kl_weights, sums);
    if (weighed.counts()) {
      if (parts_.surrogate()) {
        tally_.policy_loss +=
            math::mul(weighed.weight, sums.sum[of_metric<&LossMetrics::surrogate>]);
      }
      tally_.kl_loss += math::mul(weighed.weight, sums.kl_loss);
    }
    return sums;
  }
  /// Adds the metrics of a row, and its entropy bonus.
  void add(const RowSpan& span, const WeighedRow<S>& weighed, const RowSums& sums,
           RowMemory<S>& memory) {
    const TokenRow<S>& row = weighed.row;
    const index_t tokens = weighed.tokens;
    // Tally::add() below loads the sums of this row as vectors. They were stored one by one, and a
    // vector load has to wait until such stores have reached the cache. The work in between gives
    // them time.
    merge_into(tally_.advantage, advantages_of(row, tokens, memory.tokens));
    const index_t completion =
        batch_.completion_mask ? count_row(batch_.completion_mask, span, memory.rows.mask.data())
                               : tokens;
    tally_.add(sums, tokens, completion,
               batch_.truncated ? batch_.truncated(span.row) : math::nan(),
               positive_logp(row, tokens), Metrics::means);
    if (entropies_.on()) {
      tally_.entropy_loss += entropies_.row(span, weighed, parts_.surrogate(), batch_.row_weights,
                                            tally_.non_finite.weights);
    }
  }
  /// Pass 1: computes the log ratio and the ratio that the tokens of a segment share.
  SegmentRatio statistic(const TokenRow<S>& row, index_t begin, index_t end) const {
    const RowSum sum = end - begin < math::logical_lanes ? sum_of_few(row, begin, end)
                                                         : sum_of_many(row, begin, end);
    SegmentRatio ratio = segment_ratio<S>(level_, sum);
    if (row.level_log_weights) weigh_segment<S>(level_, sum_of_log_weights(row, begin, end), ratio);
    return ratio;
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
  void with_shape(const TokenSpan<S>& span, const F& f) const {
    const TokenRow<S>& row = span.row;
    const PlainRows rows = plain_rows(kls_, arrays_of(row));
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

  /// Runs all passes over one segment and adds what they give to `sums`.
  void segment(const TokenSpan<S>& span, index_t begin, index_t end, double weight, RowSums& sums) {
    SegmentRatio of_segment;
    if constexpr (Level::of_segment) of_segment = statistic(span.row, begin, end);
    if constexpr (Level::of_segment) of_segment.add_to(sums, tally_);
    double shared = 0;
    for (index_t first = begin; first < end; first += block) {
      const index_t last = (std::min)(first + block, end);
      block_of(span, first, last, of_segment, weight, sums, shared);
    }
    if constexpr (shares) {
      spread(span, begin, end, of_segment.held ? 0.0 : math::mul(shared, of_segment.share), weight);
    }
  }

  /// Returns the sum and number of the mapped log ratios of a segment with fewer tokens than lanes.
  /// Each token has a lane of its own, so the sum has the bits that sum_of_many() would give.
  RowSum sum_of_few(const TokenRow<S>& row, index_t begin, index_t end) const {
    double lanes[math::logical_lanes] = {};
    RowSum sum{0, 0};
    for (index_t t = begin; t < end; ++t) {
      if (!row.valid(t)) continue;
      Token<C> x;
      TokenReader<C, S>::template load<General>(x, row, t, true, static_cast<C>(row.advantage),
                                                row_advantage_);
      lanes[t - begin] = static_cast<double>(level_.map(x).log_ratio);
      sum.n += 1;
    }
    sum.sum = tree_sum(math::Pack<math::logical_lanes>::load(lanes));
    return sum;
  }
  /// Returns the sum and number of the mapped log ratios of a segment. Each lane adds all its
  /// tokens in double, without a cut into blocks. Then the lanes are added as a tree.
  RowSum sum_of_many(const TokenRow<S>& row, index_t begin, index_t end) const {
    V lanes[registers]{};
    Count valid_tokens[registers]{};
    in_registers(TokenSpan<S>{row}, begin, end,
                 [&](const TokenSpan<S>& s, index_t first, index_t last, auto) {
                   for (index_t t = first; t < last; t += math::logical_lanes) {
                     for (int k = 0; k < registers; ++k) {
                       const index_t token = t + k * L::width;
                       const Mask valid = Reader::mask_of(s.row, token);
                       lanes[k] =
                           lanes[k] + math::select(valid, mapped(s.row, token, valid).log_ratio,
                                                   math::constant<V>(0.0));
                       valid_tokens[k].add(valid);
                     }
                   }
                 });
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

  /// Pass 2 takes at most `block` tokens here, in two loops with a buffer of ratios between them:
  ///   own_ratios  reads logp and old_logp, writes the ratio of each token to the buffer and adds
  ///               the metrics of the log ratios
  ///   terms       reads the buffer and all arrays, adds the other sums and writes the gradient
  /// In a single loop, each token would be a chain of dependent operations from the log-probs
  /// through e^x to the gradient. Such a chain is longer than a processor can keep in flight, so
  /// the chains of different tokens would hardly overlap. The buffer of 1024 ratios is small enough
  /// for the first-level cache. At levels of segments the first loop has only metrics to add, and
  /// the buffer is not used.
  void block_of(const TokenSpan<S>& span, index_t begin, index_t end,
                const SegmentRatio& of_segment, double weight, RowSums& row_sums, double& shared) {
    S ratio[block];
    Sums sums[registers]{};
    TokenSpan<S> local = span;
    local.ratio = ratio;
    local.origin = begin;
    with_shape(span, [&](auto shape) {
      in_registers(
          local, begin, end, [&](const TokenSpan<S>& s, index_t first, index_t last, auto padded) {
            using Given = decltype(shape);
            using Shape =
                std::conditional_t<decltype(padded)::value, typename Given::MaskedShape, Given>;
            own_ratios<typename Shape::RatioShape>(s, first, last, sums);
            terms<Shape>(s, first, last, of_segment, weight, sums);
          });
    });
    const bool all_finite =
        add_totals(span.row, sums, row_sums, shared) &&
        !math::not_finite(static_cast<C>(span.row.advantage)) &&
        !(Level::of_segment && (math::is_nan(of_segment.log_ratio) || of_segment.bad_weights));
    if (!all_finite) scan_non_finite(span, begin, end, of_segment, row_sums, shared);
  }

  /// The first loop of a block computes the ratios of the tokens themselves and adds their metrics.
  template <class Shape>
  GDPO_NOINLINE void own_ratios(const TokenSpan<S>& span, index_t begin, index_t end, Sums* sums) {
    using math::constant;
    const Level level = level_;
    const TokenRow<S> row = span.row;
    const index_t origin = span.origin;
    S *const ratio = span.ratio, *const gradient = span.gradient;
    const V advantage = constant<V>(row.advantage), row_advantage = constant<V>(row_advantage_);
    Sums local[registers];
    for (int k = 0; k < registers; ++k)
      local[k].template with<metric::Ratios, Shape>(sums[k], take);
    Ranges ranges;
    ranges.template take<metric::Ratios>(ranges_);
    for (index_t t = begin; t < end; t += math::logical_lanes) {
      for (int k = 0; k < registers; ++k) {
        const index_t token = t + k * L::width;
        if (begins_line(k)) Reader::template prefetch_for_terms<Shape>(row, gradient, token);
        const Mask valid = Reader::template mask_in<Shape>(row, token);
        Token<V> x;
        Reader::template load<Shape>(x, row, token, valid, advantage, row_advantage);
        const V own = Terms::template own<S>(level.map(x).log_ratio, valid, x, local[k], ranges);
        if constexpr (!Level::of_segment) L::store(ratio + (token - origin), own);
      }
    }
    for (int k = 0; k < registers; ++k)
      sums[k].template with<metric::Ratios, Shape>(local[k], take);
    ranges_.template take<metric::Ratios>(ranges);
  }

  /// The second loop of a block adds the terms of the tokens to the sums and writes their gradient.
  /// At level::Sequence it writes each token's own part of the derivative to `scratch` instead.
  template <class Shape>
  GDPO_NOINLINE void terms(const TokenSpan<S>& span, index_t begin, index_t end,
                           const SegmentRatio& of_segment, double weight, Sums* sums) {
    // The loop reads copies, so that the compiler keeps what is the same for all tokens in
    // registers.
    const Level level = level_;
    const Surrogate surrogate = surrogate_;
    const Kls kls = Terms::template of_shape<Shape>(kls_);
    const Factors factors = factors_;
    const typename Terms::Parts row_parts = parts_;
    const SegmentRatio segment_ratio = of_segment;
    const TokenSpan<S> local = span;
    const V w = math::constant<V>(weight), advantage = math::constant<V>(span.row.advantage),
            row_advantage = math::constant<V>(row_advantage_);
    Sums local_sums[registers];
    for (int k = 0; k < registers; ++k)
      local_sums[k].template with<metric::Terms, Shape>(sums[k], take);
    Ranges ranges;
    ranges.template take<metric::Terms>(ranges_);
    constexpr int of_ratio = of_metric<&LossMetrics::ratio>;
    constexpr bool adds_ratio = Terms::template adds_v<Shape, of_ratio>;
    V ratios[registers]{};  // of the parts that are complete
    index_t next_part = begin + ratio_part;
    for (index_t t = begin; t < end; t += math::logical_lanes) {
      if (adds_ratio && t == next_part) {
        next_part += ratio_part;
        for (int k = 0; k < registers; ++k) {
          ratios[k] = ratios[k] + local_sums[k].sum[of_ratio];
          local_sums[k].sum[of_ratio] = math::constant<V>(0.0);
        }
      }
      for (int k = 0; k < registers; ++k) {
        const index_t token = t + k * L::width;
        if (begins_line(k))
          Reader::template prefetch_for_ratios<Shape>(local.row, token + 2 * block);
        const Mask valid = Reader::template mask_in<Shape>(local.row, token);
        Token<V> x;
        Reader::template load<Shape>(x, local.row, token, valid, advantage, row_advantage);
        if constexpr (!Level::of_segment) x.ratio = L::load(local.ratio + (token - local.origin));
        const auto slopes = Terms::template add<Shape>(
            surrogate, kls, factors, row_parts, segment_ratio, RowTokens<V, S>{local.row, token},
            valid, x, level.map(x), local_sums[k], ranges);
        if constexpr (shares) {
          L::store(local.scratch + token, slopes.d_logp);
        } else {
          L::store(local.gradient + token, Terms::template gradient<Shape>(slopes, valid, w));
        }
      }
    }
    for (int k = 0; adds_ratio && k < registers; ++k)
      local_sums[k].sum[of_ratio] = ratios[k] + local_sums[k].sum[of_ratio];
    for (int k = 0; k < registers; ++k)
      sums[k].template with<metric::Terms, Shape>(local_sums[k], take);
    ranges_.template take<metric::Terms>(ranges);
  }

  /// Adds the lanes of one sum of a block. It is for the sums that few losses have.
  GDPO_NOINLINE static double total_of(const Sums (&sums)[registers], int q) {
    return math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return sums[k].sum[q]; });
  }
  template <int q>
  static constexpr bool of_entropies = metric::list[q].where == metric::WithEntropies;
  /// Adds the lanes of every sum of a block to the row. Returns false if some input may not be
  /// finite, so that scan_non_finite() has to look at each token.
  ///
  /// Eight sums are added at a time, because each alone would end in additions of single numbers.
  bool add_totals(const TokenRow<S>& row, const Sums (&sums)[registers], RowSums& row_sums,
                  double& shared) const {
    constexpr int sets = quantities / 8;
    double folded[sets][8][8] = {};
    const auto fold = [&](int place, const auto& lanes_of) GDPO_INLINE_LAMBDA {
      C lanes[math::logical_lanes];
      for (int k = 0; k < registers; ++k) L::store(lanes + k * L::width, lanes_of(sums[k]));
      (math::Pack<8>::load(lanes) + math::Pack<8>::load(lanes + 8))
          .store(folded[place / 8][place % 8]);
    };
    const auto add_sum = [&](auto q) GDPO_INLINE_LAMBDA {
      if constexpr (Terms::template adds_v<General, q>) {
        if (!of_entropies<q> || row.entropies)
          fold(q, [q](const Sums& s) GDPO_INLINE_LAMBDA { return s.sum[q]; });
      }
    };
    const auto add_count = [&](auto k) GDPO_INLINE_LAMBDA {
      if constexpr (Terms::template adds_v<General, measured + k>)
        fold(measured + k, [k](const Sums& s) GDPO_INLINE_LAMBDA { return s.count[k].lanes(); });
    };
    with_places<token_sums>([&](auto... q) GDPO_INLINE_LAMBDA { (add_sum(q), ...); });
    with_places<token_counts>([&](auto... k) GDPO_INLINE_LAMBDA { (add_count(k), ...); });
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
    for (const Sums& s : sums) {
      finite = finite && !math::any(math::not_finite(s.sum[Terms::inputs]));
      if (row.advantages)
        row_sums.advantage =
            row_sums.advantage || math::any(s.count[Terms::advantages].lanes() > V{});
    }
    return finite;
  }

  /// Pass 3: for every token of a segment, adds `each`, the derivative that they share, to the
  /// token's own part in `scratch`, and writes the gradient.
  void spread(const TokenSpan<S>& span, index_t begin, index_t end, double each,
              double weight) const {
    const V w = math::constant<V>(weight), of_each = math::constant<V>(each);
    in_registers(span, begin, end, [&](const TokenSpan<S>& s, index_t first, index_t last, auto) {
      for (index_t token = first; token < last; token += L::width) {
        const Mask valid = Reader::mask_of(s.row, token);
        const V own = L::load(s.scratch + token);
        L::store(s.gradient + token,
                 Terms::shared_gradient(of_each, own, mapped(s.row, token, valid), valid, w));
      }
    });
  }

  /// Looks one by one at the tokens of a block in which some input may not be finite. It counts
  /// such inputs in the tally, and writes NaN to the sums and gradients that have to be NaN because
  /// of them.
  GDPO_COLD void scan_non_finite(const TokenSpan<S>& span, index_t begin, index_t end,
                                 const SegmentRatio& of_segment, RowSums& sums, double& shared) {
    using OneToken = TokenTerms<C, Loss>;
    const TokenRow<S>& row = span.row;
    for (index_t t = begin; t < end; ++t) {
      if (!row.valid(t)) continue;
      Token<C> x;
      TokenReader<C, S>::template load<General>(x, row, t, true, static_cast<C>(row.advantage),
                                                row_advantage_);
      const auto nan_flags = OneToken::scan_non_finite(level_, surrogate_, kls_, factors_, parts_,
                                                       of_segment, RowTokens<C, S>{row, t}, x,
                                                       NoteAt{tally_.non_finite, row.row, t});
      if (nan_flags.surrogate) sums.sum[of_metric<&LossMetrics::surrogate>] = math::nan();
      if (nan_flags.kl) sums.sum[of_metric<&LossMetrics::kl>] = math::nan();
      if (nan_flags.kl_loss) sums.kl_loss = math::nan();
      if (!nan_flags.gradient) continue;
      if constexpr (shares) {
        shared = span.scratch[t] = math::nan();
      } else {
        span.gradient[t] = math::nan<S>();
      }
    }
  }

  /// Returns the log ratios of the tokens at, at + 1, ... after the level's map, and whether the
  /// map lets their gradients pass.
  GDPO_INLINE Mapped<V> mapped(const TokenRow<S>& row, index_t token, const Mask& valid) const {
    Token<V> x;
    Reader::template load<General>(x, row, token, valid, math::constant<V>(row.advantage),
                                   math::constant<V>(row_advantage_));
    return level_.map(x);
  }

  const Level& level_;
  const Surrogate& surrogate_;
  const Kls& kls_;
  const Factors& factors_;
  const TokenBatch<S>& batch_;
  Tally& tally_;
  C row_advantage_{};
  typename Terms::Parts parts_;
  Ranges ranges_;
  EntropyRows<S> entropies_;
};

}  // namespace detail
GDPO_END_NAMESPACE
