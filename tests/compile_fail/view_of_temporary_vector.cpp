// expect: deleted
#include <gdpo/advantages.hpp>

auto dangling = gdpo::view(std::vector<double>{1, 2});
