// expect: deleted
#include <gdpo/with/eigen.hpp>

void use() { gdpo::view(Eigen::ArrayXXd(2, 2)); }
