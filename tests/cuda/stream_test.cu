// What only a device can show: calls are captured into a graph, stay on their stream, take no
// device memory and repeat their bits, and a launch that fails is reported.
#define GDPO_TEST_ON_GPU
#include <cstring>
#include <gdpo/cuda.hpp>
#include <gdpo/loss.hpp>
#include <random>

#include "support/catch.hpp"
#include "support/device.hpp"

namespace {

using gdpo::index_t;
using gdpo::cuda::check;

std::vector<float> random_numbers(std::size_t n, float mean, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, 0.3f);
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

/// One step of a trainer: advantages from rewards, counts, loss and gradient; then the loss from
/// logits.
struct Step {
  static constexpr index_t rows = 96, width = 517, rewards = 3, group = 8, vocabulary = 1003;
  OnDevice<float> reward{random_numbers(rows * rewards, 0, 1)},
      advantages{std::vector<float>(rows)};
  OnDevice<float> logp{random_numbers(rows * width, -1, 2)},
      old_logp{random_numbers(rows * width, -1, 3)}, ref_logp{random_numbers(rows * width, -1, 4)},
      gradient{std::vector<float>(rows * width, 7.0f)};
  OnDevice<unsigned char> mask{[] {
    std::vector<unsigned char> mask(rows * width);
    std::mt19937 random(5);
    for (auto& m : mask) m = random() % 4 != 0;
    return mask;
  }()};
  OnDevice<gdpo::Normalizer> normalizer{std::vector<gdpo::Normalizer>(1)};
  OnDevice<gdpo::LossResult> result{std::vector<gdpo::LossResult>(2)};
  OnDevice<float> logits{random_numbers(rows * vocabulary, 0, 6)},
      dlogits{std::vector<float>(rows * vocabulary, 7.0f)};
  OnDevice<int> targets{std::vector<int>(rows, 11)};

  gdpo::Gdpo estimator;
  gdpo::PolicyLoss<> loss = gdpo::grpo_loss;
  gdpo::RewardBatch<float, gdpo::GroupsOf> reward_batch{
      gdpo::view(std::as_const(reward).data(), rows, rewards), gdpo::groups_of(group)};
  gdpo::TokenBatch<float> batch, one_token;
  gdpo::LogitBatch<float, 3> logit_batch;

