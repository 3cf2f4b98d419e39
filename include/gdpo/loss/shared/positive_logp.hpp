#pragma once
// Whether the log-probs of a row are log-probs at all. One token of each row tells, and costs next
// to nothing.
#include <cstring>
#include <gdpo/tokens/token_row.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// A log-prob is at most 0. Where it is a difference of two numbers of 16 bits, such as a logit and
/// a logsumexp of up to 64 nats, rounding raises it by up to this.
constexpr double most_logp = 0.25;

/// The first valid token of a row; its length if it has none.
inline index_t first_valid(const unsigned char* mask, index_t length) {
  if (!mask) return 0;
  index_t t = 0;
  for (std::uint64_t eight = 0; t + 8 <= length; t += 8) {
    std::memcpy(&eight, mask + t, 8);
    if (eight != 0) break;
  }
  while (t < length && mask[t] == 0) ++t;
  return t;
}

/// LossMetrics::positive_logp of a row: 1 if a log-prob of its first valid token, in any of the
/// arrays that the loss reads, is above most_logp, else 0. NaN for a row without valid tokens.
template <class S>
double positive_logp(const TokenRow<S>& row, index_t tokens) {
  if (tokens == 0) return math::nan();
  const index_t t = first_valid(row.mask, row.length);
  bool positive = false;
#define GDPO_X(in_batch, in_row, ...) \
  positive = positive || (row.in_row && static_cast<double>(row.in_row[t]) > most_logp);
  GDPO_LOGPS(GDPO_X)
#undef GDPO_X
  return positive ? 1.0 : 0.0;
}

}  // namespace detail
GDPO_END_NAMESPACE
