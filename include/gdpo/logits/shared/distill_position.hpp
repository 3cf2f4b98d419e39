#pragma once
// The divergence of one position between a teacher and the policy, and its gradient.
#include <cmath>
#include <gdpo/logits/distillation_loss.hpp>
#include <gdpo/logits/row.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What one token adds: to the loss, and its derivative by log q.
struct DistilledToken {
  double loss, slope;
};
/// The token with probabilities p and q and x = log p - log q. A probability of 0 adds 0 in its
/// own sum, whatever its logarithm is.
GDPO_DEVICE inline DistilledToken distilled_token(double beta, double p, double q, double x) {
  using math::mul;
  if (beta == 0) return {math::is_zero(p) ? 0.0 : mul(p, x), -p};
  if (beta == 1) {
    if (math::is_zero(q)) return {0.0, 0.0};
    return {mul(q, -x), mul(q, 1 - x)};
  }
  // log(p / m) = -log(1 - beta + ...): whichever of the two has an argument that does not overflow.
  double p_over_m, q_over_m;  // logarithms
  if (x > 0) {
    p_over_m = -std::log1p(mul(1 - beta, std::expm1(-x)));
    q_over_m = p_over_m - x;
  } else {
    q_over_m = -std::log1p(mul(beta, std::expm1(x)));
    p_over_m = q_over_m + x;
  }
  const double of_teacher = math::is_zero(p) ? 0.0 : mul(mul(beta, p), p_over_m),
               of_student = math::is_zero(q) ? 0.0 : mul(mul(1 - beta, q), q_over_m);
  return {of_teacher + of_student, of_student};
}

/// The log-probs of the tokens of a row, with the bits of logp(LogitRow).
struct PolicyLogs {
  double most, log_sum;
  GDPO_DEVICE explicit PolicyLogs(const LogitRow& row)
      : most(row.max), log_sum(std::log(row.sum)) {}
  /// From z, the logit over the temperature.
  GDPO_INLINE double operator()(double z) const { return (z - most) - log_sum; }
};

/// The log-prob of the policy as the teacher's is stored: rounded to float, unless it is in double.
/// So a teacher whose log-probs are those of the policy gives a loss of exactly 0.
template <class S>
GDPO_DEVICE inline double as_teacher(double logp) {
  return std::is_same_v<S, double> ? logp : static_cast<double>(static_cast<float>(logp));
}

/// One token that the teacher lists.
struct ListedToken {
  double log_p, log_q;  ///< Of the teacher and of the policy, in nats.
};
/// A running log sum e^a over numbers a.
struct LogSum {
  double most = -math::infinity;  ///< The largest a, or NaN.
  double sum = 0;                 ///< sum e^(a - most)
  /// Raises `most`, before the sum.
  GDPO_INLINE void raise(double a) { most = a > most || math::is_nan(a) ? a : most; }
  /// log sum e^a; 0 where all a are -infinity, which no subtraction helps.
  GDPO_DEVICE double log() const {
    return math::is_inf(most) && most < 0 ? 0.0 : most + std::log(sum);
  }
};

/// What the tokens of a position add up to.
struct DistilledSums {
  double loss = 0, slopes = 0, student = 0, teacher = 0;
  index_t tokens = 0, held = 0;  ///< Tokens, and those that min_logp holds.
  GDPO_INLINE void add(const DistilledSums& o) {
    loss += o.loss, slopes += o.slopes, student += o.student, teacher += o.teacher;
    tokens += o.tokens, held += o.held;
  }
};
/// A token of a position: c = d L / d log q, and q.
struct DistilledSlope {
  double c, q;
};
/// Adds a token to the sums.
GDPO_DEVICE inline DistilledSlope add_listed(const DistillationLoss& loss, const ListedToken& token,
                                             DistilledSums& sums) {
  const bool low = token.log_q < loss.min_logp, teacher_low = token.log_p < loss.min_logp;
  const double log_q = low ? loss.min_logp : token.log_q,
               log_p = teacher_low ? loss.min_logp : token.log_p;
  const DistilledToken one =
      distilled_token(loss.beta, std::exp(log_p), std::exp(log_q), log_p - log_q);
  const DistilledSlope slope{low ? 0.0 : one.slope, std::exp(token.log_q)};
  sums.add({one.loss, slope.c, slope.q, std::exp(token.log_p), 1, low || teacher_low ? 1 : 0});
  return slope;
}

