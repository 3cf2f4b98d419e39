// Cases of kind loss: log-probs of tokens in; loss, its gradient and metrics out.
#pragma once

#include <functional>
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "comparison.hpp"
#include "device_loss.hpp"
#include "params.hpp"
#include "registry.hpp"
#include "token_inputs.hpp"

namespace conformance {

// The batch with what its pre-passes decide; empty: none.
template <class S>
using PrepareAs =
    std::function<gdpo::TokenBatch<S>(const gdpo::TokenBatch<S>&, gdpo::PrepassMemory<S>&)>;
using Prepare = std::tuple<PrepareAs<double>, PrepareAs<float>>;

// What a recorded function is in the library's terms.
struct LossRun;
struct LossSetup {
  gdpo::runtime::Loss loss;
  double given = 0;  // Normaliser::given
  Prepare prepare;
  std::vector<std::string> passes;  // the settings of its pre-passes that may be presets

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

// The loss on the target of the case. `given` is Normaliser::given.
LossRun run_loss(const AnyLoss& loss, const TokenInputs& in, const Prepare& prepare = {},
                 double given = 0);
LossRun run_loss(const LossSetup& setup, const TokenInputs& in);

// What verl knows of the whole step; 0: nothing.
struct GlobalBatch {
  double dp_size = 0, tokens = 0, rows = 0, loss_scale_factor = 0;
};

// verl's loss_agg_mode, and in `given` the count that it divides by where that is the step's.
gdpo::runtime::Aggregate verl_aggregate(Params& params, const GlobalBatch& step, double& given);

// Runs it padded and packed. Laws: the same bits for both; exactly 0 at every position that the mask does not select.
LossRun padded_and_packed(const TokenInputs& in,
                          const std::function<LossRun(const TokenInputs&)>& run,
                          Comparison& comparison);

// (rows, width).
Array of_tokens(const TokenInputs& in, const std::vector<double>& tokens);

}  // namespace conformance
