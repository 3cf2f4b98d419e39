// labels: lanes, sanitizers
// Advantages and returns of tokens: numbers worked out by hand, what happens to NaN and to rows
// without a step, storage types, and memory.
#include "support/returns.hpp"

#include <gdpo/value/advantages_and_returns.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/tolerance.hpp"

namespace returns_test {

namespace {

using namespace return_cases;
using gdpo::Steps, gdpo::TokenAdvantage;
using gdpo::returns::Gae, gdpo::returns::RewardToGo;
using Vector = std::vector<double>;

/// One row of numbers that halves and sums of halves hold exactly.
struct Row {
  Vector rewards, values;
  std::vector<unsigned char> mask;
  Vector row_reward, bootstrap;

  template <class Estimator>
  Out<double> operator()(const Estimator& estimator) const {
    gdpo::ReturnBatch<double> b;
    const auto n = static_cast<index_t>(mask.size());
    if (!rewards.empty()) b.rewards = gdpo::view(rewards.data(), 1, n);
    if (!values.empty()) b.values = gdpo::view(values.data(), 1, n);
    b.mask = gdpo::view(mask.data(), 1, n);
    if (!row_reward.empty()) b.row_rewards = gdpo::view(row_reward);
    if (!bootstrap.empty()) b.bootstrap = gdpo::view(bootstrap);
    Out<double> seq{Vector(mask.size(), 42.0), Vector(mask.size(), 42.0)}, simd = seq;
    gdpo::ReturnsWorkspace<double> workspace;
    gdpo::advantages_and_returns_into(gdpo::seq, b, estimator,
                                      gdpo::view(seq.advantages.data(), 1, n),
                                      gdpo::view(seq.returns.data(), 1, n), workspace);
    gdpo::advantages_and_returns_into(b, estimator, gdpo::view(simd.advantages.data(), 1, n),
                                      gdpo::view(simd.returns.data(), 1, n));
    CHECK(seq == simd);
    return seq;
  }
};

}  // namespace

TEST_CASE("returns by hand: GAE over the valid tokens, with the row's reward on the last") {
  // Steps 0, 1, 3. gamma 1/2, lambda 1/2, so the decay is 1/4.
  const Row row{{1, 0, 9, 2, 9}, {4, 2, 9, 1, 9}, {1, 1, 0, 1, 0}, {3}, {}};
  // t 3: delta = (2 + 3) - 1 = 4.   t 1: delta = 0 + 0.5 - 2 = -1.5, A = -1.5 + 1 = -0.5.
  // t 0: delta = 1 + 1 - 4 = -2, A = -2 - 0.125.
  const auto got = row(TokenAdvantage<>{{0.5, 0.5}});
  CHECK(got.advantages == Vector{-2.125, -0.5, 0, 4, 0});
  CHECK(got.returns == Vector{1.875, 1.5, 0, 5, 0});
  // The returns with lambda 1: 5, 0 + 2.5, 1 + 1.25.
  const auto decoupled = row(TokenAdvantage<>{{0.5, 0.5, 1}});
  CHECK(decoupled.advantages == got.advantages);
  CHECK(decoupled.returns == Vector{2.25, 2.5, 0, 5, 0});
  // length_alpha 2/3: lambda = 1 - 1/(2/3 3) = 1/2 for the advantages; the returns keep lambda = 1.
  const auto adaptive = row(TokenAdvantage<>{{0.5, 1, gdpo::same_lambda, 2.0 / 3}});
  CHECK(adaptive.advantages == got.advantages);
  CHECK(adaptive.returns == decoupled.returns);
  // length_alpha 1/4: 1 - 1/(3/4) is negative, so lambda is 0 and A is delta.
  CHECK(row(TokenAdvantage<>{{0.5, 1, gdpo::same_lambda, 0.25}}).advantages ==
        Vector{-2, -1.5, 0, 4, 0});
}

TEST_CASE("returns: a masked end of a row keeps the bootstrap of its last run, in lanes too") {
  // Eight full rows, so that they stand side by side. Masked positions behind the last step are
  // walked over first, and must not end what the row is continued with.
  constexpr index_t rows = 8;
  for (const index_t n : {8, 1500}) {  // within a tile, and over several
    for (const index_t masked : {1, 2}) {
      INFO(n << " tokens, the last " << masked << " masked");
      const auto size = static_cast<std::size_t>(rows * n);
      const Vector rewards(size, 1.0), values(size, 0.0), bootstrap(rows, 5.0);
      std::vector<unsigned char> mask(size, 1);
      for (index_t i = 0; i < rows; ++i) {
        for (index_t t = n - masked; t < n; ++t) mask[static_cast<std::size_t>(i * n + t)] = 0;
      }
      gdpo::ReturnBatch<double> b;
      b.rewards = gdpo::view(rewards.data(), rows, n);
      b.values = gdpo::view(values.data(), rows, n);
      b.mask = gdpo::view(mask.data(), rows, n);
      b.bootstrap = gdpo::view(bootstrap);
      const TokenAdvantage<> estimator{{1, 1, gdpo::same_lambda, 0, Steps::Turns}};
      Out<double> seq{Vector(size, 42.0), Vector(size, 42.0)}, simd = seq;
      gdpo::ReturnsWorkspace<double> workspace;
      gdpo::advantages_and_returns_into(gdpo::seq, b, estimator,
                                        gdpo::view(seq.advantages.data(), rows, n),
                                        gdpo::view(seq.returns.data(), rows, n), workspace);
      gdpo::advantages_and_returns_into(b, estimator, gdpo::view(simd.advantages.data(), rows, n),
                                        gdpo::view(simd.returns.data(), rows, n));
      CHECK(seq == simd);
      // One reward of 1 for each valid token from here on, then the bootstrap.
      index_t wrong = 0;
      for (index_t i = 0; i < rows; ++i) {
        for (index_t t = 0; t < n; ++t) {
          const double expected = t < n - masked ? static_cast<double>(n - masked - t) + 5 : 0;
          wrong += simd.returns[static_cast<std::size_t>(i * n + t)] != expected;
          wrong += simd.advantages[static_cast<std::size_t>(i * n + t)] != expected;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("returns by hand: the four choices of steps") {
  const Row row{{1, 0, 8, 2, 4}, {4, 2, 6, 1, 2}, {1, 1, 0, 1, 0}, {3}, {10}};
  const auto gae = [&](Steps steps) {
    return row(TokenAdvantage<>{{0.5, 1, gdpo::same_lambda, 0, steps}});
  };
  const auto to_go = [&](Steps steps) {
    return row(TokenAdvantage<RewardToGo>{{0.5, steps}}).advantages;
  };
  // lambda 1: the returns are the reward to go, and A = G - V.
  // Valid: G = 2 + 3 + 5, 0 + 5, 1 + 2.5.
  CHECK(to_go(Steps::Valid) == Vector{3.5, 5, 0, 10, 0});
  // Row: every reward counts, the row's reward stands on the last position: 4 + 3 + 5, 2 + 6,
  // 8 + 4, 0 + 6, 1 + 3.
  CHECK(to_go(Steps::Row) == Vector{4, 6, 0, 8, 0});
  // RowRewardOnValid: 0 + 5, 2 + 3 + 2.5, 0 + 3.75, 0 + 1.875, 1 + 0.9375.
  CHECK(to_go(Steps::RowRewardOnValid) == Vector{1.9375, 1.875, 0, 7.5, 0});
  // Turns: 2 + 3 + 5; then 0 and 1 + 0.
  CHECK(to_go(Steps::Turns) == Vector{1, 0, 0, 10, 0});
  for (const Steps steps : all_steps) {
    const auto got = gae(steps);
    CHECK(got.returns == to_go(steps));
    for (const std::size_t t : {0u, 1u, 3u})
      CHECK(got.advantages[t] == got.returns[t] - row.values[t]);
  }
  // lambda 0: which value follows. Valid: 0 -> 1 -> 3 -> bootstrap.
  const auto td = [&](Steps steps) {
    return row(TokenAdvantage<>{{0.5, 0, gdpo::same_lambda, 0, steps}}).advantages;
  };
  CHECK(td(Steps::Valid) == Vector{-2, -1.5, 0, 9, 0});
  CHECK(td(Steps::Turns) == Vector{-2, -2, 0, 9, 0});            // V behind token 1 is 0
  CHECK(td(Steps::Row) == Vector{-2, 1, 0, 2, 0});               // V_2 = 6, V_4 = 2 follow
  CHECK(td(Steps::RowRewardOnValid) == Vector{-2, 1, 0, 5, 0});  // the same, with 3 on token 3
}

TEST_CASE("returns by hand: the penalty and the clip of the row's reward") {
  const Vector logp{-1, -2}, ref_logp{-1.5, -1}, scores{8};
  gdpo::ReturnBatch<double> b;
  b.logp = gdpo::view(logp.data(), 1, 2), b.ref_logp = gdpo::view(ref_logp.data(), 1, 2);
  Vector out(2);
  // k1 = logp - ref = 0.5 and -1, times 2: rewards -1 and 2.
  TokenAdvantage<RewardToGo> e{{1}, {2}, {-3, 5}, {}};
  gdpo::advantages_and_returns_into(b, e, gdpo::view(out.data(), 1, 2));
  CHECK(out == Vector{1, 2});
  b.row_rewards = gdpo::view(scores);  // clipped to 5; the penalty is not
  gdpo::advantages_and_returns_into(b, e, gdpo::view(out.data(), 1, 2));
  CHECK(out == Vector{6, 7});
}

TEST_CASE("returns: a row without a step gives zeros, whatever its columns hold") {
  const double nan = std::nan("");
  for (const Steps steps : all_steps) {
    const Row row{{nan, 1}, {nan, 1}, {0, 0}, {nan}, {nan}};
    const auto gae = row(TokenAdvantage<>{{1, 1, gdpo::same_lambda, 0.5, steps}});
    const auto to_go = row(TokenAdvantage<RewardToGo>{{1, steps}});
    for (const auto& got : {gae, to_go}) {
      for (const double x : got.advantages) CHECK(same_bits(x, 0));
      for (const double x : got.returns) CHECK(same_bits(x, 0));
    }
  }
}

TEST_CASE("returns: a NaN reaches the steps before it in its row, and through whitening all") {
  Random random(5);
  Data d;
  for (int i = 0; i < 11; ++i) add_row(random, d, 20, 1.0);
  const auto clean = packed<float>(gdpo::seq, d, TokenAdvantage<>{{0.9, 0.9}});
  d.rewards[47] = std::nan("");  // token 7 of row 2
  const auto check = [&](const auto& exec) {
    const auto got = packed<float>(exec, d, TokenAdvantage<>{{0.9, 0.9}});
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      const bool reached = k >= 40 && k <= 47;
      CHECK(std::isnan(got.advantages[k]) == reached);
      CHECK(std::isnan(got.returns[k]) == reached);
      if (!reached) CHECK(got.advantages[k] == clean.advantages[k]);
    }
    const auto all = packed<float>(
        exec, d, TokenAdvantage<>{{0.9, 0.9}, {}, {}, gdpo::renorm::token_weighted_batch()});
    for (const float x : all.advantages) CHECK(std::isnan(x));
  };
  check(gdpo::seq), check(gdpo::simd);
}

TEST_CASE("returns: whitened equal advantages are exactly 0, the returns are not whitened") {
  const Row row{{}, {}, {1, 1, 0, 1}, {3}, {}};
  const auto got =
      row(TokenAdvantage<RewardToGo>{{}, {}, {}, gdpo::renorm::token_weighted_batch()});
  for (const double x : got.advantages) CHECK(same_bits(x, 0));
  CHECK(got.returns == Vector{3, 3, 0, 3});
}

TEST_CASE("returns: inputs of 16 bits and integers are read exactly") {
  const std::vector<gdpo::BFloat16> values{{0x3f80}, {0x4000}, {0xbf00}};  // 1, 2, -0.5
  const std::vector<int> rewards{1, 0, -1}, mask{1, 1, 7};
  const std::vector<int> scores{2};
  gdpo::ReturnBatch<float> b;
  b.values = gdpo::view(values.data(), 1, 3), b.rewards = gdpo::view(rewards.data(), 1, 3);
  b.mask = gdpo::view(mask.data(), 1, 3), b.row_rewards = gdpo::view(scores);
  std::vector<float> out(3), returns(3);
  gdpo::advantages_and_returns_into(b, TokenAdvantage<>{}, gdpo::view(out.data(), 1, 3),
                                    gdpo::view(returns.data(), 1, 3));
  CHECK(returns == std::vector<float>{2, 1, 1});
  CHECK(out == std::vector<float>{1, -1, 1.5});
}

TEST_CASE("returns: the second call allocates nothing, whatever ran before") {
  Random random(9);
  const Data small = random_rows(random, 3, 20), large = random_rows(random, 30, 1500);
  const TokenAdvantage<> e{{0.9, 0.9, 1}, {0.1}, {}, gdpo::renorm::token_weighted_batch()};
  gdpo::ReturnsWorkspace<float> workspace;
  const auto wanted = packed<float>(gdpo::seq, small, e);
  const auto padded_once = [&](const Data& d) {
    return padded<float, float>(gdpo::simd, d, e, Form::Columns, 0, workspace);
  };
  CHECK(padded_once(small) == wanted);
  padded_once(large);
  CHECK(padded_once(small) == wanted);

  const index_t rows = 40, width = 700;
  std::vector<float> rewards(rows * width, 1.0f), values = rewards, out = rewards;
  std::vector<int> mask(rewards.size(), 1);
  gdpo::ReturnBatch<float> b;
  b.rewards = gdpo::view(rewards.data(), {rows, width}, {1, rows});  // converted
  b.values = gdpo::view(values.data(), rows, width);
  b.mask = gdpo::view(mask.data(), rows, width);
  const TokenAdvantage<> whitened{{}, {}, {}, gdpo::renorm::token_weighted_batch()};
  const auto allocations_of = [&](const auto& exec) {
    gdpo::ReturnsWorkspace<float> kept;
    return counted::made_again([&] {
      gdpo::advantages_and_returns_into(exec, b, whitened, gdpo::view(out.data(), rows, width), {},
                                        kept);
    });
  };
  CHECK(allocations_of(gdpo::seq) == 0);
  CHECK(allocations_of(gdpo::simd) == 0);
  CHECK(allocations_of(gdpo::parallel(executors::pool(3))) == 0);
}

}  // namespace returns_test
