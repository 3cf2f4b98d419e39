// K1: the GRPO loss of token log-probs with a reference model, its gradient and its metrics, as the
// mean over sequences of token means. It is measured with metrics::Means, the metrics that the
// other contenders compute as well. The default, metrics::All, and metrics::None have figures
// without a gate.
#include <gdpo/with/openmp.hpp>
#include <memory>

#include "../intrinsics.hpp"
#include "../token_data.hpp"
#include "experiments.hpp"
#include "machine.hpp"
#include "probes.hpp"
#include "torch_eager.hpp"

namespace gates {
namespace {

/// Equal sets of buffers, used in turn. Four sets of 512 x 4096 tokens (136 MB) are larger than the
/// last level of cache, so each run finds its data in memory only.
struct Sets {
  std::vector<TokenData> data;
  std::size_t turn = 0;

  Sets(gdpo::index_t rows, gdpo::index_t width, std::size_t copies)
      : data(copies, TokenData(rows, width)) {}
  TokenData& next() { return data[turn = (turn + 1) % data.size()]; }
  TokenData& last() { return data[turn]; }
  double tokens() const { return static_cast<double>(data[0].rows * data[0].width); }
};
using SharedSets = std::shared_ptr<Sets>;

struct Tolerance {
  double gradient, loss, metrics;  // gradient: over its largest entry; the others: relative
};
constexpr Tolerance ours{3e-7, 1e-6, 1e-6};
// PyTorch rounds every intermediate array to float, and adds floats.
constexpr Tolerance float_sums{1e-6, 1e-5, 1e-5};

/// Compares `got` and the last gradient with the naive loops in double. Returns what is wrong, or
/// "".
std::string difference(const naive::GrpoSums& got, const TokenData& data, bool masked, double beta,
                       const Tolerance& tolerance, bool metrics = true) {
  std::vector<double> gradient(data.gradient.size());
  const naive::GrpoSums want = naive::grpo<double>(data.as_naive(masked, beta), gradient.data());
  double most = 0, error = 0;
  for (std::size_t k = 0; k < gradient.size(); ++k) {
    most = std::max(most, std::abs(gradient[k]));
    const double apart = std::abs(gradient[k] - static_cast<double>(data.gradient[k]));
    if (!(apart <= error)) error = apart;
  }
  const auto wrong = [](const char* what, double by) {
    return std::string(what) + " off by " + std::to_string(by * 1e6) + "e-6";
  };
  if (!(error <= tolerance.gradient * most)) return wrong("gradient", error / most);
  const auto off = [](double a, double b) {
    return b == 0 ? std::abs(a) : std::abs(a - b) / std::abs(b);
  };
  if (!(off(got.loss, want.loss) <= tolerance.loss)) return wrong("loss", off(got.loss, want.loss));
  if (!metrics) return "";
  const struct {
    const char* name;
    double got, want;
  } pairs[] = {{"KL", got.kl, want.kl},
               {"clip fraction", got.clip_fraction, want.clip_fraction},
               {"approximate KL", got.approx_kl, want.approx_kl},
               {"mean ratio", got.ratio, want.ratio}};
  for (const auto& pair : pairs) {
    if (!(off(pair.got, pair.want) <= tolerance.metrics))
      return wrong(pair.name, off(pair.got, pair.want));
  }
  return "";
}

naive::GrpoSums sums_of(const gdpo::LossResult& result) {
  const gdpo::LossMetrics& m = result.metrics;
  return {result.loss, m.kl.mean(), m.clip_fraction.mean(), m.approx_kl_k3.mean(), m.ratio.mean()};
}

enum class Form { Masked, Packed };
template <class Metrics>
auto grpo(double beta = 0.04) {
  auto loss = gdpo::grpo_loss;
  loss.kl.beta = beta;
  return gdpo::with_metrics<Metrics>(loss);
}
using gdpo::metrics::All, gdpo::metrics::Means, gdpo::metrics::None;

/// Adds the library as a contender. `loss` is the GRPO loss with any metrics.
template <class Exec, class Loss>
void add_gdpo(Bench& bench, const std::string& name, const SharedSets& sets, const Exec& exec,
              const Loss& loss, Form form = Form::Masked) {
  struct Call {
    gdpo::LossWorkspace<float> workspace;
    gdpo::LossResult result;
  };
  const auto call = std::make_shared<Call>();
  bench.add(
      name, sets->tokens(),
      [=] {
        TokenData& data = sets->next();
        const gdpo::TokenBatch<float> batch = form == Form::Masked ? data.padded() : data.packed();
        const gdpo::TokenOut<float> gradient =
            form == Form::Masked ? data.padded_gradient() : data.packed_gradient();
        call->result = loss(exec, batch, gdpo::count(batch), gradient, call->workspace);
      },
      [=] {
        const bool metrics = call->result.metrics.ratio.count > 0;
        return difference(sums_of(call->result), sets->last(), form == Form::Masked, loss.kl.beta,
                          ours, metrics);
      },
      12.0 + (loss.kl.beta != 0 ? 4 : 0) + (form == Form::Masked ? 1 : 0));
}

/// Adds f(naive::GrpoBatch, float* gradient), which returns naive::GrpoSums, as a contender.
template <class F>
void add_function(Bench& bench, const std::string& name, const SharedSets& sets,
                  const Tolerance& tolerance, F f) {
  const auto sums = std::make_shared<naive::GrpoSums>();
  bench.add(
      name, sets->tokens(),
      [=] {
        TokenData& data = sets->next();
        *sums = f(data.as_naive(), data.gradient.data());
      },
      [=] { return difference(*sums, sets->last(), true, 0.04, tolerance); }, 17);
}

void add_naive(Bench& bench, const SharedSets& sets) {
  add_function(bench, "naive 1T", sets, {1e-6, 1e-6, 1e-5}, naive::grpo<float, float>);
}
void add_intrinsics(Bench& bench, const SharedSets& sets) {
#ifdef GDPO_BENCH_AVX512
  add_function(bench, "intrinsics 1T", sets, {3e-7, 1e-5, 1e-5}, intrinsics::grpo);
#else
  static_cast<void>(sets);
  bench.absent("intrinsics 1T", no_avx512);
#endif
}

void add_torch(Bench& bench, const SharedSets& sets, int threads) {
  const std::string name = "torch " + std::to_string(threads) + "T";
  const Torch* const torch = gates::torch();
  if (!torch) return bench.absent(name, no_torch);
  const auto sums = std::make_shared<naive::GrpoSums>();
  const auto call = [=](TokenData& data, float* gradient) {
    torch->use_threads(threads);
    *sums = torch->grpo(data.as_naive(), gradient);
  };
  // The gradient of autograd is copied out for the check alone, not in timed runs.
  const auto checked = std::make_shared<bool>(false);
  bench.add(
      name, sets->tokens(),
      [=] {
        TokenData& data = sets->next();
        call(data, *checked ? nullptr : data.gradient.data());
      },
      [=] {
        *checked = true;
        return difference(*sums, sets->last(), true, 0.04, float_sums);
      });
}
void add_torch_by_hand(Bench& bench, const SharedSets& sets) {
  const std::string name = "torch by hand 1T";
  const Torch* const torch = gates::torch();
  if (!torch) return bench.absent(name, no_torch);
  const auto loss = std::make_shared<double>(0);
  bench.add(
      name, sets->tokens(),
      [=] {
        TokenData& data = sets->next();
        torch->use_threads(1);
        *loss = torch->grpo_by_hand(data.as_naive(), data.gradient.data());
      },
      [=] {
        return difference({*loss, 0, 0, 0, 0}, sets->last(), true, 0.04, float_sums, false);
      });
}

void add_probes(Bench& bench, const SharedSets& sets, int threads) {
  const std::string suffix = " " + std::to_string(threads) + "T";
  bench.add_probe("traffic probe" + suffix, sets->tokens(), [=] {
    TokenData& d = sets->next();
    probes::share(threads, d.rows * d.width, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
      probes::k1_traffic(d.logp.data() + begin, d.old_logp.data() + begin,
                         d.ref_logp.data() + begin, d.mask.data() + begin,
                         d.gradient.data() + begin, end - begin);
    });
  });
  bench.add_probe("triad" + suffix, sets->tokens(), [=] {
    TokenData& d = sets->next();
    probes::share(threads, d.rows * d.width, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
      probes::triad(d.gradient.data() + begin, d.logp.data() + begin, d.old_logp.data() + begin,
                    end - begin);
    });
  });
}

