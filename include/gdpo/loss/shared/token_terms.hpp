#pragma once
// The policy loss of one token: its terms, their derivatives and metrics, on host and device.
#include <gdpo/loss/factor.hpp>
#include <gdpo/loss/kl.hpp>
#include <gdpo/loss/level.hpp>
#include <gdpo/loss/shared/loss_tally.hpp>
#include <gdpo/loss/shared/row_shape.hpp>
#include <gdpo/loss/shared/term_parts.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The log ratio and ratio that the tokens of a segment share.
///
/// n is the number of valid tokens, and `share` the derivative of the log ratio by that of one
/// token. If `held`, a bound of the level holds the log ratio, and no gradient passes. If
/// `bad_weights`, one of the level_log_weights of the segment may not be finite.
struct SegmentRatio {
  double n = 0, log_ratio = 0, ratio = 1, share = 0;
  bool held = false, bad_weights = false;

  /// Adds the ratio, at each of the n tokens, to the sums of their row and to its range.
  GDPO_INLINE void add_to(RowSums& row, Tally& tally) const {
    if (n == 0) return;
    constexpr int q = of_metric<&LossMetrics::ratio>;
    row.sum[q] += math::mul(n, ratio);
    tally.min[q] = (math::min)(tally.min[q], ratio);
    tally.max[q] = (math::max)(tally.max[q], ratio);
  }
};

/// Gives a segment a log ratio that is not NaN, within the bounds of the level.
template <class S, class Level>
GDPO_INLINE void take_log_ratio(const Level& level, double log_ratio, SegmentRatio& segment) {
  const auto bounded = bound(level.bounds, log_ratio);
  const Bounds stored{-math::exp_limit<S>, math::exp_limit<S>};
  segment.log_ratio = bounded.value, segment.held = segment.held || bounded.outside;
  segment.ratio = math::exp_parts(bound(stored, bounded.value).value).exp;
}

/// Makes a SegmentRatio from the sum over the valid tokens of a segment.
///
/// The ratio saturates at exp_limit of S, the type of the gradient, so that the gradient stays
/// finite. If the sum is NaN, the log ratio and the ratio are NaN.
template <class S, class Level>
GDPO_INLINE SegmentRatio segment_ratio(const Level& level, const RowSum& sum) {
  SegmentRatio segment;
  segment.n = sum.n, segment.share = level.statistic.share(sum.n);
  segment.log_ratio = segment.ratio = math::nan();
  if (math::is_nan(sum.sum)) return segment;
  take_log_ratio<S>(level, level.statistic(sum), segment);
  return segment;
}

/// Adds the sum of the level_log_weights of a segment to its log ratio, within the bounds.
template <class S, class Level>
GDPO_INLINE void weigh_segment(const Level& level, double log_weights, SegmentRatio& segment) {
  const double log_ratio = segment.log_ratio + log_weights;
  segment.bad_weights = math::not_finite(log_weights);
  segment.log_ratio = segment.ratio = math::nan();
  if (!math::is_nan(log_ratio)) take_log_ratio<S>(level, log_ratio, segment);
}

/// The terms of one V of tokens, where V is a number or lanes of them. The policies of a loss meet
/// here and nowhere else.
///
/// The loops over tokens are RowLoss on the host and LossKernel on devices. They pass
///   x      the token
///   from   the other arrays: for every array X of a TokenRow (GDPO_TOKEN_ARRAYS) it has
///          `bool has_X()`, whether the array is there, and `V X()`, its number at the token
///   valid  which tokens are not masked; sums take 0 for the others, gradients are 0
/// `Shape` is General or Plain (row_shape.hpp).
template <class V, class Loss>
struct TokenTerms {
  using Level = decltype(Loss::level);
  using Surrogate = decltype(Loss::surrogate);
  using Kls = decltype(Loss::kl);
  using Factors = decltype(Loss::factor);
  using Metrics = std::remove_const_t<decltype(Loss::metrics)>;
  using C = math::scalar_t<V>;
  using L = math::Lanes<V>;
  using Mask = mask_t<V>;
  using Count = typename L::Count;
  using M = LossMetrics;

