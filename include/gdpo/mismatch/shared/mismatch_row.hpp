#pragma once
// MismatchToken and MismatchRow: what a token and a row add to a mismatch report, on hosts and
// devices, and the arrays that it reads.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/math/log1p.hpp>
#include <gdpo/mismatch/report.hpp>
#include <gdpo/tokens/token_batch.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The number whose ends are -clamp and clamp.
GDPO_INLINE double cut(double x, double low, double high) {
  return (math::max)((math::min)(x, high), low);
}

/// Jensen-Shannon divergence at a token, as NeMo-RL's js_divergence_error estimates it: by k3 of
/// both policies against their mean, m = log((e^o + e^q) / 2). The exponentials cancel:
///
///     1/2 (e^(o-m) - 1 - (o - m)) + 1/2 (e^(q-m) - 1 - (q - m))
///         = m - (o + q) / 2 = log cosh(x / 2)
///
/// With h = e^(x/2) - 1, cosh(x / 2) - 1 = h^2 / (2 e^(x/2)), which is accurate near 0 as well.
GDPO_INLINE double jensen_shannon(double x) {
  const auto half = math::exp_parts(math::mul(x, 0.5));
  return math::log1p(math::mul(half.expm1, half.expm1) / (half.exp + half.exp));
}

/// Sums of a row that finish() divides and no report has.
#define GDPO_MISMATCH_HIDDEN_SUMS(X)   \
  X(old_sum, "o at each scored token") \
  X(rollout_sum, "q")                  \
  X(ratio_sum, "r")                    \
  X(weight_sum, "w")
/// The counts of tokens: members of MismatchToken that are 0 or 1, and their numbers.
#define GDPO_MISMATCH_TOKEN_COUNTS(X) \
  X(scored, 0)                        \
  X(missing, 1)                       \
  X(non_finite, 2)                    \
  X(weighed, 3)                       \
  X(changed, 4)                       \
  X(dropped, 5)                       \
  X(non_finite_weights, 6)            \
  X(tokens_low, 7)                    \
  X(tokens_high, 8)
/// The extremes of tokens: member, Least or Most, of which member of MismatchToken.
#define GDPO_MISMATCH_TOKEN_EXTREMES(X)     \
  X(abs_log_ratio_max, Most, abs_log_ratio) \
  X(k3_max, Most, k3)                       \
  X(ratio_min, Least, ratio_sum)            \
  X(ratio_max, Most, ratio_sum)             \
  X(weight_min, Least, weight_sum)          \
  X(weight_max, Most, weight_sum)

/// What one valid token adds to its row. All terms of one that is not scored are 0.
struct MismatchToken {
#define GDPO_X(name, ...) double name = 0;
  GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
  GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) bool name = false;
  GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X

  MismatchToken() = default;
  /// old, rollout: its log-probs in nats; token_weight: 1 where the batch has none.
  GDPO_INLINE MismatchToken(const MismatchSettings& s, double old, double rollout_logp,
                            double token_weight, bool has_weights) {
    missing = math::is_nan(rollout_logp);
    if (missing) return;
    const double x = old - rollout_logp;
    non_finite = math::not_finite(rollout_logp) || math::not_finite(old) || math::not_finite(x);
    if (non_finite) return;
    scored = true;
    old_sum = old, rollout_sum = rollout_logp;
    const auto parts = math::exp_parts(x), reverse = math::exp_parts(-x);
    const bool inside = x <= s.clamp && x >= -s.clamp;
    const auto cut_parts = inside ? parts : math::exp_parts(cut(x, -s.clamp, s.clamp));
    const double distance = cut_parts.expm1, r = cut_parts.exp;
    log_ratio = x, abs_log_ratio = math::abs(x);
    k3 = parts.k3, reverse_k3 = reverse.k3;
    reverse_k1 = math::mul(r, x);
    js = jensen_shannon(x);
    prob_factor = x < 0 ? reverse.exp : parts.exp;
    prob_distance = math::mul(math::exp_parts(rollout_logp).exp, math::abs(parts.expm1));
    ratio = distance, ratio_square = math::mul(distance, distance);
    ratio_sum = r;
    tokens_low = r<s.token_low, tokens_high = r> s.token_high;

    non_finite_weights = math::not_finite(token_weight), weighed = has_weights;
    const double w = non_finite_weights ? 0.0 : token_weight, off = w - 1,
                 bounded = cut(w, s.token_low, s.token_high) - 1;
    changed = w < 1 || w > 1, dropped = math::is_zero(w);
    weight = off, weight_square = math::mul(off, off);
    bounded_weight = bounded, bounded_weight_square = math::mul(bounded, bounded);
    weight_sum = w;
  }
};

/// What one row adds to a report: call token() for its valid tokens in order, then finish().
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

  /// Adds a valid token.
  GDPO_INLINE void token(const MismatchToken& x, index_t row, index_t t) {
#define GDPO_X(name, ...) name += x.name;
    GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
    if (!x.scored) return;
#define GDPO_X(name, ...) name += x.name;
    GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
    GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, end, of) \
  if (is_better(mismatch_list::End::end, name, x.of)) name = {x.of, row, t};
    GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X)
#undef GDPO_X
  }

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
