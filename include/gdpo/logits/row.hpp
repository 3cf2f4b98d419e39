#pragma once
#include <gdpo/math/scalar.hpp>

namespace gdpo {  // plain data: it crosses ranks

/// What is known of the softmax of a row of logits after some of its entries: all that log-prob and entropy need, in 32 bytes.
/// z is a logit over the temperature. The default is no entry.
struct LogitRow {
  static constexpr double no_entry = -std::numeric_limits<double>::infinity(),
                          no_target = std::numeric_limits<double>::quiet_NaN();
  double max = no_entry;      ///< a reference m: the largest z, or one at most 4 below it
  double sum = 0;             ///< sum e^(z - m)
  double weighted = 0;        ///< sum (z - m) e^(z - m)
  double target = no_target;  ///< z of the target; NaN: not among the entries
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// sum e^d and sum d e^d over entries of a row, where d is what an entry exceeds a common reference by. Devices take powers of 2.
struct PowerSums {
  double sum = 0, weighted = 0;
  GDPO_INLINE void add(const PowerSums& o) { sum = sum + o.sum, weighted = weighted + o.weighted; }
};
/// The same sums by another reference, where every d becomes d + shift. power: e^shift, or 2^shift.
GDPO_INLINE PowerSums rescaled(const PowerSums& sums, double shift, double power) {
  using math::mul;
  return {mul(power, sums.sum), mul(power, sums.weighted + mul(shift, sums.sum))};
}

}  // namespace detail

/// The row over the entries of both: two shards of a vocabulary. Entries of -inf alone are no entries. A NaN or +inf among the
/// logits makes `sum` NaN, and stays. Not associative in the last bits: merge shards in the order of their ranks.
GDPO_DEVICE inline LogitRow merge(const LogitRow& a, const LogitRow& b) {
  const bool a_first = !math::is_zero(a.sum) && !(a.max < b.max);
  LogitRow m = a_first ? a : b;
  const LogitRow& low = a_first ? b : a;
  if (!math::is_zero(low.sum)) {
    const double shift = low.max - m.max;
    const detail::PowerSums added =
        detail::rescaled({low.sum, low.weighted}, shift, std::exp(shift));
    m.sum += added.sum, m.weighted += added.weighted;
  }
  if (math::is_nan(m.target)) m.target = low.target;
  return m;
}

/// log sum e^z. -inf where there is no finite entry; NaN where a logit is NaN or +inf.
GDPO_DEVICE inline double logsumexp(const LogitRow& row) { return row.max + std::log(row.sum); }
/// Log-probability of the target: z - logsumexp. -inf for a logit of -inf; NaN where all are -inf, as log_softmax of torch, or
/// where the target is not among the entries.
GDPO_DEVICE inline double logp(const LogitRow& row) {
  return (row.target - row.max) - std::log(row.sum);
}
/// -sum p log p, nats; an entry of -inf adds 0, as 0 log 0. NaN where all are -inf.
GDPO_DEVICE inline double entropy(const LogitRow& row) {
  return std::log(row.sum) - row.weighted / row.sum;
}

GDPO_END_NAMESPACE
