// expect: Constrained takes one GroupAdvantage
#include <gdpo/constraint.hpp>
#include <gdpo/loss.hpp>

gdpo::Constrained constrained{gdpo::GrpoLoss{}, gdpo::placement::FixedScale{}, {}};
