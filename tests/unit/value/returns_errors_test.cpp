// labels: sanitizers
// Mistakes in calls of advantages_and_returns_into: each is named, and nothing is written.
#include <gdpo/value/advantages_and_returns.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace returns_errors_test {

namespace {

using gdpo::index_t, gdpo::TokenAdvantage;
using gdpo::returns::Gae, gdpo::returns::RewardToGo;

/// A correct call on (2, 3) tokens, which a test then changes.
struct Call {
  std::vector<float> tokens = std::vector<float>(24, 0.5f), advantages = std::vector<float>(24, 7),
                     returns = std::vector<float>(24, 7);
  std::vector<unsigned char> mask = std::vector<unsigned char>(24, 1);
  std::vector<double> column = std::vector<double>(24, 1.0);
  std::vector<index_t> offsets{0, 2, 6};
  gdpo::ReturnBatch<float> batch;
  gdpo::TokenOut<float> to_advantages, to_returns;

  Call() {
    batch.rewards = batch.values = batch.logp = batch.ref_logp = of(2, 3);
    batch.mask = gdpo::view(mask.data(), 2, 3);
    batch.row_rewards = batch.bootstrap = gdpo::view(column.data(), 2);
    to_advantages = gdpo::view(advantages.data(), 2, 3);
    to_returns = gdpo::view(returns.data(), 2, 3);
  }
  Call(const Call&) = delete;
  gdpo::TokenView<float> of(index_t rows, index_t width) {
    return gdpo::view(tokens.data(), rows, width);
  }
  /// What the message says after the name of the function.
  template <class Estimator = TokenAdvantage<>>
  std::string operator()(const Estimator& estimator = {}) {
    const std::string prefix = "gdpo::advantages_and_returns_into: ";
    std::string message;
    for (const bool lanes : {false, true}) {
      gdpo::ReturnsWorkspace<float> workspace;
      message = message_of([&] {
        if (lanes) {
          gdpo::advantages_and_returns_into(gdpo::simd, batch, estimator, to_advantages, to_returns,
                                            workspace);
        } else {
          gdpo::advantages_and_returns_into(gdpo::seq, batch, estimator, to_advantages, to_returns,
                                            workspace);
        }
      });
      for (const float x : advantages) CHECK((x == 7 || message == "no error"));
      for (const float x : returns) CHECK((x == 7 || message == "no error"));
    }
    return message.find(prefix) == 0 ? message.substr(prefix.size()) : message;
  }
};

}  // namespace

TEST_CASE("returns: settings out of their range are named") {
  Call call;
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  CHECK(call() == "no error");
  const std::string needed = "; needed: 0 to 1";
  Call fresh;
  CHECK(fresh(TokenAdvantage<>{{1.5}}) == "returns.gamma: given 1.5" + needed);
  CHECK(fresh(TokenAdvantage<>{{-0.5}}) == "returns.gamma: given -0.5" + needed);
  CHECK(fresh(TokenAdvantage<>{{nan}}) == "returns.gamma: given nan" + needed);
  CHECK(fresh(TokenAdvantage<>{{1, 2}}) == "returns.lambda: given 2" + needed);
  CHECK(fresh(TokenAdvantage<>{{1, nan}}) == "returns.lambda: given nan" + needed);
  CHECK(fresh(TokenAdvantage<>{{1, 1, -1}}) ==
        "returns.lambda_returns: given -1" + needed + " (NaN: lambda)");
  CHECK(fresh(TokenAdvantage<>{{1, 1, 1, -1}}) ==
        "returns.length_alpha: given -1; needed: a finite number of at least 0 (0: off)");
  CHECK(fresh(TokenAdvantage<>{{1, 1, 1, infinite}}).find("returns.length_alpha: given inf") == 0);
  CHECK(fresh(TokenAdvantage<>{{1, 1, 1, nan}}).find("returns.length_alpha: given nan") == 0);
  CHECK(fresh(TokenAdvantage<RewardToGo>{{2}}) == "returns.gamma: given 2" + needed);
  CHECK(fresh(TokenAdvantage<>{{}, {infinite}}) ==
        "penalty.coef: given inf; needed: a finite number");
  CHECK(fresh(TokenAdvantage<>{{}, {}, {1, 1}}).find("reward_clip.lo, reward_clip.hi: ") == 0);
  const auto with = [](const gdpo::Renorm& renorm) { return TokenAdvantage<>{{}, {}, {}, renorm}; };
  CHECK(fresh(with(gdpo::renorm::token_weighted_batch(-1))).find("renorm.ddof: given -1") == 0);
  const std::string of_tokens = "; needed: tokens or none, because the values are those of tokens";
  CHECK(fresh(with(gdpo::renorm::batch())) == "renorm.over: given batch" + of_tokens);
  CHECK(fresh(with(gdpo::renorm::per_group())) == "renorm.over: given group" + of_tokens);
  CHECK(fresh(with({static_cast<gdpo::RenormOver>(99)})) ==
        "renorm.over: given 99, which is no enumerator; needed: one of none, batch, group, tokens");
  CHECK(call(with(gdpo::renorm::token_weighted_batch())) == "no error");
  Gae steps;
  steps.steps = static_cast<gdpo::Steps>(9);
  CHECK(fresh(TokenAdvantage<>{steps}) ==
        "returns.steps: given 9, which is no enumerator; needed: one of valid, row, "
        "row_reward_on_valid, turns");
  gdpo::Kl<gdpo::kl::K1> clamped;
  clamped.input = {1, -1};
  CHECK(fresh(TokenAdvantage<>{{}, {0.5, clamped}})
            .find("penalty.kl.input.lo, penalty.kl.input.hi: ") == 0);
  // Exactly 0 and 1 are allowed.
  CHECK(call(TokenAdvantage<>{{0, 0, 0}}) == "no error");
  CHECK(call(TokenAdvantage<>{{1, 1, 1}}) == "no error");
}

