// expect: the first argument of per_row is groups_of, by_offsets or by_id
#include <gdpo/advantages.hpp>

auto use(const std::vector<double>& values) { return gdpo::per_row(8, 32, values); }
