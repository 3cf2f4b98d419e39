// Time of the policy loss with its gradient.
//
//   <loss>/<form>/<rows>/<width>/<threads>
//   grpo                 clipped token ratios and the KL term k3
//   grpo_no_reference    without the KL term
//   grpo_mean_metrics    with metrics::Means instead of metrics::All
//   grpo_no_metrics      with metrics::None
//   gspo                 one clipped ratio a sequence
//   threads: 0 seq, 1 simd, otherwise parallel
//
// Before a call is timed, its loss and gradient are compared with those of seq, bit by bit.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>

#include "exec.hpp"
#include "token_data.hpp"

namespace {

enum class Form { Padded, Packed };

template <class Loss>
void measure(benchmark::State& state, const Loss& loss, Form form) {
  TokenData data(state.range(0), state.range(1));
  const gdpo::TokenBatch<float> batch = form == Form::Padded ? data.padded() : data.packed();
  const gdpo::TokenOut<float> gradient =
      form == Form::Padded ? data.padded_gradient() : data.packed_gradient();
  const gdpo::Normalizer normalizer = gdpo::count(batch);
  gdpo::LossWorkspace<float> workspace;
  const gdpo::LossResult want = loss(gdpo::seq, batch, normalizer, gradient, workspace);
  const std::vector<float> want_gradient = data.gradient;
  with_exec(state.range(2), [&](const auto& exec) {
    const gdpo::LossResult got = loss(exec, batch, normalizer, gradient, workspace);
    const std::size_t bytes = want_gradient.size() * sizeof(float);
    if (std::memcmp(data.gradient.data(), want_gradient.data(), bytes) != 0 ||
        !(got.loss == want.loss)) {
      return state.SkipWithError("not the bits of seq");
    }
    for (auto _ : state)
      benchmark::DoNotOptimize(loss(exec, batch, normalizer, gradient, workspace));
  });
  const std::int64_t tokens = state.iterations() * data.rows * data.width;
  // Arrays of 4 bytes a token: logp, old_logp, the gradient and, with a KL term, ref_logp.
  const int arrays = 3 + (loss.kl.beta != 0);
  state.SetItemsProcessed(tokens);
  state.SetBytesProcessed(tokens * (arrays * 4 + (form == Form::Padded ? 1 : 0)));
}

auto without_reference() {
  auto loss = gdpo::grpo_loss;
  loss.kl.beta = 0;
  return loss;
}

template <class Loss>
void add(const std::string& name, const Loss& loss, Form form) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { measure(state, loss, form); })
      ->ArgNames({"rows", "width", "threads"})
      ->ArgsProduct({{512}, {4096}, {0, 1, 2}})
      ->ArgsProduct({{32}, {256}, {0, 1, 2}})
      ->ArgsProduct({{65536}, {8}, {0, 1, 2}})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  const auto grpo = gdpo::grpo_loss;
  add("grpo/padded", grpo, Form::Padded);
  add("grpo/packed", grpo, Form::Packed);
  add("grpo_no_reference/padded", without_reference(), Form::Padded);
  add("grpo_mean_metrics/padded", gdpo::with_metrics<gdpo::metrics::Means>(grpo), Form::Padded);
  add("grpo_no_metrics/padded", gdpo::with_metrics<gdpo::metrics::None>(grpo), Form::Padded);
  add("gspo/padded", gdpo::gspo_loss, Form::Padded);
  add("gspo/packed", gdpo::gspo_loss, Form::Packed);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
