#pragma once
// MismatchToken and MismatchRow: what a token and a row add to a mismatch report, on hosts and
// devices, and the arrays that it reads.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/lanes/log_lanes.hpp>
#include <gdpo/mismatch/report.hpp>
#include <gdpo/tokens/token_batch.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// x, not below `low` nor above `high`.
template <class V>
GDPO_INLINE V cut(const V& x, const V& low, const V& high) {
  return (math::max)(V((math::min)(x, high)), low);
}

// Lists of what is of tokens. In each, what is of ratios stands before what is of weights.

/// Sums of a row that finish() divides and no report has.
#define GDPO_MISMATCH_HIDDEN_SUMS(X) \
  GDPO_MISMATCH_HIDDEN_RATIO_SUMS(X) \
  X(weight_sum, "w")
#define GDPO_MISMATCH_HIDDEN_RATIO_SUMS(X) \
  X(old_sum, "o at each scored token")     \
  X(rollout_sum, "q")                      \
  X(ratio_sum, "r")
/// The counts of tokens: members of MismatchToken that are true or false, and their numbers.
#define GDPO_MISMATCH_TOKEN_COUNTS(X) \
  GDPO_MISMATCH_RATIO_COUNTS(X)       \
  GDPO_MISMATCH_UNSCORED_COUNTS(X)    \
  GDPO_MISMATCH_WEIGHT_COUNTS(X)
#define GDPO_MISMATCH_RATIO_COUNTS(X) \
  X(scored, 0)                        \
  X(tokens_low, 1)                    \
  X(tokens_high, 2)
#define GDPO_MISMATCH_UNSCORED_COUNTS(X) \
  X(missing, 3)                          \
  X(non_finite, 4)
#define GDPO_MISMATCH_WEIGHT_COUNTS(X) \
  X(weighed, 5)                        \
  X(changed, 6)                        \
  X(dropped, 7)                        \
  X(non_finite_weights, 8)
/// The extremes of tokens: member, Least or Most, of which member of MismatchToken.
#define GDPO_MISMATCH_TOKEN_EXTREMES(X) \
  GDPO_MISMATCH_RATIO_EXTREMES(X)       \
  GDPO_MISMATCH_WEIGHT_EXTREMES(X)
#define GDPO_MISMATCH_RATIO_EXTREMES(X)     \
  X(abs_log_ratio_max, Most, abs_log_ratio) \
  X(k3_max, Most, k3)                       \
  X(ratio_min, Least, ratio_sum)            \
  X(ratio_max, Most, ratio_sum)
#define GDPO_MISMATCH_WEIGHT_EXTREMES(X) \
  X(weight_min, Least, weight_sum)       \
  X(weight_max, Most, weight_sum)

/// What one token adds to its row, or in each lane of V one token. All terms of one that is not
/// scored are 0.
template <class V>
struct MismatchToken {
  using Mask = mask_t<V>;
#define GDPO_X(name, ...) V name{};
  GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
  GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) Mask name{};
  GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
  Mask unscored{};  ///< Valid, but missing or non_finite.
  /// cosh(x / 2) - 1, by h^2 / (2 e^(x/2)) with h = e^(x/2) - 1, which is accurate near 0 as well.
  V cosh{};

  MismatchToken() = default;
  /// All but js and what is of weights. old, rollout_logp: the log-probs in nats, which may be
  /// anything where a token is not valid.
  GDPO_INLINE MismatchToken(const MismatchSettings& s, const Mask& valid, const V& old,
                            const V& rollout_logp) {
    using math::both, math::either, math::constant, math::mul, math::select;
    const V zero = constant<V>(0.0), difference = math::opaque(V(old - rollout_logp));
    scored = both(valid, math::is_finite(difference));
    unscored = both(valid, math::not_finite(difference));
    if (math::any(unscored)) {
      missing = both(unscored, math::is_nan(rollout_logp));
      non_finite =
          both(unscored, either(math::is_inf(rollout_logp), math::is_finite(rollout_logp)));
    }
    const V x = select(scored, difference, zero);
    old_sum = select(scored, old, zero), rollout_sum = select(scored, rollout_logp, zero);
    const auto parts = math::exp_parts(x), reverse = math::exp_parts(V(-x));
    V distance = parts.expm1, r = parts.exp;
    log_ratio = x, abs_log_ratio = math::abs(x);
    if (const V most = constant<V>(s.clamp); math::any(abs_log_ratio > most)) {
      const auto inside = math::exp_parts(cut(x, V(-most), most));
      distance = inside.expm1, r = inside.exp;
    }
    k3 = parts.k3, reverse_k3 = reverse.k3;
    reverse_k1 = mul(r, x);
    const auto half = math::exp_parts(V(mul(x, constant<V>(0.5))));
    cosh = math::opaque(V(mul(half.expm1, half.expm1) / (half.exp + half.exp)));
    prob_factor = select(scored, V(select(x < zero, reverse.exp, parts.exp)), zero);
    prob_distance = mul(math::exp_parts(rollout_sum).exp, math::abs(parts.expm1));
    ratio = distance, ratio_square = mul(distance, distance);
    ratio_sum = select(scored, r, zero);
    tokens_low = both(scored, r < constant<V>(s.token_low));
    tokens_high = both(scored, r > constant<V>(s.token_high));
  }
  /// Jensen-Shannon divergence at a token, as NeMo-RL's js_divergence_error estimates it: by k3 of
  /// both policies against their mean, m = log((e^o + e^q) / 2). The exponentials cancel:
  ///
  ///     1/2 (e^(o-m) - 1 - (o - m)) + 1/2 (e^(q-m) - 1 - (q - m))
  ///         = m - (o + q) / 2 = log cosh(x / 2)
  GDPO_INLINE static V divergence(const V& cosh) { return log1p_of(cosh); }
  /// What is of weights. token_weight: 1 where the batch has none.
  GDPO_INLINE void weigh(const MismatchSettings& s, const V& token_weight, bool has_weights) {
    using math::both, math::constant, math::mul, math::select;
    const V zero = constant<V>(0.0), one = constant<V>(1.0);
    const Mask wild = math::not_finite(token_weight);
    non_finite_weights = both(scored, wild);
    if (has_weights) weighed = scored;
    const V w = select(scored, V(select(wild, zero, token_weight)), one), off = w - one,
            bounded = cut(w, constant<V>(s.token_low), constant<V>(s.token_high)) - one;
    changed = math::differ(w, one), dropped = w == zero;
    weight = off, weight_square = mul(off, off);
    bounded_weight = select(scored, bounded, zero);
    bounded_weight_square = mul(bounded_weight, bounded_weight);
    weight_sum = select(scored, w, zero);
  }
};

