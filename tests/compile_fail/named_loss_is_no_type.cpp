// expect: GspoLoss
// Braces would give a type of that name the clip range of surrogate::Ratio, not GSPO's (loss/named.hpp).
#include <gdpo/loss.hpp>
gdpo::GspoLoss loss;
