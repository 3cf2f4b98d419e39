// Time of advantages_into, and how it compares with the same GDPO written as plain scalar loops.
//
//   <estimator>/<rows>/<K>/<C>/<threads>   <rows> completions in groups of K, C rewards in float;
//                                          threads: 0 seq, 1 simd, otherwise parallel
//   gdpo_over_naive/<rows>/<K>/<C>         library and naive loops in turn, on one thread; the
//                                          counter `speedup` is the median of the ratios of their
//                                          times
//
// Before it is timed, GDPO is checked against the naive loops, and every result against the bits of
// seq.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <gdpo/advantages.hpp>
#include <random>
#include <vector>

#include "exec.hpp"
#include "naive.hpp"

namespace {

using gdpo::index_t;

struct Rollouts {
  index_t rows, K, C;
  std::vector<float> rewards, out;

  explicit Rollouts(const benchmark::State& state)
      : rows(state.range(0)),
        K(state.range(1)),
        C(state.range(2)),
        rewards(static_cast<std::size_t>(rows * C)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(0, 1);
    for (float& reward : rewards) reward = uniform(random);
    out.resize(static_cast<std::size_t>(rows));
  }
  gdpo::RewardBatch<float, gdpo::GroupsOf> batch() const {
    return {gdpo::view(rewards.data(), rows, C), gdpo::groups_of(K)};
  }
  void count(benchmark::State& state) const {
    state.SetItemsProcessed(state.iterations() * rows);
    state.SetBytesProcessed(state.iterations() * rows * (C + 1) * index_t{sizeof(float)});
  }
};

/// Whether GDPO agrees with the naive loops, up to two roundings to float of values below 10, which
/// is 2e-6: the loops keep their sums over rewards in float.
bool agrees_with_naive(Rollouts& rollouts, gdpo::Workspace& workspace) {
  std::vector<float> naive(rollouts.out.size());
  naive::gdpo_advantages(rollouts.rewards.data(), rollouts.rows / rollouts.K, rollouts.K,
                         rollouts.C, naive.data());
  gdpo::advantages_into(gdpo::seq, rollouts.batch(), gdpo::Gdpo{}, gdpo::view(rollouts.out),
                        workspace);
  for (std::size_t i = 0; i < naive.size(); ++i) {
    if (!(std::abs(naive[i] - rollouts.out[i]) <= 2e-6f)) return false;
  }
  return true;
}

/// Checks the bits against those of seq, then measures the time.
template <class Batch, class Estimator>
void measure(benchmark::State& state, Rollouts& rollouts, const Batch& batch,
             const Estimator& estimator) {
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch, estimator, gdpo::view(rollouts.out), workspace);
  const std::vector<float> want = rollouts.out;
  with_exec(state.range(3), [&](const auto& exec) {
    gdpo::advantages_into(exec, batch, estimator, gdpo::view(rollouts.out), workspace);
    if (rollouts.out != want) return state.SkipWithError("not the bits of seq");
    for (auto _ : state) {
      gdpo::advantages_into(exec, batch, estimator, gdpo::view(rollouts.out), workspace);
      benchmark::ClobberMemory();
    }
  });
  rollouts.count(state);
}

template <class Estimator>
void estimator(benchmark::State& state) {
  Rollouts rollouts(state);
  gdpo::Workspace workspace;
  if (!agrees_with_naive(rollouts, workspace))
    return state.SkipWithError("GDPO does not agree with the naive version");
  measure(state, rollouts, rollouts.batch(), Estimator{});
}

void gdpo_by_id(benchmark::State& state) {
  Rollouts rollouts(state);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(rollouts.rows));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i) / rollouts.K;
  std::shuffle(ids.begin(), ids.end(), std::mt19937(2));
  const gdpo::RewardBatch batch{gdpo::view(rollouts.rewards.data(), rollouts.rows, rollouts.C),
                                gdpo::by_id(ids)};
  measure(state, rollouts, batch, gdpo::Gdpo{});
}

void gdpo_over_naive(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  Rollouts rollouts(state);
  gdpo::Workspace workspace;
  if (!agrees_with_naive(rollouts, workspace))
    return state.SkipWithError("GDPO does not agree with the naive version");
  std::vector<float> naive(rollouts.out.size());
  std::vector<double> ratios;
  for (auto _ : state) {
    const auto start = Clock::now();
    naive::gdpo_advantages(rollouts.rewards.data(), rollouts.rows / rollouts.K, rollouts.K,
                           rollouts.C, naive.data());
    benchmark::ClobberMemory();
    const auto middle = Clock::now();
    gdpo::advantages_into(gdpo::simd, rollouts.batch(), gdpo::Gdpo{}, gdpo::view(rollouts.out),
                          workspace);
    benchmark::ClobberMemory();
    const std::chrono::duration<double> ours = Clock::now() - middle, theirs = middle - start;
    ratios.push_back(theirs / ours);
    state.SetIterationTime(ours.count());
  }
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<index_t>(ratios.size() / 2),
                   ratios.end());
  state.counters["speedup"] = ratios[ratios.size() / 2];
  rollouts.count(state);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "K", "C"})->Args({512, 8, 3})->Args({65536, 16, 4})->Args({1 << 20, 16, 8});
  b->Unit(benchmark::kMicrosecond);
}
void sizes_and_threads(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "K", "C", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (const std::int64_t threads : {0, 1, 2}) {
    b->Args({512, 8, 3, threads})->Args({65536, 16, 4, threads})->Args({1 << 20, 16, 8, threads});
  }
}

BENCHMARK_TEMPLATE(estimator, gdpo::Gdpo)->Name("gdpo")->Apply(sizes_and_threads);
BENCHMARK_TEMPLATE(estimator, gdpo::Grpo)->Name("grpo")->Apply(sizes_and_threads);
BENCHMARK_TEMPLATE(estimator, gdpo::DrGrpo)->Name("dr_grpo")->Apply(sizes_and_threads);
BENCHMARK_TEMPLATE(estimator, gdpo::Rloo)->Name("rloo")->Apply(sizes_and_threads);
BENCHMARK(gdpo_by_id)->Apply(sizes_and_threads);
BENCHMARK(gdpo_over_naive)->Apply(sizes)->UseManualTime()->MinTime(1.0);

}  // namespace

BENCHMARK_MAIN();
