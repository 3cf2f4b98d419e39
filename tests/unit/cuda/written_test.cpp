// labels: sanitizers
// Arrays that a call writes: no two indices have the same element. Every call that takes such an
// array refuses another one in the same words, on the host and before a launch on a device.
#include <gdpo/constraint.hpp>
#include <gdpo/cuda/advantage/device_advantages.hpp>
#include <gdpo/cuda/advantage/device_two_stages.hpp>
#include <gdpo/cuda/logits/device_logprobs.hpp>
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/cuda/loss/device_loss.hpp>
#include <gdpo/cuda/value/device_returns.hpp>
#include <gdpo/cuda/value/device_value_loss.hpp>
#include <gdpo/dist.hpp>
#include <gdpo/update.hpp>
#include <gdpo/value.hpp>

#include "support/catch.hpp"
#include "support/host_only.hpp"
#include "support/message.hpp"

namespace written_test {

namespace {

using gdpo::index_t, gdpo::view, gdpo::View;
constexpr index_t rows = 3, width = 4;

/// The message about an argument of this shape with these strides.
template <std::size_t Rank>
std::string repeated(const std::string& argument, const index_t (&shape)[Rank],
                     const index_t (&strides)[Rank]) {
  const int rank = static_cast<int>(Rank);
  return argument + ": given strides " + std::string(gdpo::contract::shape(rank, strides)) +
         " for shape " + std::string(gdpo::contract::shape(rank, shape)) +
         ", which repeat elements; needed: an element of its own for each index, because it is "
         "written";
}

/// Memory in which nothing may change, and what is taken for it.
template <class T>
struct Memory {
  std::vector<T> all = std::vector<T>(64, T(7));
  T* middle() { return all.data() + 32; }
  bool untouched() const { return all == std::vector<T>(64, T(7)); }
};

/// Calls with one number a row: a stride of 0 is refused, and gaps and the way back are not.
template <class T, class Call>
void check_of_rows(const std::string& argument, const Call& call) {
  INFO(argument);
  Memory<T> memory;
  CHECK(message_of([&] { call(view(memory.middle(), {rows}, {0})); }) ==
        repeated<1>(argument, {rows}, {0}));
  CHECK(memory.untouched());
  CHECK(message_of([&] { call(view(memory.middle(), {rows}, {2})); }) == "no error");
  CHECK(message_of([&] { call(view(memory.middle(), {rows}, {-1})); }) == "no error");
}
/// Calls with one number a token. `apart` is false where the last axis must have stride 1.
template <class T, class Call>
void check_of_tokens(const std::string& argument, const Call& call, bool any_stride = true) {
  INFO(argument);
  const auto with = [&](Memory<T>& memory, index_t a, index_t b) {
    return message_of([&] { call(view(memory.middle(), {rows, width}, {a, b})); });
  };
  Memory<T> memory;
  // One row for all; rows of 4 tokens that begin 3 or -3 apart.
  for (const index_t step : {0, 3, -3}) {
    CHECK(with(memory, step, 1) == repeated<2>(argument, {rows, width}, {step, 1}));
    if (any_stride)
      CHECK(with(memory, 1, step) ==
            (step == 0 ? repeated<2>(argument, {rows, width}, {1, 0}) : "no error"));
    if (step == 0) CHECK(memory.untouched());
  }
  if (any_stride) {
    Memory<T> columns;  // of 3 rows that begin 2 apart
    CHECK(with(columns, 1, 2) == repeated<2>(argument, {rows, width}, {1, 2}));
    CHECK(columns.untouched());
    CHECK(with(memory, 2, 6) == "no error");
  }
  CHECK(with(memory, width, 1) == "no error");
  CHECK(with(memory, -5, 1) == "no error");
}

/// A device that computes nothing; calls get as much scratch memory as they want.
struct Device {
  HostOnly on;
  std::vector<double> memory = std::vector<double>(1 << 16);
  gdpo::cuda::Scratch scratch() { return {memory.data(), memory.size() * sizeof(double)}; }
};

const std::vector<float> numbers(24, -0.5F);
const View<const float, 2> tokens = view(numbers.data(), rows, width);

}  // namespace

TEST_CASE("written arrays: advantages, combined, broadcast, whitened and mixed", "[written]") {
  const std::vector<double> rewards{1, 0, 0, 1, 1, 1};
  const gdpo::RewardBatch batch{view(rewards.data(), rows, 2), gdpo::groups_of(3)};
  Device device;
  gdpo::Workspace workspace;
  check_of_rows<double>("gdpo::advantages: out", [&](const auto& out) {
    gdpo::advantages_into(gdpo::seq, batch, gdpo::Gdpo{}, out, workspace);
  });
  check_of_rows<float>("gdpo::advantages: out", [&](const auto& out) {
    gdpo::advantages_into(device.on, batch, gdpo::Gdpo{}, out, device.scratch());
  });
  check_of_rows<double>("gdpo::advantages: out", [&](const auto& out) {
    gdpo::advantages_into(gdpo::simd, batch, gdpo::Constrained<>{{}, {}, {{1, {}, 0.5}}}, out,
                          workspace);
  });
  check_of_rows<double>("gdpo::finish: out", [&](const auto& out) {
    const auto moments = gdpo::first_stage(gdpo::seq, batch, gdpo::Gdpo{}, workspace);
    gdpo::finish(gdpo::seq, batch, gdpo::Gdpo{}, moments, out, workspace);
  });
  check_of_rows<double>("gdpo::finish: out", [&](const auto& out) {
    gdpo::finish(device.on, batch, gdpo::Gdpo{}, gdpo::CombinedMoments{}, out, device.scratch());
  });
  const std::vector<double> per_row{1, 2, 3}, lambda{0.5};
  check_of_rows<double>("gdpo::mix_into: out", [&](const auto& out) {
    gdpo::mix_into(view(per_row), view(per_row.data(), 1, rows), view(lambda),
                   gdpo::LambdaNorm::None, out);
  });
  check_of_tokens<double>("gdpo::broadcast_into: out", [&](const auto& out) {
    gdpo::broadcast_into(view(per_row), tokens, out);
  });
  check_of_tokens<float>("gdpo::token_advantages_into: out", [&](const auto& out) {
    gdpo::token_advantages_into(view(per_row), tokens, tokens, tokens, gdpo::penalty::Token<>{0.1},
                                out);
  });
  check_of_tokens<float>("gdpo::whiten_into: out", [&](const auto& out) {
    gdpo::whiten_into(tokens, tokens, gdpo::renorm::token_weighted_batch(), out);
  });
  check_of_rows<float>("gdpo::whiten_into: out", [&](const auto& out) {
    gdpo::whiten_into(view(per_row), View<const float, 1>{}, gdpo::renorm::token_weighted_batch(),
                      out);
  });
}

TEST_CASE("written arrays: gradients of losses, returns", "[written]") {
  const std::vector<double> per_row{1, 2, 3};
  Device device;
  gdpo::Normalizer counts;
  counts.tokens = 12, counts.rows = counts.non_empty_rows = 3;

  gdpo::TokenBatch<float> batch;
  batch.logp = tokens, batch.advantages = view(per_row);
  gdpo::LossWorkspace<float> workspace;
  gdpo::LossResult result;
  const auto loss = gdpo::dapo_loss;
  check_of_tokens<float>("gdpo::PolicyLoss: gradient",
                         [&](const auto& out) { loss(gdpo::seq, batch, counts, out, workspace); });
  check_of_tokens<float>("gdpo::PolicyLoss: gradient", [&](const auto& out) {
    loss(device.on, batch, gdpo::cuda::DeviceNormalizer(counts), out, &result, device.scratch());
  });
  gdpo::ValueBatch<float> values;
  values.values = values.returns = values.old_values = tokens;
  gdpo::ValueLossResult value_result;
  gdpo::ValueWorkspace<float> value_workspace;
  check_of_tokens<float>("gdpo::ValueLoss: gradient", [&](const auto& out) {
    gdpo::ValueLoss<>{}(gdpo::seq, values, counts, out, value_workspace);
  });
  check_of_tokens<float>("gdpo::ValueLoss: gradient", [&](const auto& out) {
    gdpo::ValueLoss<>{}(device.on, values, counts, out, &value_result, device.scratch());
  });

  gdpo::ReturnBatch<float> steps;
  steps.rewards = steps.values = tokens;
  gdpo::ReturnsWorkspace<float> returns_workspace;
  Memory<float> other;
  const gdpo::TokenOut<float> whole = view(other.all.data(), rows, width);
  const gdpo::TokenAdvantage<> gae;
  check_of_tokens<float>("gdpo::advantages_and_returns_into: advantages", [&](const auto& out) {
    gdpo::advantages_and_returns_into(gdpo::simd, steps, gae, out, whole, returns_workspace);
  });
  check_of_tokens<float>("gdpo::advantages_and_returns_into: returns", [&](const auto& out) {
    gdpo::advantages_and_returns_into(gdpo::simd, steps, gae, whole, out, returns_workspace);
  });
  check_of_tokens<float>("gdpo::advantages_and_returns_into: returns", [&](const auto& out) {
    gdpo::advantages_and_returns_into(device.on, steps, gae, whole, out, device.scratch());
  });
}

TEST_CASE("written arrays: log-probs from logits and their gradients", "[written]") {
  const std::vector<double> per_token(rows, -2.0), per_row{1};
  const std::vector<int> targets{0, 1, 2};
  const std::vector<index_t> offsets{0, rows};
  Device device;
  gdpo::LogitBatch<float, 2> batch;
  batch.logits = tokens, batch.targets = view(targets);

  const std::string function = "gdpo::token_logprobs: out.";
  const auto outputs = [&](const auto& exec) {
    check_of_rows<float>(function + "logp", [&](const auto& out) {
      gdpo::token_logprobs_into(exec, batch, {out, {}, {}});
    });
    check_of_rows<float>(function + "entropy", [&](const auto& out) {
      gdpo::token_logprobs_into(exec, batch, {{}, out, {}});
    });
    check_of_rows<double>(function + "logsumexp", [&](const auto& out) {
      gdpo::token_logprobs_into(exec, batch, {{}, {}, out});
    });
    std::vector<gdpo::LogitRow> of_rows(8);
    CHECK(message_of([&] { gdpo::logit_rows(exec, batch, view(of_rows.data(), {rows}, {0})); }) ==
          repeated<1>("gdpo::logit_rows: out", {rows}, {0}));
    const auto backward = [&](const auto& out) {
      gdpo::token_logprobs_backward(exec, batch, {view(numbers.data(), rows), {}}, view(per_token),
                                    {}, out);
    };
    check_of_tokens<float>("gdpo::token_logprobs_backward: dlogits", backward, false);
  };
  outputs(gdpo::seq);
  outputs(device.on);

  gdpo::TokenBatch<float> shaped;
  shaped.offsets = view(offsets), shaped.advantages = view(per_row);
  gdpo::Normalizer counts;
  counts.tokens = 3, counts.rows = counts.non_empty_rows = 1;
  gdpo::LogitsWorkspace workspace;
  gdpo::LossResult result;
  check_of_tokens<float>(
      "gdpo::policy_loss_from_logits: dlogits",
      [&](const auto& out) {
        gdpo::policy_loss_from_logits(gdpo::seq, gdpo::dapo_loss, batch, shaped, counts, out,
                                      workspace);
      },
      false);
  check_of_tokens<float>(
      "gdpo::policy_loss_from_logits: dlogits",
      [&](const auto& out) {
        gdpo::policy_loss_from_logits(device.on, gdpo::dapo_loss, batch, shaped, counts, out,
                                      &result, device.scratch());
      },
      false);
}

TEST_CASE("written arrays: what is updated in place, and what ranks get back", "[written]") {
  check_of_rows<double>("gdpo::update::shape_rewards: rewards", [&](const auto& rewards) {
    gdpo::update::shape_rewards(rewards, {}, gdpo::update::shaping::Affine{2, 0});
  });
  check_of_tokens<float>("gdpo::update::clip_grad_norm: gradients[0]", [&](const auto& gradient) {
    gdpo::update::clip_grad_norm({gradient}, 1.0);
  });
  check_of_tokens<float>("gdpo::update::polyak: reference[0]", [&](const auto& reference) {
    gdpo::update::polyak({reference}, {tokens}, 0.5);
  });

  const std::vector<double> rewards{1, 0, 1}, per_row{1, 2, 3};
  const gdpo::RewardBatch batch{view(rewards.data(), rows, 1), gdpo::groups_of(3)};
  const auto all = gdpo::dist::gather_rows(gdpo::dist::Single{}, batch);
  check_of_rows<double>("gdpo::dist::GatheredRows::own_into: out",
                        [&](const auto& out) { all.own_into(view(per_row), out); });
}

TEST_CASE("written arrays: what counts as an element of its own", "[written]") {
  const auto apart = [](std::initializer_list<index_t> extent,
                        std::initializer_list<index_t> stride) {
    return gdpo::contract::elements_apart(static_cast<int>(extent.size()), extent.begin(),
                                          stride.begin());
  };
  constexpr index_t most = std::numeric_limits<index_t>::max(), least = -most - 1;
  CHECK(apart({}, {}));
  CHECK(apart({1}, {0}));
  CHECK(apart({0, 5}, {0, 0}));  // no element
  CHECK(apart({5, 1}, {1, 0}));
  CHECK_FALSE(apart({2}, {0}));
  CHECK(apart({2, 3, 4}, {12, 4, 1}));
  CHECK(apart({2, 3, 4}, {1, -8, 2}));
  CHECK_FALSE(apart({2, 3, 4}, {11, 4, 1}));
  CHECK_FALSE(apart({2, 3, 4}, {12, 0, 1}));
  CHECK_FALSE(apart({4, 2, 3}, {1, 12, 3}));
  CHECK_FALSE(apart({2, 2}, {5, -5}));
  // Nothing overflows.
  CHECK(apart({2, 2}, {most, 1}));
  CHECK(apart({2, 2, 2}, {least, 1, 2}));
  CHECK_FALSE(apart({most, most, 2}, {most, most, 1}));
  CHECK_FALSE(apart({most, 2}, {2, most}));
  CHECK_FALSE(apart({most, 2, 2}, {4, least, most}));
}

}  // namespace written_test
