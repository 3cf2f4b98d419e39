// expect: use gdpo::textbook::grpo_numpy
#include <gdpo/presets/tutorial.hpp>

#pragma GCC diagnostic error "-Wdeprecated-declarations"
constexpr auto estimator = gdpo::tutorial::grpo_numpy;
