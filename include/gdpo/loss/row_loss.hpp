#pragma once
#include <gdpo/loss/factor.hpp>
#include <gdpo/loss/kl.hpp>
#include <gdpo/loss/level.hpp>
#include <gdpo/loss/span.hpp>
#include <gdpo/loss/tally.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Valid tokens, log ratio and ratio of a segment; `share`: derivative by the log ratio of one token; `held`: by a bound, no gradient.
struct SegmentRatio {
  double n = 0, log_ratio = 0, ratio = 1, share = 0;
  bool held = false;
};

template <class Kl, class = void>
constexpr bool shows_infinite_v = false;
template <class Kl>
constexpr bool shows_infinite_v<Kl, std::void_t<decltype(Kl::shows_infinite)>> = Kl::shows_infinite;

/// The loss of one row: the one place where the policies of a PolicyLoss meet. S stores the batch and the gradient. V computes:
/// float or double, or lanes of them; its scalar is S, but double where the ratio is of a segment.
///
/// Order of summation: token t of a segment goes to lane t mod 16, a lane adds at most 64 tokens in V's scalar, then the
/// lanes are added as a tree in double, and such sums of 1024 tokens in their order: the same bits whatever V's width.
/// Passes over a segment: 1 its statistic (levels of segments), 2 the terms of its tokens, 3 the derivative they share (Sequence).
template <class V, class S, class Level, class Surrogate, class Kls, class Factors, class Metrics>
class RowLoss {
 public:
  using C = math::scalar_t<V>;
  using L = math::Lanes<V>;
  using Reader = TokenReader<V, S>;

  RowLoss(const Level& level, const Surrogate& surrogate, const Kls& kls, const Factors& factors, Tally& tally)
      : level_(level), surrogate_(surrogate), kls_(kls), factors_(factors), tally_(tally) {}
  ~RowLoss() {
    if constexpr (Metrics::everything) ranges_.add_to(tally_);
  }
  RowLoss(const RowLoss&) = delete;
  RowLoss& operator=(const RowLoss&) = delete;

  /// gradient (length, contiguous): every position is written, exactly 0 where the mask is 0. tokens: valid ones;
  /// weight: W_i.  /// scratch: `length` numbers, for Sequence.
  RowSums operator()(const TokenRow<S>& row, index_t tokens, double weight, S* gradient, double* scratch) {
    begin(row);
    RowSums sums;
    sums.advantage = !row.advantages && !math::is_zero(static_cast<C>(row.advantage));
    const TokenSpan<S> span{row, gradient, shares ? scratch : nullptr, nullptr, 0};
    for (index_t first = 0; first < row.length;) {
      const index_t end = row.segment_end(first);
      segment(span, first, end, weight, sums);
      first = end;
    }
    if constexpr (!several_kl) {
      if (!row.kl_weights) sums.kl_loss = sums.of[of_kl];
      for_each_kl(kls_, [&](const auto& kl) { sums.kl_loss = kl.beta == 0 ? 0.0 : math::mul(kl.beta, sums.kl_loss); });
    }
    if constexpr (Metrics::means && !Level::of_segment) {  // ratio = k3 + 1 + log ratio
      sums.of[of_ratio] = math::not_finite(sums.of[of_k1])
                              ? sum_of_ratios(row)
                              : (sums.of[of_k3] - sums.of[of_k1]) + static_cast<double>(tokens);
    }
    sums.of[of_loss] = sums.of[of_surrogate] + sums.kl_loss;
    sums.of[of_clipped] = sums.of[of_low] + sums.of[of_high];
    return sums;
  }

  /// dloss/dlogp of token t alone, at a level of tokens; `begin` has seen the row.
  S gradient_of(const TokenRow<S>& row, index_t t, double weight) {
    static_assert(!Level::of_segment, "the gradient of a token needs its whole segment");
    TokenRow<S> token = row;
    token.length = 1;
    token.segments = nullptr;
    if (token.mask) token.mask += t;
    for_each_array(token, [t](const S*& values) { values += t; });
    S gradient{};
    RowSums sums;
    segment({token, &gradient, nullptr, nullptr, 0}, 0, 1, weight, sums);
    return gradient;
  }
  void begin(const TokenRow<S>& row) {
    if constexpr (reads_row_advantage) row_advantage_ = static_cast<C>(row.mean_advantage());
  }

