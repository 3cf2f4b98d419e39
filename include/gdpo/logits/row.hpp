#pragma once
// LogitRow: the sums of a row of logits, which merge over shards of the vocabulary.
#include <gdpo/math/scalar.hpp>

// The struct below is plain data, outside the inline namespace: it is sent between ranks.
namespace gdpo {

/// The sums over some entries of a row of logits from which log-prob and entropy follow; 32 bytes.
/// z is a logit divided by the temperature, and m a reference near the largest z, so that e^(z - m)
/// does not overflow. A default LogitRow stands for no entry.
struct LogitRow {
  static constexpr double no_entry = -std::numeric_limits<double>::infinity(),  ///< max if empty.
      no_target = std::numeric_limits<double>::quiet_NaN();  ///< target if not among the entries.
  double max = no_entry;      ///< The reference m: the largest z, or up to 4 below it.
  double sum = 0;             ///< sum e^(z - m).
  double weighted = 0;        ///< sum (z - m) e^(z - m), from which the entropy follows.
  double target = no_target;  ///< z of the target; NaN if the target is not among the entries.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// sum e^d and sum d e^d over entries of a row, where d = z - m for a common reference m. On
/// devices d is in units of ln 2, and the power is 2^d.
struct PowerSums {
  double sum = 0, weighted = 0;
  GDPO_INLINE void add(const PowerSums& o) { sum = sum + o.sum, weighted = weighted + o.weighted; }
};
/// The same sums with another reference, which turns every d into d + shift. power is e^shift, or
/// 2^shift on devices:
///     sum e^(d + shift) = power sum e^d
///     sum (d + shift) e^(d + shift) = power (sum d e^d + shift sum e^d)
GDPO_INLINE PowerSums rescaled(const PowerSums& sums, double shift, double power) {
  using math::mul;
  return {mul(power, sums.sum), mul(power, sums.weighted + mul(shift, sums.sum))};
}

}  // namespace detail

/// The row over the entries of both a and b, such as two shards of a vocabulary.
/// The last bits depend on the order of merging, so merge shards in the order of their ranks. A row
/// whose entries are all -inf counts as a row without entries. A NaN or +inf among the logits has
/// made `sum` NaN; the result keeps that.
GDPO_DEVICE inline LogitRow merge(const LogitRow& a, const LogitRow& b) {
  const bool a_first = !math::is_zero(a.sum) && !(a.max < b.max);
  LogitRow m = a_first ? a : b;
  const LogitRow& low = a_first ? b : a;
  if (!math::is_zero(low.sum)) {
    const double shift = low.max - m.max;
    const detail::PowerSums low_sums =
        detail::rescaled({low.sum, low.weighted}, shift, std::exp(shift));
    m.sum += low_sums.sum, m.weighted += low_sums.weighted;
  }
  if (math::is_nan(m.target)) m.target = low.target;
  return m;
}

/// log sum e^z, the logarithm of the softmax denominator, in nats.
/// -inf if there is no finite entry; NaN if a logit is NaN or +inf.
GDPO_DEVICE inline double logsumexp(const LogitRow& row) { return row.max + std::log(row.sum); }
/// Log-prob of the target in nats: z - logsumexp. -inf if its logit is -inf. NaN if all logits are
/// -inf (as log_softmax of PyTorch), or if the target is not among the entries.
GDPO_DEVICE inline double logp(const LogitRow& row) {
  return (row.target - row.max) - std::log(row.sum);
}
/// Entropy of the softmax, -sum p log p, in nats.
/// An entry of -inf adds 0. NaN if all are -inf. With d = z - m and s = sum e^d it is
/// log s - (sum d e^d) / s, because log p = d - log s.
GDPO_DEVICE inline double entropy(const LogitRow& row) {
  return std::log(row.sum) - row.weighted / row.sum;
}

GDPO_END_NAMESPACE
