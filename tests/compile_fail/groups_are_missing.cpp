// expect: who belongs together comes after the rewards
#include <gdpo/advantages.hpp>

auto use(const std::vector<double>& rewards) { return gdpo::advantages(gdpo::view(rewards)); }
