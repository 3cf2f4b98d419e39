#pragma once
#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

/// The q-quantile, 0 <= q <= 1, interpolated linearly between two values; NaN if there is no value.
inline double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at), above = (std::min)(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

/// Seconds of the fastest call of f among those of `least` seconds, after one that does not count.
template <class F>
double fastest_of(const F& f, double least) {
  using Clock = std::chrono::steady_clock;
  f();
  const auto start = Clock::now();
  double fastest = std::numeric_limits<double>::infinity();
  for (auto begin = start; std::chrono::duration<double>(begin - start).count() < least;) {
    f();
    const auto end = Clock::now();
    fastest = (std::min)(fastest, std::chrono::duration<double>(end - begin).count());
    begin = end;
  }
  return fastest;
}

/// Seconds per call of f: calls it until `least` seconds have passed, after one call that is not
/// timed.
template <class F>
double time_of(const F& f, double least) {
  using Clock = std::chrono::steady_clock;
  f();
  const auto start = Clock::now();
  for (long calls = 1;; ++calls) {
    f();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds >= least) return seconds / static_cast<double>(calls);
  }
}
