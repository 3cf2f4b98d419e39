// expect: who belongs together is said by gdpo::groups_of(8), gdpo::by_offsets(offsets) or gdpo::by_id(ids)
#include <gdpo/with/eigen.hpp>

auto use(const Eigen::ArrayXXd& rewards) { return gdpo::advantages(rewards, 4); }
