// expect: advantages are written as float or double
#include <gdpo/constraint.hpp>

void use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch, gdpo::Workspace& workspace,
         std::vector<int>& out) {
  gdpo::advantages_into(gdpo::seq, batch, gdpo::Constrained<>{}, gdpo::view(out), workspace);
}