TEST_CASE("returns: arrays of another shape are named") {
  const auto needed = std::string("; needed: (2, 3), the shape of batch.rewards");
  const auto wrong = [&](auto change) {
    Call call;
    change(call);
    return call();
  };
  CHECK(wrong([](Call& c) { c.batch.values = c.of(2, 4); }) ==
        "batch.values: given (2, 4)" + needed);
  CHECK(wrong([](Call& c) { c.batch.logp = c.of(3, 3); }) == "batch.logp: given (3, 3)" + needed);
  CHECK(wrong([](Call& c) { c.batch.ref_logp = gdpo::view(c.tokens.data(), 1, 2, 3); }) ==
        "batch.ref_logp: given (1, 2, 3)" + needed);
  CHECK(wrong([](Call& c) { c.batch.mask = gdpo::view(c.mask.data(), 6); }) ==
        "batch.mask: given (6)" + needed);
  CHECK(wrong([](Call& c) { c.to_advantages = gdpo::view(c.advantages.data(), 3, 2); }) ==
        "advantages: given (3, 2)" + needed);
  CHECK(wrong([](Call& c) { c.to_returns = gdpo::view(c.returns.data(), 2, 2); }) ==
        "returns: given (2, 2)" + needed);
  const std::string rows = "; needed: one for each of the 2 rows";
  CHECK(wrong([](Call& c) { c.batch.row_rewards = gdpo::view(c.column.data(), 3); }) ==
        "batch.row_rewards: given 3 entries" + rows);
  CHECK(wrong([](Call& c) { c.batch.bootstrap = gdpo::view(c.column.data(), 1); }) ==
        "batch.bootstrap: given 1 entries" + rows);
  CHECK(wrong([](Call& c) { c.batch.rewards = c.of(-1, 3); }).find("batch.rewards: ") == 0);

  // Columns of rank 2 beside tokens of rank 3.
  Call call;
  call.batch = {};
  call.batch.rewards = gdpo::view(call.tokens.data(), 2, 3, 4);
  call.to_advantages = gdpo::view(call.advantages.data(), 2, 3, 4), call.to_returns = {};
  call.batch.row_rewards = gdpo::view(call.column.data(), 3, 2);
  CHECK(call(TokenAdvantage<RewardToGo>{}) ==
        "batch.row_rewards: given (3, 2); needed: (2, 3), the prompts and completions of "
        "batch.rewards");
  call.batch.row_rewards = gdpo::view(call.column.data(), 2, 3);
  CHECK(call(TokenAdvantage<RewardToGo>{}) == "no error");
}

