// Training steps straight from the logits, the largest array of a step. The gradient by the logits
// is written over the logits, so nothing of the size (sequences, tokens, vocabulary) is held twice.
// The model is small enough to stand here: a table whose row k has the logits of the token that
// follows token k. Each of three steps is
//   1. forward: fill the logits from the table,
//   2. loss and dlogits in one call (log-probs, DAPO's loss and the gradient),
//   3. gradient descent on the table.
// Only the third of the four completions is rewarded. The program prints the log-prob of its first
// token after each forward pass, and fails if it does not rise. Read trainer_step.cpp first.
//
// Build and run, from the root of the repository (Eigen may be in another folder on your system):
//   g++ -std=c++17 -I include -I /usr/include/eigen3 examples/logits_step.cpp -o logits_step
//   ./logits_step
#include <cstdio>
#include <gdpo/gdpo.hpp>
#include <gdpo/logits.hpp>

using Table = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int sequences = 4, width = 6, vocabulary = 50;

int main() {
  // One prompt of two tokens with four completions of two to four tokens, padded with 0. The mask
  // is 1 at the tokens of the completions and 0 at those of the prompt and the padding.
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

  // The model begins with all tokens equally likely.
  Table model = Table::Zero(vocabulary, vocabulary), logits(sequences * width, vocabulary);
  // Row t of the logits predicts token t + 1. aligned() therefore pairs views of logits[:, :-1]
  // with ids[:, 1:] and mask[:, 1:].
  const auto table = gdpo::view(logits.data(), sequences, width, vocabulary);
  auto batch = gdpo::aligned(table, gdpo::view(ids), gdpo::view(mask));
  batch.temperature = 0.7;
  // dlogits is the memory of the logits themselves, without the last position of each sequence,
  // which predicts nothing.
  gdpo::View<float, 3> dlogits = table;
  dlogits.extent[1] = width - 1;
  const auto forward = [&] {
    for (int k = 0; k < sequences * width; ++k)
      logits.row(k) = model.row(ids(k / width, k % width));
  };

  // The log-probs of the policy that sampled are those of the model before the first step.
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
    // The logits now hold their gradient. Row k of the table was used wherever token k occurred, so
    // it takes the gradients of all these positions.
    for (int i = 0; i < sequences; ++i) {
      for (int t = 0; t + 1 < width; ++t) model.row(ids(i, t)) -= 0.5f * logits.row(i * width + t);
    }
    // The workspace keeps the log-probs of this step. Row 1 of sequence 2 predicts the first token
    // of the rewarded completion.
    after = static_cast<double>(workspace.logp[2 * (width - 1) + 1]);
    if (step == 0) before = after;
    std::printf("step %d  loss %8.5f  entropy %.4f  clipped %.2f  first rewarded token %.4f\n",
                step, r.loss, r.metrics.entropy.mean(), r.metrics.clip_fraction.mean(), after);
  }
  return after > before ? 0 : 1;
}
