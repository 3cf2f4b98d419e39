// Cases of kind loss: log-probs of tokens in; loss, its gradient and metrics out.
#pragma once

#include <functional>
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "comparison.hpp"
#include "device_loss.hpp"
#include "params.hpp"
#include "registry.hpp"
#include "token_inputs.hpp"

namespace conformance {

// The batch with what its pre-passes decide; empty: none.
template <class S>
using PrepareAs = std::function<gdpo::TokenBatch<S>(const gdpo::TokenBatch<S>&, gdpo::PrepassMemory<S>&)>;
using Prepare = std::tuple<PrepareAs<double>, PrepareAs<float>>;

gdpo::ThreadPool& threads();

// What a recorded function is in the library's terms.
struct LossRun;
struct LossSetup {
  gdpo::runtime::Loss loss;
  // Instead of the preset's K3, where it has a value.
  std::variant<std::monostate, gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>, gdpo::Kl<gdpo::kl::K1>,
               gdpo::Kl<gdpo::kl::K2>, gdpo::Kl<gdpo::kl::K1, gdpo::kl::ImportanceWeighted>>
      kl;
  double given = 0;  // Normaliser::given
  Prepare prepare;

  // Compares metrics under the trainer's names for them.
  std::function<void(const LossRun&, Comparison&)> metrics = [](const auto&, auto&) {};
};

// A call of the library. Arrays are padded (rows, width), whatever the layout was.
struct LossRun {
  gdpo::LossResult result;
  gdpo::LossMetrics kept;  // of the same call where a weight 0 masks the token
  std::vector<double> gradient;
  std::vector<double> weights;      // of the surrogate, after the pre-passes; 1 if there are none
  std::vector<unsigned char> mask;  // after the pre-passes
};

template <class S>
gdpo::Normaliser count(const Target& target, const gdpo::TokenBatch<S>& batch) {
  return target.exec == Exec::Device ? count_on_device(batch) : gdpo::count(batch);
}

// The loss on the target of the case. Its threads are the runner's own.
template <class S, class Loss>
gdpo::LossResult call(const Target& target, const Loss& loss, const gdpo::TokenBatch<S>& batch,
                      const gdpo::Normaliser& normaliser, const gdpo::TokenOut<S>& gradient = {}) {
  if (target.exec == Exec::Device) return on_device(device_loss(loss), batch, normaliser, gradient.data());
  gdpo::LossWorkspace<S> workspace;
  if constexpr (std::is_same_v<S, double>) {
    if (target.exec == Exec::Seq) return loss(gdpo::seq, batch, normaliser, gradient, workspace);
  }
  if (target.exec == Exec::Parallel) return loss(gdpo::parallel(threads()), batch, normaliser, gradient, workspace);
  return loss(gdpo::simd, batch, normaliser, gradient, workspace);
}

template <class S, class Loss>
LossRun run_loss_as(Loss loss, const TokenInputs& in, const Prepare& prepare, double given) {
  if (loss.aggregate.padded_width && in.is_packed()) {
    loss.aggregate.padded_width = false;  // packed tokens have no width; the caller says that of the padded ones
    loss.aggregate.constant = static_cast<double>(in.width);
  }
  const TokenArrays<S> arrays(in);
  gdpo::PrepassMemory<S> memory;
  gdpo::TokenBatch<S> batch = arrays.batch();
  if (const auto& of = std::get<PrepareAs<S>>(prepare)) batch = of(batch, memory);
  gdpo::Normaliser normaliser = count(in.target, batch);
  normaliser.given = given;

  std::vector<S> gradient(in.logp.size(), gdpo::math::nan<S>());
  gdpo::TokenOut<S> out = gdpo::view(gradient);
  if (!in.is_packed()) out = gdpo::view(gradient.data(), in.rows, in.width);
  LossRun run;
  run.result = call(in.target, loss, batch, normaliser, out);

  const std::vector<S> weights = tokens_of(in, batch.weights, S(1));
  std::vector<unsigned char> mask = tokens_of<unsigned char>(in, batch.mask, 1);
  run.gradient = padded(in, std::vector<double>(gradient.begin(), gradient.end()));
  run.weights = padded(in, std::vector<double>(weights.begin(), weights.end()));
  run.mask = padded(in, mask);

  for (std::size_t k = 0; k < mask.size(); ++k) mask[k] = mask[k] != 0 && weights[k] != 0;
  batch.mask = view_of(in, mask);
  run.kept = call(in.target, loss, batch, normaliser).metrics;
  return run;
}

template <class Loss>
LossRun run_loss(const Loss& loss, const TokenInputs& in, const Prepare& prepare, double given) {
  return in.target.single ? run_loss_as<float>(loss, in, prepare, given)
                          : run_loss_as<double>(loss, in, prepare, given);
}

LossRun run_loss(const LossSetup& setup, const TokenInputs& in);

// What verl knows of the whole step; 0: nothing.
struct GlobalBatch {
  double dp_size = 0, tokens = 0, rows = 0, loss_scale_factor = 0;
};

// verl's loss_agg_mode, and in `given` the count that it divides by where that is the step's.
gdpo::runtime::Aggregate verl_aggregate(Params& params, const GlobalBatch& step, double& given);

// Runs it padded and packed. Laws: the same bits for both; exactly 0 at every position that the mask does not select.
LossRun padded_and_packed(const TokenInputs& in, const std::function<LossRun(const TokenInputs&)>& run,
                          Comparison& comparison);

// (rows, width).
Array of_tokens(const TokenInputs& in, const std::vector<double>& tokens);

}  // namespace conformance
