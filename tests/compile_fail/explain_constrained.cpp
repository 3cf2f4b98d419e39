// expect: explain takes a gdpo::GroupAdvantage
#include <gdpo/advantage/explain.hpp>
#include <gdpo/constraint.hpp>

auto use(const std::vector<double>& rewards) {
  return gdpo::explain(gdpo::view(rewards), gdpo::groups_of(4), gdpo::Constrained<gdpo::Gdpo>{}, 0);
}
