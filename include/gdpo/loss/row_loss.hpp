#pragma once
#include <gdpo/loss/factor.hpp>
#include <gdpo/loss/kl.hpp>
#include <gdpo/loss/level.hpp>
#include <gdpo/loss/rows.hpp>
#include <gdpo/loss/tally.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The loss of one row: the one place where the policies of a PolicyLoss meet. S stores the batch and the gradient; C
/// computes: S, but double where the ratio is of a segment.
///
/// Order of summation: tokens in the order of the row, in double. Passes over a segment: 1 its statistic (Sequence levels), 2
/// the terms of its tokens, 3 the derivative they share (Sequence).
template <class S, class Level, class Surrogate, class Kls, class Factors>
class RowLoss {
 public:
  using C = std::conditional_t<Level::of_segment, double, S>;

  RowLoss(const Level& level, const Surrogate& surrogate, const Kls& kls, const Factors& factors, LossMetrics& metrics)
      : level_(level), surrogate_(surrogate), kls_(kls), factors_(factors), metrics_(metrics) {}

  /// gradient (length): every position is written, exactly 0 where the mask is 0; null: not wanted. weight: W_i.
  /// scratch: `length` numbers, for Sequence.
  RowTally operator()(const TokenRow<S>& row, double weight, View<S, 1> gradient, double* scratch) {
    RowTally tally;
    for_each_kl(kls_, [&](const auto& kl) { tally.kl_on = tally.kl_on || kl.beta != 0; });
    tally.has_entropy = row.entropies != nullptr;
    row_advantage_ = C(0);
    if constexpr (reads_row_advantage) row_advantage_ = static_cast<C>(row.mean_advantage());
    for (index_t begin = 0; begin < row.length;) {
      const index_t end = row.segment_end(begin);
      segment(row, begin, end, weight, gradient, scratch, tally);
      begin = end;
    }
    return tally;
  }

 private:
  // At such a level d_ratio goes to the token itself, with nothing between: KL terms fold it in (kl.hpp, own_ratio).
  static constexpr bool own_ratio = std::is_same_v<Level, level::Token<map::None>>;
  static constexpr bool shares = Level::of_segment && !Level::straight_through;
  static constexpr bool reads_row_advantage =
      reads_row_advantage_v<Surrogate> || reads_row_advantage_v<Factors> || reads_row_advantage_v<decltype(Level::map)>;

  struct SegmentRatio {
    double log_ratio = 0, ratio = 1, share = 0;
    bool held = false;
  };

  void segment(const TokenRow<S>& row, index_t begin, index_t end, double weight, View<S, 1> gradient, double* scratch,
               RowTally& tally) {
    using math::mul;
    SegmentRatio of_segment;
    if constexpr (Level::of_segment) of_segment = statistic(row, begin, end);
    const C w = static_cast<C>(weight);
    double shared = 0;
    for (index_t t = begin; t < end; ++t) {
      if (!row.valid(t)) {
        if (gradient) gradient(t) = S(0);
        continue;
      }
      const Term<C> term = token_term(row, t, of_segment, tally);
      if (!gradient) continue;
      if constexpr (shares) {
        shared += static_cast<double>(term.d_ratio);
        scratch[t] = static_cast<double>(term.d_logp);
      } else {
        gradient(t) = static_cast<S>(mul(w, term.d_ratio + term.d_logp));
      }
    }
    if constexpr (shares) {
      if (!gradient) return;
      const double each = of_segment.held ? 0.0 : mul(shared, of_segment.share);
      for (index_t t = begin; t < end; ++t) {
        if (!row.valid(t)) continue;
        const bool passes = level_.map(load(row, t)).pass != C(0);
        gradient(t) = static_cast<S>(mul(w, (passes ? each : 0.0) + scratch[t]));
      }
    }
  }

  SegmentRatio statistic(const TokenRow<S>& row, index_t begin, index_t end) const {
    RowSum sum{0, 0};
    for (index_t t = begin; t < end; ++t) {
      if (!row.valid(t)) continue;
      sum.sum += level_.map(load(row, t)).log_ratio;
      sum.n += 1;
    }
    if (math::is_nan(sum.sum)) return {math::nan(), math::nan(), level_.statistic.share(sum.n), false};
    const auto bounded = bound(level_.bounds, level_.statistic(sum));
    const Bounds stored{-math::exp_limit<S>, math::exp_limit<S>};  // the gradient will be an S
    const double ratio = math::exp_parts(bound(stored, bounded.value).value).exp;
    return {bounded.value, ratio, level_.statistic.share(sum.n), bounded.outside};
  }

