#pragma once

#include <cmath>
#include <cstdint>

namespace constrained {

/// Random numbers that depend only on seed, stream and step. A run that continues from a checkpoint
/// therefore draws what it would have drawn without the interruption. Normal numbers are made here,
/// because std::normal_distribution may differ between standard libraries.
class Random {
 public:
  /// What the numbers are for; streams of one seed are independent.
  enum class Stream : std::uint64_t { Bandit, Baseline, Rollouts };

  Random(std::uint64_t seed, Stream stream, std::uint64_t step = 0)
      : key_(mixed(mixed(mixed(seed) + static_cast<std::uint64_t>(stream)) + step)) {}

  /// A uniform number in the open interval (0, 1).
  double uniform() { return (static_cast<double>(mixed(key_ + count_++) >> 11U) + 0.5) * 0x1p-53; }
  /// A standard normal number, by Box and Muller's method.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  /// One step of SplitMix64 with its finalizer (Steele, Lea, Flood 2014).
  static std::uint64_t mixed(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  }
  std::uint64_t key_, count_ = 0;
};

}  // namespace constrained
