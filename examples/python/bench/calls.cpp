// The calls of C++ behind some operators, for cost.py, which times them beside the operators. Each
// takes pointers to dense arrays: rows x tokens, or what its name says.
#include <gdpo/advantages.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/mismatch.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/openrlhf.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/value.hpp>

using gdpo::index_t;
using gdpo::view;

namespace {

/// A batch of log-probs with those of the other policy that the call compares them with.
gdpo::TokenBatch<float> batch_of(const float* logp, const float* old_logp, const bool* mask,
                                 index_t rows, index_t tokens) {
  gdpo::TokenBatch<float> batch;
  batch.logp = view(logp, rows, tokens), batch.old_logp = view(old_logp, rows, tokens);
  batch.mask = view(mask, rows, tokens);
  return batch;
}
gdpo::TokenBatch<float> rollout_of(const float* old_logp, const float* rollout_logp,
                                   const bool* mask, index_t rows, index_t tokens) {
  gdpo::TokenBatch<float> batch;
  batch.old_logp = view(old_logp, rows, tokens);
  batch.rollout_logp = view(rollout_logp, rows, tokens), batch.mask = view(mask, rows, tokens);
  return batch;
}
template <class Pass>
void prepare(const gdpo::TokenBatch<float>& batch, const Pass& pass) {
  static gdpo::PrepassMemory<float> memory;
  gdpo::prepare(batch, memory, pass);
}
template <class Estimator, class Report>
void estimate(const Estimator& e, const float* rewards, index_t rows, index_t count, index_t size,
              float* out, Report report) {
  static gdpo::Workspace workspace;
  const gdpo::RewardBatch batch{view(rewards, rows, count), gdpo::groups_of(size)};
  gdpo::advantages_into(gdpo::simd, batch, e, view(out, rows), workspace, report);
}

}  // namespace

extern "C" {

void gdpo_advantages(const float* rewards, index_t rows, index_t count, index_t size, float* out) {
  estimate(gdpo::Gdpo{}, rewards, rows, count, size, out, nullptr);
}
void grpo_advantages(const float* rewards, index_t rows, index_t count, index_t size, float* out) {
  estimate(gdpo::Grpo{}, rewards, rows, count, size, out, nullptr);
}
void gdpo_report(const float* rewards, index_t rows, index_t count, index_t size, float* out) {
  static gdpo::GroupReport report;
  estimate(gdpo::Gdpo{}, rewards, rows, count, size, out, &report);
}
void dapo(const float* logp, const float* old_logp, const bool* mask, const float* advantages,
          index_t rows, index_t tokens, const double* counts, float* gradient) {
  static gdpo::LossWorkspace<float> workspace;
  gdpo::TokenBatch<float> batch = batch_of(logp, old_logp, mask, rows, tokens);
  batch.advantages = view(advantages, rows);
  gdpo::Normalizer n;
  n.tokens = counts[0], n.rows = counts[1], n.non_empty_rows = counts[2];
  gdpo::with_metrics<gdpo::metrics::Means>(gdpo::dapo_loss)(
      gdpo::simd, batch, n, gdpo::LossGradient<float>{view(gradient, rows, tokens)}, workspace);
}
void count(const bool* mask, index_t rows, index_t tokens, double* out) {
  gdpo::TokenBatch<float> batch;
  batch.mask = view(mask, rows, tokens);
  *out = gdpo::count(batch).tokens;
}
void importance(const float* old_logp, const float* rollout_logp, const bool* mask, index_t rows,
                index_t tokens) {
  prepare(rollout_of(old_logp, rollout_logp, mask, rows, tokens), gdpo::trl::token_truncate);
}
void gate(const float* old_logp, const float* rollout_logp, const bool* mask, index_t rows,
          index_t tokens) {
  gdpo::prepass::Gate pass;
  pass.estimator = gdpo::prepass::Estimator::BinaryKl;
  pass.statistic = gdpo::prepass::Statistic::SequenceMean;
  pass.max = 0.01, pass.reach = gdpo::Reach::Mask;
  prepare(rollout_of(old_logp, rollout_logp, mask, rows, tokens), pass);
}
void top_entropy(const float* entropies, const bool* mask, index_t rows, index_t tokens) {
  gdpo::TokenBatch<float> batch;
  batch.entropies = view(entropies, rows, tokens), batch.mask = view(mask, rows, tokens);
  gdpo::prepass::TopEntropy pass;
  pass.quantile = 0.8;
  prepare(batch, pass);
}
void mismatch(const float* old_logp, const float* rollout_logp, const bool* mask, index_t rows,
              index_t tokens, double* out) {
  *out = gdpo::mismatch(rollout_of(old_logp, rollout_logp, mask, rows, tokens)).k3_kl();
}
void gae(const float* row_rewards, const float* values, const bool* mask, index_t rows,
         index_t tokens, float* advantages, float* returns) {
  static gdpo::ReturnsWorkspace<float> workspace;
  gdpo::ReturnBatch<float> batch;
  batch.row_rewards = view(row_rewards, rows), batch.values = view(values, rows, tokens);
  batch.mask = view(mask, rows, tokens);
  auto estimator = gdpo::verl::gae;
  estimator.returns.gamma = 0.99, estimator.returns.lambda = 0.95;
  gdpo::advantages_and_returns_into(gdpo::simd, batch, estimator, view(advantages, rows, tokens),
                                    view(returns, rows, tokens), workspace);
}
void outcome(const float* rewards, const bool* mask, index_t rows, index_t tokens, index_t size,
             float* advantages, float* returns) {
  static gdpo::OutcomeWorkspace<float> workspace;
  const gdpo::RewardBatch of_rows{view(rewards, rows), gdpo::groups_of(size)};
  gdpo::ReturnBatch<float> batch;
  batch.mask = view(mask, rows, tokens);
  gdpo::advantages_and_returns_into(gdpo::simd, of_rows, batch, gdpo::openrlhf::rloo_outcome,
                                    view(advantages, rows, tokens), view(returns, rows, tokens),
                                    workspace);
}
void token_baseline(const float* returns, const float* logp, const float* squares, const bool* mask,
                    index_t rows, index_t tokens, index_t size, float* out) {
  static gdpo::TokenBaselineWorkspace<float> workspace;
  gdpo::TokenBaselineBatch<float> batch;
  batch.returns = view(returns, rows, tokens), batch.logp = view(logp, rows, tokens);
  batch.sum_pi_squared = view(squares, rows, tokens), batch.mask = view(mask, rows, tokens);
  gdpo::optimal_token_baseline_into(gdpo::simd, batch, gdpo::groups_of(size),
                                    gdpo::verl::optimal_token_baseline, view(out, rows, tokens),
                                    workspace);
}

}  // extern "C"