  /// Everything of one valid token but the row's weight: the loss term, with what the level keeps for the token itself in
  /// d_ratio + d_logp, and what it shares in d_ratio (Sequence).
  GDPO_INLINE Term<C> token_term(const TokenRow<S>& row, index_t t, const SegmentRatio& of_segment, RowTally& tally) {
    using math::mul;
    Token<C> x = load(row, t);
    const Mapped<C> mapped = level_.map(x);
    const auto own = math::exp_parts(static_cast<S>(mapped.log_ratio));
    const bool passes = mapped.pass != C(0);
    x.log_ratio = Level::of_segment ? static_cast<C>(of_segment.log_ratio) : mapped.log_ratio;
    x.ratio = Level::of_segment ? static_cast<C>(of_segment.ratio) : static_cast<C>(own.exp);
    Unknown nan = census(row, t, x);
    if (Level::of_segment) nan.policy = nan.policy || math::is_nan(of_segment.log_ratio);

    Term<C> total{};
    const Term<C> s = surrogate_(x);
    tally.low += s.low, tally.high += s.high, tally.outside += s.outside, tally.dual += s.dual;
    const C w = weight_of(row.weights, row, t, x, true);
    if (w != C(0)) {
      total.value = mul(w, s.value);
      total.d_ratio = mul(w, s.d_ratio);
      total.d_logp = mul(w, s.d_logp);
      if (nan.policy) total.value = total.d_ratio = total.d_logp = math::nan<C>();
    }
    tally.surrogate.add(static_cast<double>(total.value));

    double loss = static_cast<double>(total.value);
    if constexpr (!std::is_same_v<Kls, gdpo::Kls<>>) {
      const C wk = weight_of(row.kl_weights, row, t, x, false);
      bool first = true;
      for_each_kl(kls_, [&](const auto& kl) {
        if (kl.beta == 0) return;
        Term<C> k = kl_term(kl, x);
        if (nan.kl(kl.against, x)) k.value = k.d_ratio = k.d_logp = math::nan<C>();
        if (first) tally.kl.add(static_cast<double>(k.value)), tally.kl_bounded += k.outside;
        first = false;
        if (wk == C(0)) return;
        const C c = mul(wk, static_cast<C>(kl.beta));
        total.d_ratio = total.d_ratio + mul(c, k.d_ratio);
        total.d_logp = total.d_logp + mul(c, k.d_logp);
        const double value = mul(kl.beta, mul(static_cast<double>(wk), static_cast<double>(k.value)));
        tally.kl_loss += value;
        loss += value;
      });
    }
    tally.loss.add(loss);
    tally.k1.add(-static_cast<double>(mapped.log_ratio));
    tally.k3.add(static_cast<double>(own.k3));
    tally.ratio.add(static_cast<double>(x.ratio));
    if (row.entropies) {
      tally.entropy.add(static_cast<double>(row.entropies[t]));
      if (math::not_finite(row.entropies[t])) note(metrics_.non_finite.entropies, row.row, t);
    }
    tally.bounded += !passes || of_segment.held;
    tally.advantage = tally.advantage || !math::is_zero(x.advantage);
    ++tally.tokens;
    if (!shares && (!passes || of_segment.held)) total.d_ratio = C(0);
    return total;
  }

  GDPO_INLINE Token<C> load(const TokenRow<S>& row, index_t t) const {
    const auto at = [t](const S* values) { return values ? static_cast<C>(values[t]) : C(0); };
    Token<C> x{};
    x.logp = at(row.logp);
    x.old_logp = row.old_logp ? static_cast<C>(row.old_logp[t]) : x.logp;
    x.ref_logp = at(row.ref_logp);
    x.rollout_logp = at(row.rollout_logp);
    x.teacher_logp = at(row.teacher_logp);
    x.advantage = static_cast<C>(row.advantage_of(t));
    x.row_advantage = row_advantage_;
    x.token_log_ratio = row.old_logp ? x.logp - x.old_logp : C(0);
    x.tag = at(row.tags);
    return x;
  }

  /// The product of the factors and the given weight; one that is not finite counts as 0 (of_surrogate: and is counted).
  GDPO_INLINE C weight_of(const S* given, const TokenRow<S>& row, index_t t, const Token<C>& x, bool of_surrogate) {
    C w = given ? static_cast<C>(given[t]) : C(1);
    if constexpr (!std::is_same_v<Factors, gdpo::Factors<>>) {
      if (of_surrogate) w = given ? math::mul(w, product(factors_, x)) : product(factors_, x);
    }
    if (!math::not_finite(w)) return w;
    note(metrics_.non_finite.weights, row.row, t);
    return C(0);
  }

  template <class Kl>
  GDPO_INLINE Term<C> kl_term(const Kl& kl, const Token<C>& x) const {
    if constexpr (own_ratio && has_own_ratio_v<Kl, Token<C>>) {
      return kl.own_ratio(x);
    } else {
      return kl(x);
    }
  }

  struct Unknown {
    bool any, policy;
    bool kl(Against against, const Token<C>& x) const { return any && math::is_nan(x.logp - other_logp(against, x)); }
  };
  /// Counts what is not finite among the inputs, and says where a NaN must show: under -ffast-math it may get lost on its way
  /// through the formulas.
  GDPO_INLINE Unknown census(const TokenRow<S>& row, index_t t, const Token<C>& x) {
    bool any = false;
    const auto look = [&](const C& value, NonFinite& counter) {
      if (math::not_finite(value)) note(counter, row.row, t), any = true;
    };
    look(x.logp, metrics_.non_finite.logp);
    if (row.old_logp) look(x.old_logp, metrics_.non_finite.old_logp);
    if (row.ref_logp) look(x.ref_logp, metrics_.non_finite.ref_logp);
    if (row.rollout_logp) look(x.rollout_logp, metrics_.non_finite.rollout_logp);
    if (row.teacher_logp) look(x.teacher_logp, metrics_.non_finite.teacher_logp);
    look(x.advantage, metrics_.non_finite.advantages);
    if (!any) return {false, false};
    using math::is_nan;
    return {true, is_nan(x.token_log_ratio) || is_nan(x.logp) || is_nan(x.advantage)};
  }

  const Level& level_;
  const Surrogate& surrogate_;
  const Kls& kls_;
  const Factors& factors_;
  LossMetrics& metrics_;
  C row_advantage_{};
};

}  // namespace detail
GDPO_END_NAMESPACE
