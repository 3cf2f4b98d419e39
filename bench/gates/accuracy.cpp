// Accuracy against naive loops in long double, and whether all execution tags give the same bits.
// Nothing here is timed.
#include <cstring>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/with/openmp.hpp>
#include <set>

#include "../logits_data.hpp"
#include "../token_data.hpp"
#include "experiments.hpp"

namespace gates {
namespace {

struct GrpoErrors {
  double gradient = 0, loss = 0, kl = 0;
};
/// Errors for log-ratios of standard deviation sd: the largest error of the gradient over its
/// largest entry, and the relative errors of loss and mean KL.
GrpoErrors grpo_errors(double sd) {
  TokenData data(256, 1024, sd);
  const gdpo::LossResult result =
      gdpo::grpo_loss(data.padded(), gdpo::count(data.padded()), data.padded_gradient());
  std::vector<long double> gradient(data.gradient.size());
  const naive::GrpoSums want = naive::grpo<long double>(data.as_naive(), gradient.data());
  long double most = 0, error = 0;
  for (std::size_t k = 0; k < gradient.size(); ++k) {
    most = std::max(most, std::abs(gradient[k]));
    const long double apart = std::abs(gradient[k] - static_cast<long double>(data.gradient[k]));
    if (!(apart <= error)) error = apart;
  }
  return {static_cast<double>(error / most), std::abs(result.loss / want.loss - 1),
          std::abs(result.metrics.kl.mean() / want.kl - 1)};
}

/// The largest error of a log-prob from logits, absolute, in nats.
double logp_error() {
  const LogitsData data(16, 152064);
  const gdpo::TokenLogprobs result = gdpo::token_logprobs(
      gdpo::view(data.logits.data(), data.rows, data.tokens), gdpo::view(data.targets));
  double most = 0;
  for (std::size_t i = 0; i < result.logp.size(); ++i) {
    const naive::LogitsRow want = naive::logits_forward<long double>(
        data.row(static_cast<gdpo::index_t>(i)), data.tokens, data.targets[i]);
    const double apart = std::abs(static_cast<double>(result.logp[i]) - want.logp);
    if (!(apart <= most)) most = apart;
  }
  return most;
}

/// How many different results seq, simd and 1 to 7 threads give. The bits of loss, metrics,
/// gradient, log-probs, entropies and dlogits count.
double bit_patterns() {
  TokenData data(64, 1027);
  LogitsData logits(64, 8195);
  std::set<std::string> patterns;
  const auto run = [&](const auto& exec) {
    std::string bits;
    const auto put = [&bits](const auto* values, std::size_t n) {
      bits.append(reinterpret_cast<const char*>(values), n * sizeof *values);
    };
    gdpo::LossWorkspace<float> workspace;
    const gdpo::LossResult result = gdpo::grpo_loss(exec, data.padded(), gdpo::count(data.padded()),
                                                    data.padded_gradient(), workspace);
    put(data.gradient.data(), data.gradient.size());
    put(&result.loss, 1);
    for (const auto& [key, value] : result.metrics.to_map()) put(&value, 1);

    gdpo::LogitBatch<float, 2> batch;
    batch.logits = gdpo::view(logits.logits.data(), logits.rows, logits.tokens);
    batch.targets = gdpo::view(logits.targets);
    std::vector<float> logp(logits.targets.size()), entropy(logp.size()),
        dlogits(logits.logits.size());
    std::vector<double> logsumexp(logp.size());
    gdpo::TokenLogprobsOut out;
    out.logp = gdpo::view(logp), out.entropy = gdpo::view(entropy),
    out.logsumexp = gdpo::view(logsumexp);
    gdpo::token_logprobs_into(exec, batch, out);
    gdpo::TokenLogprobsGrad grad;
    grad.logp = gdpo::view(logits.upstream);
    gdpo::token_logprobs_backward(exec, batch, grad, gdpo::view(std::as_const(logsumexp)), {},
                                  gdpo::view(dlogits.data(), logits.rows, logits.tokens));
    put(logp.data(), logp.size());
    put(entropy.data(), entropy.size());
    put(dlogits.data(), dlogits.size());
    patterns.insert(bits);
  };
  run(gdpo::seq);
  run(gdpo::simd);
  for (int threads = 1; threads <= 7; ++threads) run(gdpo::parallel(gdpo::OpenMp{threads}));
  return static_cast<double>(patterns.size());
}

void set_up(Bench& bench) {
  if (bench.wants("gradient") || bench.wants("loss")) {
    GrpoErrors worst;
    for (const double sd : {1e-1, 1e-2, 1e-3, 1e-4}) {
      const GrpoErrors errors = grpo_errors(sd);
      if (!(errors.gradient <= worst.gradient)) worst.gradient = errors.gradient;
      if (!(errors.loss <= worst.loss)) worst.loss = errors.loss;
    }
    bench.number("gradient", worst.gradient);
    bench.number("loss", worst.loss);
  }
  if (bench.wants("kl")) bench.number("kl", grpo_errors(1e-3).kl);
  if (bench.wants("logp")) bench.number("logp", logp_error());
  if (bench.wants("patterns")) bench.number("patterns", bit_patterns());
}

}  // namespace

std::vector<Experiment> accuracy() {
  return {{"Accuracy against long double, and bits",
           {{"gradient, largest error over largest entry, log-ratios of sd 1e-1 to 1e-4",
             at_most(3e-7), "gradient"},
            {"loss, relative, the same", at_most(1e-6), "loss"},
            {"mean KL, relative, log-ratios of sd 1e-3", at_most(1e-6), "kl"},
            {"log-probs from 152064 logits, absolute", at_most(1e-6), "logp"},
            {"distinct bit patterns over seq, simd and 1 to 7 threads", at_most(1), "patterns"}},
           set_up}};
}

}  // namespace gates
