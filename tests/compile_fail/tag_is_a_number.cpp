// expect: the first argument is gdpo::seq, gdpo::simd or gdpo::parallel(executor)
#include <gdpo/advantages.hpp>

void use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch, gdpo::Workspace& workspace,
         std::vector<double>& out) {
  gdpo::advantages_into(42, batch, gdpo::Gdpo{}, gdpo::view(out), workspace);
}
