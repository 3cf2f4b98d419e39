// How the programs of fast_math/ check and report. Values are compared by their bits: under
// -ffast-math a comparison of doubles proves nothing, and NaN cannot be made by a computation.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <gdpo/core/errors.hpp>
#include <vector>

namespace exact {

inline int failures = 0;

inline std::uint64_t bits(double x) {
  std::uint64_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}
inline double from_bits(std::uint64_t b) {
  double x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}
inline double nan() { return from_bits(0x7ff8000000000000u); }
inline double infinity() { return from_bits(0x7ff0000000000000u); }
inline bool is_nan(double x) { return (bits(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000u; }

/// Prints and counts a failure.
inline void expect(const char* what, bool ok) {
  if (ok) return;
  std::puts(what);
  ++failures;
}
/// Whether the call throws invalid_input.
template <class Call>
bool refused(const Call& call) {
  try {
    call();
  } catch (const gdpo::invalid_input&) {
    return true;
  }
  return false;
}
/// Expects the same bits.
inline void same(const char* what, const std::vector<double>& got,
                 const std::vector<double>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (got.size() == expected.size() && bits(got[i]) == bits(expected[i])) continue;
    std::printf("%s: [%zu] is not %a (%zu values)\n", what, i, expected[i], got.size());
    ++failures;
  }
}

}  // namespace exact
