// expect: who belongs together is said by gdpo::groups_of(8), gdpo::by_offsets(offsets) or gdpo::by_id(ids)
#include <gdpo/advantages.hpp>

auto use(const std::vector<double>& rewards) { return gdpo::advantages(gdpo::view(rewards), 4); }