/// How a position treats the tokens of the teacher.
struct DistillPlan {
  bool whole = false;  ///< They are the whole vocabulary.
  /// Their log-probs are normalized, of the teacher and of the policy.
  bool normalizes_teacher = false, normalizes_student = false;
  /// The policy's log-probs need the logsumexp of the whole row.
  bool reads_row = true;

  /// n tokens of `vocabulary`; 0: not known.
  GDPO_INLINE DistillPlan(const DistillationLoss& loss, index_t n, index_t vocabulary)
      : whole(n > 0 && n == vocabulary),
        normalizes_teacher(loss.rest == Rest::Renormalize &&
                           (!whole || loss.teacher_temperature != 1)),
        normalizes_student(loss.rest == Rest::Renormalize && !whole),
        reads_row(!normalizes_student) {}
  GDPO_INLINE bool adds_up() const { return whole || normalizes_student; }
};

/// The divergence of one position, before any weight. With z the logits over the temperature,
///
///     d loss / d z_j = elsewhere q_j       at tokens that the teacher does not list
///     d loss / d z_j = c_j - total q_j     at those that it does
///
/// From c_i = d L / d log q_i follows d L / d z_j = c_j - C q_j with C = sum c_i, since
/// d log q_i / d z_j = [i = j] - q_j. Where the probabilities add up to 1, C is known exactly: -1
/// for the forward KL, 1 + L for the reverse one. So the gradient is exactly 0 where q = p.
struct DistilledPosition {
  double loss = 0, elsewhere = 0, total = 0;
  double student_mass = 0, teacher_mass = 0;  ///< The probabilities of the k tokens, added.
  bool flat = true;                           ///< Without a gradient.

  /// d loss / d z of a token that the teacher lists.
  GDPO_INLINE double at(const DistilledSlope& token) const {
    return flat ? 0.0 : math::fma(-total, token.q, token.c);
  }
};
GDPO_DEVICE inline DistilledPosition distilled_position(const DistillationLoss& loss,
                                                        const DistillPlan& plan,
                                                        DistilledSums sums) {
  DistilledPosition position;
  if (sums.tokens == 0) return position;
  position.student_mass = plan.adds_up() ? 1 : sums.student;
  position.teacher_mass = plan.adds_up() ? 1 : sums.teacher;
  double by_tail = 0;
  if (loss.rest == Rest::Tail && !plan.whole) {
    // At least 1 - e^-1e-7, as in TRL: log-probs that were rounded may add up to more than 1.
    constexpr double least = 9.9999995000000167e-8;
    const bool empty = !(1 - sums.student > least) && !math::is_nan(sums.student);
    const double p =
        1 - sums.teacher > least || math::is_nan(sums.teacher) ? 1 - sums.teacher : least;
    const double q = empty ? least : 1 - sums.student;
    const DistilledToken tail = distilled_token(loss.beta, p, q, std::log(p) - std::log(q));
    sums.loss += tail.loss;
    if (!empty) sums.slopes += tail.slope, by_tail = tail.slope / q;
  }
  if (plan.adds_up() && sums.held == 0) {
    if (loss.beta == 0) sums.slopes = -1;
    if (loss.beta == 1) sums.slopes = 1 + sums.loss;
  }
  const auto bounded = bound(loss.bounds, sums.loss);
  position.loss = bounded.value;
  if (bounded.outside) return position;
  position.flat = false, position.total = sums.slopes;
  if (!plan.adds_up()) position.elsewhere = by_tail - sums.slopes;
  return position;
}

/// The position of n tokens, in their order, and their slopes. `tokens` are normalized where the
/// plan says so.
inline DistilledPosition distill_position(const DistillationLoss& loss, const DistillPlan& plan,
                                          index_t n, ListedToken* tokens, DistilledSlope* slopes) {
  const auto normalize = [&](double ListedToken::*log) {
    LogSum sum;
    for (index_t i = 0; i < n; ++i) sum.raise(tokens[i].*log);
    for (index_t i = 0; i < n; ++i) sum.sum += std::exp(tokens[i].*log - sum.most);
    const double total = sum.log();
    for (index_t i = 0; i < n; ++i) tokens[i].*log = tokens[i].*log - total;
  };
  if (plan.normalizes_teacher) {
    for (index_t i = 0; i < n; ++i) tokens[i].log_p = tokens[i].log_p / loss.teacher_temperature;
    normalize(&ListedToken::log_p);
  }
  if (plan.normalizes_student) normalize(&ListedToken::log_q);
  DistilledSums sums;
  for (index_t i = 0; i < n; ++i) slopes[i] = add_listed(loss, tokens[i], sums);
  return distilled_position(loss, plan, sums);
}

}  // namespace detail
GDPO_END_NAMESPACE
