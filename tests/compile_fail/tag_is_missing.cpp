// expect: a gdpo::RewardBatch comes after gdpo::seq, gdpo::simd or gdpo::parallel(executor)
#include <gdpo/advantages.hpp>

auto use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch) {
  return gdpo::advantages(batch, gdpo::Gdpo{});
}
