// Trains a model straight from its logits, the largest array of a training step. The gradient of
// the loss by the logits, `dlogits`, is written over the logits themselves, so that no second array
// of their size (sequences, tokens, vocabulary) is needed.
//
// The model is small enough to stand here: a table in which row k holds the logits of the token
// that follows token k. The program takes three steps. Each step
//   1. fills the logits from the model (the forward pass),
//   2. computes the log-probs, DAPO's loss and dlogits in one call,
//   3. moves the model against the gradient (gradient descent).
// Only the third of the four completions is rewarded. Each step prints the log-prob that the model
// gave to the first token of that completion before the model was moved. The program fails unless
// this log-prob rises from the first step to the last. Each step also prints what the diagnosis
// finds in it. Read trainer_step.cpp first: it explains the parts of a step.
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
  // One prompt of two tokens has four completions of two to four tokens, padded with 0. The mask is
  // true at the tokens of the completions, and false at those of the prompt and at the padding.
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
  gdpo::GroupReport report;
  const Eigen::ArrayXd advantages =
      gdpo::advantages(rewards, gdpo::groups_of(sequences), gdpo::Gdpo{}, &report);
  for (const auto& [key, value] : report.to_map("train/", {"answer"}))
    std::printf("%s %.3f\n", key.c_str(), value);

  // What the loss is divided by follows from the mask, before there are logits. A step of several
  // micro-batches adds up the counts of all of them here.
  const gdpo::Normalizer counts = gdpo::count(gdpo::aligned(gdpo::view(mask)));

  // At first the model gives every token the same probability.
  Table model = Table::Zero(vocabulary, vocabulary), logits(sequences * width, vocabulary);
  // The logits at position t of a sequence predict its token t + 1. aligned() therefore pairs, in
  // the notation of Python, views of logits[:, :-1] with ids[:, 1:] and mask[:, 1:].
  const auto table = gdpo::view(logits.data(), sequences, width, vocabulary);
  auto batch = gdpo::aligned(table, gdpo::view(ids), gdpo::view(mask));
  batch.temperature = 0.7;
  // dlogits is a view of the logits themselves, without the last position of each sequence, which
  // predicts nothing.
  gdpo::View<float, 3> dlogits = table;
  dlogits.extent[1] = width - 1;
  const auto forward = [&] {
    for (int k = 0; k < sequences * width; ++k)
      logits.row(k) = model.row(ids(k / width, k % width));
  };

  // The completions count as sampled by the model as it is before the first step. Its log-probs are
  // therefore old_logp, with which the ratios of all three steps compare.
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
    const gdpo::LossResult r =
        gdpo::policy_loss_from_logits(gdpo::simd, loss, batch, tokens, counts, dlogits, workspace);
    // The logits have now been overwritten by their gradient. Row k of the model gave the logits
    // wherever token k stands, so the gradients of all these positions are subtracted from it.
    for (int i = 0; i < sequences; ++i) {
      for (int t = 0; t + 1 < width; ++t) model.row(ids(i, t)) -= 0.5f * logits.row(i * width + t);
    }
    // The workspace keeps the log-probs of this step, width - 1 for each sequence. Position 1 of
    // sequence 2, both counted from 0, predicts the first token of the rewarded completion.
    after = static_cast<double>(workspace.logp[2 * (width - 1) + 1]);
    if (step == 0) before = after;
    std::printf("step %d  loss %8.5f  entropy %.4f  clipped %.2f  first rewarded token %.4f\n",
                step, r.loss, r.metrics.entropy.mean(), r.metrics.clip_fraction.mean(), after);
    gdpo::DiagnoseSettings settings;
    settings.first_step = step == 0;  // the policy is still the one that sampled
    std::printf("%s", gdpo::to_text(gdpo::diagnose(r.metrics, report, settings)).c_str());
  }
  return after > before ? 0 : 1;
}
