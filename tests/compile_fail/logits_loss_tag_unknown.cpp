// expect: the first argument is gdpo::seq, gdpo::simd or gdpo::parallel(executor)
#include <gdpo/logits.hpp>

void use(const gdpo::LogitBatch<float, 2>& logits, const gdpo::TokenBatch<float>& batch,
         gdpo::View<float, 2> dlogits, gdpo::LogitsWorkspace& workspace) {
  gdpo::policy_loss_from_logits(42, gdpo::grpo_loss, logits, batch, {}, dlogits, workspace);
}