TEST_CASE("returns: offsets that do not fit are named") {
  Call call;
  call.batch = {};
  call.batch.rewards = call.batch.values = gdpo::view(call.tokens.data(), 6);
  call.to_advantages = gdpo::view(call.advantages.data(), 6), call.to_returns = {};
  CHECK(call() ==
        "batch.offsets: given none, with packed tokens (rewards has rank 1); needed: offsets "
        "(B + 1)");
  call.offsets = {0, 2, 5}, call.batch.offsets = gdpo::view(call.offsets);
  CHECK(call() == "batch.offsets: given from 0 to 5; needed: from 0 to 6, the number of tokens");
  call.offsets = {1, 2, 6}, call.batch.offsets = gdpo::view(call.offsets);
  CHECK(call().find("batch.offsets: given from 1 to 6") == 0);
  call.offsets = {0, 7, 6}, call.batch.offsets = gdpo::view(call.offsets);
  CHECK(call().find("batch.offsets: given offsets[2] = 6 after offsets[1] = 7") == 0);
  Call padded;
  padded.batch.offsets = gdpo::view(padded.offsets);
  CHECK(padded() ==
        "batch.offsets: given offsets, with padded tokens (rewards has rank 2); needed: none, "
        "or tokens of rank 1");
}

TEST_CASE("returns: missing arrays are named, arrays that are not read are not needed") {
  const auto message = [](const auto& change, const auto& estimator) {
    Call call;
    change(call);
    return call(estimator);
  };
  const TokenAdvantage<> gae;
  const TokenAdvantage<RewardToGo> to_go;
  const TokenAdvantage<RewardToGo> penalized{{}, {0.1}};
  CHECK(message([](Call& c) { c.to_advantages = {}; }, gae) ==
        "advantages: given no array; needed: the array that the advantages are written to");
  CHECK(message([](Call& c) { c.batch.values = {}; }, gae) ==
        "batch.values: given no array; needed: the critic's values");
  CHECK(message([](Call& c) { c.batch.values = {}; }, to_go) == "no error");
  const auto no_rewards = [](Call& c) { c.batch.rewards = {}, c.batch.row_rewards = {}; };
  CHECK(message(no_rewards, to_go) ==
        "batch.rewards: given neither rewards nor row_rewards; needed: one of them, or a penalty");
  CHECK(message(no_rewards, penalized) == "no error");
  CHECK(message([](Call& c) { c.batch.rewards = {}; }, to_go) == "no error");
  CHECK(message([](Call& c) { c.batch.row_rewards = {}; }, to_go) == "no error");
  const std::string logp =
      ": given no array; needed: the log-probs of the tokens, because penalty.coef is not 0";
  CHECK(message([](Call& c) { c.batch.logp = {}; }, penalized) == "batch.logp" + logp);
  CHECK(message([](Call& c) { c.batch.ref_logp = {}; }, penalized) == "batch.ref_logp" + logp);
  CHECK(message([](Call& c) { c.batch.logp = c.batch.ref_logp = {}; }, to_go) == "no error");
  CHECK(message([](Call& c) { c.to_returns = {}; }, gae) == "no error");
  CHECK(message([](Call& c) { c.to_returns = c.to_advantages; }, gae) ==
        "returns: given the array of the advantages; needed: an array of their own");
  CHECK(message([](Call& c) { c.batch.mask = {}; }, gae) == "no error");
  CHECK(message(
            [](Call& c) {
              c.batch = {}, c.to_advantages = {}, c.to_returns = {};
              c.batch.row_rewards = gdpo::view(c.column.data(), 2);
            },
            to_go)
            .find("advantages: given no array") == 0);
  // The shape may come from the output alone.
  CHECK(message(
            [](Call& c) {
              c.batch = {};
              c.batch.row_rewards = gdpo::view(c.column.data(), 2);
            },
            to_go) == "no error");
}

TEST_CASE("returns: a batch without tokens needs nothing") {
  gdpo::ReturnBatch<float> b;
  float nothing = 0;
  const std::vector<index_t> offsets{0, 0, 0};
  b.offsets = gdpo::view(offsets);
  gdpo::advantages_and_returns_into(b, TokenAdvantage<>{}, gdpo::view(&nothing, 0));
  gdpo::ReturnBatch<float> none;
  none.rewards = gdpo::view(&nothing, 0, 5);
  gdpo::advantages_and_returns_into(
      none, TokenAdvantage<>{{}, {}, {}, gdpo::renorm::token_weighted_batch()},
      gdpo::view(&nothing, 0, 5));
  gdpo::ReturnBatch<float> narrow;  // rows without a position
  narrow.rewards = gdpo::view(&nothing, 5, 0);
  gdpo::advantages_and_returns_into(narrow, TokenAdvantage<>{}, gdpo::view(&nothing, 5, 0));
  CHECK(nothing == 0);
}

}  // namespace returns_errors_test
