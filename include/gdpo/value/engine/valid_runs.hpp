#pragma once
// Runs of valid tokens in a mask, found eight bytes at a time.
#include <cstdint>
#include <cstring>
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The first place from t on, below `length`, whose byte is not 0; or `length`.
inline index_t next_valid(const unsigned char* mask, index_t t, index_t length) {
  for (std::uint64_t bytes; t + 8 <= length; t += 8) {
    std::memcpy(&bytes, mask + t, sizeof bytes);
    if (bytes != 0) break;
  }
  while (t < length && mask[t] == 0) ++t;
  return t;
}
/// Calls f(begin, end) for each run of valid tokens of a row from t on, until it returns false.
template <class F>
void for_each_run(const unsigned char* mask, index_t t, index_t length, const F& f) {
  if (!mask && t < length) return static_cast<void>(f(t, length));
  while (mask && (t = next_valid(mask, t, length)) < length) {
    const void* const zero = std::memchr(mask + t, 0, static_cast<std::size_t>(length - t));
    const index_t end = zero ? static_cast<const unsigned char*>(zero) - mask : length;
    if (!f(t, end)) return;
    t = end;
  }
}

/// A run of valid tokens, begin to end - 1.
struct ValidRun {
  index_t begin, end;
};
/// The last run of valid tokens below t; an empty one at 0 if there is none.
inline ValidRun last_run(const unsigned char* mask, index_t t) {
  constexpr std::uint64_t ones = 0x0101010101010101u;
  std::uint64_t bytes;
  for (; t >= 8; t -= 8) {
    std::memcpy(&bytes, mask + t - 8, sizeof bytes);
    if (bytes != 0) break;
  }
  while (t > 0 && mask[t - 1] == 0) --t;
  const index_t end = t;
  for (; t >= 8; t -= 8) {
    std::memcpy(&bytes, mask + t - 8, sizeof bytes);
    if (((bytes - ones) & ~bytes & (ones << 7)) != 0) break;  // some byte is 0
  }
  while (t > 0 && mask[t - 1] != 0) --t;
  return {t, end};
}

}  // namespace detail
GDPO_END_NAMESPACE
