// expect: a loss is a gdpo::PolicyLoss
#include <gdpo/advantages.hpp>
#include <gdpo/loss.hpp>

auto use() { return gdpo::with_kl<gdpo::kl::None>(gdpo::Gdpo{}); }
