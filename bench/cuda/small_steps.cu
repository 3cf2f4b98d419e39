// Whole steps that are too small for memory bandwidth to matter: advantages, counts, loss and
// gradient. The kernels are launched one by one, and as a graph.
#include "bench.hpp"
#include "tokens.hpp"

namespace bench {
namespace {

void measure(Bench& b, index_t rows, index_t width) {
  const std::string name = std::to_string(rows) + " x " + std::to_string(width) + " tokens",
                    by_launches = name + ", launches", by_graph = name + ", a graph a step";
  const bool wants_launches = b.wants(by_launches), wants_graph = b.wants(by_graph);
  if (!wants_launches && !wants_graph) return;
  constexpr index_t group = 8, rewards = 3;
  constexpr int calls = 200;
  const Tokens<float> tokens(b.on(), Rows::padded(rows, width), 1);
  const Array<float> given(rows * rewards);
  for_each(b.on(), given.size(), Uniform<float>{given.data(), 1, 0, 2});
  const gdpo::RewardBatch batch{gdpo::view(given.data(), rows, rewards), gdpo::groups_of(group)};
  const gdpo::Gdpo estimator;
  const auto loss = gdpo::grpo_loss;
  const auto of_tokens = tokens.batch(true);
  const std::size_t bytes =
      (std::max)({gdpo::cuda::scratch_bytes(estimator, batch), gdpo::cuda::scratch_bytes(of_tokens),
                  gdpo::cuda::scratch_bytes(loss, of_tokens)});
  const Array<unsigned char> memory(static_cast<index_t>(bytes));
  const gdpo::cuda::Scratch scratch{memory.data(), memory.bytes()};
  const Array<gdpo::Normalizer> normalizer(1);
  const auto step = [&] {
    gdpo::advantages_into(b.on(), batch, estimator, gdpo::view(tokens.advantages.data(), rows),
                          scratch);
    gdpo::cuda::count_into(b.on(), of_tokens, normalizer.data(), scratch);
    loss(b.on(), of_tokens, normalizer.data(), tokens.out(), tokens.result.data(), scratch);
  };

  tokens.gradient.poison(b.stream());
  step();
  if (const index_t nan = count_nan(b.on(), tokens.gradient))
    b.wrong(name, std::to_string(nan) + " NaN");
  if (wants_launches) {
    b.add(by_launches, b.watch().time(calls, [&] {
      for (int c = 0; c < calls; ++c) step();
    }));
  }
  if (!wants_graph) return;
  const Graph graph(b.stream(), step);
  b.add(by_graph, b.watch().time(calls, [&] {
    for (int c = 0; c < calls; ++c) graph.launch(b.stream());
  }));
}

}  // namespace

void small_steps(Bench& b) {
  if (!b.section("small steps: advantages, counts, loss and gradient")) return;
  measure(b, 8, 512);
  measure(b, 64, 512);
  measure(b, 64, 1024);
  measure(b, 256, 1024);
}

}  // namespace bench
