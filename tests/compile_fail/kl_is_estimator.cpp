// expect: a KL term needs: beta, against
#include <gdpo/loss.hpp>

auto use() { return gdpo::with_kl(gdpo::grpo_loss, gdpo::kl::K3{}); }
