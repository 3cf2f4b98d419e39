// An estimator of one's own: a Baseline is any aggregate with `double operator()(const gdpo::BaselineArgs&) const`, or one
// that says once a group what it is (gdpo/advantage/stat.hpp has all declarations).
#include <algorithm>
#include <gdpo/gdpo.hpp>
#include <iostream>
#include <vector>

/// The q-quantile of the group's rewards (lower value at a fraction): robust where one completion is far off. It is one
/// number a group, for which the values must be ordered: per_group_values asks for it once, with memory to do so.
struct Quantile {
  static constexpr bool per_group_values = true;
  static constexpr bool from_group = true;  // a group of equal rewards gets exactly 0
  double q = 0.5;

  bool reads_batch() const { return false; }
  double operator()(const gdpo::GroupArgs& a) const {
    const gdpo::index_t n = a.values.extent[0];
    double* const x = a.scratch.data;
    std::copy_n(a.values.data, n, x);
    double* const wanted = x + static_cast<gdpo::index_t>(q * static_cast<double>(n - 1));
    std::nth_element(x, wanted, x + n);
    return *wanted;
  }
};

int main() {
  using Estimator = gdpo::GroupAdvantage<Quantile, gdpo::scale::StdDev,
                                         gdpo::combine::NormalizeThenSum, gdpo::renorm::Batch>;
  Estimator estimator;
  estimator.scale.eps = 1e-6;
  estimator.weights = {1.0, 0.5};
  estimator.gates = {
      {1, 0, 1.0}};  // reward 1 counts only where reward 0 is at least 1 (the paper's eq. 8)

  Eigen::ArrayXXd rewards(8, 2);
  rewards << 1, 0.9, 1, 0.2, 0, 0.8, 0, 0.1, /* group 2 */ 0, 0.5, 1, 0.5, 1, 0.7, 0, 0.7;
  const std::vector<int> prompt = {7, 7, 7, 7, 3, 3, 3, 3};

  gdpo::GroupReport report;
  const Eigen::ArrayXd advantages =
      gdpo::advantages(rewards, gdpo::by_id(prompt), estimator, &report);
  std::cout << "advantages " << advantages.transpose() << "\n"
            << report.groups << " groups, mean reward " << report.reward_mean << ", std "
            << report.reward_std << "\n";
}