  Step() {
    batch.logp = gdpo::view(logp.data(), rows, width);
    batch.old_logp = gdpo::view(old_logp.data(), rows, width);
    batch.ref_logp = gdpo::view(ref_logp.data(), rows, width);
    batch.mask = gdpo::view(mask.data(), rows, width);
    batch.advantages = gdpo::view(advantages.data(), rows);
    one_token.logp = gdpo::view(logp.data(), rows, index_t{1});
    one_token.old_logp = gdpo::view(old_logp.data(), rows, index_t{1});
    one_token.ref_logp = gdpo::view(ref_logp.data(), rows, index_t{1});
    one_token.advantages = gdpo::view(advantages.data(), rows);
    logit_batch.logits = gdpo::view(std::as_const(logits).data(), rows, index_t{1}, vocabulary);
    logit_batch.targets = gdpo::view(targets.data(), rows, index_t{1});
  }
  std::size_t scratch_bytes() const {
    using gdpo::cuda::scratch_bytes;
    return (std::max)({scratch_bytes(estimator, reward_batch), scratch_bytes(batch),
                       scratch_bytes(loss, batch), scratch_bytes(logit_batch, one_token)});
  }
  void enqueue(const gdpo::cuda::On& on, const gdpo::cuda::Scratch& scratch) {
    gdpo::advantages_into(on, reward_batch, estimator, gdpo::view(advantages.data(), rows),
                          scratch);
    gdpo::cuda::count_into(on, batch, normalizer.data(), scratch);
    loss(on, batch, normalizer.data(), gdpo::view(gradient.data(), rows, width), result.data(),
         scratch);
    gdpo::cuda::count_into(on, one_token, normalizer.data(), scratch);
    gdpo::policy_loss_from_logits(on, loss, logit_batch, one_token, normalizer.data(),
                                  gdpo::view(dlogits.data(), rows, index_t{1}, vocabulary),
                                  result.data() + 1, scratch);
  }
  /// Everything that a step wrote.
  std::vector<unsigned char> bits() const {
    std::vector<unsigned char> all;
    const auto append = [&](const auto& values) {
      const auto* from = reinterpret_cast<const unsigned char*>(values.data());
      all.insert(all.end(), from, from + values.size() * sizeof(values[0]));
    };
    append(advantages.host()), append(gradient.host()), append(dlogits.host());
    for (const gdpo::LossResult& r : result.host()) {
      append(std::vector<double>{r.loss, r.policy_loss, r.kl_loss, r.metrics.ratio.sum,
                                 r.metrics.kl.max, r.metrics.clip_fraction.sum,
                                 r.metrics.advantage.m2});
    }
    return all;
  }
};

struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { check("Stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
};

}  // namespace

TEST_CASE("a step on a stream: the bits of every run and tuning, also from a graph", "[sanitize]") {
  Step step;
  const Stream stream;
  TestScratch scratch(step.scratch_bytes());
  const gdpo::cuda::On on(stream.stream);
  step.enqueue(on, scratch());
  check("step", cudaStreamSynchronize(stream.stream));
  const auto expected = step.bits();

  for (const int blocks : {1, 7, 100, 5000}) {
    gdpo::cuda::Tuning tuning = on.tuning();
    tuning.blocks = blocks;
    step.enqueue(gdpo::cuda::On(stream.stream, tuning), scratch());
    check("step", cudaStreamSynchronize(stream.stream));
    REQUIRE(step.bits() == expected);
  }

  cudaGraph_t graph;
  cudaGraphExec_t replay;
  Step again;  // the same data at other addresses
  // In this mode a call that waits or allocates fails.
  check("capture", cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeGlobal));
  again.enqueue(on, scratch());
  check("capture", cudaStreamEndCapture(stream.stream, &graph));
  check("capture", cudaGraphInstantiate(&replay, graph, 0));
  for (int run = 0; run < 3; ++run) check("replay", cudaGraphLaunch(replay, stream.stream));
  check("replay", cudaStreamSynchronize(stream.stream));
  CHECK(again.bits() == expected);
  check("replay", cudaGraphExecDestroy(replay));
  check("replay", cudaGraphDestroy(graph));
}

TEST_CASE("a step takes no device memory") {
  Step step;
  const Stream stream;
  TestScratch scratch(step.scratch_bytes());
  const gdpo::cuda::On on(stream.stream);
  step.enqueue(on, scratch());  // also loads the kernels, which takes memory
  check("step", cudaStreamSynchronize(stream.stream));
  std::size_t before = 0, after = 0, total = 0;
  check("memory", cudaMemGetInfo(&before, &total));
  for (int run = 0; run < 20; ++run) step.enqueue(on, scratch());
  check("memory", cudaMemGetInfo(&after, &total));
  check("step", cudaStreamSynchronize(stream.stream));
  CHECK(after == before);
}

TEST_CASE("results come to the host, and a launch that fails says its code") {
  Step step;
  const Stream stream;
  TestScratch scratch(step.scratch_bytes());
  const gdpo::cuda::On on(stream.stream);
  step.enqueue(on, scratch());
  const gdpo::LossResult result = gdpo::cuda::to_host(on, step.result.data());
  CHECK(result.loss == step.result.host()[0].loss);
  CHECK(result.metrics.rows == Step::rows);
  CHECK(result.normalizer.rows == Step::rows);

  gdpo::cuda::Tuning tuning = on.tuning();
  tuning.shared_bytes = std::size_t{1} << 30;  // more than any multiprocessor has
  const gdpo::cuda::On impossible(stream.stream, tuning);
  try {
    gdpo::policy_loss_from_logits(
        impossible, step.loss, step.logit_batch, step.one_token, step.normalizer.data(),
        gdpo::view(step.dlogits.data(), Step::rows, index_t{1}, Step::vocabulary),
        step.result.data() + 1, scratch());
    SUCCEED("a row needs less than it may take");
  } catch (const gdpo::cuda::error& e) {
    CHECK(e.code != cudaSuccess);
    CHECK(std::string(e.what()).find("cudaError") != std::string::npos);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}
