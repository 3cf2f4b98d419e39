// labels: lanes, sanitizers
// What a NaN means where it is no missing reward: in masks and flags, in the reward of a row that
// is not used, and in "the same bits".
#include <gdpo/gdpo.hpp>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace nan_meaning_test {

namespace {

const double no = std::nan("");
const float no_float = std::nanf("");

std::vector<double> advantages(const std::vector<double>& rewards, const std::vector<double>& valid,
                               gdpo::MissingEntry entry, gdpo::index_t size) {
  gdpo::Gdpo estimator;
  estimator.missing.entry = entry;
  gdpo::RewardBatch batch{gdpo::view(rewards.data(), static_cast<gdpo::index_t>(rewards.size()), 1),
                          gdpo::groups_of(size)};
  batch.valid = gdpo::view(valid);
  return gdpo::advantages(gdpo::simd, batch, estimator);
}

}  // namespace

TEST_CASE("a NaN in a mask or a flag is not 0, so it lets the value in", "[nan]") {
  const std::vector<float> mask{1, no_float, 0, 1}, ones{1, 1, 0, 1};
  const std::vector<float> logp{-1, -2, no_float, -1}, advantages_of_rows{1, -1};
  const auto loss = [&](const std::vector<float>& of) {
    gdpo::TokenBatch<float> batch;
    batch.logp = gdpo::view(logp.data(), 2, 2);
    batch.mask = gdpo::view(of.data(), 2, 2);
    batch.advantages = gdpo::view(advantages_of_rows);
    CHECK(gdpo::count(batch).tokens == 3);
    return gdpo::dapo_loss(batch, gdpo::count(batch)).loss;
  };
  CHECK(loss(mask) == loss(ones));
  CHECK(gdpo::masked_mean(gdpo::view(logp), gdpo::view(mask)) == Approx(-4.0 / 3));
  const std::vector<float> table(12, 0.5f);
  const std::vector<int> ids(4, 1);
  gdpo::LogitBatch<float, 2> logits;
  logits.logits = gdpo::view(table.data(), 4, 3);
  logits.targets = gdpo::view(ids), logits.mask = gdpo::view(mask);
  const gdpo::TokenLogprobs of_logits = gdpo::token_logprobs(logits);
  CHECK((of_logits.logp[1] == of_logits.logp[0] && of_logits.logp[2] == 0));
  // Flags of rows: NaN is used, truncated, dropped.
  CHECK(advantages({1, 0, 3, 9}, {1, no, 1, 0}, gdpo::MissingEntry::Skip, 4) ==
        advantages({1, 0, 3, 9}, {1, 1, 1, 0}, gdpo::MissingEntry::Skip, 4));
  gdpo::TokenBatch<float> batch;
  batch.mask = gdpo::view(ones.data(), 2, 2);
  const std::vector<float> truncated{0, no_float};
  gdpo::PrepassMemory<float> memory;
  CHECK(gdpo::count(gdpo::prepare(batch, memory, gdpo::prepass::Overlong{gdpo::view(truncated)}))
            .tokens == 2);
}

TEST_CASE("a NaN reward of an unused row under Propagate", "[nan]") {
  const auto propagate = gdpo::MissingEntry::Propagate;
  // It is NaN itself and changes no other row.
  const auto a = advantages({1, 2, 3, no}, {1, 1, 1, 0}, propagate, 4);
  const auto without = advantages({1, 2, 3, 2}, {1, 1, 1, 0}, propagate, 4);
  for (std::size_t i = 0; i < 3; ++i) CHECK(a[i] == without[i]);
  CHECK(std::isnan(a[3]));
  // A used row makes the whole group NaN, the unused rows too.
  for (const double x : advantages({1, no, 3, 5}, {1, 1, 1, 0}, propagate, 4)) {
    CHECK(std::isnan(x));
  }
  // Exactly 0 where the group has no spread to divide by: one used row, none, or equal rewards.
  CHECK(advantages({1, no}, {1, 0}, propagate, 2) == std::vector<double>{0, 0});
  CHECK(advantages({1, no}, {0, 0}, propagate, 2) == std::vector<double>{0, 0});
  CHECK(advantages({1, 1, no}, {1, 1, 0}, propagate, 3) == std::vector<double>{0, 0, 0});
}

TEST_CASE("where one execution tag gives a NaN, so do the others", "[nan]") {
  std::vector<float> logp(40, -1.0f), advantages_of_rows{1, no_float};
  logp[3] = no_float, logp[17] = std::numeric_limits<float>::infinity();
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 2, 20);
  batch.advantages = gdpo::view(advantages_of_rows);
  const auto gradient = [&](auto exec) {
    std::vector<float> g(40);
    gdpo::LossWorkspace<float> workspace;
    gdpo::dapo_loss(exec, batch, gdpo::count(batch), gdpo::view(g.data(), 2, 20), workspace);
    return g;
  };
  const std::vector<float> one = gradient(gdpo::seq), lanes = gradient(gdpo::simd);
  int nan = 0;
  for (std::size_t k = 0; k < one.size(); ++k) {
    CHECK(std::isnan(one[k]) == std::isnan(lanes[k]));
    CHECK((std::isnan(one[k]) || one[k] == lanes[k]));
    nan += std::isnan(one[k]);
  }
  CHECK(nan >= 21);
}

TEST_CASE("kl::ScoreFunction has no gradient where the value lies outside `output`", "[nan][kl]") {
  // At d = logp - ref_logp = 0.75, K1 gives 0.75 + 1; held to 0.5 by output it gives 0, held by
  // input alone it keeps the value.
  const std::vector<double> logp{-1.0}, ref_logp{-1.75}, none{0.0};
  const auto gradient = [&](gdpo::Bounds input, gdpo::Bounds output) {
    gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio,
                     gdpo::Kl<gdpo::kl::K1, gdpo::kl::ScoreFunction>>
        loss;
    loss.kl.beta = 1, loss.kl.input = input, loss.kl.output = output;
    gdpo::TokenBatch<double> batch;
    batch.logp = gdpo::view(logp.data(), 1, 1), batch.ref_logp = gdpo::view(ref_logp.data(), 1, 1);
    batch.advantages = gdpo::view(none);
    double g = 7;
    loss(batch, gdpo::count(batch), gdpo::view(&g, 1, 1));
    return g;
  };
  CHECK(gradient({}, {}) == 1.75);
  CHECK(gradient({}, {-0.5, 0.5}) == 0);
  CHECK(gradient({-0.5, 0.5}, {}) == 0.5);
  CHECK(gradient({}, {-0.75, 0.75}) == 1.75);  // the end is inside
}

}  // namespace nan_meaning_test