 private:
  using Mask = mask_t<V>;
  using Count = typename L::Count;
  static constexpr int registers = math::logical_lanes / L::width;
  static constexpr index_t block = 1024;  // tokens between two additions in double

  // At such a level d_ratio goes to the token itself, with nothing between: KL terms fold it in (kl.hpp, own_ratio).
  static constexpr bool own_ratio = std::is_same_v<Level, level::Token<map::None>>;
  static constexpr bool shares = Level::of_segment && !Level::straight_through;
  static constexpr bool maps = !std::is_same_v<decltype(Level::map), map::None>;
  static constexpr bool has_factors = !std::is_same_v<Factors, gdpo::Factors<>>;
  static constexpr bool has_kl = !std::is_same_v<Kls, gdpo::Kls<>>;
  // Their sum is added with their betas; one term's without, and beta multiplies the sum.
  static constexpr bool several_kl = is_several_v<Kls>;
  static constexpr bool reads_row_advantage =
      reads_row_advantage_v<Surrogate> || reads_row_advantage_v<Factors> || reads_row_advantage_v<decltype(Level::map)>;

  /// The shape of a row's loops: f(shape).
  template <class F>
  void with_shape(const TokenSpan<S>& span, const F& f) const {
    const TokenRow<S>& row = span.row;
    bool plain = L::width > 1 && row.old_logp && !row.advantages && !row.weights && !row.kl_weights &&
                 !row.rollout_logp && !row.teacher_logp && !row.tags && !row.entropies;
    bool any_kl = false, all_kl = true;
    for_each_kl(kls_, [&](const auto& kl) {
      any_kl = any_kl || kl.beta != 0;
      all_kl = all_kl && kl.beta != 0;
      if constexpr (has_plain_v<std::decay_t<decltype(kl)>>) plain = plain && (kl.beta == 0 || kl.is_plain());
    });
    if (!plain || (any_kl && (!all_kl || !row.ref_logp)) || (!any_kl && row.ref_logp)) return f(General{});
    if constexpr (L::width > 1) {
      if constexpr (has_kl) {
        if (any_kl) return row.mask ? f(Plain<true, true>{}) : f(Plain<false, true>{});
      }
      return row.mask ? f(Plain<true, false>{}) : f(Plain<false, false>{});
    }
  }

  /// What one register of tokens adds up to. `odd` is not finite where an input is not.
  struct Sums {
    V surrogate{}, kl{}, kl_loss{}, k1{}, k3{}, entropy{}, shared{}, odd{};
    Count low, high, outside, dual, bounded, kl_bounded, advantages;

    /// f(own, other's) of what the two loops over tokens of this shape add to. Not a copy of the whole: sums stay in registers.
    template <class Shape, class F>
    GDPO_INLINE void with_own_ratios(Sums& o, const F& f) {
      if constexpr (Metrics::means) f(k1, o.k1), f(k3, o.k3);
      if constexpr (maps || !Metrics::means) f(odd, o.odd);
    }
    template <class Shape, class F>
    GDPO_INLINE void with_terms(Sums& o, const F& f) {
      f(surrogate, o.surrogate);
      f(odd, o.odd);
      if constexpr (has_kl && Shape::with_kl) f(kl, o.kl);
      if constexpr (!Shape::plain) f(kl_loss, o.kl_loss), f(entropy, o.entropy), f(advantages, o.advantages);
      if constexpr (several_kl && Shape::plain) f(kl_loss, o.kl_loss);
      if constexpr (shares) f(shared, o.shared);
      if constexpr (Metrics::means) f(low, o.low), f(high, o.high);
      if constexpr (Metrics::everything) {
        f(outside, o.outside), f(dual, o.dual), f(bounded, o.bounded), f(kl_bounded, o.kl_bounded);
      }
    }
  };
  static constexpr bool kl_shows_infinite() {
    bool all = true;
    Kls kls{};
    for_each_kl(kls, [&](const auto& kl) { all = all && shows_infinite_v<std::decay_t<decltype(kl)>>; });
    return all;
  }
  static constexpr auto take = [](auto& to, auto& from) { to = from; };

