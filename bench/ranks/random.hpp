#pragma once
#include <cstdint>
#include <random>
#include <vector>

/// Random numbers that are the same everywhere, which those of std's distributions are not.
struct UnitRandom {
  std::mt19937_64 bits;
  explicit UnitRandom(std::uint64_t seed) : bits(seed) {}
  /// From 0 to 1.
  double operator()() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// A permutation of 0 to n - 1.
  std::vector<std::size_t> permutation(std::size_t n) {
    std::vector<std::size_t> p(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t j = bits() % (i + 1);
      p[i] = p[j], p[j] = i;
    }
    return p;
  }
};
