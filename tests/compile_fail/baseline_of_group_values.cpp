// expect: a Baseline with per_group_values needs: double operator()(const gdpo::GroupArgs&) const
#include <gdpo/advantages.hpp>

struct Median {
  static constexpr bool per_group_values = true;
  double operator()(const gdpo::BaselineArgs& a) const { return a.values(0); }
};
gdpo::GroupAdvantage<Median> estimator;
