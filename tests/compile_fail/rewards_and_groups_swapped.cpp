// expect: rewards come first: gdpo::view(rewards, rows, columns), an array of Eigen or a tensor
#include <gdpo/advantages.hpp>

auto use(const std::vector<double>& rewards) {
  return gdpo::advantages(gdpo::groups_of(4), gdpo::view(rewards));
}
