// labels: sanitizers
// Advantages of tokens from rewards of rows: numbers worked out by hand, repeated numbers of rows,
// refusals, memory, and the call of a device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gdpo/cuda/value/device_outcomes.hpp>
#include <gdpo/value/outcome_call.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/exact.hpp"
#include "support/executors.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace outcome_test {

namespace {

using gdpo::index_t;
using gdpo::OutcomeAdvantage, gdpo::Placement;
using gdpo::returns::RewardToGo;
using Vector = std::vector<double>;
using ToGo = gdpo::TokenAdvantage<RewardToGo>;
using Reinforce = OutcomeAdvantage<gdpo::DrGrpo, ToGo>;

/// Two groups of two rows of three tokens. The mean of each group is 1.
struct Four {
  Vector scores{2, 0, 1.5, 0.5};
  std::vector<unsigned char> mask{1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0};
  Vector logp{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  Vector ref_logp{-1.5, -1, -1, -1, -1, -1.5, -1, -1, -1, -1, -1, -1};
  Vector advantages = Vector(12, 42), returns = advantages;

  auto rewards() const { return gdpo::RewardBatch{gdpo::view(scores), gdpo::groups_of(2)}; }
  gdpo::ReturnBatch<double> batch() const {
    gdpo::ReturnBatch<double> b;
    b.mask = gdpo::view(mask.data(), 4, 3);
    b.logp = gdpo::view(logp.data(), 4, 3), b.ref_logp = gdpo::view(ref_logp.data(), 4, 3);
    return b;
  }
  gdpo::TokenOut<double> to(Vector& x) const { return gdpo::view(x.data(), 4, 3); }
  template <class Estimator>
  void operator()(const Estimator& e) {
    gdpo::advantages_and_returns_into(rewards(), batch(), e, to(advantages), to(returns));
  }
  template <class Estimator>
  std::string refused(const gdpo::ReturnBatch<double>& b, const Estimator& e) {
    return message_of(
        [&] { gdpo::advantages_and_returns_into(rewards(), b, e, to(advantages), to(returns)); });
  }
};

}  // namespace

TEST_CASE("outcomes by hand: on the last step, clamped, discounted and with a penalty",
          "[outcome]") {
  Four rows;
  Reinforce e;
  e.tokens.returns.gamma = 0.5, e.tokens.reward_clip = {-0.75, 2}, e.tokens.penalty.coef = 2;
  // Advantages of the rows: 1, -1 (clamped to -0.75), 0.5, -0.5 (a row without a token). k1 is 0.5
  // at token 0 of row 0 and at token 2 of row 1: rewards -1 and -0.75 - 1 there.
  rows(e);
  CHECK(rows.advantages == Vector{-0.75, 0.5, 1, -0.875, 0, -1.75, 0.5, 0, 0, 0, 0, 0});
  CHECK(rows.returns == rows.advantages);
}

TEST_CASE("outcomes by hand: at every token", "[outcome]") {
  Four rows;
  Reinforce e;
  e.placement = Placement::EveryToken, e.tokens.returns.gamma = 0;
  e.tokens.reward_clip = {-0.75, 0.75};  // not read
  rows(e);
  CHECK(rows.advantages == Vector{1, 1, 1, -1, 0, -1, 0.5, 0, 0, 0, 0, 0});
  e.tokens.penalty.coef = 2, e.tokens.returns.gamma = 1;
  rows(e);
  CHECK(rows.advantages == Vector{2, 2, 1, -3, 0, -2, 0.5, 0, 0, 0, 0, 0});
}

TEST_CASE("repeated numbers of rows are those of each of their tokens", "[outcome]") {
  // ReMax: the baseline of a row as the value of each state, with lambda 1.
  const Vector rewards{1, 0, 2, 0.5, 9, 1}, baselines{0.5, 4};
  const std::vector<unsigned char> mask{1, 1, 1, 1, 0, 1};
  const std::vector<index_t> offsets{0, 3, 6};
  gdpo::ReturnBatch<double> b;
  b.rewards = gdpo::view(rewards), b.mask = gdpo::view(mask), b.offsets = gdpo::view(offsets);
  b.values = gdpo::repeated(gdpo::view(baselines));
  Vector advantages(6), returns(6);
  gdpo::advantages_and_returns_into(b, gdpo::TokenAdvantage<>{}, gdpo::view(advantages),
                                    gdpo::view(returns));
  CHECK(returns == Vector{3, 2, 2, 1.5, 0, 1});
  CHECK(advantages == Vector{2.5, 1.5, 1.5, -2.5, 0, -3});

  const auto refused = [&] {
    return message_of([&] {
      gdpo::advantages_and_returns_into(b, gdpo::TokenAdvantage<>{}, gdpo::view(advantages));
    });
  };
  b.values = gdpo::repeated(gdpo::view(baselines.data(), 1));
  CHECK(refused() ==
        "gdpo::advantages_and_returns_into: batch.values: given 1 entries; needed: one for each of "
        "the 2 rows");
  // Repeated numbers give no batch its shape: without another array there is none.
  gdpo::ReturnBatch<double> alone;
  alone.rewards = gdpo::repeated(gdpo::view(baselines));
  CHECK(message_of(
            [&] { gdpo::advantages_and_returns_into(alone, ToGo{}, gdpo::TokenOut<double>{}); }) ==
        "gdpo::advantages_and_returns_into: advantages: given no array; needed: the array that the "
        "advantages are written to");
}

TEST_CASE("a null array of one token a row is no array, and no repeated number", "[outcome]") {
  const Vector rewards{1, 2};
  gdpo::ReturnBatch<double> b;
  b.row_rewards = gdpo::view(rewards);
  b.mask = gdpo::view(static_cast<const unsigned char*>(nullptr), 5, 1);
  Vector advantages(2);
  gdpo::advantages_and_returns_into(b, ToGo{}, gdpo::view(advantages.data(), 2, 1));
  CHECK(advantages == rewards);
}

TEST_CASE("outcomes: what a call refuses, before anything is written", "[outcome][errors]") {
  Four rows;
  const Vector five(5, 1.0);
  gdpo::ReturnBatch<double> b = rows.batch();
  b.row_rewards = gdpo::view(rows.scores);
  CHECK(rows.refused(b, Reinforce{}) ==
        "gdpo::advantages_and_returns_into: batch.row_rewards: given an array; needed: none: the "
        "advantages of the rows take its place");
  b = rows.batch(), b.rewards = rows.batch().logp;
  Reinforce every;
  every.placement = Placement::EveryToken;
  CHECK(rows.refused(b, every) ==
        "gdpo::advantages_and_returns_into: batch.rewards: given an array; needed: none: with "
        "placement every_token the advantages of the rows take its place");
  CHECK(rows.refused(b, Reinforce{}) == "no error");
  rows.advantages = rows.returns = Vector(12, 42);

  rows.scores = {1, 2, 3, 4, 5, 6};
  CHECK(
      rows.refused(rows.batch(), Reinforce{}) ==
      "gdpo::advantages_and_returns_into: rewards: given 6 entries; needed: one for each of the 4 "
      "rows");
  rows.scores = {1, 2, 3, std::nan("")};
  Reinforce strict;
  strict.rows.missing.entry = gdpo::MissingEntry::Reject;
  CHECK_FALSE(rows.refused(rows.batch(), strict).empty());
  Reinforce bad;
  bad.tokens.returns.gamma = 2;
  CHECK(rows.refused(rows.batch(), bad) ==
        "gdpo::advantages_and_returns_into: tokens.returns.gamma: given 2; needed: 0 to 1");
  Reinforce over_rows;
  over_rows.tokens.renorm = gdpo::renorm::batch();
  CHECK(rows.refused(rows.batch(), over_rows) ==
        "gdpo::advantages_and_returns_into: tokens.renorm.over: given batch; needed: tokens or "
        "none, because the values are those of tokens");
  b = rows.batch(), b.logp = {};
  Reinforce penalized;
  penalized.tokens.penalty.coef = 1;
  CHECK(rows.refused(b, penalized) ==
        "gdpo::advantages_and_returns_into: batch.logp: given no array; needed: the log-probs of "
        "the tokens, because penalty.coef is not 0");
  CHECK(rows.advantages == Vector(12, 42));
  CHECK(rows.returns == Vector(12, 42));
}

TEST_CASE("outcomes: the report is that of the rows, and the workspace has their sums",
          "[outcome]") {
  Four rows;
  gdpo::GroupReport report, wanted;
  gdpo::OutcomeWorkspace<double> workspace;
  gdpo::advantages_and_returns_into(gdpo::seq, rows.rewards(), rows.batch(), Reinforce{},
                                    rows.to(rows.advantages), rows.to(rows.returns), workspace,
                                    &report);
  const Vector of_rows = gdpo::advantages(gdpo::seq, rows.rewards(), gdpo::DrGrpo{}, &wanted);
  CHECK(report.reward_std_mean_of_groups == wanted.reward_std_mean_of_groups);
  for (index_t i = 0; i < 4; ++i) CHECK(workspace.rows().sums()(i) == of_rows[std::size_t(i)]);
}

TEST_CASE("outcomes: after a first call nothing is allocated", "[outcome]") {
  Four rows;
  const auto rewards = rows.rewards();
  const gdpo::ReturnBatch<double> b = rows.batch();
  gdpo::OutcomeWorkspace<double> workspace;
  const auto check = [&](const auto& exec, const auto& e) {
    CHECK(counted::made_again([&] {
            gdpo::advantages_and_returns_into(exec, rewards, b, e, rows.to(rows.advantages),
                                              rows.to(rows.returns), workspace);
          }) == 0);
  };
  Reinforce e;
  e.tokens.renorm = gdpo::renorm::token_weighted_batch();
  for (const Placement placement : {Placement::LastStep, Placement::EveryToken}) {
    e.placement = placement;
    check(gdpo::seq, e), check(gdpo::simd, e), check(gdpo::parallel(executors::pool(2)), e);
  }
}

TEST_CASE("outcomes on a device: the bits of the host", "[outcome][cuda]") {
  for (unsigned seed = 0; seed < 4; ++seed) {
    for (const Placement placement : {Placement::LastStep, Placement::EveryToken}) {
      for (const bool packed : {false, true}) {
        INFO("seed " << seed << ", " << static_cast<int>(placement) << ", packed " << packed);
        Four rows;
        Reinforce e;
        e.placement = placement;
        e.tokens.returns.gamma = 0.5, e.tokens.penalty.coef = 0.25;
        rows(e);
        OnDevice<double> scores(rows.scores), logp(rows.logp), ref_logp(rows.ref_logp);
        OnDevice<double> advantages(Vector(12, 42)), returns(Vector(12, 42));
        OnDevice<unsigned char> mask(rows.mask);
        OnDevice<index_t> offsets(std::vector<index_t>{0, 3, 6, 9, 12});
        const auto run = [&](const auto& tokens) {
          gdpo::ReturnBatch<double> b;
          b.mask = tokens(mask), b.logp = tokens(logp), b.ref_logp = tokens(ref_logp);
          if (packed) b.offsets = gdpo::view(offsets.data(), 5);
          const gdpo::RewardBatch rewards{gdpo::view(scores.data(), 4), gdpo::groups_of(2)};
          const std::size_t bytes = gdpo::cuda::scratch_bytes(e, rewards, b);
          OnDevice<unsigned char> memory(std::vector<unsigned char>(bytes, 0));
          CHECK(message_of([&] {
                  gdpo::advantages_and_returns_into(test_device(seed), rewards, b, e,
                                                    tokens(advantages), tokens(returns),
                                                    gdpo::cuda::Scratch{memory.data(), bytes - 1});
                }) != "");
          gdpo::advantages_and_returns_into(test_device(seed), rewards, b, e, tokens(advantages),
                                            tokens(returns),
                                            gdpo::cuda::Scratch{memory.data(), bytes});
        };
        if (packed) {
          run([](auto& x) { return gdpo::view(x.data(), 12); });
        } else {
          run([](auto& x) { return gdpo::view(x.data(), 4, 3); });
        }
        CHECK(advantages.host() == rows.advantages);
        CHECK(returns.host() == rows.returns);
      }
    }
  }
}

TEST_CASE("outcomes on a device: both calls have scratch behind the advantages of the rows",
          "[outcome][cuda]") {
  constexpr index_t rows = 3000, width = 2;
  constexpr std::size_t tokens = rows * width;
  Random random(4);
  Vector scores;
  for (index_t i = 0; i < rows; ++i) scores.push_back(random.below(64) / 16.0 - 2);
  const std::vector<unsigned char> mask(tokens, 1);
  for (const Placement placement : {Placement::LastStep, Placement::EveryToken}) {
    for (const bool of_rows : {true, false}) {
      INFO(static_cast<int>(placement) << ", " << of_rows);
      Reinforce e;
      e.placement = placement;
      if (of_rows) {
        e.rows.renorm = gdpo::renorm::batch();
      } else {
        e.tokens.renorm = gdpo::renorm::token_weighted_batch();
      }
      std::vector<float> wanted(tokens, 42);
      gdpo::ReturnBatch<float> b;
      b.mask = gdpo::view(mask.data(), rows, width);
      gdpo::advantages_and_returns_into(
          gdpo::RewardBatch{gdpo::view(std::as_const(scores)), gdpo::groups_of(2)}, b, e,
          gdpo::view(wanted.data(), rows, width));
      OnDevice<double> on_scores(scores);
      OnDevice<float> advantages(std::vector<float>(tokens, 42));
      OnDevice<unsigned char> on_mask(mask);
      b.mask = gdpo::view(on_mask.data(), rows, width);
      const gdpo::RewardBatch rewards{gdpo::view(on_scores.data(), rows), gdpo::groups_of(2)};
      const std::size_t bytes = gdpo::cuda::scratch_bytes(e, rewards, b);
      OnDevice<unsigned char> memory(std::vector<unsigned char>(bytes, 0xff));  // NaN
      gdpo::advantages_and_returns_into(test_device(3), rewards, b, e,
                                        gdpo::view(advantages.data(), rows, width), {},
                                        gdpo::cuda::Scratch{memory.data(), bytes});
      const std::vector<float> got = advantages.host();
      // How far they are apart: a rounding to float of numbers below 8.
      double most = 0;
      for (std::size_t k = 0; k < tokens; ++k)
        most = (std::max)(most,
                          std::isnan(got[k]) ? 1.0 : std::fabs(double(got[k]) - double(wanted[k])));
      CHECK(most <= 0x1p-21);
    }
  }
}

TEST_CASE("outcomes: missing and infinite rewards reach the tokens of their group alone",
          "[outcome][cuda]") {
  const double missing = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const auto same = [](const Vector& a, const Vector& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
  };
  for (const double bad : {missing, infinity, -infinity}) {
    for (const Placement placement : {Placement::LastStep, Placement::EveryToken}) {
      INFO(bad << ", " << static_cast<int>(placement));
      Four rows;
      rows.scores[1] = bad;
      Reinforce e;
      e.placement = placement;
      rows(e);
      const gdpo::RewardBatch rewards = rows.rewards();
      const Vector of_rows = gdpo::advantages(gdpo::seq, rewards, gdpo::DrGrpo{});
      for (std::size_t k = 0; k < 12; ++k) {
        const std::size_t last = k < 3 ? 2 : k < 6 ? 5 : 6;  // of the row; behind it masked ones
        const double steps =
            placement == Placement::LastStep || rows.mask[k] == 0
                ? 1
                : double(std::count(rows.mask.begin() + std::ptrdiff_t(k),
                                    rows.mask.begin() + std::ptrdiff_t(last) + 1, 1));
        const double wanted = rows.mask[k] ? of_rows[k / 3] * steps : 0;
        CHECK((rows.advantages[k] == wanted ||
               (std::isnan(wanted) && std::isnan(rows.advantages[k]))));
      }
      CHECK((rows.advantages[6] == 0.5 * 1));  // the other group
      // A row whose tokens are all masked gives zeros, whatever its reward is.
      for (std::size_t k = 9; k < 12; ++k) CHECK(rows.advantages[k] == 0);
      const auto check = [&](const auto& exec) {
        Vector advantages(12, 42), returns(12, 42);
        gdpo::OutcomeWorkspace<double> workspace;
        gdpo::advantages_and_returns_into(exec, rewards, rows.batch(), e, rows.to(advantages),
                                          rows.to(returns), workspace);
        CHECK(same(advantages, rows.advantages));
        CHECK(same(returns, rows.returns));
      };
      check(gdpo::seq), check(gdpo::parallel(executors::pool(2)));
      OnDevice<double> scores(rows.scores), advantages(Vector(12, 42)), returns(Vector(12, 42));
      OnDevice<unsigned char> mask(rows.mask);
      gdpo::ReturnBatch<double> b;
      b.mask = gdpo::view(mask.data(), 4, 3);
      const gdpo::RewardBatch on_device{gdpo::view(scores.data(), 4), gdpo::groups_of(2)};
      const std::size_t bytes = gdpo::cuda::scratch_bytes(e, on_device, b);
      OnDevice<unsigned char> memory(std::vector<unsigned char>(bytes, 0));
      gdpo::advantages_and_returns_into(
          test_device(1), on_device, b, e, gdpo::view(advantages.data(), 4, 3),
          gdpo::view(returns.data(), 4, 3), gdpo::cuda::Scratch{memory.data(), bytes});
      for (std::size_t k = 0; k < 12; ++k) {
        const double a = advantages.host()[k], h = rows.advantages[k];
        CHECK((a == h || (std::isnan(a) && std::isnan(h))));
      }
    }
  }
}

TEST_CASE("outcomes: batches without rows, and rows without tokens", "[outcome]") {
  for (const Placement placement : {Placement::LastStep, Placement::EveryToken}) {
    Reinforce e;
    e.placement = placement, e.tokens.renorm = gdpo::renorm::token_weighted_batch();
    const Vector none, two{1, 2};
    Vector out;
    const std::vector<unsigned char> mask;
    gdpo::ReturnBatch<double> b;
    b.mask = gdpo::view(mask.data(), 0, 3);
    gdpo::advantages_and_returns_into(gdpo::RewardBatch{gdpo::view(none), gdpo::groups_of(2)}, b, e,
                                      gdpo::view(out.data(), 0, 3));
    const std::vector<index_t> offsets{0, 0, 0};
    b.mask = gdpo::view(mask), b.offsets = gdpo::view(offsets);
    gdpo::advantages_and_returns_into(gdpo::RewardBatch{gdpo::view(two), gdpo::groups_of(2)}, b, e,
                                      gdpo::view(out));
  }
}

}  // namespace outcome_test
