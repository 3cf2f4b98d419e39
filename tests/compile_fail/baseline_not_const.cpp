// expect: a Baseline needs: double operator()(const gdpo::BaselineArgs&) const
#include <gdpo/advantages.hpp>

struct Counting {
  int calls = 0;
  double operator()(const gdpo::BaselineArgs&) { return ++calls; }
};
gdpo::GroupAdvantage<Counting> estimator;
