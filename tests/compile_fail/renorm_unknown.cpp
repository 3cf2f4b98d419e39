// expect: a Renorm needs: RenormOver over
#include <gdpo/advantages.hpp>

struct PerToken {};
gdpo::GroupAdvantage<gdpo::baseline::Mean, gdpo::scale::StdDev, gdpo::combine::NormalizeThenSum,
                     PerToken>
    estimator;