  using Ranges = std::conditional_t<Metrics::everything, LaneRanges<V>, NoRanges>;

  /// f(span, begin, end, padded) for the whole registers of begin .. end - 1, then for the tokens that are left, which stand in a
  /// span of their own.
  template <class F>
  static void in_registers(const TokenSpan<S>& span, index_t begin, index_t end, const F& f) {
    const index_t whole = end - (end - begin) % math::logical_lanes;
    if (begin < whole) f(span, begin, whole, std::false_type{});
    if (whole < end) {
      PaddedSpan<S> padded(span, whole, end);
      f(padded.span, index_t{0}, index_t{math::logical_lanes}, std::true_type{});
      padded.copy_back();
    }
  }
  /// f(at, k) for every register of whole ones, k its number among the logical lanes.
  template <class F>
  GDPO_INLINE static void for_each_register(index_t begin, index_t end, const F& f) {
    for (index_t t = begin; t < end; t += math::logical_lanes) {
      for (int k = 0; k < registers; ++k) f(t + k * L::width, k);
    }
  }

  /// Register k begins a cache line, more or less.
  static constexpr bool begins_line(int k) { return k * L::width * static_cast<int>(sizeof(S)) % 64 == 0; }

  void segment(const TokenSpan<S>& span, index_t begin, index_t end, double weight, RowSums& sums) {
    SegmentRatio of_segment;
    if constexpr (Level::of_segment) of_segment = statistic(span.row, begin, end);
    if (Level::of_segment && of_segment.n > 0) sums.of[of_ratio] += math::mul(of_segment.n, of_segment.ratio);
    double shared = 0;
    for (index_t first = begin; first < end; first += block) {
      const index_t last = (std::min)(first + block, end);
      block_of(span, first, last, of_segment, weight, sums, shared);
    }
    if constexpr (shares) {
      spread(span, begin, end, of_segment.held ? 0.0 : math::mul(shared, of_segment.share), weight);
    }
  }

