// K3: log-probs and entropies from logits, the gradient by the logits, and both in one call with
// the loss in between. 256 rows of 152064 logits.
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/with/openmp.hpp>
#include <memory>

#include "../logits_data.hpp"
#include "../token_data.hpp"
#include "experiments.hpp"
#include "machine.hpp"
#include "probes.hpp"
#include "torch_eager.hpp"

namespace gates {
namespace {

/// What every contender reads, where it writes, and the results to expect.
struct Work : LogitsData {
  std::vector<float> logp, entropy, dlogits;
  std::vector<double> logsumexp;
  std::vector<naive::LogitsRow> expected;  // by the naive loops in double
  std::unique_ptr<TorchGraph> graph;

  Work()
      : LogitsData(256, 152064), logp(256), entropy(256), dlogits(logits.size()), logsumexp(256) {
    for (gdpo::index_t i = 0; i < rows; ++i) {
      expected.push_back(
          naive::logits_forward<double>(row(i), tokens, targets[static_cast<std::size_t>(i)]));
    }
  }

  LogitsBatch for_torch() const {
    return {rows, tokens, logits.data(), targets.data(), upstream.data()};
  }
  gdpo::LogitBatch<float, 2> batch() const {
    gdpo::LogitBatch<float, 2> b;
    b.logits = gdpo::view(logits.data(), rows, tokens);
    b.targets = gdpo::view(targets);
    return b;
  }
  gdpo::TokenLogprobsOut out() {
    gdpo::TokenLogprobsOut o;
    o.logp = gdpo::view(logp), o.entropy = gdpo::view(entropy), o.logsumexp = gdpo::view(logsumexp);
    return o;
  }
  double elements() const { return static_cast<double>(rows * tokens); }
};
using SharedWork = std::shared_ptr<Work>;

std::string off(const char* what, double by) {
  return std::string(what) + " off by " + std::to_string(by * 1e6) + "e-6";
}

/// Compares log-probs and entropies with what is expected. tolerance: absolute, in nats; ten times
/// as much for entropies. Returns what is wrong, or "".
std::string forward_difference(const Work& work, double tolerance, bool entropies = true) {
  double logp = 0, entropy = 0;
  for (std::size_t i = 0; i < work.expected.size(); ++i) {
    const auto apart = [](double& most, double got, double want) {
      if (!(std::abs(got - want) <= most)) most = std::abs(got - want);
    };
    apart(logp, work.logp[i], work.expected[i].logp);
    apart(entropy, work.entropy[i], work.expected[i].entropy);
  }
  if (!(logp <= tolerance)) return off("log-probs", logp);
  return entropies && !(entropy <= 10 * tolerance) ? off("entropies", entropy) : "";
}
/// Compares dlogits with the naive loops in double. tolerance: relative, for each entry; an entry
/// below 1e-30 counts as 1e-30, because small floats have fewer digits. Returns what is wrong, or
/// "".
std::string backward_difference(const Work& work, const float* dlogits, double tolerance) {
  std::vector<double> want(static_cast<std::size_t>(work.tokens));
  double most = 0;
  for (gdpo::index_t i = 0; i < work.rows; ++i) {
    const auto at = static_cast<std::size_t>(i);
    naive::logits_backward<double>(work.row(i), work.tokens, work.targets[at],
                                   work.expected[at].logsumexp,
                                   static_cast<double>(work.upstream[at]), want.data());
    for (gdpo::index_t j = 0; j < work.tokens; ++j) {
      const double exact = want[static_cast<std::size_t>(j)],
                   got = static_cast<double>(dlogits[i * work.tokens + j]);
      const double error = std::abs(got - exact) / std::max(std::abs(exact), 1e-30);
      if (!(error <= most)) most = error;
    }
  }
  return most <= tolerance ? "" : off("dlogits", most);
}

constexpr double ours = 1e-6, ours_backward = 3e-6;
// Log-probs of about -12 are rounded to float, an error of 1e-6, before the exponential of the
// ratio.
constexpr double ours_fused = 1e-5;
constexpr double eager = 1e-4, eager_backward = 1e-4;  // float sums over the vocabulary

template <class Exec>
void add_forward(Bench& bench, const std::string& name, const SharedWork& work, const Exec& exec) {
  bench.add(
      name, work->elements(), [=] { gdpo::token_logprobs_into(exec, work->batch(), work->out()); },
      [=] { return forward_difference(*work, ours); }, 4);
}

void add_backward(Bench& bench, const SharedWork& work) {
  bench.add(
      "backward 1T", work->elements(),
      [=] {
        gdpo::TokenLogprobsGrad grad;
        grad.logp = gdpo::view(std::as_const(work->upstream));
        gdpo::token_logprobs_backward(gdpo::simd, work->batch(), grad,
                                      gdpo::view(std::as_const(work->logsumexp)), {},
                                      gdpo::view(work->dlogits.data(), work->rows, work->tokens));
      },
      [=] { return backward_difference(*work, work->dlogits.data(), ours_backward); }, 8);
}

/// Adds policy_loss_from_logits, with the gradient written over the logits. So later runs read
/// gradients as logits; that changes no cost, because the time of an exponential does not depend on
/// its argument.
void add_fused(Bench& bench, const SharedWork& work) {
  if (!bench.wants("fused 1T")) return;
  struct Call {
    TokenData tokens{4, 64};
    gdpo::PolicyLoss<> loss = gdpo::grpo_loss;
    gdpo::LogitsWorkspace workspace;
    std::vector<float> logits;
  };
  const auto call = std::make_shared<Call>();
  TokenData& tokens = call->tokens;
  call->logits = work->logits;
  for (std::size_t i = 0; i < tokens.logp.size(); ++i) {
    const auto logp = static_cast<float>(work->expected[i].logp);
    for (auto* array : {&tokens.old_logp, &tokens.ref_logp}) (*array)[i] += logp - tokens.logp[i];
    tokens.logp[i] = logp;
  }
  // The gradient by the log-probs that the call is to find between its two halves.
  naive::grpo<double>(tokens.as_naive(), tokens.gradient.data());
  bench.add(
      "fused 1T", work->elements(),
      [=] {
        gdpo::LogitBatch<float, 3> batch;
        batch.logits = gdpo::view(std::as_const(call->logits).data(), 4, 64, work->tokens);
        batch.targets = gdpo::view(work->targets.data(), 4, 64);
        gdpo::TokenBatch<float> tokens_of = call->tokens.padded();
        tokens_of.logp = {};
        batch.mask = tokens_of.mask;
        const gdpo::Normalizer normalizer = gdpo::count(call->tokens.padded());
        gdpo::policy_loss_from_logits(gdpo::simd, call->loss, batch, tokens_of, normalizer,
                                      gdpo::view(call->logits.data(), 4, 64, work->tokens),
                                      call->workspace);
      },
      [=] {
        work->upstream.swap(call->tokens.gradient);
        const std::string problem = backward_difference(*work, call->logits.data(), ours_fused);
        work->upstream.swap(call->tokens.gradient);
        return problem;
      });
}

void add_torch(Bench& bench, const SharedWork& work) {
  const Torch* const torch = gates::torch();
  if (!torch) {
    for (const char* name :
         {"torch log_softmax 1T", "torch logsumexp 1T", "torch backward 1T", "torch both 1T"})
      bench.absent(name, no_torch);
    return;
  }
  bench.add(
      "torch log_softmax 1T", work->elements(),
      [=] {
        torch->use_threads(1);
        torch->token_logprobs(work->for_torch(), work->logp.data(), work->entropy.data());
      },
      [=] { return forward_difference(*work, eager); });
  bench.add(
      "torch logsumexp 1T", work->elements(),
      [=] {
        torch->use_threads(1);
        torch->token_logprobs_by_logsumexp(work->for_torch(), work->logp.data());
      },
      [=] { return forward_difference(*work, eager, false); });
  // Gradients are copied out for the check alone, not in timed runs.
  const auto checked = std::make_shared<bool>(false);
  bench.add(
      "torch both 1T", work->elements(),
      [=] {
        torch->use_threads(1);
        torch->forward_backward(work->for_torch(), work->logp.data(), work->entropy.data(),
                                *checked ? nullptr : work->dlogits.data());
      },
      [=] { return backward_difference(*work, work->dlogits.data(), eager_backward); });
  if (bench.wants("torch backward 1T")) work->graph = torch->graph(work->for_torch());
  bench.add(
      "torch backward 1T", work->elements(),
      [=] {
        torch->use_threads(1);
        work->graph->backward(*checked ? nullptr : work->dlogits.data());
      },
      [=] { return backward_difference(*work, work->dlogits.data(), eager_backward); });
  *checked = true;
}

void add_probes(Bench& bench, const SharedWork& work, int threads) {
  const std::string suffix = " " + std::to_string(threads) + "T";
  bench.add_probe("read" + suffix, work->elements(), [=] {
    probes::share(
        threads, work->rows * work->tokens, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
          volatile std::uint32_t sum = probes::read(work->logits.data() + begin, end - begin);
          static_cast<void>(sum);
        });
  });
  bench.add_probe("copy" + suffix, work->elements(), [=] {
    probes::share(
        threads, work->rows * work->tokens, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
          probes::copy(work->dlogits.data() + begin, work->logits.data() + begin, end - begin);
        });
  });
}