/// The gates are for AVX-512. In a build without it the contenders are absent, unless no gate
/// counts; then this returns true.
bool skipped(Bench& bench) {
  if (has_avx512 || bench.library_alone()) return false;
  bench.absent("gdpo 1T", no_avx512), bench.absent("gdpo 2T", no_avx512);
  return true;
}

void set_up_cold(Bench& bench) {
  if (skipped(bench)) return;
  const auto sets = std::make_shared<Sets>(512, 4096, 4);
  add_gdpo(bench, "gdpo 1T", sets, gdpo::simd, grpo<Means>());
  add_gdpo(bench, "gdpo packed 1T", sets, gdpo::simd, grpo<Means>(), Form::Packed);
  add_gdpo(bench, "gdpo without reference 1T", sets, gdpo::simd, grpo<Means>(0));
  add_gdpo(bench, "gdpo, metrics::All 1T", sets, gdpo::simd, grpo<All>());
  add_gdpo(bench, "gdpo, metrics::None 1T", sets, gdpo::simd, grpo<None>());
  if (two_processors()) {
    add_gdpo(bench, "gdpo 2T", sets, gdpo::parallel(gdpo::OpenMp{2}), grpo<Means>());
  } else {
    bench.absent("gdpo 2T", one_processor);
  }
  if (bench.library_alone()) return;
  add_naive(bench, sets);
  add_intrinsics(bench, sets);
  add_torch_by_hand(bench, sets);
  for (int threads = 1; threads <= (two_processors() ? 2 : 1); ++threads) {
    add_probes(bench, sets, threads);
    add_torch(bench, sets, threads);
  }
}

