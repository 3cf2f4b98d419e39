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

/// The row over the entries of both: two shards of a vocabulary. Entries of -inf alone are no entries. A NaN or +inf among the
/// logits makes `sum` NaN, and stays. Not associative in the last bits: merge shards in the order of their ranks.
GDPO_DEVICE inline LogitRow merge(const LogitRow& a, const LogitRow& b) {
  const bool a_first = !math::is_zero(a.sum) && !(a.max < b.max);
  LogitRow m = a_first ? a : b;
  const LogitRow& low = a_first ? b : a;
  if (!math::is_zero(low.sum)) {
    const double down = low.max - m.max, f = std::exp(down);
    m.sum += math::mul(f, low.sum);
    m.weighted += math::mul(f, low.weighted + math::mul(down, low.sum));
  }
  if (math::is_nan(m.target)) m.target = low.target;
  return m;
}

/// log sum e^z. -inf where there is no finite entry; NaN where a logit is NaN or +inf.
GDPO_DEVICE inline double logsumexp(const LogitRow& row) { return row.max + std::log(row.sum); }
/// Log-probability of the target: z - logsumexp. -inf for a logit of -inf; NaN where all are -inf, as log_softmax of torch, or
/// where the target is not among the entries.
GDPO_DEVICE inline double logp(const LogitRow& row) { return (row.target - row.max) - std::log(row.sum); }
/// -sum p log p, nats; an entry of -inf adds 0, as 0 log 0. NaN where all are -inf.
GDPO_DEVICE inline double entropy(const LogitRow& row) { return std::log(row.sum) - row.weighted / row.sum; }

GDPO_END_NAMESPACE
