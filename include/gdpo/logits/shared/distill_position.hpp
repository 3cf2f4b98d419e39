#pragma once
// The divergence of one position between a teacher and the policy, and its gradient.
#include <cmath>
#include <gdpo/logits/distillation_loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The divergence of one position, before any weight. With z the logits over the temperature,
///
///     d loss / d z_j = elsewhere q_j                 at tokens that the teacher does not list
///     d loss / d z_j = what `left` was replaced by   at those that it does
struct DistilledPosition {
  double loss = 0, elsewhere = 0;
  double student_mass = 1, teacher_mass = 1;  ///< The probabilities of the k tokens, added.
};

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

/// Subtracts log sum e^a from n numbers a. -infinity alone stays.
GDPO_DEVICE inline void normalize_logs(double* a, index_t n) {
  double most = -math::infinity, sum = 0;
  for (index_t i = 0; i < n; ++i) most = a[i] > most || math::is_nan(a[i]) ? a[i] : most;
  if (math::is_inf(most) && most < 0) return;
  for (index_t i = 0; i < n; ++i) sum += std::exp(a[i] - most);
  const double log = most + std::log(sum);
  for (index_t i = 0; i < n; ++i) a[i] = a[i] - log;
}

/// The divergence of a position whose n tokens have the log-probs `left` of the teacher and `right`
/// of the policy, in nats; with Rest::Renormalize `right` may be short of a constant. `whole`: the n
/// tokens are all that there are. Leaves the derivatives by z of these tokens in `left`; `right` is
/// overwritten.
///
/// From c_i = d L / d log q_i and C = sum c_i follows d L / d z_j = c_j - C q_j, since
/// d log q_i / d z_j = [i = j] - q_j. Where the probabilities add up to 1, C is known exactly: -1 for
/// the forward KL, 1 + L for the reverse one. So the gradient is exactly 0 where q = p.
GDPO_DEVICE inline DistilledPosition distill_position(const DistillationLoss& loss, index_t n,
                                                      bool whole, double* left, double* right) {
  using math::fma, math::mul;
  DistilledPosition position;
  if (n == 0) {
    position.student_mass = position.teacher_mass = 0;
    return position;
  }
  const bool renormalizes = loss.rest == Rest::Renormalize;
  if (renormalizes && (!whole || loss.teacher_temperature != 1)) {
    if (loss.teacher_temperature != 1) {
      for (index_t i = 0; i < n; ++i) left[i] = left[i] / loss.teacher_temperature;
    }
    normalize_logs(left, n);
  }
  if (renormalizes && !whole) normalize_logs(right, n);

  double total = 0, slopes = 0, student = 0, teacher = 0;
  bool held = false;
  for (index_t i = 0; i < n; ++i) {
    const double q_of_policy = std::exp(right[i]);
    student += q_of_policy, teacher += std::exp(left[i]);
    const bool low = right[i] < loss.min_logp;
    const double log_q = low ? loss.min_logp : right[i],
                 log_p = left[i] < loss.min_logp ? loss.min_logp : left[i];
    const DistilledToken token =
        distilled_token(loss.beta, std::exp(log_p), std::exp(log_q), log_p - log_q);
    total += token.loss;
    held = held || low || left[i] < loss.min_logp;
    left[i] = low ? 0.0 : token.slope;
    slopes += left[i];
    right[i] = q_of_policy;
  }
  const bool adds_up = whole || renormalizes;
  if (!adds_up) position.student_mass = student, position.teacher_mass = teacher;
  double by_tail = 0;
  if (loss.rest == Rest::Tail && !whole) {
    // At least 1 - e^-1e-7, as in TRL: log-probs that were rounded may add up to more than 1.
    constexpr double least = 9.9999995000000167e-8;
    const bool empty = !(1 - student > least) && !math::is_nan(student);
    const double p = 1 - teacher > least || math::is_nan(teacher) ? 1 - teacher : least,
                 q = empty ? least : 1 - student;
    const DistilledToken tail = distilled_token(loss.beta, p, q, std::log(p) - std::log(q));
    total += tail.loss;
    if (!empty) slopes += tail.slope, by_tail = tail.slope / q;
  }
  if (adds_up && !held) {
    if (loss.beta == 0) slopes = -1;
    if (loss.beta == 1) slopes = 1 + total;
  }
  const auto bounded = bound(loss.bounds, total);
  position.loss = bounded.value;
  if (bounded.outside) {
    for (index_t i = 0; i < n; ++i) left[i] = 0;
    return position;
  }
  for (index_t i = 0; i < n; ++i) left[i] = fma(-slopes, right[i], left[i]);
  if (!adds_up) position.elsewhere = by_tail - slopes;
  return position;
}

}  // namespace detail
GDPO_END_NAMESPACE
