// expect: advantages are written as float or double
#include <gdpo/advantages.hpp>

void use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch, gdpo::Workspace& workspace,
         std::vector<int>& out) {
  gdpo::advantages_into(gdpo::seq, batch, gdpo::Gdpo{}, gdpo::view(out), workspace);
}
