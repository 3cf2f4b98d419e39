// expect: a Scale with per_group_values needs: double operator()(const gdpo::GroupArgs&) const
#include <gdpo/advantages.hpp>

struct Spread {
  static constexpr bool per_group_values = true;
  double operator()(const gdpo::ScaleArgs& a) const { return a.values(0); }
};
gdpo::GroupAdvantage<gdpo::baseline::Mean, Spread> estimator;
