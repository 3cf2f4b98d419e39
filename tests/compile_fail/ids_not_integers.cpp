// expect: group ids are integers
#include <gdpo/advantages.hpp>

const std::vector<double> ids{1, 2};
const auto groups = gdpo::by_id(ids);
