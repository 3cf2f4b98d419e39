// Seeded random inputs. A generator depends on its Random alone, and tests print the seed with
// INFO, so that a failure can be run again.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <random>
#include <reference/naive.hpp>
#include <set>
#include <vector>

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  /// An integer in 0 .. n - 1. It does not use std::uniform_int_distribution, which differs between
  /// standard libraries.
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
  bool chance(double p) { return uniform() < p; }
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  std::uint64_t bits() { return engine_(); }
  template <class T>
  T pick(std::initializer_list<T> options) {
    return options.begin()[below(static_cast<int>(options.size()))];
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[static_cast<std::size_t>(below(static_cast<int>(i)))]);
  }

 private:
  std::mt19937_64 engine_;
};

/// A random reward of one kind: binary, in steps of 0.25, in [0, 1), or in [-2, 2).
inline double random_reward(Random& random, int kind) {
  switch (kind) {
    case 0:
      return random.below(2);
    case 1:
      return 0.25 * random.below(5);
    case 2:
      return random.uniform();
    default:
      return 4 * random.uniform() - 2;
  }
}

/// The group sizes of the laws about sizes: all up to 64, then powers of two with their neighbors
/// and some others up to 1024.
inline std::vector<int> group_sizes() {
  std::vector<int> sizes;
  for (int size = 1; size <= 64; ++size) sizes.push_back(size);
  for (const int size : {100, 127, 128, 255, 256, 333, 512, 777, 1000, 1023, 1024})
    sizes.push_back(size);
  return sizes;
}

/// n different ids in random order, some negative and some beyond 32 bits.
inline std::vector<long long> random_ids(Random& random, int n) {
  std::set<long long> seen;
  std::vector<long long> ids;
  while (static_cast<int>(ids.size()) < n) {
    const auto id = static_cast<long long>(random.bits() >> random.pick({16, 40, 56})) - 100;
    if (seen.insert(id).second) ids.push_back(id);
  }
  return ids;
}

/// Groups of 1 to `largest` rows whose members are scattered over the batch. Rewards are binary,
/// stepped or continuous; some groups are constant; `missing` is the share of entries that are NaN.
inline naive::Data random_batch(Random& random, int groups, int largest, int reward_count,
                                double missing) {
  naive::Data d;
  d.reward_count = reward_count;
  for (const long long id : random_ids(random, groups)) {
    const int members = 1 + random.below(largest);
    d.ids.insert(d.ids.end(), static_cast<std::size_t>(members), id);
  }
  random.shuffle(d.ids);
  d.rows = static_cast<int>(d.ids.size());
  d.rewards.resize(static_cast<std::size_t>(d.rows * reward_count));
  for (const auto& group : d.groups()) {
    for (int c = 0; c < reward_count; ++c) {
      const int kind = random.below(4);
      const bool constant = random.chance(0.25);
      const double common = random.pick({0.0, 0.1, 1.0, -0.7, 3.3});
      for (const int i : group.second) {
        double& x = d.rewards[static_cast<std::size_t>(i * reward_count + c)];
        x = constant ? common : random_reward(random, kind);
        if (random.chance(missing)) x = std::nan("");
      }
    }
  }
  return d;
}

/// Adds token counts, a mask of valid rows, penalties, and external baselines.
inline void add_columns(Random& random, naive::Data& d) {
  for (int i = 0; i < d.rows; ++i) {
    d.tokens.push_back(random.below(40));
    d.valid.push_back(random.chance(0.85));
    d.penalty.push_back(0.125 * random.below(9));
    d.external.push_back(0.25 * (i % 5) - 0.3);
  }
}
