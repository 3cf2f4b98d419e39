// The tolerances that tests share, each with its derivation, and comparison by bits.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gdpo/core/view.hpp>
#include <string>
#include <vector>

namespace tolerance {

constexpr double unit = 0x1p-53;  ///< half a unit in the last place of 1: one rounding

/// For an advantage of order 1 from rewards of order 1, compared with a number worked out by hand
/// or in long double: a few dozen roundings, each at most 2^-53 times a value of at most 8.
constexpr double formula = 256 * unit;

/// For a comparison with naive::advantages; multiply by the oracle's `sensitivity`. It covers the
/// longest chain of operations (mean, two passes of the variance, root, quotient, sum over rewards,
/// and the same again in the renormalization) over groups of at most 8 rows and batches of at most
/// 64 rows.
constexpr double chain = 64 * unit;

/// For merged Moments compared with the Moments of the whole: what the library promises.
constexpr double merge = 0x1p-44;

/// For rewards shifted by `shift`, with advantages of order 1 from rewards of this std. A stored
/// reward is rounded by up to shift 2^-53, which is shift 2^-53 / std in the advantage; the mean is
/// rounded likewise.
inline double offset(double shift, double std) { return 8 * unit * shift / std + formula; }

/// For float results: the double result is rounded once.
constexpr double to_float = 0x1p-24;

}  // namespace tolerance

inline std::uint64_t bits_of(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline bool same_bits(double a, double b) { return bits_of(a) == bits_of(b); }

/// "" where two arrays of float or double have the same bits, else the first place where they
/// differ. Use: CHECK(difference(a, b) == "").
template <class A, class B>
std::string difference(const A& a, const B& b) {
  const auto size = static_cast<gdpo::index_t>(a.size());
  if (size != static_cast<gdpo::index_t>(b.size()))
    return std::to_string(a.size()) + " and " + std::to_string(b.size()) + " entries";
  const auto element = [](const auto& x, gdpo::index_t i) {
    return static_cast<double>(x.data()[i]);
  };
  for (gdpo::index_t i = 0; i < size; ++i) {
    if (same_bits(element(a, i), element(b, i))) continue;
    char text[96];
    std::snprintf(text, sizeof text, "[%td]: %.17g and %.17g", i, element(a, i), element(b, i));
    return text;
  }
  return "";
}

/// "" where |got - expected| <= tolerance everywhere, NaN being equal to NaN; else the first place
/// where that fails.
template <class A, class B>
std::string deviation(const A& got, const B& expected, double tolerance) {
  if (static_cast<std::size_t>(got.size()) != static_cast<std::size_t>(expected.size()))
    return "sizes differ";
  for (std::size_t i = 0; i < static_cast<std::size_t>(got.size()); ++i) {
    const auto g = static_cast<long double>(got.data()[i]),
               e = static_cast<long double>(expected.data()[i]);
    if (std::isnan(g) && std::isnan(e)) continue;
    if (std::fabs(g - e) <= static_cast<long double>(tolerance)) continue;
    char text[128];
    std::snprintf(text, sizeof text, "[%zu]: %.17Lg, expected %.17Lg within %g", i, g, e,
                  tolerance);
    return text;
  }
  return "";
}

template <class A>
bool all_zero(const A& values) {
  for (gdpo::index_t i = 0; i < static_cast<gdpo::index_t>(values.size()); ++i) {
    if (static_cast<double>(values.data()[i]) != 0) return false;
  }
  return true;
}
