// labels: sanitizers
// What the functions of logits refuse, on the host and, before anything is launched, on a device:
// the table of tests/refusals, and what it cannot say.
#include "support/refusals.hpp"

#include <gdpo/cuda/logits/device_logprobs.hpp>
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/logits.hpp>

#include "support/host_only.hpp"

namespace refusals_test {

namespace {

using refusals::Call;

/// The logits of a call.
template <int Rank>
gdpo::LogitBatch<float, Rank> logit_batch(Call& call) {
  gdpo::LogitBatch<float, Rank> batch;
  for (auto& entry : call.arrays) {
    const std::string& name = entry.first;
    refusals::Array& array = entry.second;
    if (name == "logits") batch.logits = array.view<const float, Rank>();
    if (name == "targets") batch.targets = array.tokens<std::int64_t>();
    if (name == "mask" && !call.values.contains("preset"))
      batch.mask = array.tokens<unsigned char>();
    if (name == "offsets") batch.offsets = array.index_column();
  }
  batch.temperature = refusals::number(call.values.at("temperature"));
  batch.first_token = call.values.at("first_token").get<gdpo::index_t>();
  return batch;
}
/// The arrays of a call beside the logits, and what it writes.
gdpo::TokenBatch<float> batch_beside(Call& call) {
  return refusals::batch_of<float>(call, {"logits", "targets"});
}
gdpo::View<float, 3> dlogits_of(Call& call) { return call.outputs.at("dlogits").view<float, 3>(); }
/// Calls f(batch, out) with the logits of a call. Returns its message.
template <class F>
std::string with_logits(Call& call, const F& f) {
  const gdpo::TokenLogprobsOut out{call.out<float>("logp"), call.out<float>("entropy"),
                                   call.out("logsumexp")};
  return message_of([&] {
    if (call.arrays.at("logits").rank() == 3) return f(logit_batch<3>(call), out);
    f(logit_batch<2>(call), out);
  });
}

/// The message of a call, which is the same on the host and, without a launch, on a device.
template <class F>
std::string message_on_both(const F& f) {
  const HostOnly device;
  const std::string message = message_of([&] { f(gdpo::seq); });
  CHECK(message_of([&] { f(device); }) == message);
  CHECK(device.launches == 0);
  return message;
}

/// Two padded sequences of two rows with three logits each, and what the backward takes.
struct Backward {
  std::vector<float> logits = std::vector<float>(12, 0.5f), g = std::vector<float>(4, 1.0f);
  std::vector<double> sums = std::vector<double>(4, 42.0);
  std::vector<std::int64_t> targets{0, 1, 2, 0};
  gdpo::LogitBatch<float, 3> batch;
  gdpo::TokenLogprobsGrad grad{gdpo::view(g.data(), 2, 2), {}};
  gdpo::TokenView<double> logsumexp = gdpo::view(sums.data(), 2, 2);
  gdpo::View<float, 3> dlogits = gdpo::view(logits.data(), 2, 2, 3);

