// A trainer's step on logits, on a model small enough to stand here: the logits of the next token are a row of a table, chosen by
// the token before it. Log-probs of the old policy, rewards, advantages, and the gradient by the logits written over the logits:
// nothing of the size (sequences, tokens, vocabulary) is held twice. The log-probs of the rewarded completion rise.
#include <cstdio>
#include <gdpo/gdpo.hpp>
#include <gdpo/logits.hpp>

using Table = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int sequences = 4, width = 6, vocabulary = 50;

int main() {
  // A prompt of two tokens, four completions of up to four; the mask is 1 at the tokens of the completions.
  Eigen::Array<int, sequences, width, Eigen::RowMajor> ids;
  ids << 1, 2, 10, 11, 12, 3,  //
      1, 2, 20, 21, 3, 0,      //
      1, 2, 30, 31, 32, 3,     //
      1, 2, 40, 3, 0, 0;
  Eigen::Array<bool, sequences, width, Eigen::RowMajor> mask;
  mask << false, false, true, true, true, true,  //
      false, false, true, true, true, false,     //
      false, false, true, true, true, true,      //
      false, false, true, true, false, false;
  const Eigen::Array4d rewards(0, 0, 1, 0);
  const Eigen::ArrayXd advantages = gdpo::advantages(rewards, gdpo::groups_of(sequences));

  Table model = Table::Zero(vocabulary, vocabulary), logits(sequences * width, vocabulary);
  // Row t predicts token t + 1: views of logits[:, :-1], ids[:, 1:], mask[:, 1:].
  const auto table = gdpo::view(logits.data(), sequences, width, vocabulary);
  auto batch = gdpo::aligned(table, gdpo::view(ids), gdpo::view(mask));
  batch.temperature = 0.7;
  gdpo::View<float, 3> dlogits = table;  // over the logits that predict something
  dlogits.extent[1] = width - 1;
  const auto forward = [&] {
    for (int k = 0; k < sequences * width; ++k)
      logits.row(k) = model.row(ids(k / width, k % width));
  };

  forward();
  const gdpo::TokenLogprobs old = gdpo::token_logprobs(batch);
  gdpo::TokenBatch<float> tokens;
  tokens.old_logp = gdpo::view(old.logp.data(), sequences, width - 1);
  tokens.advantages = gdpo::view(advantages);

  auto loss = gdpo::dapo_loss;
  gdpo::LogitsWorkspace workspace;
  double before = 0, after = 0;
  for (int step = 0; step < 3; ++step) {
    forward();
    const gdpo::LossResult r = gdpo::policy_loss_from_logits(
        gdpo::simd, loss, batch, tokens, gdpo::count(batch, tokens), dlogits, workspace);
    for (int i = 0; i < sequences; ++i) {
      for (int t = 0; t + 1 < width; ++t) model.row(ids(i, t)) -= 0.5f * logits.row(i * width + t);
    }
    after = static_cast<double>(workspace.logp[2 * (width - 1) + 1]);
    if (step == 0) before = after;
    std::printf("step %d  loss %8.5f  entropy %.4f  clipped %.2f  first rewarded token %.4f\n",
                step, r.loss, r.metrics.entropy.mean(), r.metrics.clip_fraction.mean(), after);
  }
  return after > before ? 0 : 1;
}
