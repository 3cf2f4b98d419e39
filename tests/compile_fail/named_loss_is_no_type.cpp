// expect: GspoLoss
// gspo_loss is a value only. A type GspoLoss with braces would have the clip range of
// surrogate::Ratio, not GSPO's (loss/named.hpp).
#include <gdpo/loss.hpp>
gdpo::GspoLoss loss;