/// What one row adds to a report: fill in what is of tokens, then call finish().
struct MismatchRow {
#define GDPO_X(name, ...) index_t name = 0;
  GDPO_MISMATCH_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) double name = 0;
  GDPO_MISMATCH_SUMS(GDPO_X)
  GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) PlacedNumber name;
  GDPO_MISMATCH_EXTREMES(GDPO_X)
#undef GDPO_X

  /// Computes what is of the row. in_completion: tokens of the completion that the mask dropped.
  GDPO_INLINE void finish(const MismatchSettings& s, index_t row, index_t in_completion) {
    rows = 1;
    const index_t valid = scored + missing + non_finite;
    valid_rows = valid > 0, scored_rows = scored > 0;
    masked = in_completion, masked_rows = in_completion > 0 && valid == 0;
    dropping_rows = dropped > 0, dropped_rows = scored > 0 && dropped == scored;
    if (scored == 0 && !s.empty_rows) return;
    counted_rows = 1;
    const double n = static_cast<double>(scored) + s.count_eps;
    const auto mean = [&](double sum) { return n > 0 ? sum / n : 0.0; };
    log_ppl = 0.0 - mean(old_sum), rollout_log_ppl = 0.0 - mean(rollout_sum);
    ppl = math::exp_parts(log_ppl).exp, rollout_ppl = math::exp_parts(rollout_log_ppl).exp;
    const double mean_x = mean(log_ratio);
    log_ppl_diff = 0.0 - mean_x, abs_log_ppl_diff = math::abs(log_ppl_diff);
    ppl_ratio = math::exp_parts(log_ppl_diff).exp;
    const auto of_sum = math::exp_parts(cut(log_ratio, -s.clamp, s.clamp)),
               of_mean = math::exp_parts(cut(mean_x, -s.clamp, s.clamp));
    product = of_sum.expm1, product_square = math::mul(product, product);
    whole_product = of_sum.exp, whole_product_square = math::mul(of_sum.exp, of_sum.exp);
    geometric = of_mean.expm1, geometric_square = math::mul(geometric, geometric);
    const double m = mean(ratio_sum), w = mean(weight_sum);
    products_low = of_sum.exp<s.row_low, products_high = of_sum.exp> s.row_high;
    geometrics_low = of_mean.exp<s.row_low, geometrics_high = of_mean.exp> s.row_high;
    means_low = m<s.row_low, means_high = m> s.row_high;
    row_weight = w - 1, row_weight_square = math::mul(row_weight, row_weight);
    least(product_min, of_sum.exp, row, -1), most(product_max, of_sum.exp, row, -1);
    least(geometric_min, of_mean.exp, row, -1), most(geometric_max, of_mean.exp, row, -1);
    least(log_ppl_diff_min, log_ppl_diff, row, -1), most(log_ppl_diff_max, log_ppl_diff, row, -1);
    least(row_weight_min, w, row, -1), most(row_weight_max, w, row, -1);
    most(row_weight_deviation, math::abs(row_weight), row, -1);
  }

 private:
  GDPO_INLINE static bool is_better(mismatch_list::End end, const PlacedNumber& best, double x) {
    return best.row < 0 || (end == mismatch_list::End::Least ? x < best.value : x > best.value);
  }
  GDPO_INLINE static void most(PlacedNumber& best, double x, index_t row, index_t t) {
    if (is_better(mismatch_list::End::Most, best, x)) best = {x, row, t};
  }
  GDPO_INLINE static void least(PlacedNumber& best, double x, index_t row, index_t t) {
    if (is_better(mismatch_list::End::Least, best, x)) best = {x, row, t};
  }
};

/// Throws unless the number of a batch's first row is 0 or more.
inline void check_first_row(const char* function, index_t first_row) {
  if (first_row < 0) contract::fail(function, "first_row", contract::text(first_row), "0 or more");
}
/// The arrays of a batch that a report reads: its old_logp is that of the batch or else logp.
/// Throws where one is missing and there are tokens.
template <class S>
TokenBatch<S> mismatch_arrays(const char* function, const TokenBatch<S>& batch, bool has_tokens) {
  if (!batch.rollout_logp && has_tokens) {
    contract::fail(function, "batch.rollout_logp", "no array", "the sampling policy's log-probs");
  }
  if (!batch.old_logp && !batch.logp && has_tokens) {
    contract::fail(function, "batch.old_logp, batch.logp", "neither",
                   "one of them, to compare with rollout_logp");
  }
  TokenBatch<S> read;
  read.old_logp = batch.old_logp ? batch.old_logp : batch.logp;
  read.rollout_logp = batch.rollout_logp, read.weights = batch.weights, read.mask = batch.mask;
  return read;
}

}  // namespace detail
GDPO_END_NAMESPACE
