// labels: sanitizers
// What a value loss, its count and returns refuse, on the host and, before anything is launched, on
// a device: the tables of tests/refusals. And what the tables cannot say.
#include "support/refusals.hpp"

#include <gdpo/cuda/value/device_returns.hpp>
#include <gdpo/cuda/value/device_value_loss.hpp>
#include <gdpo/value.hpp>

namespace refusals_test {

namespace {

using refusals::Call;

gdpo::ValueBatch<double> value_batch(Call& call) {
  gdpo::ValueBatch<double> b;
  call.bind("values", b.values, "old_values", b.old_values, "returns", b.returns, "mask", b.mask,
            "offsets", b.offsets, "row_weights", b.row_weights, "group_tokens", b.group_tokens);
  return b;
}
gdpo::ValueLoss<> value_loss(const Call& call) {
  gdpo::ValueLoss<> loss;
  refusals::set(loss, call.values.at("settings"));
  return loss;
}

gdpo::ReturnBatch<double> return_batch(Call& call) {
  gdpo::ReturnBatch<double> b;
  call.bind("rewards", b.rewards, "row_rewards", b.row_rewards, "values", b.values, "logp", b.logp,
            "ref_logp", b.ref_logp, "mask", b.mask, "offsets", b.offsets, "bootstrap", b.bootstrap);
  return b;
}
/// Calls f(batch, estimator, advantages, returns) with what a call has. Returns its message.
template <class F>
std::string with_returns(Call& call, const F& f) {
  const auto run = [&](auto estimator) {
    refusals::set(estimator, call.values.at("settings"));
    return message_of(
        [&] { f(return_batch(call), estimator, call.out("advantages"), call.out("returns")); });
  };
  const std::string preset = call.values.at("preset");
  if (preset == "gae") return run(gdpo::TokenAdvantage<>{});
  if (preset == "reward_to_go") return run(gdpo::TokenAdvantage<gdpo::returns::RewardToGo>{});
  throw std::invalid_argument("no preset " + preset);
}

}  // namespace

TEST_CASE("what a value loss refuses", "[value][errors]") {
  refusals::check("value_loss", "host", "gdpo::ValueLoss", [](Call& call) {
    const auto run = [&](const auto& loss) {
      return message_of([&] {
        gdpo::ValueWorkspace<double> workspace;
        loss(gdpo::seq, value_batch(call), counts_of(call), call.out("gradient"), workspace);
      });
    };
    const std::string message = run(value_loss(call));
    CHECK(run(gdpo::with_metrics<gdpo::metrics::None>(value_loss(call))) == message);
    return message;
  });
}

TEST_CASE("on a device: what a value loss refuses, before anything is launched",
          "[value][cuda][errors]") {
  refusals::check_on_device("value_loss", "gdpo::ValueLoss", [](const auto& device, Call& call) {
    gdpo::ValueLossResult result;
    return message_of([&] {
      value_loss(call)(device, value_batch(call), counts_of(call), call.out("gradient"), &result,
                       unused_scratch());
    });
  });
}

TEST_CASE("what the count of a batch of values refuses", "[value][count][errors]") {
  refusals::check("value_count", "host", "gdpo::count",
                  [](Call& call) { return message_of([&] { gdpo::count(value_batch(call)); }); });
  refusals::check_on_device(
      "value_count", "gdpo::cuda::count_into", [](const auto& device, Call& call) {
        gdpo::Normalizer n;
        return message_of(
            [&] { gdpo::cuda::count_into(device, value_batch(call), &n, unused_scratch()); });
      });
  const std::int64_t offsets[1] = {0};
  gdpo::ValueBatch<float> batch;  // no array of a table has this extent
  batch.offsets = gdpo::view(offsets, (std::numeric_limits<gdpo::index_t>::min)());
  CHECK(message_of([&] { gdpo::count(batch); }) ==
        "gdpo::count: batch.offsets: given (-9223372036854775808); needed: extents of at least 0");
}

TEST_CASE("results of value losses that do not belong to one step", "[value][errors]") {
  gdpo::ValueLossResult a, b;
  a.metrics.rows = b.metrics.rows = 2;
  a.normalizer.tokens = 10, b.normalizer.tokens = 11;
  CHECK(message_of([&] { merge(a, b); }) ==
        "gdpo::merge: b.normalizer: given 11 tokens, 0 rows, 0 non-empty rows, 0 given; needed: 10 "
        "tokens, 0 rows, 0 non-empty rows, 0 given, the counts of the step, as in a");
}

TEST_CASE("what advantages and returns of tokens refuse", "[returns][errors]") {
  const auto check = [](const auto& exec) {
    refusals::check("returns", "host", "gdpo::advantages_and_returns_into", [&](Call& call) {
      return with_returns(call, [&](const auto& batch, const auto& estimator,
                                    const auto& advantages, const auto& returns) {
        gdpo::ReturnsWorkspace<double> workspace;
        gdpo::advantages_and_returns_into(exec, batch, estimator, advantages, returns, workspace);
      });
    });
  };
  check(gdpo::seq), check(gdpo::simd);
}

TEST_CASE("on a device: what returns refuse, and a batch without tokens, launch nothing",
          "[returns][cuda][errors]") {
  refusals::check("returns", "grid", "gdpo::advantages_and_returns_into", [](Call& call) {
    const HostOnly device;
    const std::string message = with_returns(
        call,
        [&](const auto& batch, const auto& estimator, const auto& advantages, const auto& returns) {
          gdpo::advantages_and_returns_into(device, batch, estimator, advantages, returns,
                                            unused_scratch());
        });
    CHECK((device.launches > 0) ==
          (message == "no error" && !call.outputs.at("advantages").empty()));
    return message;
  });
}

TEST_CASE("returns over the advantages", "[returns][cuda][errors]") {
  double numbers[6] = {};
  gdpo::ReturnBatch<double> batch;
  batch.rewards = batch.values = gdpo::view(numbers, 2, 3);
  const gdpo::TokenOut<double> out = gdpo::view(numbers, 2, 3);
  const std::string message =
      "gdpo::advantages_and_returns_into: returns: given the array of the advantages; needed: an "
      "array of their own";
  const gdpo::TokenAdvantage<> gae;
  CHECK(message_of([&] { gdpo::advantages_and_returns_into(batch, gae, out, out); }) == message);
  CHECK(message_of([&] {
          gdpo::advantages_and_returns_into(HostOnly{}, batch, gae, out, out, unused_scratch());
        }) == message);
}

}  // namespace refusals_test
