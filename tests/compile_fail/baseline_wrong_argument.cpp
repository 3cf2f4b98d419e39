// expect: a Baseline needs: double operator()(const gdpo::BaselineArgs&) const
#include <gdpo/advantages.hpp>

struct OfDouble {
  double operator()(const double* x) const { return *x; }
};
gdpo::GroupAdvantage<OfDouble> estimator;
