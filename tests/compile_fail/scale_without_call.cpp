// expect: a Scale needs: double operator()(const gdpo::ScaleArgs&) const
#include <gdpo/advantages.hpp>

struct Nothing {};
gdpo::GroupAdvantage<gdpo::baseline::Mean, Nothing> estimator;
