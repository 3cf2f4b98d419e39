// Advantages of a million completions with 8 rewards each.
#include "bench.hpp"

namespace bench {
namespace {

/// Rewards as trainers have them: of eight, four are 0 or 1 and four are real numbers.
struct Reward {
  float* to;
  unsigned seed;
  GDPO_DEVICE void operator()(index_t i) const {
    const float x = uniform(i, seed);
    to[i] = i % 8 < 4 ? (x < 0.5f ? 0.0f : 1.0f) : x;
  }
};

template <class Estimator>
void measure(Bench& b, const std::string& what, const Estimator& estimator, index_t group) {
  const std::string name = what + ", groups of " + std::to_string(group);
  if (!b.wants(name, true)) return;
  const index_t rewards = 8,
                rows = (std::max)(b.size(index_t{1} << 20) / group, index_t{2}) * group;
  const double bytes = static_cast<double>(rows) * (rewards + 1) * sizeof(float);
  const int sets = b.sets(bytes);
  std::vector<Array<float>> inputs, outputs;
  for (int s = 0; s < sets; ++s) {
    inputs.emplace_back(rows * rewards);
    outputs.emplace_back(rows);
    for_each(b.on(), rows * rewards, Reward{inputs.back().data(), static_cast<unsigned>(s)});
  }
  const auto batch = [&](const float* data) {
    return gdpo::RewardBatch{gdpo::view(data, rows, rewards), gdpo::groups_of(group)};
  };
  const Array<unsigned char> memory((std::max)(
      static_cast<index_t>(gdpo::cuda::scratch_bytes(estimator, batch(inputs[0].data()))),
      index_t{1}));
  const gdpo::cuda::Scratch scratch{memory.data(), memory.bytes()};
  const auto call = [&](int s) {
    const auto set = static_cast<std::size_t>(s);
    gdpo::advantages_into(b.on(), batch(inputs[set].data()), estimator,
                          gdpo::view(outputs[set].data(), rows), scratch);
  };

  outputs[0].poison(b.stream());
  call(0);
  const auto got = outputs[0].host(), on_host = inputs[0].host();
  std::vector<float> want(got.size());
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch(on_host.data()), estimator, gdpo::view(want), workspace);
  index_t different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) different += !(std::abs(got[i] - want[i]) <= 1e-5f);
  if (different > 0) b.wrong(name, std::to_string(different) + " advantages");
  b.add(name, b.time_in_graph(bytes, sets, call), bytes, 0, 100);
}

}  // namespace

void advantages(Bench& b) {
  if (!b.section("advantages of 1M completions x 8 rewards")) return;
  for (const index_t group : {8, 64}) {
    measure(b, "GDPO", gdpo::Gdpo{}, group);
    measure(b, "GRPO", gdpo::Grpo{}, group);
  }
}

}  // namespace bench
