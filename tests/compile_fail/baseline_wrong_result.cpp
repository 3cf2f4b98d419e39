// expect: a Baseline needs: double operator()(const gdpo::BaselineArgs&) const
#include <gdpo/advantages.hpp>

struct Text {
  std::string operator()(const gdpo::BaselineArgs&) const { return "0"; }
};
gdpo::GroupAdvantage<Text> estimator;
