// One optimiser step, from rewards to new logits, on four completions of one prompt: a textbook example. Advantages,
// loss over two micro-batches, gradient by the log-probs, chain rule to the logits, step. Prints the loss before: 0.1048.
#include <cstdio>
#include <gdpo/gdpo.hpp>
#include <gdpo/presets/textbook.hpp>

using Rows = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int completions = 4, width = 3, vocabulary = 3;

// A model's output layer: log-probs of the chosen tokens, and what a gradient by them is by the logits.
static Rows log_softmax(const Rows& logits) {
  return logits.colwise() - logits.exp().rowwise().sum().log();
}
static Rows chosen_logp(const Rows& logits, const Eigen::ArrayXi& actions) {
  const Rows all = log_softmax(logits);
  Rows logp(completions, width);
  for (int k = 0; k < completions * width; ++k) logp(k / width, k % width) = all(k, actions(k));
  return logp;
}
static Rows logits_gradient(const Rows& logits, const Eigen::ArrayXi& actions, const Rows& dlogp) {
  Rows gradient = -log_softmax(logits).exp();  // d logp / d logits = onehot - softmax
  for (int k = 0; k < completions * width; ++k) {
    gradient(k, actions(k)) += 1;
    gradient.row(k) *= dlogp(k / width, k % width);
  }
  return gradient;
}

int main() {
  const Eigen::ArrayXd rewards = (Eigen::ArrayXd(completions) << 0.9, 0.3, -0.1, 0.7).finished();
  Rows logits(completions * width, vocabulary), old_logp(completions, width),
      ref_logp(completions, width);
  logits << 1.1, -0.2, 0.3, -0.4, 0.8, 1.6, 0.1, 1.4,
      0.2,                                      // completion 0 has three tokens, the others two
      -0.2, 1.1, 0.4, 0.9, -0.3, 0.1, 0, 0, 0,  //
      0.1, 0.2, 1.3, -0.1, 0.4, 1.5, 0, 0, 0,   //
      1.2, -0.4, 0.1, -0.3, 1.5, 0.2, 0, 0, 0;
  const Eigen::ArrayXi actions =
      (Eigen::ArrayXi(completions * width) << 0, 2, 1, 1, 0, 0, 2, 2, 0, 0, 1, 0).finished();
  old_logp << -0.5, -0.61, -0.92, -1.2, -0.41, 0, -0.81, -0.69, 0, -0.51, -1.1, 0;
  ref_logp << -0.6, -0.71, -0.82, -1.1, -0.51, 0, -0.91, -0.79, 0, -0.41, -1, 0;
  Eigen::Array<bool, completions, width, Eigen::RowMajor> mask;
  mask << true, true, true, true, true, false, true, true, false, true, true, false;

  // Rewards to advantages: one group. Textbook GRPO in NumPy takes the population std, + 1e-8.
  const Eigen::ArrayXd advantages =
      gdpo::advantages(rewards, gdpo::groups_of(completions), gdpo::textbook::grpo_numpy);

  const auto loss =
      gdpo::grpo_loss;  // clip 0.2, beta 0.04, the mean over completions of their token means
  for (const char* when : {"before", "after"}) {
    const Rows logp = chosen_logp(logits, actions);
    Rows dlogp(completions, width);
    // Two micro-batches of two completions. What the loss is divided by belongs to the step, so it is counted first.
    const auto micro_batch = [&](int first) {
      gdpo::TokenBatch<double> batch;
      const auto rows = [first](auto& all) { return gdpo::view(all.middleRows(first, 2)); };
      batch.logp = rows(logp);
      batch.old_logp = rows(old_logp);
      batch.ref_logp = rows(ref_logp);
      batch.mask = rows(mask);
      batch.advantages = gdpo::view(advantages.segment(first, 2));
      return batch;
    };
    const gdpo::Normaliser step = gdpo::count(micro_batch(0)) + gdpo::count(micro_batch(2));
    gdpo::LossMetrics metrics;
    double total = 0;
    for (const int first : {0, 2}) {
      const gdpo::LossResult r =
          loss(micro_batch(first), step, gdpo::view(dlogp.middleRows(first, 2)));
      total += r.loss;
      metrics = gdpo::merge(metrics, r.metrics);
    }
    std::printf("%-6s loss %7.4f  kl %.4f  clipped %.3f  ratio %.3f..%.3f\n", when, total,
                metrics.kl.mean(), metrics.clip_fraction.mean(), metrics.ratio.min,
                metrics.ratio.max);
    logits -= 0.5 * logits_gradient(logits, actions, dlogp);
  }
}