  // The level's ratio is the token's own, without a map. Then d_log_ratio goes to the token itself
  // as d_logp does, so the two are kept as one sum (kl.hpp, own_ratio).
  static constexpr bool own_ratio = std::is_same_v<Level, level::Token<map::None>>;
  // The tokens of a segment share one derivative by its log ratio.
  static constexpr bool shares = Level::of_segment && !Level::straight_through;
  static constexpr bool maps = !std::is_same_v<decltype(Level::map), map::None>;
  static constexpr bool has_factors = !std::is_same_v<Factors, gdpo::Factors<>>;
  static constexpr bool has_kl = !std::is_same_v<Kls, gdpo::Kls<>>;
  // Several KL terms are added times their betas, token by token. One term is added without, and
  // its beta multiplies the sum of the row (finish).
  static constexpr bool several_kl = is_several_v<Kls>;
  // Some KL term has an aggregate of its own.
  static constexpr bool own_aggregates = own_aggregates_v<Kls>;
  using Parts = TermParts<Kls>;
  static constexpr bool reads_row_advantage =
      reads_row_advantage_v<Surrogate> || reads_row_advantage_v<Kls> ||
      reads_row_advantage_v<Factors> || reads_row_advantage_v<decltype(Level::map)>;

  /// The derivatives of a token's loss: by the level's log ratio, and by the token's own logp with
  /// that ratio held fixed.
  struct Slopes {
    V d_log_ratio, d_logp;
  };

  template <class Shape>
  GDPO_DEVICE static constexpr bool adds_to(const metric::Facts& facts, int q) {
    const bool kept = facts.kept_by == metric::Loss ||
                      (facts.kept_by == metric::Means && Metrics::means) || Metrics::everything;
    const bool there = facts.where == metric::WithKl          ? has_kl && Shape::with_kl
                       : facts.where == metric::WithEntropies ? !Shape::plain
                       : facts.where == metric::WithBounds    ? maps || Level::of_segment
                                                              : true;
    return kept && there && !(Level::of_segment && q == of_metric<&M::ratio>);
  }

  /// Whether tokens of this shape add to metric q, given the level, KL terms and metrics.
  template <class Shape>
  GDPO_DEVICE static constexpr bool adds(int q) {
    return adds_to<Shape>(metric::list[q], q);
  }
  // Not by adds(): nvcc would compile it for the device, which has no list.
  template <class Shape, int q>
  static constexpr bool adds_v = adds_to<Shape>(metric::list[q], q);

  /// The places of sums behind those of metrics: the sum of beta * kl, that of d_log_ratio, from
  /// which the shared derivative comes, and one of inputs, which is not finite if one of them is
  /// not. Among the counts: the tokens whose advantage is not 0.
  enum : int { kl_loss = token_sums, shared, inputs, sums_of_tokens, advantages = token_counts };
  /// The sums of one register of tokens: the metrics of tokens, and what the loss itself needs.
  struct Sums {
    V sum[sums_of_tokens]{};
    Count count[advantages + 1];

    /// Calls f(sum, the same sum of o) for each sum that one of the two loops over tokens of this
    /// shape adds to. A loop copies only these; a copy of the whole would keep its sums from
    /// staying in registers.
    GDPO_CALLS_ANY
    template <metric::AddedIn Loop, class Shape, class F>
    GDPO_INLINE void with(Sums& o, const F& f) {
      with_sums<Loop, Shape>(o, f, std::make_integer_sequence<int, token_sums>{});
      with_counts<Loop, Shape>(o, f, std::make_integer_sequence<int, token_counts>{});
      if constexpr (Loop == metric::Terms || maps || !Metrics::means) f(sum[inputs], o.sum[inputs]);
      if constexpr (Loop == metric::Terms) {
        if constexpr (several_kl || !Shape::plain) f(sum[kl_loss], o.sum[kl_loss]);
        if constexpr (!Shape::plain) f(count[advantages], o.count[advantages]);
        if constexpr (shares) f(sum[shared], o.sum[shared]);
      }
    }

