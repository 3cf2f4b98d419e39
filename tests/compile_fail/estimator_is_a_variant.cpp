// expect: an estimator is a gdpo::GroupAdvantage (gdpo::Gdpo{}, a preset) or a gdpo::Constrained
#include <gdpo/advantages.hpp>
#include <gdpo/runtime.hpp>

auto use(const std::vector<double>& rewards) {
  return gdpo::advantages(gdpo::view(rewards), gdpo::groups_of(4),
                          gdpo::runtime::estimator("gdpo"));
}
