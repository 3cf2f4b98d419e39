// expect: Constrained takes the estimator first, then its placement
#include <gdpo/constraint.hpp>

gdpo::Constrained constrained{gdpo::placement::FixedScale{}, gdpo::Gdpo{}, {}};