   private:
    GDPO_CALLS_ANY
    template <metric::AddedIn Loop, class Shape, class F, int... q>
    GDPO_INLINE void with_sums(Sums& o, const F& f, std::integer_sequence<int, q...>) {
      ((is_added_in<Loop, q> && adds_v<Shape, q> ? f(sum[q], o.sum[q]) : void()), ...);
    }
    GDPO_CALLS_ANY
    template <metric::AddedIn Loop, class Shape, class F, int... k>
    GDPO_INLINE void with_counts(Sums& o, const F& f, std::integer_sequence<int, k...>) {
      ((is_added_in<Loop, measured + k> && adds_v<Shape, measured + k> ? f(count[k], o.count[k])
                                                                       : void()),
       ...);
    }
  };
  using Ranges = std::conditional_t<Metrics::everything, LaneRanges<V>, NoRanges>;

  /// Whether the sums of a block of tokens show that all its inputs are finite.
  ///
  /// An infinite log-prob need not make a KL term infinite, because e^x saturates; in K3 it gives
  /// about e^80 = 5e34 or more, far above the limit here.
  GDPO_INLINE static bool is_finite(double of_inputs, double of_kl, double of_kl_loss) {
    constexpr double huge = 1e20;
    return !math::not_finite(of_inputs) &&
           !(has_kl && (!(math::abs(of_kl) < huge) || !(math::abs(of_kl_loss) < huge)));
  }
  /// The sums of a block of tokens, in double.
  struct Totals {
    double sum[sums_of_tokens] = {}, count[advantages + 1] = {};

    /// Whether some input may not be finite, so that scan_non_finite() has to look at each token.
    GDPO_INLINE bool needs_scan() const {
      return !is_finite(sum[inputs] + sum[of_metric<&M::approx_kl_k1>], sum[of_metric<&M::kl>],
                        sum[kl_loss]);
    }
    GDPO_INLINE void add_to(RowSums& row) const {
      for (int q = 0; q < token_sums; ++q) row.sum[q] += sum[q];
      for (int k = 0; k < token_counts; ++k) row.sum[measured + k] += count[k];
      row.kl_loss += sum[kl_loss];
      row.advantage = row.advantage || count[advantages] > 0;
    }
  };
  /// Completes the sums of a row after its last token. `kl_weights` says that the batch has them.
  GDPO_INLINE static void finish(const Kls& kls, const Parts& parts, bool kl_weights,
                                 RowSums& row) {
    if constexpr (!several_kl) {
      if (!kl_weights && !any_weighed(kls)) row.kl_loss = row.sum[of_metric<&M::kl>];
      for_each_kl(kls, [&](const auto& kl) {
        const double beta = beta_of(kl, parts, 0);
        row.kl_loss = beta == 0 ? 0.0 : math::mul(beta, row.kl_loss);
      });
    }
    row.sum[of_metric<&M::loss>] =
        (parts.surrogate() ? row.sum[of_metric<&M::surrogate>] : 0.0) + row.kl_loss;
    row.sum[of_metric<&M::clip_fraction>] =
        row.sum[of_metric<&M::clip_fraction_low>] + row.sum[of_metric<&M::clip_fraction_high>];
  }

  /// Adds x to the sum at valid tokens, and nothing at the others. With AVX-512 the sum is selected
  /// and not x, because both steps are then one instruction. The bits are the same: no sum is -0.
  template <class Shape>
  GDPO_INLINE static void add_where(const Mask& valid, const V& x, V& sum) {
    if constexpr (!Shape::masked) {
      sum = sum + x;
    } else if constexpr (math::has_bit_mask<L::width, C>) {
      sum = math::select(valid, sum + x, sum);
    } else {
      sum = sum + math::select(valid, x, math::constant<V>(0.0));
    }
  }

