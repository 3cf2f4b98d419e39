// expect: Renorm is renorm::None, Batch, PerGroup or TokenWeightedBatch
#include <gdpo/advantages.hpp>

struct PerToken {};
gdpo::GroupAdvantage<gdpo::baseline::Mean, gdpo::scale::StdDev, gdpo::combine::NormalizeThenSum,
                     PerToken>
    estimator;