void set_up_hot(Bench& bench) {
  if (skipped(bench)) return;
  const auto sets = std::make_shared<Sets>(2, 4096, 1);
  add_gdpo(bench, "gdpo 1T", sets, gdpo::simd, grpo<Means>());
  add_gdpo(bench, "gdpo, metrics::All 1T", sets, gdpo::simd, grpo<All>());
  add_gdpo(bench, "gdpo, metrics::None 1T", sets, gdpo::simd, grpo<None>());
  if (bench.library_alone()) return;
  add_naive(bench, sets);
  add_intrinsics(bench, sets);
}

void set_up_small(Bench& bench) {
  if (skipped(bench)) return;
  const auto sets = std::make_shared<Sets>(32, 256, 1);
  add_gdpo(bench, "gdpo 1T", sets, gdpo::simd, grpo<Means>());
  if (bench.library_alone()) return;
  add_naive(bench, sets);
  add_torch(bench, sets, 1);
}

void set_up_over_naive(Bench& bench) {
  const auto sets = std::make_shared<Sets>(2, 4096, 1);
  add_gdpo(bench, "gdpo 1T", sets, gdpo::simd, grpo<Means>());
  add_naive(bench, sets);
}

Experiment k1_cold() {
  return {
      "K1, 512 x 4096 tokens, cold",
      {{"bandwidth (17 bytes a token) over the traffic probe's, 1 thread", at_least(0.62).on(zen5),
        "traffic probe 1T", "gdpo 1T"},
       {"bandwidth over triad's (12 bytes an element), 1 thread", at_least(0.65).on(zen5),
        "triad 1T", "gdpo 1T", 17.0 / 12},
       {"bandwidth over the traffic probe's, 2 threads", at_least(0.80).on(zen5),
        "traffic probe 2T", "gdpo 2T"},
       {"bandwidth over triad's, 2 threads", at_least(0.90).on(zen5), "triad 2T", "gdpo 2T",
        17.0 / 12},
       {"speed over naive scalar loops, 1 thread", at_least(11).on(zen5), "naive 1T", "gdpo 1T"},
       {"speed over eager autograd with metrics, 1 thread", at_least(25).on(zen5), "torch 1T",
        "gdpo 1T"},
       {"speed over eager autograd with metrics, 2 threads", at_least(25).on(zen5), "torch 2T",
        "gdpo 2T"},
       {"speed over eager with a hand-written gradient, no metrics", at_least(7).on(zen5),
        "torch by hand 1T", "gdpo 1T"},
       {"2 threads over 1", at_least(1.6).on(zen5), "gdpo 1T", "gdpo 2T"},
       {"time packed (no mask) over masked", at_most(0.93).on(zen5), "gdpo packed 1T", "gdpo 1T"},
       {"time without over with a reference model", at_most(0.70).on(zen5),
        "gdpo without reference 1T", "gdpo 1T"},
       {"time over AVX-512 intrinsics by hand", no_gate(), "gdpo 1T", "intrinsics 1T"},
       {"time with metrics::All, the default, over metrics::Means", no_gate(),
        "gdpo, metrics::All 1T", "gdpo 1T"},
       {"time with metrics::None over metrics::Means", no_gate(), "gdpo, metrics::None 1T",
        "gdpo 1T"}},
      set_up_cold};
}

Experiment k1_hot() {
  return {
      "K1, 2 x 4096 tokens, in the second level of cache",
      {{"time over AVX-512 intrinsics by hand", at_most(1.15).on(zen5), "gdpo 1T", "intrinsics 1T"},
       {"speed over naive scalar loops", at_least(10).on(zen5), "naive 1T", "gdpo 1T"},
       {"time with metrics::All, the default, over metrics::Means", no_gate(),
        "gdpo, metrics::All 1T", "gdpo 1T"},
       {"time with metrics::None over metrics::Means", no_gate(), "gdpo, metrics::None 1T",
        "gdpo 1T"}},
      set_up_hot};
}

Experiment k1_small() {
  return {
      "K1, 32 x 256 tokens, in the second level of cache",
      {{"speed over naive scalar loops", at_least(8.5).on(zen5), "naive 1T", "gdpo 1T"},
       {"speed over eager autograd with metrics", at_least(28).on(zen5), "torch 1T", "gdpo 1T"}},
      set_up_small};
}

}  // namespace

std::vector<Experiment> k1() { return {k1_cold(), k1_hot(), k1_small()}; }

Experiment k1_over_naive(const std::string& instruction_set, Gate gate) {
  return {"K1, 2 x 4096 tokens, in the second level of cache, built for " + instruction_set,
          {{"speed over naive scalar loops", gate, "naive 1T", "gdpo 1T"}},
          set_up_over_naive};
}

}  // namespace gates
