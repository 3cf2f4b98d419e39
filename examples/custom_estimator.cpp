// An estimator of one's own: a Baseline is any aggregate with `double operator()(const gdpo::BaselineArgs&) const`.
#include <algorithm>
#include <gdpo/gdpo.hpp>
#include <iostream>
#include <vector>

/// The q-quantile of the group's rewards (lower value at a fraction): robust where one completion is far off.
struct Quantile {
  static constexpr bool from_group = true;  // a group of equal rewards gets exactly 0
  double q = 0.5;

  double operator()(const gdpo::BaselineArgs& a) const {
    std::vector<double> sorted(a.values.data, a.values.data + a.values.extent[0]);
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
  }
};

int main() {
  using Estimator =
      gdpo::GroupAdvantage<Quantile, gdpo::scale::StdDev, gdpo::combine::NormalizeThenSum, gdpo::renorm::Batch>;
  Estimator estimator;
  estimator.scale.eps = 1e-6;
  estimator.weights = {1.0, 0.5};
  estimator.gates = {{1, 0, 1.0}};  // reward 1 counts only where reward 0 is at least 1 (the paper's eq. 8)

  Eigen::ArrayXXd rewards(8, 2);
  rewards << 1, 0.9, 1, 0.2, 0, 0.8, 0, 0.1, /* group 2 */ 0, 0.5, 1, 0.5, 1, 0.7, 0, 0.7;
  const std::vector<int> prompt = {7, 7, 7, 7, 3, 3, 3, 3};

  gdpo::GroupReport report;
  const Eigen::ArrayXd advantages = gdpo::advantages(rewards, gdpo::by_id(prompt), estimator, &report);
  std::cout << "advantages " << advantages.transpose() << "\n"
            << report.groups << " groups, mean reward " << report.reward_mean << ", std " << report.reward_std << "\n";
}
