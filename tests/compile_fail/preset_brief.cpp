// expect: use gdpo::per_group::gdpo
#include <gdpo/presets/brief.hpp>

#pragma GCC diagnostic error "-Wdeprecated-declarations"
constexpr auto estimator = gdpo::brief::gdpo;
