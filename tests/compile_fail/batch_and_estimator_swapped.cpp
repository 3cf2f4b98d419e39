// expect: the second argument of advantages_into is a gdpo::RewardBatch
#include <gdpo/advantages.hpp>

void use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch, gdpo::Workspace& workspace,
         std::vector<double>& out) {
  gdpo::advantages_into(gdpo::simd, gdpo::Gdpo{}, batch, gdpo::view(out), workspace);
}
