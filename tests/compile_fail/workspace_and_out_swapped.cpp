// expect: the fifth argument of advantages_into is a gdpo::Workspace
#include <gdpo/advantages.hpp>

void use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch, gdpo::Workspace& workspace,
         std::vector<double>& out) {
  gdpo::advantages_into(gdpo::simd, batch, gdpo::Gdpo{}, workspace, gdpo::view(out));
}
