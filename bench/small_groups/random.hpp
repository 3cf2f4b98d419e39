#pragma once

#include <cstdint>
#include <string>

namespace small_groups {

/// Random numbers that depend on a key alone, and are the same on every machine with IEEE doubles:
/// they are made of integers, +, -, *, / and sqrt, which every machine rounds alike. The standard
/// library's distributions and logarithms are not used, because their results may differ.
class Random {
 public:
  /// The numbers of one purpose: `parts` (a seed, the number of a batch, ...) tell streams apart.
  template <class... Parts>
  explicit Random(std::uint64_t seed, Parts... parts) : key_(mixed(seed)) {
    ((key_ = mixed(key_ + static_cast<std::uint64_t>(parts))), ...);
  }

  /// A uniform number in the open interval (0, 1).
  double uniform() { return (static_cast<double>(bits() >> 12U) + 0.5) * 0x1p-52; }
  /// A whole number from 0 to n - 1. n is at most 2^32; the bias is below n / 2^52.
  std::size_t below(std::size_t n) {
    return static_cast<std::size_t>(uniform() * static_cast<double>(n));
  }
  /// A number with mean 0 and variance 1 that is nearly normal: twelve uniform numbers less 6.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

  /// A number for a name, to be a part of a key (FNV-1a).
  static std::uint64_t number_of(const std::string& name) {
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    return hash;
  }

 private:
  std::uint64_t bits() { return mixed(key_ + count_++ * 0x9e3779b97f4a7c15U); }
  /// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
  static std::uint64_t mixed(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  }
  std::uint64_t key_, count_ = 0;
};

}  // namespace small_groups
