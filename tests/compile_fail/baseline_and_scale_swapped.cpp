// expect: from_group and zero_sum are declarations of a Baseline, which comes before the Scale
#include <gdpo/advantages.hpp>

gdpo::GroupAdvantage<gdpo::scale::StdDev, gdpo::baseline::Mean> estimator;