  /// The ratio of the tokens themselves; it adds the metrics of the log ratio.
  template <class S>
  GDPO_INLINE static V own(const V& log_ratio, const Mask& valid, const Token<V>& x, Sums& sums,
                           Ranges& ranges) {
    using math::constant, math::select;
    const V zero = constant<V>(0.0);
    const auto own = parts_of_ratio<S>(log_ratio);
    if constexpr (Metrics::means) {  // without a map, the log ratio of a masked token is 0 already
      V &k1 = sums.sum[of_metric<&M::approx_kl_k1>], &k3 = sums.sum[of_metric<&M::approx_kl_k3>];
      k1 = k1 - (maps ? select(valid, log_ratio, zero) : log_ratio);
      k3 = k3 + (maps ? select(valid, own.k3, zero) : own.k3);
    }
    if constexpr (maps || !Metrics::means) sums.sum[inputs] = sums.sum[inputs] + x.token_log_ratio;
    if constexpr (Metrics::everything) {
      ranges.add(of_metric<&M::approx_kl_k1>, valid, -log_ratio);
      ranges.add(of_metric<&M::approx_kl_k3>, valid, own.k3);
    }
    return own.exp;
  }

  /// The coefficient of KL term number k in a row: beta, times the share of a term that has an
  /// aggregate of its own.
  template <class Kl>
  GDPO_INLINE static double beta_of(const Kl& kl, const Parts& parts, int k) {
    if constexpr (own_aggregates) {
      return math::mul(kl.beta, parts.of_kl[k]);
    } else {
      return (void)parts, (void)k, kl.beta;
    }
  }
  /// What multiplies a KL term at the tokens, besides its beta: `given` says that anything does.
  struct KlWeight {
    bool given;
    V w;       ///< 1 unless it is given.
    Mask off;  ///< Where w is 0 or not finite, so that the term is dropped.
    GDPO_INLINE KlWeight(bool is_given, const V& weight)
        : given(is_given),
          w(weight),
          off(math::either(math::not_finite(weight), math::is_zero(weight))) {}
  };

