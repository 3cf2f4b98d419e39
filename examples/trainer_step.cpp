// One training step from rewards to updated logits, with numbers small enough to check by hand:
// four completions of one prompt, at most three tokens each, a vocabulary of three. The step is
//   1. rewards to advantages (GRPO),
//   2. the counts that the loss is divided by, over all micro-batches of the step,
//   3. log-probs of the chosen tokens from the logits,
//   4. loss and gradient by the log-probs, one micro-batch after the other,
//   5. the chain rule from the log-probs to the logits, and gradient descent.
// It runs twice and prints loss, KL, clip fraction and ratios each time, with what the diagnosis
// finds in them; before that, the rewards under the keys that trainers log. The first loss, 0.1048,
// is that of a published worked example (gdpo/presets/textbook.hpp). Read quickstart.cpp first.
//
// Build and run, from the root of the repository (Eigen may be in another folder on your system):
//   g++ -std=c++17 -I include -I /usr/include/eigen3 examples/trainer_step.cpp -o trainer_step
//   ./trainer_step
#include <cstdio>
#include <gdpo/gdpo.hpp>
#include <gdpo/presets/textbook.hpp>

using Rows = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int completions = 4, width = 3, vocabulary = 3;

// The output layer of a model. The three functions give the log-probs of all tokens, those of the
// chosen tokens (`actions`), and the gradient of the loss by the logits for a given dloss/dlogp.
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
  // The log-prob of a chosen token is its logit minus log(sum exp(logits)), so its derivative by
  // the logits is onehot(action) - softmax(logits).
  Rows gradient = -log_softmax(logits).exp();
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
  // One line per completion, three logits per token. Completion 0 has three tokens; the others have
  // two, and their third token is padding.
  logits << 1.1, -0.2, 0.3, -0.4, 0.8, 1.6, 0.1, 1.4, 0.2,  //
      -0.2, 1.1, 0.4, 0.9, -0.3, 0.1, 0, 0, 0,              //
      0.1, 0.2, 1.3, -0.1, 0.4, 1.5, 0, 0, 0,               //
      1.2, -0.4, 0.1, -0.3, 1.5, 0.2, 0, 0, 0;
  const Eigen::ArrayXi actions =
      (Eigen::ArrayXi(completions * width) << 0, 2, 1, 1, 0, 0, 2, 2, 0, 0, 1, 0).finished();
  // Log-probs of the policy that sampled the completions, and of the frozen reference policy.
  old_logp << -0.5, -0.61, -0.92, -1.2, -0.41, 0, -0.81, -0.69, 0, -0.51, -1.1, 0;
  ref_logp << -0.6, -0.71, -0.82, -1.1, -0.51, 0, -0.91, -0.79, 0, -0.41, -1, 0;
  Eigen::Array<bool, completions, width, Eigen::RowMajor> mask;
  mask << true, true, true, true, true, false, true, true, false, true, true, false;

  // Step 1: rewards to advantages. All four completions are one group. The textbook's NumPy code
  // divides by the population std (divisor n) + 1e-8.
  gdpo::GroupReport report;
  const Eigen::ArrayXd advantages =
      gdpo::advantages(rewards, gdpo::groups_of(completions), gdpo::textbook::grpo_numpy, &report);
  for (const auto& [key, value] : report.to_map("train/", {"quality"}))
    std::printf("%s %.3f\n", key.c_str(), value);

  // Step 2: what the loss is divided by belongs to the whole step, so the counts of all
  // micro-batches are added before the first loss is computed. Their masks are enough.
  gdpo::Normalizer step;
  for (const int first : {0, 2}) {
    gdpo::TokenBatch<double> batch;
    batch.mask = gdpo::view(mask.middleRows(first, 2));
    step += gdpo::count(batch);
  }

  // GRPO's loss: clip range 0.2, KL weight beta 0.04, the mean over completions of their means over
  // tokens.
  const auto loss = gdpo::grpo_loss;
  for (const char* when : {"before", "after"}) {
    // Step 3: the log-probs of the current policy.
    const Rows logp = chosen_logp(logits, actions);
    Rows dlogp(completions, width);
    // Two micro-batches of two completions each, as views of the arrays: nothing is copied.
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
    // Step 4: loss and gradient of each micro-batch. With the counts of the whole step, the losses
    // add up to the loss of the step, and metrics merge.
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
    // What the numbers say about mistakes. The log-probs of this example are made up, so that its
    // ratios are not those of a real run.
    std::printf("%s", gdpo::to_text(gdpo::diagnose(metrics, report)).c_str());
    // Step 5: chain rule and gradient descent with learning rate 0.5.
    logits -= 0.5 * logits_gradient(logits, actions, dlogp);
  }
}
