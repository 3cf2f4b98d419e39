// expect: the first argument is gdpo::seq, gdpo::simd or gdpo::parallel(executor)
#include <gdpo/loss.hpp>

void use(const gdpo::TokenBatch<float>& batch, gdpo::LossWorkspace<float>& workspace) {
  gdpo::grpo_loss(42, batch, gdpo::count(batch), {}, workspace);
}
