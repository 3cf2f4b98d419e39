#include "loss.hpp"

#include <cmath>
#include <gdpo/with/thread_pool.hpp>
#include <type_traits>
#include <variant>

namespace conformance {
namespace {

gdpo::ThreadPool& threads() {
  static gdpo::ThreadPool pool(3);
  return pool;
}

template <class S>
gdpo::Normalizer count(const Target& target, const gdpo::TokenBatch<S>& batch) {
  return target.exec == Exec::Device ? count_on_device(batch) : gdpo::count(batch);
}

// Calls the loss on the target of the case; `parallel` runs on threads of the runner.
template <class S, class Loss>
gdpo::LossResult call(const Target& target, const Loss& loss, const gdpo::TokenBatch<S>& batch,
                      const gdpo::Normalizer& normalizer,
                      const gdpo::LossGradient<S>& gradient = {}) {
  if (target.exec == Exec::Device)
    return on_device(loss, batch, normalizer, gradient.logp.data(), gradient.entropies.data());
  gdpo::LossWorkspace<S> workspace;
  if constexpr (std::is_same_v<S, double>) {
    if (target.exec == Exec::Seq) return loss(gdpo::seq, batch, normalizer, gradient, workspace);
  }
  if (target.exec == Exec::Parallel)
    return loss(gdpo::parallel(threads()), batch, normalizer, gradient, workspace);
  return loss(gdpo::simd, batch, normalizer, gradient, workspace);
}

template <class S, class Loss>
LossRun run_loss_as(Loss loss, const TokenInputs& in, const Prepare& prepare, double given) {
  if (loss.aggregate.padded_width && in.is_packed()) {
    // Packed tokens have no padded width: that of the padded batch becomes the constant.
    loss.aggregate.padded_width = false;
    loss.aggregate.constant = static_cast<double>(in.width);
  }
  const TokenArrays<S> arrays(in);
  gdpo::PrepassMemory<S> memory;
  gdpo::TokenBatch<S> batch = arrays.batch();
  LossRun run;
  const auto& passes = std::get<PrepareAs<S>>(prepare);
  if (passes) {
    gdpo::Normalizer all = count(in.target, batch);
    all.given = given;
    run.before = call(in.target, loss, batch, all).metrics;
    batch = passes(batch, memory);
  }
  gdpo::Normalizer normalizer = count(in.target, batch);
  normalizer.given = given;

  std::vector<S> gradient(in.logp.size(), gdpo::math::nan<S>()), by_entropies = gradient;
  const auto view = [&in](std::vector<S>& numbers) {
    return in.is_packed() ? gdpo::TokenOut<S>(gdpo::view(numbers))
                          : gdpo::view(numbers.data(), in.rows, in.width);
  };
  gdpo::LossGradient<S> out(view(gradient));
  if (loss.entropy.coef != 0) out.entropies = view(by_entropies);
  run.result = call(in.target, loss, batch, normalizer, out);
  if (!passes) run.before = run.result.metrics;

  std::vector<S> weights = tokens_of(in, batch.weights, S(1));
  if (batch.level_log_weights) {  // those of the ratio
    weights = tokens_of(in, batch.level_log_weights, S(0));
    for (S& w : weights) w = std::exp(w);
  }
  std::vector<unsigned char> mask = tokens_of<unsigned char>(in, batch.mask, 1);
  run.gradient = padded(in, std::vector<double>(gradient.begin(), gradient.end()));
  run.entropy_gradient = padded(in, std::vector<double>(by_entropies.begin(), by_entropies.end()));
  run.weights = padded(in, std::vector<double>(weights.begin(), weights.end()));
  run.mask = padded(in, mask);
  run.rows = static_cast<std::size_t>(in.rows);
  run.recorded = padded(in, tokens_of<unsigned char>(in, view_of(in, in.mask), 1));

  for (std::size_t k = 0; k < mask.size(); ++k) mask[k] = mask[k] != 0 && weights[k] != 0;
  batch.mask = view_of(in, mask);
  run.kept = call(in.target, loss, batch, normalizer).metrics;
  return run;
}

// The first index at which the bits of a and b differ, or the size of a.
std::size_t first_difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::size_t k = 0;
  while (k < a.size() && gdpo::math::bits_of(a[k]) == gdpo::math::bits_of(b[k])) ++k;
  return k;
}

}  // namespace

Array of_tokens(const TokenInputs& in, const std::vector<double>& tokens) {
  return {{static_cast<std::size_t>(in.rows), static_cast<std::size_t>(in.width)}, tokens};
}

LossRun run_loss(const AnyLoss& any, const TokenInputs& in, const Prepare& prepare, double given) {
  return std::visit(
      [&](const auto& loss) {
        return in.target.single ? run_loss_as<float>(loss, in, prepare, given)
                                : run_loss_as<double>(loss, in, prepare, given);
      },
      any);
}

LossRun run_loss(const LossSetup& setup, const TokenInputs& in) {
  return std::visit(
      [&](const auto& loss) { return run_loss(AnyLoss(loss), in, setup.prepare, setup.given); },
      setup.loss);
}

LossRun padded_and_packed(const TokenInputs& in,
                          const std::function<LossRun(const TokenInputs&)>& run,
                          Comparison& comparison) {
  LossRun of_padded = run(in);
  const LossRun of_packed = run(packed(in));
  const auto text = [](double x) { return gdpo::contract::text(x); };
  const auto same = [&](const char* name, double a, double b) {
    comparison.law(gdpo::math::bits_of(a) == gdpo::math::bits_of(b),
                   std::string(name) + ": " + text(a) + " padded, " + text(b) + " packed");
  };
  same("loss", of_padded.result.loss, of_packed.result.loss);
  same("policy loss", of_padded.result.policy_loss, of_packed.result.policy_loss);
  same("kl loss", of_padded.result.kl_loss, of_packed.result.kl_loss);
  const std::size_t k = first_difference(of_padded.gradient, of_packed.gradient);
  if (k < of_padded.gradient.size()) {
    comparison.law(false, "gradient at position " + std::to_string(k) + ": " +
                              text(of_padded.gradient[k]) + " padded, " +
                              text(of_packed.gradient[k]) + " packed");
  }
  for (std::size_t at = 0; at < of_padded.mask.size(); ++at) {
    if (of_padded.mask[at] != 0 || of_padded.gradient[at] == 0) continue;
    comparison.law(false, "gradient at masked position " + std::to_string(at) + ": " +
                              text(of_padded.gradient[at]));
    break;
  }
  return of_padded;
}

}  // namespace conformance
