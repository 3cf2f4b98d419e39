// expect: a loss is a gdpo::PolicyLoss
#include <gdpo/advantages.hpp>
#include <gdpo/logits.hpp>

void use(const gdpo::LogitBatch<float, 2>& logits, const gdpo::TokenBatch<float>& batch,
         gdpo::View<float, 2> dlogits) {
  gdpo::policy_loss_from_logits(gdpo::Gdpo{}, logits, batch, {}, dlogits);
}