  /// Adds the terms of one V of tokens to the sums, and returns the derivatives of their loss
  /// before the row's weight. x.log_ratio is set here, and x.ratio at levels of segments; the other
  /// members are set before.
  template <class Shape, class From>
  GDPO_INLINE static Slopes add(const Surrogate& surrogate, const Kls& kls, const Factors& factors,
                                const Parts& parts, const SegmentRatio& of_segment,
                                const From& from, const Mask& valid, Token<V>& x,
                                const Mapped<V>& mapped, Sums& sums, Ranges& ranges) {
    using math::both, math::constant, math::either, math::fma, math::mul, math::select;
    const V zero = constant<V>(0.0);
    if constexpr (Level::of_segment) {
      x.log_ratio = constant<V>(of_segment.log_ratio);
      x.ratio = constant<V>(of_segment.ratio);
    } else {
      x.log_ratio = mapped.log_ratio;
    }

    Term<V> s = surrogate(x);
    if constexpr (has_factors) add_clips(factors, x, s);
    // With own_ratio, d_log_ratio is the sum of both derivatives and d_logp stays 0.
    V value = s.value, d_log_ratio = s.d_log_ratio, d_logp = own_ratio ? zero : s.d_logp;
    if constexpr (own_ratio) d_log_ratio = both_slopes(surrogate, s);
    if (has_factors || (!Shape::plain && from.has_weights())) {
      const V given = weight_of<Shape>(factors, from, x);
      sums.sum[inputs] = sums.sum[inputs] + select(valid, given, zero);
      const Mask off = either(math::not_finite(given), math::is_zero(given));
      value = select(off, zero, mul(given, value));
      d_log_ratio = select(off, zero, mul(given, d_log_ratio));
      if constexpr (!own_ratio) d_logp = select(off, zero, mul(given, d_logp));
    }
    add_where<Shape>(valid, value, sums.sum[of_metric<&M::surrogate>]);
    V loss = value;
    if constexpr (own_aggregates) {
      if (!parts.surrogate()) loss = d_log_ratio = d_logp = zero;
    }
    if constexpr (has_kl && Shape::with_kl) {
      const bool given = !Shape::plain && from.has_kl_weights();
      const V wk = given ? from.kl_weights() : constant<V>(1.0);
      if (given) sums.sum[inputs] = sums.sum[inputs] + select(valid, wk, zero);
      const KlWeight of_batch(given, wk);
      bool first = true;
      int k_at = 0;
      for_each_kl(kls, [&](const auto& kl) GDPO_INLINE_LAMBDA {
        using Kl = std::decay_t<decltype(kl)>;
        const int at = k_at++;
        if (!Shape::plain && kl.beta == 0) return;
        constexpr bool folded = own_ratio && has_own_ratio_v<Kl, Token<V>>;
        const Term<V> k = term_by<folded, V>(kl, x);
        if (first) {
          // Not add_where: g++ masks the last addition of k.value, so the selection is free.
          sums.sum[of_metric<&M::kl>] = sums.sum[of_metric<&M::kl>] + select(valid, k.value, zero);
          if constexpr (Metrics::everything) {
            ranges.add(of_metric<&M::kl>, valid, k.value);
            sums.count[of_share<&M::kl_bounded>].add(both(valid, k.outside));
          }
        }
        first = false;
        const double in_row = beta_of(kl, parts, at);
        if (own_aggregates && in_row == 0) return;
        KlWeight weight = of_batch;
        if constexpr (has_own_factors_v<Kl> && !Shape::plain) {
          if (kl.is_weighed()) {
            const V f = own_factor(kl, x);
            sums.sum[inputs] = sums.sum[inputs] + select(valid, f, zero);
            weight = KlWeight(true, given ? mul(wk, f) : f);
          }
        }
        const bool weighed = weight.given;
        const V beta = constant<V>(in_row), c = weighed ? mul(weight.w, beta) : beta;
        V of_kls = mul(c, k.value);
        const auto add = [&](V& to, const V& term) GDPO_INLINE_LAMBDA {
          const V sum = fma(c, term, to);
          to = weighed ? select(weight.off, to, sum) : sum;
        };
        if constexpr (!folded) add(d_log_ratio, k.d_log_ratio);
        add(own_ratio ? d_log_ratio : d_logp, k.d_logp);
        if (weighed) of_kls = select(weight.off, zero, of_kls);
        if (several_kl) {
          add_where<Shape>(valid, of_kls, sums.sum[kl_loss]);
        } else if (weighed) {
          add_where<Shape>(valid, V(select(weight.off, zero, mul(weight.w, k.value))),
                           sums.sum[kl_loss]);
        }
        if constexpr (Metrics::everything) loss = loss + of_kls;
      });
    }
    if constexpr (Metrics::means) {
      if constexpr (!Level::of_segment)
        add_where<Shape>(valid, x.ratio, sums.sum[of_metric<&M::ratio>]);
      sums.count[of_share<&M::clip_fraction_low>].add(both(valid, s.low));
      sums.count[of_share<&M::clip_fraction_high>].add(both(valid, s.high));
    }
    add_inputs<Shape>(from, valid, x, sums.sum[inputs]);
    if constexpr (Metrics::everything) {
      sums.count[of_share<&M::clip_fraction_any>].add(both(valid, s.outside));
      sums.count[of_share<&M::dual_clip_fraction>].add(both(valid, s.dual));
      ranges.add(of_metric<&M::surrogate>, valid, value);
      ranges.add(of_metric<&M::loss>, valid, loss);
    }
    if (!Shape::plain && from.has_advantages())
      sums.count[advantages].add(both(
          valid, either(either(x.advantage<zero, x.advantage> zero), math::is_nan(x.advantage))));
    if (!Shape::plain && from.has_entropies()) {
      const V entropy = select(valid, from.entropies(), zero);
      sums.sum[of_metric<&M::entropy>] = sums.sum[of_metric<&M::entropy>] + entropy;
      sums.sum[inputs] = sums.sum[inputs] + entropy;
      if constexpr (Metrics::everything) ranges.add(of_metric<&M::entropy>, valid, entropy);
    }

    if constexpr (maps) {
      const Mask stopped = math::is_zero(mapped.pass);
      if constexpr (Metrics::everything)
        sums.count[of_share<&M::log_ratio_bounded>].add(
            both(valid, of_segment.held ? L::all_lanes() : stopped));
      if constexpr (!shares) d_log_ratio = select(stopped, zero, d_log_ratio);
    } else if constexpr (Level::of_segment && Metrics::everything) {
      if (of_segment.held) sums.count[of_share<&M::log_ratio_bounded>].add(valid);
    }
    if constexpr (shares) {
      add_where<Shape>(valid, d_log_ratio, sums.sum[shared]);
      return {zero, d_logp};
    } else {
      if constexpr (Level::of_segment) d_log_ratio = of_segment.held ? zero : d_log_ratio;
      return {d_log_ratio, d_logp};
    }
  }

