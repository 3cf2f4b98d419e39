// An estimator with a baseline of your own: GDPO that subtracts a quantile of the group's rewards
// instead of their mean. A baseline is a small struct with a call operator. The usual one takes
// gdpo::BaselineArgs and is called for each completion; this one declares per_group_values, so it
// is called once per group with all its values. gdpo/advantage/stat.hpp lists all such
// declarations. Read quickstart.cpp first.
//
// Build and run, from the root of the repository (Eigen may be in another folder on your system):
//   g++ -std=c++17 -I include -I /usr/include/eigen3 examples/custom_estimator.cpp -o estimator
//   ./estimator
#include <algorithm>
#include <gdpo/gdpo.hpp>
#include <iostream>
#include <vector>

/// Baseline: the q-quantile of the group's rewards, without interpolation (the lower neighbor
/// where it falls between two values). With q = 0.5, one completion that is far off does not move
/// it.
struct Quantile {
  // The operator takes GroupArgs: all values of the group, and as much scratch memory.
  static constexpr bool per_group_values = true;
  // The baseline comes from inside the group, so a group of equal rewards gets exactly 0.
  static constexpr bool from_group = true;
  double q = 0.5;

  // This baseline needs no statistics of the whole batch, so they are not computed for it.
  bool reads_batch() const { return false; }
  double operator()(const gdpo::GroupArgs& a) const {
    const gdpo::index_t n = a.values.extent[0];
    double* const x = a.scratch.data;
    std::copy_n(a.values.data, n, x);  // the values are read-only; order a copy
    double* const wanted = x + static_cast<gdpo::index_t>(q * static_cast<double>(n - 1));
    std::nth_element(x, wanted, x + n);
    return *wanted;
  }
};

int main() {
  // GDPO is normalization per reward, then a weighted sum, then normalization over the batch. Only
  // the baseline of the first step is replaced.
  gdpo::GroupAdvantage<Quantile, gdpo::scale::StdDev, gdpo::combine::NormalizeThenSum> estimator;
  estimator.scale.eps = 1e-6;
  estimator.weights = {1.0, 0.5};
  // Reward 1 counts only where reward 0 is at least 1 (the GDPO paper's eq. 8).
  estimator.gates = {{1, 0, 1.0}};

  Eigen::ArrayXXd rewards(8, 2);
  rewards << 1, 0.9, 1, 0.2, 0, 0.8, 0, 0.1,  // completions of prompt 7
      0, 0.5, 1, 0.5, 1, 0.7, 0, 0.7;         // completions of prompt 3
  // Groups by id: rows with the same number belong together, in any order.
  const std::vector<int> prompt = {7, 7, 7, 7, 3, 3, 3, 3};

  // The report, an optional last argument, receives counts and statistics of the rewards.
  gdpo::GroupReport report;
  const Eigen::ArrayXd advantages =
      gdpo::advantages(rewards, gdpo::by_id(prompt), estimator, &report);
  std::cout << "advantages " << advantages.transpose() << "\n"
            << report.groups << " groups, mean reward " << report.reward_mean << ", std "
            << report.reward_std << "\n";
}
