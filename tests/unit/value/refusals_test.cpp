// labels: sanitizers
// What value losses and estimators of token advantages refuse, on the host and, before anything is
// launched, on a device: the tables of tests/refusals. And what the tables cannot say.
#include "support/refusals.hpp"

#include <gdpo/cuda/value/device_returns.hpp>
#include <gdpo/cuda/value/device_value_loss.hpp>
#include <gdpo/value.hpp>

#include "support/host_only.hpp"

namespace refusals_test {

namespace {

using refusals::Call;

/// A batch of a call's arrays, by the names of its members.
template <class Batch>
Batch batch_of(Call& call, const std::map<std::string, gdpo::TokenView<double> Batch::*>& tokens,
               const std::map<std::string, gdpo::Column Batch::*>& columns) {
  Batch batch;
  for (auto& entry : call.arrays) {
    const std::string& name = entry.first;
    refusals::Array& array = entry.second;
    if (name == "offsets") {
      batch.offsets = array.index_column();
    } else if (name == "mask") {
      batch.mask = array.tokens<unsigned char>();
    } else if (columns.count(name) > 0) {
      batch.*columns.at(name) = array.column();
    } else {
      batch.*tokens.at(name) = array.tokens<double>();
    }
  }
  return batch;
}
gdpo::ValueBatch<double> value_batch(Call& call) {
  using Batch = gdpo::ValueBatch<double>;
  return batch_of<Batch>(call,
                         {{"values", &Batch::values},
                          {"old_values", &Batch::old_values},
                          {"returns", &Batch::returns}},
                         {{"row_weights", &Batch::row_weights}});
}
gdpo::ReturnBatch<double> return_batch(Call& call) {
  using Batch = gdpo::ReturnBatch<double>;
  return batch_of<Batch>(call,
                         {{"rewards", &Batch::rewards},
                          {"values", &Batch::values},
                          {"logp", &Batch::logp},
                          {"ref_logp", &Batch::ref_logp}},
                         {{"row_rewards", &Batch::row_rewards}, {"bootstrap", &Batch::bootstrap}});
}

gdpo::ValueLoss<> loss_of(const Call& call) {
  gdpo::ValueLoss<> loss;
  refusals::set(loss, call.values.at("settings"));
  return loss;
}
/// Calls f(estimator) with the estimator of a call. Returns its message.
template <class F>
std::string with_estimator(const Call& call, const F& f) {
  const auto run = [&](auto estimator) {
    refusals::set(estimator, call.values.at("settings"));
    return message_of([&] { f(estimator); });
  };
  if (call.values.at("returns") == "gae") return run(gdpo::TokenAdvantage<>{});
  return run(gdpo::TokenAdvantage<gdpo::returns::RewardToGo>{});
}

}  // namespace

TEST_CASE("what a value loss refuses", "[value][errors]") {
  refusals::check("value_loss", "host", "gdpo::ValueLoss", [](Call& call) {
    return message_of([&] {
      gdpo::ValueWorkspace<double> workspace;
      loss_of(call)(gdpo::simd, value_batch(call), counts_of(call), call.out("gradient"),
                    workspace);
    });
  });
}

TEST_CASE("on a device: what a value loss refuses, before anything is launched",
          "[value][cuda][errors]") {
  refusals::check("value_loss", "grid", "gdpo::ValueLoss", [](Call& call) {
    const HostOnly device;
    gdpo::ValueLossResult result;
    const std::string message = message_of([&] {
      loss_of(call)(device, value_batch(call), gdpo::cuda::DeviceNormalizer(counts_of(call)),
                    call.out("gradient"), &result, unused_scratch());
    });
    CHECK((device.launches > 0) == (message == "no error"));
    return message;
  });
}

TEST_CASE("what token advantages refuse", "[value][errors]") {
  const auto check = [](const auto& exec) {
    refusals::check("advantages_and_returns", "host", "gdpo::advantages_and_returns_into",
                    [&](Call& call) {
                      return with_estimator(call, [&](const auto& estimator) {
                        gdpo::ReturnsWorkspace<double> workspace;
                        gdpo::advantages_and_returns_into(exec, return_batch(call), estimator,
                                                          call.out("advantages"),
                                                          call.out("returns"), workspace);
                      });
                    });
  };
  check(gdpo::seq), check(gdpo::simd);
}

TEST_CASE("on a device: what token advantages refuse, before anything is launched",
          "[value][cuda][errors]") {
  refusals::check("advantages_and_returns", "grid", "gdpo::advantages_and_returns_into",
                  [](Call& call) {
                    const HostOnly device;
                    const std::string message = with_estimator(call, [&](const auto& estimator) {
                      gdpo::advantages_and_returns_into(device, return_batch(call), estimator,
                                                        call.out("advantages"), call.out("returns"),
                                                        unused_scratch());
                    });
                    CHECK((device.launches > 0) == (message == "no error"));
                    return message;
                  });
}

TEST_CASE("a value loss without metrics counts the tokens too", "[value][errors]") {
  const double numbers[6] = {}, mask[6] = {1, 0, 1, 1, 1, 1};
  gdpo::ValueBatch<double> batch;
  batch.values = batch.returns = gdpo::view(numbers, 2, 3), batch.mask = gdpo::view(mask, 2, 3);
  const auto message = [&](const auto& loss) {
    return message_of([&] { loss(batch, {4, 2, 2, 0}); });
  };
  const gdpo::ValueLoss<> loss;
  CHECK(message(loss).find("normalizer.tokens: given 4, for a loss of 5") != std::string::npos);
  CHECK(message(gdpo::with_metrics<gdpo::metrics::None>(loss)) == message(loss));
}

TEST_CASE("what counts of values refuse", "[value][errors]") {
  const double numbers[6] = {};
  gdpo::ValueBatch<double> batch;
  CHECK(message_of([&] { gdpo::count(batch); }) ==
        "gdpo::count: batch: given no array of tokens and no offsets; needed: a mask, offsets or "
        "log-probs, which say how many tokens the rows have");
  batch.old_values = gdpo::view(numbers, 2, 3), batch.returns = gdpo::view(numbers, 2, 2);
  const std::string returns =
      "batch.returns: given (2, 2); needed: (2, 3), the shape of batch.old_values";
  CHECK(message_of([&] { gdpo::count(batch); }) == "gdpo::count: " + returns);
  const HostOnly device;
  gdpo::Normalizer counts;
  CHECK(message_of([&] { gdpo::cuda::count_into(device, batch, &counts, unused_scratch()); }) ==
        "gdpo::cuda::count_into: " + returns);
  CHECK(device.launches == 0);
}

TEST_CASE("results of value losses that do not belong to one step", "[value][errors]") {
  gdpo::ValueLossResult a, b;
  a.metrics.rows = b.metrics.rows = 2;
  a.normalizer.tokens = 10, b.normalizer.tokens = 11;
  CHECK(message_of([&] { merge(a, b); }) ==
        "gdpo::merge: b.normalizer: given 11 tokens, 0 rows, 0 non-empty rows, 0 given; needed: 10 "
        "tokens, 0 rows, 0 non-empty rows, 0 given, the counts of the step, as in a");
}

TEST_CASE("offsets of an impossible extent are refused by name", "[value_loss][errors]") {
  const float x[1] = {0};
  const std::int64_t offsets[1] = {0};
  const double weights[1] = {1};
  for (const gdpo::index_t extent :
       {gdpo::index_t{-1}, (std::numeric_limits<gdpo::index_t>::min)()}) {
    gdpo::ValueBatch<float> batch;
    batch.values = gdpo::view(x, gdpo::index_t{0});
    batch.offsets = gdpo::view(offsets, extent);
    batch.row_weights = gdpo::view(weights, 1);
    INFO(extent);
    CHECK(message_of([&] { gdpo::count(batch); }).find("gdpo::count: batch.offsets: given") == 0);
  }
}

TEST_CASE("token advantages: one array for both results, and none for either", "[value][errors]") {
  const double rewards[6] = {}, row_rewards[2] = {};
  double out[6] = {};
  gdpo::ReturnBatch<double> batch;
  batch.rewards = gdpo::view(rewards, 2, 3);
  const gdpo::TokenAdvantage<gdpo::returns::RewardToGo> estimator;
  const auto message = [&](const gdpo::TokenOut<double>& advantages) {
    return message_of(
        [&] { gdpo::advantages_and_returns_into(batch, estimator, advantages, advantages); });
  };
  CHECK(message(gdpo::view(out, 2, 3)) ==
        "gdpo::advantages_and_returns_into: returns: given the array of the advantages; needed: an "
        "array of their own");
  batch.rewards = {}, batch.row_rewards = gdpo::view(row_rewards, 2);
  CHECK(message({}) ==
        "gdpo::advantages_and_returns_into: advantages: given no array; needed: the array that the "
        "advantages are written to");
}

TEST_CASE("token advantages of a batch without tokens need nothing", "[value][errors]") {
  gdpo::ReturnBatch<float> b;
  float nothing = 0;
  const std::vector<gdpo::index_t> offsets{0, 0, 0};
  b.offsets = gdpo::view(offsets);
  gdpo::advantages_and_returns_into(b, gdpo::TokenAdvantage<>{}, gdpo::view(&nothing, 0));
  gdpo::ReturnBatch<float> none;
  none.rewards = gdpo::view(&nothing, 0, 5);
  gdpo::advantages_and_returns_into(
      none, gdpo::TokenAdvantage<>{{}, {}, {}, gdpo::renorm::token_weighted_batch()},
      gdpo::view(&nothing, 0, 5));
  gdpo::ReturnBatch<float> narrow;  // rows without a position
  narrow.rewards = gdpo::view(&nothing, 5, 0);
  gdpo::advantages_and_returns_into(narrow, gdpo::TokenAdvantage<>{}, gdpo::view(&nothing, 5, 0));
  CHECK(nothing == 0);
}

}  // namespace refusals_test
