// Time of a controller's update, and what constraints add to an estimator.
//
//   update/<rule>/<m>                    one PidLagrangian::update of m constraints
//   constrained/<placement>/<rows>/<m>   advantages_into under m constraints: groups of 16, 1 + m
//                                        rewards in float, simd. The counter `over_plain` is the
//                                        median of its time over that of the estimator alone on the
//                                        same rewards, both timed in turn
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <gdpo/constraint.hpp>
#include <random>
#include <vector>

namespace {

using gdpo::index_t;

void update(benchmark::State& state, const gdpo::PidGains& gains) {
  const index_t m = state.range(0);
  std::mt19937 random(1);
  std::normal_distribution<double> error(0, 1);
  // Measurements as in a run, around the limit and at times beyond the bounds, so that branches are
  // taken as they are there.
  constexpr index_t steps = 64;
  std::vector<gdpo::SumCount> reduced(static_cast<std::size_t>(m * steps));
  for (gdpo::SumCount& x : reduced) x = {512 * error(random), 512};
  gdpo::PidLagrangian pid(gains, m);
  index_t step = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(pid.update(gdpo::view(reduced.data() + step * m, m)).data());
    step = (step + 1) % steps;
  }
  if (pid.last()[0].held) state.SkipWithError("a constraint was held: nothing was measured");
  state.SetItemsProcessed(state.iterations() * m);
}
BENCHMARK_CAPTURE(update, default, gdpo::PidGains{})->Arg(1)->Arg(16);
BENCHMARK_CAPTURE(update, omnisafe, gdpo::pid::omnisafe())->Arg(16);
BENCHMARK_CAPTURE(update, nupi, gdpo::pid::nupi(1, 0.05, 0.9))->Arg(16);
BENCHMARK_CAPTURE(update, dual_ascent_adam, gdpo::pid::dual_ascent_adam())->Arg(16);
BENCHMARK_CAPTURE(update, safe_rlhf_log, gdpo::pid::safe_rlhf_log())->Arg(16);

double seconds(const std::chrono::steady_clock::time_point& since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

template <class Placement>
void constrained(benchmark::State& state, const Placement& placement) {
  const index_t rows = state.range(0), m = state.range(1);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0, 1);
  std::vector<float> rewards(static_cast<std::size_t>(rows * (1 + m))),
      out(static_cast<std::size_t>(rows));
  for (float& reward : rewards) reward = uniform(random);
  const gdpo::RewardBatch batch{gdpo::view(std::as_const(rewards).data(), rows, 1 + m),
                                gdpo::groups_of(16)};
  std::vector<gdpo::Constraint> constraints;
  for (index_t c = 1; c <= m; ++c) constraints.push_back({c, 0.5, 0.6, 0.3});
  const gdpo::Constrained<gdpo::Gdpo, Placement> under{{}, placement, constraints};
  gdpo::Workspace workspace;
  std::vector<double> ratios;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    gdpo::advantages_into(gdpo::simd, batch, under, gdpo::view(out), workspace);
    const double with = seconds(start);
    benchmark::DoNotOptimize(out.data());
    state.SetIterationTime(with);
    const auto again = std::chrono::steady_clock::now();
    gdpo::advantages_into(gdpo::simd, batch, gdpo::Gdpo{}, gdpo::view(out), workspace);
    ratios.push_back(with / seconds(again));
    benchmark::DoNotOptimize(out.data());
  }
  for (const float a : out) {
    if (!std::isfinite(a)) return state.SkipWithError("an advantage is not finite");
  }
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<index_t>(ratios.size() / 2),
                   ratios.end());
  state.counters["over_plain"] = ratios[ratios.size() / 2];
  state.SetItemsProcessed(state.iterations() * rows);
}
void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "m"})->Args({4096, 2})->Args({65536, 2})->UseManualTime();
}
BENCHMARK_CAPTURE(constrained, fixed_scale, gdpo::placement::FixedScale{})->Apply(sizes);
BENCHMARK_CAPTURE(constrained, composite, gdpo::placement::Composite{})->Apply(sizes);
BENCHMARK_CAPTURE(constrained, normalize_then_combine, gdpo::placement::NormalizeThenCombine{})
    ->Apply(sizes);
BENCHMARK_CAPTURE(constrained, advantage_mix, gdpo::placement::AdvantageMix{})->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
