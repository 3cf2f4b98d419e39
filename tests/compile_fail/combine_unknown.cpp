// expect: Combine is combine::SumThenNormalize or combine::NormalizeThenSum
#include <gdpo/advantages.hpp>

struct Product {};
gdpo::GroupAdvantage<gdpo::baseline::Mean, gdpo::scale::StdDev, Product> estimator;
