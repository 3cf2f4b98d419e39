// expect: a Scale needs: double operator()(const gdpo::ScaleArgs&) const
#include <gdpo/advantages.hpp>

struct Silent {
  void operator()(const gdpo::ScaleArgs&) const {}
};
gdpo::GroupAdvantage<gdpo::baseline::Mean, Silent> estimator;
