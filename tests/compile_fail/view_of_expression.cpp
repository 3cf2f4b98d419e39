// expect: this Eigen expression is not in memory: evaluate it first (x.eval())
#include <gdpo/with/eigen.hpp>

auto use(const Eigen::ArrayXXd& x) { return gdpo::view(2 * x); }
