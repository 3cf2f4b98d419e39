// labels: sanitizers
// PrepassMemory: nothing is allocated after the first call of a shape, and the bits do not depend
// on what the memory served before.
#include <deque>
#include <gdpo/cuda/prepass/device_prepare.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/host_only.hpp"
#include "support/tolerance.hpp"

namespace memory_test {

namespace {

namespace prepass = gdpo::prepass;
using gdpo::Reach;

/// A batch with its arrays, and the gradient that it gives with a fresh memory.
struct Input {
  std::vector<float> logp, rollout, weights;
  std::vector<gdpo::BFloat16> entropies;
  std::vector<int> mask, flags, offsets;
  std::vector<double> advantages;
  gdpo::TokenBatch<float> batch;
  std::vector<float> gradient;
  prepass::Overlong overlong;
  prepass::Gate gate = prepass::off_policy_sequence_mask(0.1);
  prepass::Importance importance;
  prepass::TopEntropy top;
  std::vector<float> expected;

  Input(const Input&) = delete;
  Input(std::uint64_t seed, int rows, int width, bool packed) {
    Random random(seed);
    const auto fill = [&](auto& v, auto make) {
      for (int k = 0; k < rows * width; ++k) v.push_back(make());
    };
    fill(logp, [&] { return static_cast<float>(-random.uniform()); });
    fill(rollout, [&] { return static_cast<float>(-random.uniform()); });
    fill(weights, [&] { return static_cast<float>(random.below(3)); });
    fill(entropies,
         [&] { return gdpo::BFloat16{static_cast<std::uint16_t>(0x3f80 + random.below(128))}; });
    fill(mask, [&] { return random.below(4); });
    for (int i = 0; i < rows; ++i) {
      flags.push_back(random.chance(0.2));
      advantages.push_back(2 * random.uniform() - 1);
    }
    for (int i = 0; i <= rows; ++i) offsets.push_back(i * width);
    gradient.resize(logp.size());
    const auto set = [&](auto& to, auto& from) {
      using View = std::decay_t<decltype(to)>;
      to = packed ? View(gdpo::view(from)) : View(gdpo::view(from.data(), rows, width));
    };
    set(batch.logp, logp), set(batch.rollout_logp, rollout), set(batch.weights, weights);
    set(batch.entropies, entropies), set(batch.mask, mask);
    if (packed) batch.offsets = gdpo::view(offsets);
    batch.advantages = gdpo::view(advantages);
    overlong.truncated = gdpo::view(flags);
    importance.statistic = prepass::Statistic::SequenceMean;
    importance.reach = Reach::SurrogateAndKl;
    top.reach = seed % 2 ? Reach::Mask : Reach::Surrogate;
    gdpo::PrepassMemory<float> fresh;
    gdpo::LossWorkspace<float> workspace;
    run(fresh, workspace);
    expected = gradient;
  }
  void run(gdpo::PrepassMemory<float>& memory, gdpo::LossWorkspace<float>& workspace) {
    const gdpo::TokenBatch<float> prepared =
        gdpo::prepare(batch, memory, overlong, gate, importance, top);
    gdpo::Normalizer n;
    n.tokens = 1000, n.rows = n.non_empty_rows = 10;
    const gdpo::TokenOut<float> out =
        batch.offsets ? gdpo::TokenOut<float>(gdpo::view(gradient))
                      : gdpo::view(gradient.data(), batch.logp.extent(0), batch.logp.extent(1));
    gdpo::dapo_loss(gdpo::seq, prepared, n, out, workspace);
  }
};

}  // namespace

TEST_CASE("prepare: nothing is allocated after the first call with a shape",
          "[prepass][workspace]") {
  for (const bool packed : {false, true}) {
    for (const std::uint64_t seed : {1u, 2u}) {
      Input input(seed, 12, 33, packed);
      gdpo::PrepassMemory<float> memory;
      gdpo::LossWorkspace<float> workspace;
      const long start = counted::allocations;
      input.run(memory, workspace);
      const long first = counted::allocations;
      for (int k = 0; k < 5; ++k) input.run(memory, workspace);
      const long after = counted::allocations;
      CHECK(first > start);  // the counter works
      CHECK(after == first);
    }
  }
}

TEST_CASE("prepare on a device: nothing of the host is allocated after the first call",
          "[prepass][workspace]") {
  const Input input(1, 12, 33, false);
  const HostOnly device;
  gdpo::cuda::PrepassMemory memory{unused_scratch().data, unused_scratch().bytes};
  prepass::Importance of_groups;
  of_groups.statistic = prepass::Statistic::GroupMean, of_groups.groups = input.overlong.truncated;
  const auto run = [&] {
    gdpo::prepare(device, input.batch, memory, input.overlong, input.gate, input.importance,
                  input.top, of_groups, prepass::MeanOne{}, prepass::SecondMoment{},
                  prepass::Covariance{}, prepass::FutureKl{});
  };
  run();
  const long first = counted::allocations;
  for (int k = 0; k < 5; ++k) run();
  const long after = counted::allocations;
  CHECK(after == first);
}

TEST_CASE("prepare: the same bits, whatever the memory served before", "[prepass][workspace]") {
  std::deque<Input> inputs;
  for (int k = 0; k < 8; ++k)
    inputs.emplace_back(static_cast<std::uint64_t>(100 + k), 1 + 5 * (k % 3), 1 + 7 * (k % 4),
                        k % 2 == 0);
  Random random(7);
  gdpo::PrepassMemory<float> memory;
  gdpo::LossWorkspace<float> workspace;
  for (int round = 0; round < 200; ++round) {
    Input& input = inputs[static_cast<std::size_t>(random.below(8))];
    input.run(memory, workspace);
    CHECK(difference(input.gradient, input.expected) == "");
  }
}

}  // namespace memory_test
