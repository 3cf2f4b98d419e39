// expect: an executor needs, const where it is held by value: int concurrency() const
#include <gdpo/loss.hpp>

void use(const gdpo::TokenBatch<float>& batch, gdpo::LossWorkspace<float>& workspace) {
  gdpo::grpo_loss(gdpo::parallel(8), batch, gdpo::count(batch), {}, workspace);
}