  /// The KL terms as a loop of this shape passes them to add(): with constants if it is Plain.
  template <class Shape>
  GDPO_INLINE static Kls of_shape(Kls kls) {
    if constexpr (Shape::plain) {
      for_each_kl(kls, [](auto& kl) {
        if constexpr (has_plain_v<std::decay_t<decltype(kl)>>) kl = kl.as_plain();
      });
    }
    return kls;
  }
  /// own() and then add() of one token. At a level of segments without metrics nothing reads the
  /// token's own ratio, so own() is left out. `loss` has these policies and any metrics.
  template <class Shape, class S, class AnyLoss, class From>
  GDPO_INLINE static Slopes of_token(const AnyLoss& loss, const Parts& parts,
                                     const SegmentRatio& of_segment, const From& from,
                                     const Mask& valid, Token<V>& x, Sums& sums, Ranges& ranges) {
    const Mapped<V> mapped = loss.level.map(x);
    if constexpr (!Level::of_segment || Metrics::means) {
      const V ratio = own<S>(mapped.log_ratio, valid, x, sums, ranges);
      if constexpr (!Level::of_segment) x.ratio = ratio;
    } else {
      sums.sum[inputs] = sums.sum[inputs] + x.token_log_ratio;
    }
    return add<Shape>(loss.surrogate, of_shape<Shape>(loss.kl), loss.factor, parts, of_segment,
                      from, valid, x, mapped, sums, ranges);
  }

  /// dloss/dlogp from what add() returned, at a level whose tokens share no derivative.
  template <class Shape>
  GDPO_INLINE static V gradient(const Slopes& slopes, const Mask& valid, const V& row_weight) {
    const V own = own_ratio ? slopes.d_log_ratio : slopes.d_log_ratio + slopes.d_logp;
    const V slope = math::mul(row_weight, own);
    if constexpr (Shape::masked) {
      return math::select(valid, slope, math::constant<V>(0.0));
    } else {
      return slope;
    }
  }
  /// dloss/dlogp at a level whose tokens share one: `each` is the part from all tokens of the
  /// segment, which passes through the map of this token, and d_logp is its own part.
  GDPO_INLINE static V shared_gradient(const V& each, const V& d_logp, const Mapped<V>& mapped,
                                       const Mask& valid, const V& row_weight) {
    const V zero = math::constant<V>(0.0);
    const V share = maps ? math::select(math::is_zero(mapped.pass), zero, each) : each;
    return math::select(valid, math::mul(row_weight, share + d_logp), zero);
  }

