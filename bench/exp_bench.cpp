// Time of exp_parts (e^x, e^x - 1 and e^x - 1 - x together) on numbers and on vector lanes, and of
// std::exp alone, for 4096 values. Before lanes are timed, their bits are compared with those of
// numbers.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/lanes/lanes.hpp>
#include <random>
#include <vector>

namespace {

template <class S>
struct Numbers {
  std::vector<S> x, exp, expm1, k3;
  Numbers() : x(4096) {
    std::mt19937 random(1);
    std::normal_distribution<S> normal(0, S(0.2));
    for (S& value : x) value = normal(random);
    exp = expm1 = k3 = x;
  }
  void count(benchmark::State& state) const {
    const auto n = static_cast<std::int64_t>(x.size());
    state.SetItemsProcessed(state.iterations() * n);
    state.SetBytesProcessed(state.iterations() * n * 4 * static_cast<std::int64_t>(sizeof(S)));
  }
};

template <class V, class S>
void parts_of(Numbers<S>& n) {
  using Lanes = gdpo::math::Lanes<V>;
  for (std::size_t i = 0; i < n.x.size(); i += Lanes::width) {
    const gdpo::math::ExpParts<V> parts = gdpo::math::exp_parts(Lanes::load(n.x.data() + i));
    Lanes::store(n.exp.data() + i, parts.exp);
    Lanes::store(n.expm1.data() + i, parts.expm1);
    Lanes::store(n.k3.data() + i, parts.k3);
  }
}

template <class V>
void exp_parts(benchmark::State& state) {
  using S = typename gdpo::math::Lanes<V>::Scalar;
  Numbers<S> numbers, want;
  parts_of<V>(numbers);
  parts_of<S>(want);
  const auto same = [](const std::vector<S>& a, const std::vector<S>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(S)) == 0;
  };
  if (!same(numbers.exp, want.exp) || !same(numbers.expm1, want.expm1) ||
      !same(numbers.k3, want.k3)) {
    return state.SkipWithError("lanes and numbers differ");
  }
  for (auto _ : state) {
    parts_of<V>(numbers);
    benchmark::ClobberMemory();
  }
  numbers.count(state);
}

template <class S>
void std_exp(benchmark::State& state) {
  Numbers<S> numbers;
  for (auto _ : state) {
    for (std::size_t i = 0; i < numbers.x.size(); ++i) numbers.exp[i] = std::exp(numbers.x[i]);
    benchmark::ClobberMemory();
  }
  const auto n = state.iterations() * static_cast<std::int64_t>(numbers.x.size());
  state.SetItemsProcessed(n);
  state.SetBytesProcessed(n * 2 * static_cast<std::int64_t>(sizeof(S)));
}

BENCHMARK_TEMPLATE(exp_parts, float)->Name("exp_parts/float");
BENCHMARK_TEMPLATE(exp_parts, gdpo::math::Native<float>)->Name("exp_parts/float_lanes");
BENCHMARK_TEMPLATE(exp_parts, double)->Name("exp_parts/double");
BENCHMARK_TEMPLATE(exp_parts, gdpo::math::Native<double>)->Name("exp_parts/double_lanes");
BENCHMARK_TEMPLATE(std_exp, float)->Name("std_exp/float");
BENCHMARK_TEMPLATE(std_exp, double)->Name("std_exp/double");

}  // namespace

BENCHMARK_MAIN();