  /// Sum and number of the mapped log ratios of a segment, a token in each lane.
  RowSum sum_of_few(const TokenRow<S>& row, index_t begin, index_t end) const {
    double lanes[math::logical_lanes] = {};
    RowSum sum{0, 0};
    for (index_t t = begin; t < end; ++t) {
      if (!row.valid(t)) continue;
      Token<C> x;
      TokenReader<C, S>::template load<General>(x, row, t, true, static_cast<C>(row.advantage), row_advantage_);
      lanes[t - begin] = static_cast<double>(level_.map(x).log_ratio);
      sum.n += 1;
    }
    sum.sum = tree_sum(math::Pack<math::logical_lanes>::load(lanes));
    return sum;
  }
  RowSum sum_of_many(const TokenRow<S>& row, index_t begin, index_t end) const {
    V lanes[registers]{};
    Count valid_tokens[registers]{};
    in_registers(
        {row, nullptr, nullptr, nullptr, 0}, begin, end, [&](const TokenSpan<S>& s, index_t first, index_t last, auto) {
          for_each_register(first, last, [&](index_t at, int k) GDPO_INLINE_LAMBDA {
            const Mask valid = Reader::mask_of(s.row, at);
            lanes[k] = lanes[k] + math::select(valid, mapped(s.row, at, valid).log_ratio, math::constant<V>(0.0));
            valid_tokens[k].add(valid);
          });
        });
    RowSum sum{math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return lanes[k]; }), 0};
    for (const Count& count : valid_tokens) sum.n += static_cast<double>(count.total());
    return sum;
  }

  /// Pass 1.
  SegmentRatio statistic(const TokenRow<S>& row, index_t begin, index_t end) const {
    const RowSum sum = end - begin < math::logical_lanes ? sum_of_few(row, begin, end) : sum_of_many(row, begin, end);
    if (math::is_nan(sum.sum)) return {sum.n, math::nan(), math::nan(), level_.statistic.share(sum.n), false};
    const auto bounded = bound(level_.bounds, level_.statistic(sum));
    const Bounds stored{-math::exp_limit<S>, math::exp_limit<S>};  // the gradient will be an S
    const double ratio = math::exp_parts(bound(stored, bounded.value).value).exp;
    return {sum.n, bounded.value, ratio, level_.statistic.share(sum.n), bounded.outside};
  }

  /// Pass 2, of at most `block` tokens. Two loops, with or without KL terms: from log-probs to gradient in one is a longer chain
  /// than a processor keeps in flight.
  void block_of(const TokenSpan<S>& span, index_t begin, index_t end, const SegmentRatio& of_segment, double weight,
                RowSums& row_sums, double& shared) {
    S ratio[block];
    Sums sums[registers]{};
    TokenSpan<S> local = span;
    local.ratio = ratio;
    local.origin = begin;
    with_shape(span, [&](auto shape) {
      in_registers(local, begin, end, [&](const TokenSpan<S>& s, index_t first, index_t last, auto padded) {
        using Given = decltype(shape);
        using Shape = std::conditional_t<decltype(padded)::value, typename Given::MaskedShape, Given>;
        own_ratios<Shape>(s, first, last, sums);
        terms<Shape>(s, first, last, of_segment, weight, sums);
      });
    });
    flush(span.row, sums, row_sums, shared);
    const bool all_finite = !math::not_finite(odd_) && !math::not_finite(static_cast<C>(span.row.advantage)) &&
                            !(Level::of_segment && math::is_nan(of_segment.log_ratio));
    if (!all_finite) census(span, begin, end, of_segment, row_sums, shared);
  }

  /// The tokens' own ratios, and the metrics of them.
  template <class Shape>
  GDPO_NOINLINE void own_ratios(const TokenSpan<S>& span, index_t begin, index_t end, Sums* sums) {
    using math::constant, math::select;
    const Level level = level_;
    const TokenRow<S> row = span.row;
    const index_t origin = span.origin;
    S *const ratio = span.ratio, *const gradient = span.gradient;
    const V advantage = constant<V>(row.advantage), row_advantage = constant<V>(row_advantage_);
    Sums local[registers];
    for (int k = 0; k < registers; ++k) local[k].template with_own_ratios<Shape>(sums[k], take);
    Ranges ranges;
    ranges.take(ranges_, {of_k1, of_k3});
    for_each_register(begin, end, [&](index_t at, int k) GDPO_INLINE_LAMBDA {
      if (begins_line(k)) Reader::template prefetch_for_terms<Shape>(row, gradient, at);
      const V zero = constant<V>(0.0);
      const Mask valid = Reader::template mask_in<Shape>(row, at);
      Token<V> x;
      Reader::template load<Shape>(x, row, at, valid, advantage, row_advantage);
      const V log_ratio = level.map(x).log_ratio;  // saturates as the batch's scalar does, also where C is double
      const auto own = math::exp_parts((math::min)(log_ratio, constant<V>(math::exp_limit<S>)));
      if constexpr (!Level::of_segment) L::store(ratio + (at - origin), own.exp);
      if constexpr (Metrics::means) {  // without a map, the log ratio is 0 where the mask is
        local[k].k1 = local[k].k1 - (maps ? select(valid, log_ratio, zero) : log_ratio);
        local[k].k3 = local[k].k3 + (maps ? select(valid, own.k3, zero) : own.k3);
      }
      if (maps || !Metrics::means) local[k].odd = local[k].odd + x.token_log_ratio;
      if constexpr (Metrics::everything) {
        ranges.add(of_k1, valid, -log_ratio);
        ranges.add(of_k3, valid, own.k3);
      }
    });
    for (int k = 0; k < registers; ++k) sums[k].template with_own_ratios<Shape>(local[k], take);
    ranges_.take(ranges, {of_k1, of_k3});
  }

  /// The terms of the tokens into the sums, and into the gradient what the level keeps for the token itself.
  template <class Shape>
  GDPO_NOINLINE void terms(const TokenSpan<S>& span, index_t begin, index_t end, const SegmentRatio& of_segment,
                           double weight, Sums* sums) {
    // Copies: what does not change from token to token stays in registers.
    const Level level = level_;
    const Surrogate surrogate = surrogate_;
    Kls kls = kls_;
    if constexpr (Shape::plain) {
      for_each_kl(kls, [](auto& kl) {
        if constexpr (has_plain_v<std::decay_t<decltype(kl)>>) kl = kl.as_plain();
      });
    }
    const Factors factors = factors_;
    const SegmentRatio segment_ratio = of_segment;
    const TokenSpan<S> local = span;
    const V w = math::constant<V>(weight), advantage = math::constant<V>(span.row.advantage),
            row_advantage = math::constant<V>(row_advantage_);
    Sums local_sums[registers];
    for (int k = 0; k < registers; ++k) local_sums[k].template with_terms<Shape>(sums[k], take);
    Ranges ranges;
    ranges.take(ranges_, {of_surrogate, of_loss, of_kl, of_ratio, of_entropy});
    for_each_register(begin, end, [&](index_t at, int k) GDPO_INLINE_LAMBDA {
      if (begins_line(k)) Reader::template prefetch_for_ratios<Shape>(local.row, at + 2 * block);
      const Mask valid = Reader::template mask_in<Shape>(local.row, at);
      Token<V> x;
      Reader::template load<Shape>(x, local.row, at, valid, advantage, row_advantage);
      token_terms<Shape>(surrogate, kls, factors, segment_ratio, w, local, at, valid, x, level.map(x), local_sums[k],
                         ranges);
    });
    for (int k = 0; k < registers; ++k) sums[k].template with_terms<Shape>(local_sums[k], take);
    ranges_.take(ranges, {of_surrogate, of_loss, of_kl, of_ratio, of_entropy});
  }

  /// The lanes of a block into the sums of its row.
  void flush(const TokenRow<S>& row, const Sums (&sums)[registers], RowSums& row_sums, double& shared) {
#define GDPO_SUM(to, member) to += math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return sums[k].member; })
#define GDPO_COUNT(to, member) \
  for (const Sums& s : sums) to += static_cast<double>(s.member.total())
    double k1 = 0;
    odd_ = 0;
    GDPO_SUM(odd_, odd);
    GDPO_SUM(k1, k1);
    odd_ += k1;
    GDPO_SUM(row_sums.of[of_surrogate], surrogate);
    if constexpr (has_kl) {
      double kl = 0, kl_loss = 0;
      GDPO_SUM(kl, kl);
      if (several_kl || row.kl_weights) GDPO_SUM(kl_loss, kl_loss);
      row_sums.of[of_kl] += kl;
      row_sums.kl_loss += kl_loss;
      constexpr double huge = 1e20;  // K3 of an infinite log-prob saturates far beyond
      if (!(math::abs(kl) < huge) || !(math::abs(kl_loss) < huge)) odd_ = math::infinity;
    }
    if constexpr (shares) GDPO_SUM(shared, shared);
    if (row.advantages) {
      double n = 0;
      GDPO_COUNT(n, advantages);
      row_sums.advantage = row_sums.advantage || n > 0;
    }
    if constexpr (Metrics::means) {
      row_sums.of[of_k1] += k1;
      GDPO_SUM(row_sums.of[of_k3], k3);
      if (row.entropies) GDPO_SUM(row_sums.of[of_entropy], entropy);
      GDPO_COUNT(row_sums.of[of_low], low);
      GDPO_COUNT(row_sums.of[of_high], high);
    }
    if constexpr (Metrics::everything) {
      GDPO_COUNT(row_sums.of[of_outside], outside);
      GDPO_COUNT(row_sums.of[of_dual], dual);
      if constexpr (maps || Level::of_segment) GDPO_COUNT(row_sums.of[of_bounded], bounded);
      if constexpr (has_kl) GDPO_COUNT(row_sums.of[of_kl_bounded], kl_bounded);
    }
#undef GDPO_SUM
#undef GDPO_COUNT
  }

  /// One register of tokens: their terms into the sums, and into the gradient what the level keeps for the token itself.
  template <class Shape>
  GDPO_INLINE static void token_terms(const Surrogate& surrogate, const Kls& kls, const Factors& factors,
                                      const SegmentRatio& of_segment, const V& row_weight, const TokenSpan<S>& span,
                                      index_t at, const Mask& valid, Token<V>& x, const Mapped<V>& mapped, Sums& sums,
                                      Ranges& ranges) {
    using math::both, math::constant, math::either, math::fma, math::mul, math::select;
    const V zero = constant<V>(0.0);
    if constexpr (Level::of_segment) {
      x.log_ratio = constant<V>(of_segment.log_ratio);
      x.ratio = constant<V>(of_segment.ratio);
    } else {
      x.log_ratio = mapped.log_ratio;
      x.ratio = L::load(span.ratio + (at - span.origin));
    }

    const Term<V> s = surrogate(x);
    // Where the level's ratio is the token's own, everything stands in d_ratio.
    V value = s.value, d_ratio = s.d_ratio, d_logp = own_ratio ? zero : s.d_logp;
    if constexpr (own_ratio && !ratio_only_v<Surrogate>) d_ratio = d_ratio + s.d_logp;
    if constexpr (!Shape::plain || has_factors) {
      const V given = weight_of<V>(factors, Shape::plain ? nullptr : span.row.weights, at, x);
      sums.odd = sums.odd + select(valid, given, zero);
      const Mask off = either(math::not_finite(given), math::is_zero(given));
      value = select(off, zero, mul(given, value));
      d_ratio = select(off, zero, mul(given, d_ratio));
      if constexpr (!own_ratio) d_logp = select(off, zero, mul(given, d_logp));
    }
    value = select(valid, value, zero);
    sums.surrogate = sums.surrogate + value;
    V loss = value;
    if constexpr (has_kl && Shape::with_kl) {
      const bool given = !Shape::plain && span.row.kl_weights;
      const V wk = given ? L::load(span.row.kl_weights + at) : constant<V>(1.0);
      if (given) sums.odd = sums.odd + select(valid, wk, zero);
      const Mask off = either(math::not_finite(wk), math::is_zero(wk));
      bool first = true;
      for_each_kl(kls, [&](const auto& kl) GDPO_INLINE_LAMBDA {
        if (!Shape::plain && kl.beta == 0) return;
        constexpr bool folded = own_ratio && has_own_ratio_v<std::decay_t<decltype(kl)>, Token<V>>;
        const Term<V> k = term_of<folded>(kl, x);
        const V kl_value = select(valid, k.value, zero);
        if (first) {
          sums.kl = sums.kl + kl_value;
          if constexpr (Metrics::everything) {
            ranges.add(of_kl, valid, kl_value);
            sums.kl_bounded.add(both(valid, k.outside));
          }
        }
        first = false;
        const V beta = constant<V>(kl.beta), c = given ? mul(wk, beta) : beta;
        V of_kls = mul(c, kl_value);
        const auto add = [&](V& to, const V& term) GDPO_INLINE_LAMBDA {
          const V sum = fma(c, term, to);
          to = given ? select(off, to, sum) : sum;
        };
        if constexpr (!folded) add(d_ratio, k.d_ratio);
        add(own_ratio ? d_ratio : d_logp, k.d_logp);
        if (given) of_kls = select(off, zero, of_kls);
        if (several_kl) {
          sums.kl_loss = sums.kl_loss + of_kls;
        } else if (given) {
          sums.kl_loss = sums.kl_loss + select(off, zero, mul(wk, kl_value));
        }
        if constexpr (Metrics::everything) loss = loss + of_kls;
      });
    }
    if constexpr (Metrics::means) {
      sums.low.add(both(valid, s.low));
      sums.high.add(both(valid, s.high));
    }
    watch<Shape>(span.row, valid, x, sums.odd);
    if constexpr (Metrics::everything) {
      sums.outside.add(both(valid, s.outside));
      sums.dual.add(both(valid, s.dual));
      ranges.add(of_surrogate, valid, value);
      ranges.add(of_loss, valid, loss);
      ranges.add(of_ratio, valid, x.ratio);
    }
    if (!Shape::plain && span.row.advantages)
      sums.advantages.add(both(valid, either(either(x.advantage<zero, x.advantage> zero), math::is_nan(x.advantage))));
    if (!Shape::plain && span.row.entropies) {
      const V entropy = select(valid, L::load(span.row.entropies + at), zero);
      sums.entropy = sums.entropy + entropy;
      sums.odd = sums.odd + entropy;
      if constexpr (Metrics::everything) ranges.add(of_entropy, valid, entropy);
    }

    if constexpr (maps) {
      const Mask stopped = math::is_zero(mapped.pass);
      if constexpr (Metrics::everything) sums.bounded.add(both(valid, of_segment.held ? L::all_lanes() : stopped));
      if constexpr (!shares) d_ratio = select(stopped, zero, d_ratio);
    } else if constexpr (Level::of_segment && Metrics::everything) {
      if (of_segment.held) sums.bounded.add(valid);
    }
    if constexpr (shares) {
      sums.shared = sums.shared + select(valid, d_ratio, zero);
      L::store(span.scratch + at, d_logp);
    } else {
      if constexpr (Level::of_segment) d_ratio = of_segment.held ? zero : d_ratio;
      L::store(span.gradient + at, select(valid, mul(row_weight, own_ratio ? d_ratio : d_ratio + d_logp), zero));
    }
  }

  /// A KL term, with d_ratio in d_logp or beside it.
  template <bool Folded, class Kl>
  GDPO_INLINE static Term<V> term_of(const Kl& kl, const Token<V>& x) {
    if constexpr (Folded) {
      return kl.own_ratio(x);
    } else {
      return kl(x);
    }
  }

  /// Pass 3.
  void spread(const TokenSpan<S>& span, index_t begin, index_t end, double each, double weight) const {
    const V w = math::constant<V>(weight), of_each = math::constant<V>(each), zero = math::constant<V>(0.0);
    in_registers(span, begin, end, [&](const TokenSpan<S>& s, index_t first, index_t last, auto) {
      for_each_register(first, last, [&](index_t at, int) GDPO_INLINE_LAMBDA {
        const Mask valid = Reader::mask_of(s.row, at);
        V share = of_each;
        if constexpr (maps) {
          share = math::select(math::is_zero(mapped(s.row, at, valid).pass), zero, of_each);
        }
        const V own = L::load(s.scratch + at);
        L::store(s.gradient + at, math::select(valid, math::mul(w, share + own), zero));
      });
    });
  }

  /// Adds to `odd` the inputs that are not in the log ratio.
  template <class Shape>
  GDPO_INLINE static void watch(const TokenRow<S>& row, const Mask& valid, const Token<V>& x, V& odd) {
    const auto add = [&](const V& value)
                         GDPO_INLINE_LAMBDA { odd = odd + math::select(valid, value, math::constant<V>(0.0)); };
    if constexpr (Shape::plain) {
      if constexpr (has_kl && Shape::with_kl && !kl_shows_infinite()) add(x.ref_logp);
    } else {
      if (!row.old_logp) add(x.logp);
      if (row.ref_logp) add(x.ref_logp);
      if (row.rollout_logp) add(x.rollout_logp);
      if (row.teacher_logp) add(x.teacher_logp);
      if (row.advantages) add(x.advantage);
    }
  }

  /// The product of the factors and the given weight. One that is not finite counts as 0.
  template <class U>
  GDPO_INLINE static U weight_of(const Factors& factors, const S* given, index_t at, const Token<U>& x) {
    const U w = given ? math::Lanes<U>::load(given + at) : math::constant<U>(1.0);
    if constexpr (has_factors) {
      return given ? math::mul(w, product(factors, x)) : product(factors, x);
    } else {
      return w;
    }
  }

  /// Of a row with an infinite log ratio.
  GDPO_NOINLINE double sum_of_ratios(const TokenRow<S>& row) const {
    double sum = 0;
    for (index_t t = 0; t < row.length; ++t) {
      if (!row.valid(t)) continue;
      Token<C> x;
      TokenReader<C, S>::template load<General>(x, row, t, true, static_cast<C>(row.advantage), row_advantage_);
      sum += static_cast<double>(math::exp_parts(level_.map(x).log_ratio).exp);
    }
    return sum;
  }

  /// Counts what is not finite among the inputs of a block that has such, and makes a NaN show: under -ffast-math it may get
  /// lost on its way through the formulas.
  GDPO_NOINLINE void census(const TokenSpan<S>& span, index_t begin, index_t end, const SegmentRatio& of_segment,
                            RowSums& sums, double& shared) {
    using math::is_nan, math::not_finite;
    const TokenRow<S>& row = span.row;
    NonFiniteInputs& seen = tally_.non_finite;
    for (index_t t = begin; t < end; ++t) {
      if (!row.valid(t)) continue;
      Token<C> x;
      TokenReader<C, S>::template load<General>(x, row, t, true, static_cast<C>(row.advantage), row_advantage_);
      const auto look = [&](bool given, C value, NonFinite& counter) {
        if (given && not_finite(value)) note(counter, row.row, t);
      };
      look(true, x.logp, seen.logp);
      look(row.old_logp, x.old_logp, seen.old_logp);
      look(row.ref_logp, x.ref_logp, seen.ref_logp);
      look(row.rollout_logp, x.rollout_logp, seen.rollout_logp);
      look(row.teacher_logp, x.teacher_logp, seen.teacher_logp);
      look(true, x.advantage, seen.advantages);
      if (row.entropies) look(true, static_cast<C>(row.entropies[t]), seen.entropies);

      x.log_ratio = Level::of_segment ? static_cast<C>(of_segment.log_ratio) : level_.map(x).log_ratio;
      x.ratio = Level::of_segment ? static_cast<C>(of_segment.ratio) : math::exp_parts(x.log_ratio).exp;
      const auto weight = [&](C w) {
        look(true, w, seen.weights);
        return not_finite(w) ? C(0) : w;
      };
      bool spoils = false;
      const C w = weight(weight_of<C>(factors_, row.weights, t, x));
      if (w != C(0) && (is_nan(x.token_log_ratio) || is_nan(x.logp) || is_nan(x.advantage) ||
                        (Level::of_segment && is_nan(of_segment.log_ratio)))) {
        sums.of[of_surrogate] = math::nan();
        spoils = true;
      }
      const C wk = has_kl && row.kl_weights ? weight(static_cast<C>(row.kl_weights[t])) : C(1);
      bool first = true;
      for_each_kl(kls_, [&](const auto& kl) {
        if (kl.beta == 0) return;
        if (is_nan(x.logp - other_logp(kl.against, x))) {
          if (first) sums.of[of_kl] = math::nan();
          if (wk != C(0)) sums.kl_loss = math::nan(), spoils = true;
        }
        first = false;
      });
      if (!spoils) continue;
      if constexpr (shares) {
        shared = span.scratch[t] = math::nan();
      } else {
        span.gradient[t] = math::nan<S>();
      }
    }
  }

  /// The log ratio after the level's map, and whether its gradient passes.
  GDPO_INLINE Mapped<V> mapped(const TokenRow<S>& row, index_t at, const Mask& valid) const {
    Token<V> x;
    Reader::template load<General>(x, row, at, valid, math::constant<V>(row.advantage),
                                   math::constant<V>(row_advantage_));
    return level_.map(x);
  }

  const Level& level_;
  const Surrogate& surrogate_;
  const Kls& kls_;
  const Factors& factors_;
  Tally& tally_;
  C row_advantage_{};
  double odd_ = 0;  // of the block at hand: not finite where an input is not
  Ranges ranges_;
};

}  // namespace detail
GDPO_END_NAMESPACE
