// expect: all_merge takes Normalizer, Moments, CombinedMoments, LossMetrics, LossResult
#include <gdpo/dist.hpp>
#include <string>

void f() { gdpo::dist::all_merge(gdpo::dist::Single{}, std::string("loss")); }
