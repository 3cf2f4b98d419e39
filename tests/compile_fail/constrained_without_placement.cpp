// expect: a placement is placement::FixedScale or one of its neighbors
#include <gdpo/constraint.hpp>

struct Nowhere {};

void use(const gdpo::RewardBatch<double, gdpo::GroupsOf>& batch, gdpo::Workspace& workspace,
         std::vector<double>& out) {
  gdpo::advantages_into(gdpo::simd, batch, gdpo::Constrained<gdpo::Gdpo, Nowhere>{},
                        gdpo::view(out), workspace);
}
