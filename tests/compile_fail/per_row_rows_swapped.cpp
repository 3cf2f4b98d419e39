// expect: the second argument of per_row is the number of rows
#include <gdpo/advantages.hpp>

auto use(const std::vector<double>& values) {
  return gdpo::per_row(gdpo::groups_of(8), values, 32);
}
