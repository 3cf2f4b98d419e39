// expect: a gdpo::RewardBatch comes after an execution tag
#include <gdpo/advantages.hpp>

auto use(const std::vector<double>& rewards) {
  return gdpo::advantages(gdpo::simd, gdpo::view(rewards), gdpo::groups_of(4));
}
