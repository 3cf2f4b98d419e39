#pragma once
// Interleaved timing. The time of a contender changes by tens of per cent with what else the
// machine does. So contenders take turns in every round, in a new random order, and only ratios of
// times of the same round are compared.
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "../timing.hpp"
#include "quiet.hpp"

namespace gates {

struct Contender {
  std::string name;
  std::function<void()> run;
  double work;       // elements that one run works on
  double bytes = 0;  // that it must move for an element, where that is known
};

struct RoundLimits {
  int wanted = 9;        // quiet rounds
  int most = 60;         // rounds, quiet or not; 20 for each 3 that are wanted
  double others = 0.1;   // cores that others may use in a quiet round
  double seconds = 0.6;  // that a round takes at least, because /proc/stat counts in hundredths
  bool fastest = false;  // the fastest call of a turn counts, and not the mean
};

struct Timings {
  // Seconds of one run: [contender][quiet round]. If too few rounds were quiet: [contender][round].
  std::vector<std::vector<double>> seconds;
  int quiet = 0, rounds = 0;
  double others = 0;  // cores that others used, the median of all rounds
};

/// Times the contenders in rounds, until enough rounds were quiet or there were too many rounds.
inline Timings measure(const std::vector<Contender>& contenders, const RoundLimits& limits,
                       std::mt19937& random) {
  Timings timings;
  std::vector<std::vector<double>> all(contenders.size()), quiet = all;
  std::vector<double> others;
  std::vector<std::size_t> order(contenders.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (; timings.quiet < limits.wanted && timings.rounds < limits.most; ++timings.rounds) {
    std::shuffle(order.begin(), order.end(), random);
    const Load before = Load::now();
    for (const std::size_t i : order) {
      const double turn = limits.seconds / static_cast<double>(contenders.size());
      all[i].push_back(limits.fastest ? fastest_of(contenders[i].run, turn)
                                      : time_of(contenders[i].run, turn));
    }
    others.push_back(cores_of_others(before, Load::now()));
    if (!(others.back() <= limits.others)) continue;
    ++timings.quiet;
    for (const std::size_t i : order) quiet[i].push_back(all[i].back());
  }
  timings.others = quantile(others, 0.5);
  timings.seconds = timings.quiet < limits.wanted ? all : quiet;
  return timings;
}

}  // namespace gates
