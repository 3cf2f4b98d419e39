// expect: the first argument is gdpo::seq, gdpo::simd or gdpo::parallel(executor)
#include <gdpo/constraint.hpp>

void use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch, gdpo::Workspace& workspace,
         std::vector<double>& out) {
  gdpo::advantages_into(42, batch, gdpo::Constrained<>{}, gdpo::view(out), workspace);
}