  Backward() {
    batch.logits = gdpo::view(logits.data(), 2, 2, 3);
    batch.targets = gdpo::view(targets.data(), 2, 2);
  }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  template <class Exec>
  void operator()(const Exec& exec) const {
    gdpo::token_logprobs_backward(exec, batch, grad, logsumexp, dlogits);
  }
};
/// Expects that the backward refuses what `change` has changed. It would write over the logits.
template <class Change>
void backward_refuses(const Change& change, const std::string& expected) {
  Backward call;
  change(call);
  CHECK(message_on_both(call) == "gdpo::token_logprobs_backward: " + expected);
  CHECK(call.logits == std::vector<float>(12, 0.5f));
}

}  // namespace

TEST_CASE("what token_logprobs refuses", "[errors]") {
  refusals::check("token_logprobs", "host", "gdpo::token_logprobs", [](Call& call) {
    return with_logits(call, [](const auto& batch, const auto& out) {
      gdpo::token_logprobs_into(gdpo::seq, batch, out);
    });
  });
}

TEST_CASE("on a device: what token_logprobs refuses, before anything is launched",
          "[cuda][errors]") {
  refusals::check("token_logprobs", "grid", "gdpo::token_logprobs", [](Call& call) {
    const HostOnly device;
    const std::string message = with_logits(call, [&](const auto& batch, const auto& out) {
      gdpo::token_logprobs_into(device, batch, out);
    });
    CHECK((device.launches > 0) == (message == "no error"));
    return message;
  });
}

TEST_CASE("what policy_loss_from_logits refuses", "[loss][errors]") {
  refusals::check(
      "policy_loss_from_logits", "host", "gdpo::policy_loss_from_logits", [](Call& call) {
        return refusals::with_loss(call, [&](const auto& loss) {
          gdpo::LogitsWorkspace workspace;
          gdpo::policy_loss_from_logits(gdpo::seq, loss, logit_batch<3>(call), batch_beside(call),
                                        counts_of(call), dlogits_of(call), workspace);
        });
      });
}

TEST_CASE("on a device: what policy_loss_from_logits refuses, before anything is launched",
          "[loss][cuda][errors]") {
  refusals::check("policy_loss_from_logits", "grid", "gdpo::policy_loss_from_logits",
                  [](Call& call) {
                    const HostOnly device;
                    const std::string message = refusals::with_loss(call, [&](const auto& loss) {
                      gdpo::LossResult result;
                      gdpo::policy_loss_from_logits(device, loss, logit_batch<3>(call),
                                                    batch_beside(call), counts_of(call),
                                                    dlogits_of(call), &result, unused_scratch());
                    });
                    CHECK((device.launches > 0) == (message == "no error"));
                    return message;
                  });
}

TEST_CASE("logits that are missing or not dense over the vocabulary", "[errors]") {
  Backward arrays;
  gdpo::LogitBatch<float, 3> batch = arrays.batch;
  const auto message = [&] {
    return message_on_both([&](const auto& exec) { gdpo::token_logprobs_into(exec, batch, {}); });
  };
  batch.logits.data = nullptr;
  CHECK(message() == "gdpo::token_logprobs: logits: given no array; needed: (2, 2, 3) numbers");
  batch = arrays.batch, batch.logits.stride[2] = 2;
  CHECK(message() ==
        "gdpo::token_logprobs: logits: given stride 2 between two entries of the vocabulary; "
        "needed: 1");
}

TEST_CASE("rows of shards", "[errors]") {
  Backward arrays;
  std::vector<gdpo::LogitRow> rows(3);
  const auto message = [&] {
    return message_on_both(
        [&](const auto& exec) { gdpo::logit_rows(exec, arrays.batch, gdpo::view(rows)); });
  };
  CHECK(message() ==
        "gdpo::logit_rows: out: given 3 rows; needed: one for each of the 4 rows of logits");
  rows.resize(4);
  arrays.batch.first_token = -1;
  CHECK(message() == "gdpo::logit_rows: first_token: given -1; needed: at least 0");
  arrays.batch.first_token = 30;  // targets of another shard
  gdpo::logit_rows(gdpo::seq, arrays.batch, gdpo::view(rows));
  CHECK(std::isnan(rows[1].target));
  arrays.targets[1] = -2;
  CHECK(message_of([&] { gdpo::logit_rows(gdpo::seq, arrays.batch, gdpo::view(rows)); }) ==
        "gdpo::logit_rows: targets: given -2 at row (0, 1); needed: a token: at least 0, or mask "
        "0");
}

TEST_CASE("what the backward refuses", "[errors]") {
  Backward right;
  CHECK(message_of([&] { right(gdpo::seq); }) == "no error");
  const std::string shape = "; needed: (2, 2), the shape of logits without the vocabulary";
  backward_refuses([](Backward& c) { c.grad = {}; },
                   "grad: given neither logp nor entropy; needed: one of them, or both");
  backward_refuses([](Backward& c) { c.logsumexp = {}; },
                   "logsumexp: given no array; needed: that of the forward");
  backward_refuses([](Backward& c) { c.grad.entropy = c.grad.logp; },
                   "entropy: given no array; needed: that of the forward, with grad.entropy");
  backward_refuses([](Backward& c) { c.grad.logp = gdpo::view(c.g); },
                   "grad.logp: given (4)" + shape);
  backward_refuses([](Backward& c) { c.logsumexp = gdpo::view(c.sums); },
                   "logsumexp: given (4)" + shape);
  backward_refuses([](Backward& c) { c.dlogits.extent[2] = 2; },
                   "dlogits: given (2, 2, 2); needed: (2, 2, 3), the shape of logits");
  backward_refuses([](Backward& c) { c.dlogits.data = nullptr; },
                   "dlogits: given no array; needed: (2, 2, 3) numbers");
  backward_refuses([](Backward& c) { c.dlogits.stride[2] = 3; },
                   "dlogits: given stride 3 between two entries of the vocabulary; needed: 1");
  backward_refuses([](Backward& c) { c.batch.temperature = 0; },
                   "temperature: given 0; needed: a number from 1e-37 to 1e37");
  Backward reads;
  reads.targets[0] = -1;
  CHECK(message_of([&] { reads(gdpo::seq); }) ==
        "gdpo::token_logprobs_backward: targets: given -1 at row (0, 0); needed: a token: at least "
        "0, or mask 0");
}

}  // namespace refusals_test
