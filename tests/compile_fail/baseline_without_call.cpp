// expect: a Baseline needs: double operator()(const gdpo::BaselineArgs&) const
#include <gdpo/advantages.hpp>

struct Nothing {};
gdpo::GroupAdvantage<Nothing> estimator;
