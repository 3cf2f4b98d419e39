// labels: sanitizers
// What a policy loss and count() refuse, on the host and, before anything is launched, on a device:
// the tables of tests/refusals. And what the tables cannot say.
#include "support/refusals.hpp"

#include <gdpo/cuda/loss/device_loss.hpp>
#include <gdpo/cuda/tokens/device_count.hpp>
#include <gdpo/loss.hpp>

namespace refusals_test {

using refusals::Call;

TEST_CASE("what a policy loss refuses", "[loss][errors]") {
  refusals::check("policy_loss", "host", "gdpo::PolicyLoss", [](Call& call) {
    return refusals::with_loss(call, [&](const auto& loss) {
      gdpo::LossWorkspace<double> workspace;
      loss(gdpo::seq, batch_of(call), counts_of(call), call.outputs.at("gradient").out(),
           workspace);
    });
  });
}

TEST_CASE("on a device: what a policy loss refuses, before anything is launched",
          "[loss][cuda][errors]") {
  refusals::check_on_device("policy_loss", "gdpo::PolicyLoss", [](const auto& device, Call& call) {
    gdpo::LossResult result;
    result.loss = refusals::unwritten;
    const std::string message = refusals::with_loss(call, [&](const auto& loss) {
      loss(device, batch_of(call), gdpo::cuda::DeviceNormalizer(counts_of(call)),
           call.outputs.at("gradient").out(), &result, unused_scratch());
    });
    CHECK(result.loss == refusals::unwritten);
    return message;
  });
}

TEST_CASE("what count() refuses", "[count][errors]") {
  refusals::check("count", "host", "gdpo::count",
                  [](Call& call) { return message_of([&] { gdpo::count(batch_of(call)); }); });
  refusals::check_on_device("count", "gdpo::cuda::count_into", [](const auto& device, Call& call) {
    gdpo::Normalizer n;
    return message_of(
        [&] { gdpo::cuda::count_into(device, batch_of(call), &n, unused_scratch()); });
  });
}

TEST_CASE("what a policy loss refuses: KL terms and levels that have no name", "[loss][errors]") {
  using gdpo::map::Clamp;
  const double tokens[6] = {}, rows[2] = {};
  gdpo::TokenBatch<double> batch;
  batch.logp = batch.old_logp = batch.ref_logp = gdpo::view(tokens, 2, 3);
  batch.advantages = gdpo::view(rows, 2);
  const auto message = [&](const auto& loss) {
    return message_of([&] { loss(batch, {6, 2, 2, 2}); });
  };
  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kls<gdpo::Kl<>, gdpo::Kl<>>>
      two;
  CHECK(message(two) == "no error");
  two.kl.rest.first.beta = -1;
  CHECK(message(two) ==
        "gdpo::PolicyLoss: kl.beta: given -1; needed: a finite number of at least 0 (0: off)");
  gdpo::PolicyLoss<gdpo::level::Sequence<Clamp>> sequence;
  gdpo::PolicyLoss<gdpo::level::SequenceToken<Clamp>> straight;
  sequence.level.map = straight.level.map = {1, -1};
  const std::string map =
      "gdpo::PolicyLoss: level.map.lo, level.map.hi: given 1 and -1; needed: "
      "lo < hi (infinite: off)";
  CHECK(message(sequence) == map);
  CHECK(message(straight) == map);
}

}  // namespace refusals_test
