// Packing and sharding of rows by their lengths, and how much padding and imbalance they leave
// beside what trainers do. Lengths are log-normal (median 1100 tokens, sigma 1) or uniform, at most
// 16384, which is also the budget of a pack.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <gdpo/update/pack.hpp>
#include <gdpo/update/shard.hpp>
#include <random>
#include <vector>

namespace {

using gdpo::index_t;
using Lengths = std::vector<std::int32_t>;
namespace update = gdpo::update;

constexpr index_t budget = 16384;

enum : std::int64_t { log_normal, uniform };

Lengths lengths_of(const benchmark::State& state) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> skewed(7.0, 1.0);
  std::uniform_real_distribution<double> even(1.0, budget + 1.0);
  Lengths lengths(static_cast<std::size_t>(state.range(0)));
  for (std::int32_t& length : lengths) {
    const double drawn = state.range(1) == log_normal ? skewed(random) : even(random);
    length = static_cast<std::int32_t>((std::min)((std::max)(drawn, 1.0), double{budget}));
  }
  return lengths;
}

/// The share of padding in so many packs.
double waste_of(const Lengths& lengths, index_t packs) {
  double tokens = 0;
  for (const std::int32_t length : lengths) tokens += length;
  return 1 - tokens / static_cast<double>(packs * budget);
}
/// open-instruct's pack_sequences: a row that does not fit begins the next pack.
index_t next_fit_in_order(const Lengths& lengths) {
  index_t packs = 1, tokens = 0;
  for (const std::int32_t length : lengths) {
    if (tokens + length > budget) ++packs, tokens = 0;
    tokens += length;
  }
  return packs;
}
/// OpenRLHF's get_minimum_num_micro_batch_size: each row goes into the first pack with room.
index_t first_fit_in_order(const Lengths& lengths) {
  gdpo::detail::FirstFit<index_t> room(std::vector<index_t>(lengths.size(), budget), -1);
  index_t packs = 0;
  for (const std::int32_t length : lengths) {
    const index_t pack = room.first_with(length);
    room.set(pack, room.at(pack) - length);
    packs = (std::max)(packs, pack + 1);
  }
  return packs;
}

bool is_packing(const update::Packing& packing, const Lengths& lengths) {
  std::vector<int> seen(lengths.size());
  for (index_t p = 0; p < packing.packs(); ++p) {
    index_t tokens = 0;
    for (index_t k = 0; k < packing.rows(p).extent[0]; ++k) {
      const auto row = static_cast<std::size_t>(packing.rows(p)(k));
      ++seen[row], tokens += lengths[row];
    }
    if (tokens > budget) return false;
  }
  return std::count(seen.begin(), seen.end(), 1) == static_cast<index_t>(seen.size());
}

void pack(benchmark::State& state) {
  const Lengths lengths = lengths_of(state);
  const update::Packing packing = update::pack(lengths, budget);
  if (!is_packing(packing, lengths)) return state.SkipWithError("rows are lost or do not fit");
  for (auto _ : state) benchmark::DoNotOptimize(update::pack(lengths, budget));
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.counters["packs"] = static_cast<double>(packing.packs());
  state.counters["waste"] = packing.waste();
  state.counters["first_fit_waste"] = waste_of(lengths, first_fit_in_order(lengths));
  state.counters["next_fit_waste"] = waste_of(lengths, next_fit_in_order(lengths));
}

/// The imbalance if each rank gets the next rows / ranks rows in batch order.
template <class Cost>
double imbalance_in_order(const Lengths& lengths, index_t ranks, const Cost& cost) {
  const index_t rows = static_cast<index_t>(lengths.size()) / ranks;
  double largest = 0, sum = 0;
  for (index_t rank = 0; rank < ranks; ++rank) {
    double load = 0;
    for (index_t i = rank * rows; i < (rank + 1) * rows; ++i)
      load += cost(lengths[static_cast<std::size_t>(i)]);
    largest = (std::max)(largest, load), sum += load;
  }
  return largest / (sum / static_cast<double>(ranks));
}

template <class Cost>
void shard(benchmark::State& state) {
  const Lengths lengths = lengths_of(state);
  const index_t ranks = state.range(2);
  const auto counts = static_cast<update::ShardSizes>(state.range(3));
  const update::Sharding sharding = update::shard(lengths, ranks, Cost{}, counts);
  index_t rows = 0;
  for (index_t rank = 0; rank < ranks; ++rank) rows += sharding.rows(rank).extent[0];
  if (rows != state.range(0)) return state.SkipWithError("rows are lost");
  for (auto _ : state) benchmark::DoNotOptimize(update::shard(lengths, ranks, Cost{}, counts));
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.counters["imbalance"] = sharding.imbalance();
  state.counters["in_order"] = imbalance_in_order(lengths, ranks, Cost{});
}

void pack_sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "uniform"})->Unit(benchmark::kMillisecond);
  for (const std::int64_t rows : {512, 65536, 1 << 20}) {
    for (const std::int64_t distribution : {log_normal, uniform}) b->Args({rows, distribution});
  }
}
void shard_sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "uniform", "ranks", "equal"})->Unit(benchmark::kMillisecond);
  for (const std::int64_t distribution : {log_normal, uniform}) {
    for (const std::int64_t equal : {0, 1}) {
      b->Args({512, distribution, 8, equal})->Args({8192, distribution, 64, equal});
      b->Args({1 << 20, distribution, 1024, equal});
    }
  }
}

BENCHMARK(pack)->Apply(pack_sizes);
BENCHMARK_TEMPLATE(shard, update::cost::Tokens)->Name("shard/tokens")->Apply(shard_sizes);
BENCHMARK_TEMPLATE(shard, update::cost::Attention)->Name("shard/attention")->Apply(shard_sizes);

}  // namespace

BENCHMARK_MAIN();
