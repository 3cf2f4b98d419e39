// expect: deleted
#include <gdpo/advantages.hpp>

auto dangling = gdpo::by_offsets(std::vector<int>{0, 2});