  /// Which results of a token are NaN because of its inputs.
  struct NanFlags {
    bool surrogate = false, kl = false, kl_loss = false, gradient = false;
  };
  /// Looks at the inputs of one valid token, where V is a number. Calls see(member of
  /// NonFiniteInputs) for every input that is not finite, and returns which results have to be NaN
  /// because of it.
  ///
  /// The sums alone do not tell: some formulas select a NaN away, and under -ffast-math it may get
  /// lost on its way through them.
  GDPO_CALLS_ANY
  template <class From, class See>
  GDPO_INLINE static NanFlags scan_non_finite(const Level& level, const Surrogate& surrogate,
                                              const Kls& kls, const Factors& factors,
                                              const Parts& parts, const SegmentRatio& of_segment,
                                              const From& from, Token<V>& x, const See& see) {
    static_assert(L::width == 1, "a token at a time");
    using math::is_nan, math::not_finite;
    const auto check = [&](V value, NonFinite NonFiniteInputs::*counter) {
      if (not_finite(value)) see(counter);
    };
#define GDPO_X(in_batch, in_row, in_token, ...) \
  if (from.has_##in_row()) check(x.in_token, &NonFiniteInputs::in_row);
    GDPO_POLICY_INPUTS(GDPO_X)
#undef GDPO_X
    // Without an advantage for each token, x has that of the row.
    if (!from.has_advantages()) check(x.advantage, &NonFiniteInputs::advantages);
    if (from.has_entropies()) check(from.entropies(), &NonFiniteInputs::entropies);

    x.log_ratio = Level::of_segment ? static_cast<V>(of_segment.log_ratio) : level.map(x).log_ratio;
    x.ratio =
        Level::of_segment ? static_cast<V>(of_segment.ratio) : math::exp_parts(x.log_ratio).exp;
    const auto weight = [&](V w) {
      check(w, &NonFiniteInputs::weights);
      return not_finite(w) ? V(0) : w;
    };
    NanFlags nan_flags;
    const V w = weight(weight_of<General>(factors, from, x));
    nan_flags.surrogate = w != V(0) && !adds_nothing(surrogate) &&
                          (is_nan(x.token_log_ratio) || is_nan(x.logp) ||
                           (is_nan(x.advantage) && reads_advantage(surrogate)) ||
                           (Level::of_segment && is_nan(of_segment.log_ratio)));
    const V wk = has_kl && from.has_kl_weights() ? weight(from.kl_weights()) : V(1);
    if (Level::of_segment && from.has_level_log_weights())
      check(from.level_log_weights(), &NonFiniteInputs::weights);
    bool first = true;
    int k_at = 0;
    for_each_kl(kls, [&](const auto& kl) {
      const double in_row = beta_of(kl, parts, k_at++);
      if (kl.beta == 0) return;
      V of_term = wk;
      if constexpr (has_own_factors_v<std::decay_t<decltype(kl)>>) {
        if (kl.is_weighed()) {
          const V f = weight(own_factor(kl, x));
          of_term = f == V(0) ? f : math::mul(wk, f);
        }
      }
      if (is_nan(x.logp - other_logp(kl.against, x))) {
        if (first) nan_flags.kl = true;
        if (of_term != V(0) && in_row != 0) nan_flags.kl_loss = true;
      }
      first = false;
    });
    nan_flags.gradient = (nan_flags.surrogate && parts.surrogate()) || nan_flags.kl_loss;
    return nan_flags;
  }

 private:
  /// Adds to `sum` the inputs that are not part of the log ratio. A loop of a Plain shape adds only
  /// what no other sum shows.
  template <class Shape, class From>
  GDPO_INLINE static void add_inputs(const From& from, const Mask& valid, const Token<V>& x,
                                     V& sum) {
    const auto add = [&](const V& value) GDPO_INLINE_LAMBDA {
      sum = sum + math::select(valid, value, math::constant<V>(0.0));
    };
    if constexpr (Shape::plain) {
      if constexpr (has_kl && Shape::with_kl && !shows_infinite_v<Kls>) add(x.ref_logp);
    } else {
      if (!from.has_old_logp()) add(x.logp);
#define GDPO_X(in_batch, in_row, in_token, read, in_plain) \
  if (InPlain::in_plain != InPlain::Needed && from.has_##in_row()) add(x.in_token);
      GDPO_POLICY_INPUTS(GDPO_X)
#undef GDPO_X
    }
  }

  /// The product of the factors and of the batch's weight. The caller takes one that is not finite
  /// as 0.
  template <class Shape, class From>
  GDPO_INLINE static V weight_of(const Factors& factors, const From& from, const Token<V>& x) {
    const bool given = !Shape::plain && from.has_weights();
    const V w = given ? from.weights() : math::constant<V>(1.0);
    if constexpr (has_factors) {
      return given ? math::mul(w, product(factors, x)) : product(factors, x);
    } else {
      return w;
    }
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
