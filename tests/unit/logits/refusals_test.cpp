// labels: sanitizers
// What the functions of logits refuse, on the host and, before anything is launched, on a device:
// the tables of tests/refusals.
#include "support/refusals.hpp"

#include <gdpo/cuda/logits/device_logprobs.hpp>
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/logits.hpp>

namespace refusals_test {

namespace {

using refusals::Call;

/// Logits with the settings of a call, and without its arrays.
template <int Rank>
gdpo::LogitBatch<float, Rank> logit_batch(const Call& call) {
  gdpo::LogitBatch<float, Rank> batch;
  batch.temperature = refusals::number(call.values.at("temperature"));
  batch.first_token = call.values.at("first_token").get<gdpo::index_t>();
  return batch;
}

/// Makes the calls of a table on the host and on a device, which launches nothing for a call that
/// is refused. message_on(exec, call) makes a call and returns its message.
template <class F>
void check_on_both(const std::string& table, const F& message_on) {
  const std::string function = "gdpo::" + table;
  refusals::check(table, "host", function, [&](Call& call) { return message_on(gdpo::seq, call); });
  refusals::check_on_device(table, function, message_on);
}

}  // namespace

/// The message of token_logprobs on the host or on a device.
template <int Rank, class Exec>
std::string message_of_logprobs(const Exec& exec, Call& call) {
  auto batch = logit_batch<Rank>(call);
  call.bind("logits", batch.logits, "targets", batch.targets, "mask", batch.mask, "offsets",
            batch.offsets);
  return message_of([&] {
    gdpo::token_logprobs_into(
        exec, batch, {call.out<float>("logp"), call.out<float>("entropy"), call.out("logsumexp")});
  });
}
TEST_CASE("what token_logprobs refuses", "[cuda][errors]") {
  check_on_both("token_logprobs", [](const auto& exec, Call& call) {
    return call.arrays.at("logits").rank() == 3 ? message_of_logprobs<3>(exec, call)
                                                : message_of_logprobs<2>(exec, call);
  });
}

TEST_CASE("what the backward of token_logprobs refuses", "[cuda][errors]") {
  check_on_both("token_logprobs_backward", [](const auto& exec, Call& call) {
    auto batch = logit_batch<3>(call);
    gdpo::TokenLogprobsGrad grad;
    gdpo::TokenView<double> logsumexp;
    gdpo::TokenView<float> entropy;
    call.bind("logits", batch.logits, "targets", batch.targets, "mask", batch.mask, "grad.logp",
              grad.logp, "grad.entropy", grad.entropy, "logsumexp", logsumexp, "entropy", entropy);
    return message_of([&] {
      gdpo::token_logprobs_backward(exec, batch, grad, logsumexp, entropy,
                                    call.outputs.at("dlogits").view<float, 3>());
    });
  });
}

TEST_CASE("what logit_rows() refuses", "[cuda][errors]") {
  check_on_both("logit_rows", [](const auto& exec, Call& call) {
    auto batch = logit_batch<3>(call);
    call.bind("logits", batch.logits, "targets", batch.targets);
    std::vector<gdpo::LogitRow> rows(call.values.at("rows").get<std::size_t>());
    for (gdpo::LogitRow& row : rows) row.sum = refusals::unwritten;
    const std::string message =
        message_of([&] { gdpo::logit_rows(exec, batch, gdpo::view(rows)); });
    if (message != "no error")
      for (const gdpo::LogitRow& row : rows) CHECK(row.sum == refusals::unwritten);
    return message;
  });
}

/// The message of policy_loss_from_logits on the host or on a device.
template <int Rank, class Exec>
std::string message_of_loss(const Exec& exec, Call& call) {
  auto logits = logit_batch<Rank>(call);
  call.arrays.at("logits").bind(logits.logits), call.arrays.at("targets").bind(logits.targets);
  const auto batch = refusals::batch_of<float>(call, {"logits", "targets"});
  const auto dlogits = call.outputs.at("dlogits").view<float, Rank>();
  return refusals::with_loss(call, [&](const auto& loss) {
    if constexpr (std::is_same_v<Exec, HostOnly>) {
      gdpo::LossResult result;
      gdpo::policy_loss_from_logits(exec, loss, logits, batch, counts_of(call), dlogits, &result,
                                    unused_scratch());
    } else {
      gdpo::LogitsWorkspace workspace;
      gdpo::policy_loss_from_logits(exec, loss, logits, batch, counts_of(call), dlogits, workspace);
    }
  });
}
TEST_CASE("what policy_loss_from_logits refuses", "[loss][cuda][errors]") {
  check_on_both("policy_loss_from_logits", [](const auto& exec, Call& call) {
    return call.arrays.at("logits").rank() == 3 ? message_of_loss<3>(exec, call)
                                                : message_of_loss<2>(exec, call);
  });
}

}  // namespace refusals_test
