// expect: Constrained takes one GroupAdvantage
#include <gdpo/constraint.hpp>
#include <gdpo/loss.hpp>

gdpo::Constrained constrained{gdpo::grpo_loss, gdpo::placement::FixedScale{}, {}};
