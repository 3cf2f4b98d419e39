// expect: `out` is a view of rank 1: gdpo::view(advantages)
#include <gdpo/advantages.hpp>

void use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch, gdpo::Workspace& workspace,
         std::vector<double>& out) {
  gdpo::advantages_into(gdpo::simd, batch, gdpo::Gdpo{}, out, workspace);
}
