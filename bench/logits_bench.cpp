// Time of log-probs and entropies from logits (forward), of the gradient by the logits (backward),
// and of policy_loss_from_logits, which does both with the loss in between (fused).
//
//   <forward|backward|fused>/<float|bf16>/<V>/<threads>
//   128 rows of V logits; threads: 0 seq, 1 simd, otherwise parallel
//
// Before a call is timed, its result is compared with that of seq, bit by bit.
#include <benchmark/benchmark.h>

#include <cstring>
#include <gdpo/logits.hpp>

#include "exec.hpp"
#include "logits_data.hpp"
#include "token_data.hpp"

namespace {

constexpr gdpo::index_t rows = 4, width = 32;

template <class T>
T stored(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return {static_cast<std::uint16_t>(bits >> 16)};
  }
}

/// A batch of logits stored as T, and arrays for results.
template <class T>
struct Work {
  LogitsData data;
  std::vector<T> logits, dlogits;
  std::vector<float> logp, entropy;
  std::vector<double> logsumexp;

  explicit Work(const benchmark::State& state)
      : data(rows * width, state.range(0)),
        dlogits(data.logits.size()),
        logp(data.targets.size()),
        entropy(logp),
        logsumexp(logp.size()) {
    for (const float x : data.logits) logits.push_back(stored<T>(x));
  }
  gdpo::LogitBatch<T, 2> batch() const {
    gdpo::LogitBatch<T, 2> b;
    b.logits = gdpo::view(logits.data(), data.rows, data.tokens);
    b.targets = gdpo::view(data.targets);
    return b;
  }
  gdpo::TokenLogprobsOut out() {
    gdpo::TokenLogprobsOut o;
    o.logp = gdpo::view(logp), o.entropy = gdpo::view(entropy), o.logsumexp = gdpo::view(logsumexp);
    return o;
  }
};

/// Checks that f(exec) leaves the bytes of f(seq) in `result`, then measures the time of f(exec).
/// bytes: memory traffic per logit.
template <class Result, class F>
void measure(benchmark::State& state, const Result& result, std::size_t bytes, const F& f) {
  f(gdpo::seq);
  const Result want = result;
  with_exec(state.range(1), [&](const auto& exec) {
    f(exec);
    if (std::memcmp(result.data(), want.data(), want.size() * sizeof want[0]) != 0) {
      return state.SkipWithError("not the bits of seq");
    }
    for (auto _ : state) {
      f(exec);
      benchmark::ClobberMemory();
    }
  });
  const std::int64_t elements = state.iterations() * rows * width * state.range(0);
  state.SetItemsProcessed(elements);
  state.SetBytesProcessed(elements * static_cast<std::int64_t>(bytes));
}

template <class T>
void forward(benchmark::State& state) {
  Work<T> work(state);
  measure(state, work.logp, sizeof(T),
          [&](const auto& exec) { gdpo::token_logprobs_into(exec, work.batch(), work.out()); });
}

template <class T>
void backward(benchmark::State& state) {
  Work<T> work(state);
  gdpo::token_logprobs_into(gdpo::simd, work.batch(), work.out());
  gdpo::TokenLogprobsGrad grad;
  grad.logp = gdpo::view(work.data.upstream);
  measure(state, work.dlogits, 2 * sizeof(T), [&](const auto& exec) {
    gdpo::token_logprobs_backward(
        exec, work.batch(), grad, gdpo::view(std::as_const(work.logsumexp)), {},
        gdpo::view(work.dlogits.data(), work.data.rows, work.data.tokens));
  });
}

template <class T>
void fused(benchmark::State& state) {
  Work<T> work(state);
  TokenData tokens(rows, width);
  const gdpo::Normalizer normalizer = gdpo::count(tokens.padded());
  gdpo::LogitsWorkspace workspace;
  gdpo::LogitBatch<T, 3> batch;
  batch.logits = gdpo::view(std::as_const(work.logits).data(), rows, width, work.data.tokens);
  batch.targets = gdpo::view(work.data.targets.data(), rows, width);
  gdpo::TokenBatch<float> of_tokens = tokens.padded();
  of_tokens.logp = {};
  batch.mask = of_tokens.mask;
  measure(state, work.dlogits, 2 * sizeof(T), [&](const auto& exec) {
    gdpo::policy_loss_from_logits(exec, gdpo::grpo_loss, batch, of_tokens, normalizer,
                                  gdpo::view(work.dlogits.data(), rows, width, work.data.tokens),
                                  workspace);
  });
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"V", "threads"})
      ->ArgsProduct({{32768, 152064}, {0, 1, 2}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK_TEMPLATE(forward, float)->Name("forward/float")->Apply(sizes);
BENCHMARK_TEMPLATE(forward, gdpo::BFloat16)->Name("forward/bf16")->Apply(sizes);
BENCHMARK_TEMPLATE(backward, float)->Name("backward/float")->Apply(sizes);
BENCHMARK_TEMPLATE(backward, gdpo::BFloat16)->Name("backward/bf16")->Apply(sizes);
BENCHMARK_TEMPLATE(fused, float)->Name("fused/float")->Apply(sizes);
BENCHMARK_TEMPLATE(fused, gdpo::BFloat16)->Name("fused/bf16")->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
