// expect: the gradient is written
#include <gdpo/loss.hpp>

void use(const gdpo::TokenBatch<float>& batch, const float* gradient) {
  gdpo::grpo_loss(batch, gdpo::count(batch), gdpo::view(gradient, 2, 3));
}
