// What an estimator can tell apart, and its time: one batch has all 2^(n G) groups of G completions
// with n binary rewards. The counter distinct_values is the number of different advantages.
// distinct_groups is the number of different multisets of advantages in a group, which the GDPO
// paper counts (Fig. 3): for n = 2 and G = 8, GRPO has 29, GRPO without std 36, and GDPO 81.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <gdpo/advantages.hpp>
#include <set>
#include <vector>

namespace {

using gdpo::index_t;

/// The advantages of a group, sorted and rounded to 1e-6. Distinct values here differ by far more.
std::vector<long> levels(const double* advantages, index_t G) {
  std::vector<long> group;
  for (index_t k = 0; k < G; ++k) group.push_back(std::lrint(advantages[k] * 1e6));
  std::sort(group.begin(), group.end());
  return group;
}

template <class Estimator>
void resolution(benchmark::State& state) {
  const index_t G = state.range(0), n = state.range(1), groups = index_t{1} << (n * G);
  std::vector<unsigned char> rewards;
  for (index_t code = 0; code < groups; ++code) {
    for (index_t bit = 0; bit < n * G; ++bit) rewards.push_back((code >> bit) & 1);
  }
  std::vector<double> out(static_cast<std::size_t>(groups * G));
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), groups * G, n), gdpo::groups_of(G)};
  gdpo::Workspace workspace;
  for (auto _ : state) {
    gdpo::advantages_into(gdpo::simd, batch, Estimator{}, gdpo::view(out), workspace);
    benchmark::ClobberMemory();
  }
  std::set<std::vector<long>> distinct_groups;
  std::set<long> distinct_values;
  for (index_t g = 0; g < groups; ++g) {
    const std::vector<long> group = levels(out.data() + g * G, G);
    distinct_groups.insert(group);
    distinct_values.insert(group.begin(), group.end());
  }
  state.counters["distinct_groups"] = static_cast<double>(distinct_groups.size());
  state.counters["distinct_values"] = static_cast<double>(distinct_values.size());
  state.SetItemsProcessed(state.iterations() * groups * G);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"G", "n"})->Args({2, 2})->Args({4, 2})->Args({8, 2})->Args({4, 3})->Args({4, 4});
  b->Unit(benchmark::kMicrosecond);
}

BENCHMARK_TEMPLATE(resolution, gdpo::Grpo)->Name("grpo")->Apply(sizes);
BENCHMARK_TEMPLATE(resolution, gdpo::DrGrpo)->Name("grpo_no_std")->Apply(sizes);
BENCHMARK_TEMPLATE(resolution, gdpo::Gdpo)->Name("gdpo")->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
