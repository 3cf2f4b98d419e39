// labels: lanes, sanitizers
// The entropy bonus by numbers of hand: its means, weights, and what is not finite.
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <support/catch.hpp>
#include <support/message.hpp>
#include <support/tolerance.hpp>

namespace entropy_test {

using gdpo::EntropyMean;
using gdpo::math::infinity;

// Two rows of three tokens, of which the last of the second is masked.
struct Step {
  std::vector<double> logp{-1, -2, -1, -3, -1, NAN}, entropies{1, 2, 4, 8, 16, NAN}, weights;
  std::vector<double> advantages{0, 0}, row_weights;
  std::vector<unsigned char> mask{1, 1, 1, 1, 1, 0};
  std::vector<double> by_logp = std::vector<double>(6, -7), by_entropies = by_logp;

  gdpo::TokenBatch<double> batch() const {
    gdpo::TokenBatch<double> b;
    b.logp = gdpo::view(logp.data(), 2, 3), b.entropies = gdpo::view(entropies.data(), 2, 3);
    b.mask = gdpo::view(mask.data(), 2, 3), b.advantages = gdpo::view(advantages);
    if (!weights.empty()) b.entropy_weights = gdpo::view(weights.data(), 2, 3);
    if (!row_weights.empty()) b.row_weights = gdpo::view(row_weights);
    return b;
  }
  template <class Loss>
  gdpo::LossResult run(const Loss& loss) {
    return loss(batch(), gdpo::count(batch()),
                {gdpo::view(by_logp.data(), 2, 3), gdpo::view(by_entropies.data(), 2, 3)});
  }
};
auto with_bonus(double coef, EntropyMean mean) {
  auto loss = gdpo::with_kl<gdpo::kl::None>(gdpo::grpo_loss);  // a mean over rows of their means
  loss.entropy = {coef, mean};
  return loss;
}

TEST_CASE("the mean of the loss, and that over tokens") {
  Step of_rows, of_tokens;
  const gdpo::LossResult rows = of_rows.run(with_bonus(0.5, EntropyMean::Loss));
  // (7 / 3 + 24 / 2) / 2
  CHECK(rows.entropy_loss == Approx(-0.5 * (7.0 / 3 + 12) / 2).epsilon(1e-15));
  CHECK((rows.loss == rows.entropy_loss && rows.policy_loss == 0 && rows.kl_loss == 0));
  CHECK(of_rows.by_entropies[0] == Approx(-0.5 / 6).epsilon(1e-15));
  CHECK((of_rows.by_entropies[3] == -0.5 / 4 && of_rows.by_entropies[5] == 0));
  const gdpo::LossResult tokens = of_tokens.run(with_bonus(0.5, EntropyMean::Tokens));
  CHECK(tokens.entropy_loss == Approx(-0.5 * 31 / 5).epsilon(1e-15));
  CHECK(of_tokens.by_entropies == std::vector<double>{-0.1, -0.1, -0.1, -0.1, -0.1, 0});
  CHECK(tokens.metrics.entropy.mean() == Approx(31.0 / 5).epsilon(1e-15));
  CHECK(of_rows.by_logp == std::vector<double>(6, 0));
}

TEST_CASE("weights of tokens and of rows") {
  Step step;
  step.weights = {0, 2, 1, NAN, 0.5, 3}, step.row_weights = {1, 4};
  step.entropies[0] = infinity;  // its weight is 0
  const gdpo::LossResult r = step.run(with_bonus(1, EntropyMean::Tokens));
  CHECK(r.entropy_loss == Approx(-(1 * (2 * 2 + 4) + 4 * (0.5 * 16)) / 5).epsilon(1e-15));
  CHECK(step.by_entropies == std::vector<double>{0, -0.4, -0.2, 0, -0.4, 0});
  CHECK((r.metrics.non_finite.weights.count == 1 && r.metrics.non_finite.weights.row == 1 &&
         r.metrics.non_finite.weights.token == 0));
}

TEST_CASE("a row of weight 0 and a batch without tokens add nothing") {
  Step step;
  step.row_weights = {0, 1};
  step.entropies[0] = NAN;
  for (const auto mean : {EntropyMean::Loss, EntropyMean::Tokens}) {
    const gdpo::LossResult r = step.run(with_bonus(1, mean));
    CHECK(std::isfinite(r.entropy_loss));
    CHECK((step.by_entropies[0] == 0 && step.by_entropies[3] < 0));
  }
  Step none;
  none.mask.assign(6, 0);
  CHECK(none.run(with_bonus(1, EntropyMean::Tokens)).entropy_loss == 0);
  CHECK(none.by_entropies == std::vector<double>(6, 0));
}

TEST_CASE("an entropy that is NaN shows in the loss and leaves the gradients") {
  Step step;
  step.entropies[1] = NAN;
  const gdpo::LossResult r = step.run(with_bonus(1, EntropyMean::Tokens));
  CHECK((std::isnan(r.loss) && std::isnan(r.entropy_loss) && r.policy_loss == 0));
  CHECK(r.metrics.non_finite.entropies.count == 1);
  CHECK(step.by_entropies[1] == -0.2);
}

TEST_CASE("without a bonus the gradient by entropies is 0 and the loss has its bits") {
  Step with, without;
  with.advantages = without.advantages = {1, -0.5};
  auto loss = with_bonus(0, EntropyMean::Tokens);
  const gdpo::LossResult a = with.run(loss);
  const gdpo::LossResult b =
      loss(without.batch(), gdpo::count(without.batch()), gdpo::view(without.by_logp.data(), 2, 3));
  CHECK(same_bits(a.loss, b.loss));
  CHECK(with.by_logp == without.by_logp);
  CHECK(with.by_entropies == std::vector<double>(6, 0));
}

TEST_CASE("a loss keeps its bonus where its type is chosen at run time") {
  auto grpo = gdpo::grpo_loss;
  grpo.entropy = {0.25, EntropyMean::Tokens};
  const auto loss = gdpo::runtime::detail::any_loss(grpo);
  CHECK((loss.entropy.coef == 0.25 && loss.entropy.mean == EntropyMean::Tokens));
  const auto other = gdpo::with_level<gdpo::level::Sequence<>>(with_bonus(0.25, EntropyMean::Loss));
  CHECK(gdpo::with_metrics<gdpo::metrics::Means>(other).entropy.coef == 0.25);
}

TEST_CASE("results of a step add up") {
  Step step;
  const auto loss = with_bonus(0.25, EntropyMean::Tokens);
  const gdpo::LossResult r = step.run(loss);
  CHECK(merge(r, gdpo::LossResult{}).entropy_loss == r.entropy_loss);
  gdpo::Normalizer n = gdpo::count(step.batch());
  n += gdpo::count(step.batch());
  const gdpo::LossResult half = loss(step.batch(), n);
  CHECK(merge(half, half).entropy_loss == Approx(r.entropy_loss).epsilon(1e-15));
}

TEST_CASE("mistakes are named") {
  Step step;
  auto loss = with_bonus(1, EntropyMean::Tokens);
  gdpo::TokenBatch<double> batch = step.batch();
  gdpo::Normalizer n = gdpo::count(batch);
  const auto said = [&] { return message_of([&] { (void)loss(batch, n); }); };
  n.tokens = 0;
  CHECK(said().find("gdpo::PolicyLoss: normalizer.tokens: given 0") == 0);
  n.tokens = 4;
  CHECK(said().find("gdpo::PolicyLoss: normalizer.tokens: given 4, for a loss of 5") == 0);
  n.tokens = 5, batch.entropies = {};
  CHECK(said() ==
        "gdpo::PolicyLoss: batch.entropies: given no array; needed: the entropies of the tokens, "
        "which the bonus reads (entropy.coef is not 0)");
  loss.entropy.coef = infinity;
  CHECK(said().find("gdpo::PolicyLoss: entropy.coef: given inf; needed: a finite number") == 0);
}

TEST_CASE("from logits the entropies are those of the logits") {
  const std::vector<float> logits(6, 0.5f), given(2, 1.0f), advantages{0};
  const std::vector<int> targets{0, 2};
  std::vector<float> dlogits(6);
  gdpo::LogitBatch<float, 3> table;
  table.logits = gdpo::view(logits.data(), 1, 2, 3);
  table.targets = gdpo::view(targets.data(), 1, 2);
  gdpo::TokenBatch<float> batch;
  batch.advantages = gdpo::view(advantages);
  auto loss = with_bonus(2, EntropyMean::Loss);
  const auto run = [&] {
    return gdpo::policy_loss_from_logits(loss, table, batch, gdpo::count(table, batch),
                                         gdpo::view(dlogits.data(), 1, 2, 3));
  };
  CHECK(run().entropy_loss == Approx(-2 * std::log(3.0)).epsilon(1e-6));
  gdpo::LogitsWorkspace workspace;
  gdpo::policy_loss_from_logits(gdpo::simd, loss, table, batch, gdpo::count(table, batch),
                                gdpo::view(dlogits.data(), 1, 2, 3), workspace);
  CHECK(workspace.dentropies == std::vector<float>{-1, -1});
  for (const float x : dlogits) CHECK(std::fabs(x) < 1e-6f);  // the entropy is at its maximum
  batch.entropies = gdpo::view(given.data(), 1, 2);
  CHECK(message_of([&] { (void)run(); }) ==
        "gdpo::policy_loss_from_logits: batch.entropies: given an array, for a loss with an "
        "entropy bonus; needed: none: the bonus reads the entropies of the logits, which get its "
        "gradient");
}

}  // namespace entropy_test