void set_up(Bench& bench) {
  if (!has_avx512 && !bench.library_alone()) {
    for (const char* name : {"forward 1T", "forward 2T", "backward 1T", "fused 1T"})
      bench.absent(name, no_avx512);
    return;
  }
  const auto work = std::make_shared<Work>();
  add_forward(bench, "forward 1T", work, gdpo::simd);
  // The backward pass reads the logsumexp of this call.
  gdpo::token_logprobs_into(gdpo::simd, work->batch(), work->out());
  add_backward(bench, work);
  add_fused(bench, work);
  if (two_processors()) {
    add_forward(bench, "forward 2T", work, gdpo::parallel(gdpo::OpenMp{2}));
  } else {
    bench.absent("forward 2T", one_processor);
  }
  if (bench.library_alone()) return;
  add_torch(bench, work);
  for (int threads = 1; threads <= (two_processors() ? 2 : 1); ++threads)
    add_probes(bench, work, threads);
}

}  // namespace

std::vector<Experiment> k3() {
  return {
      {"K3, 256 rows of 152064 logits",
       {{"forward: bandwidth (4 bytes an element) over that of reading, 1 thread",
         at_least(0.55).on(zen5), "read 1T", "forward 1T"},
        {"forward: bandwidth over that of reading, 2 threads", at_least(0.85).on(zen5), "read 2T",
         "forward 2T"},
        {"forward: speed over eager log_softmax, gather, entropy", at_least(25).on(zen5),
         "torch log_softmax 1T", "forward 1T"},
        {"forward: speed over eager gather - logsumexp, no entropy", at_least(10).on(zen5),
         "torch logsumexp 1T", "forward 1T"},
        {"backward: bandwidth (8 bytes an element) over that of copying", at_least(0.85).on(zen5),
         "copy 1T", "backward 1T"},
        {"backward: speed over eager's", at_least(12).on(zen5), "torch backward 1T", "backward 1T"},
        {"policy_loss_from_logits in place: speed over eager forward and backward",
         at_least(18).on(zen5), "torch both 1T", "fused 1T"}},
       set_up}};
}

}  // namespace gates
