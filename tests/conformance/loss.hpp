// Cases of kind loss: log-probs of tokens in; loss, its gradient and metrics out.
#pragma once

#include <functional>
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comparison.hpp"
#include "device_loss.hpp"
#include "params.hpp"
#include "registry.hpp"
#include "token_inputs.hpp"

namespace conformance {

// Returns the batch with the decisions of its pre-passes; empty if there are none.
template <class S>
using PrepareAs =
    std::function<gdpo::TokenBatch<S>(const gdpo::TokenBatch<S>&, gdpo::PrepassMemory<S>&)>;
using Prepare = std::tuple<PrepareAs<double>, PrepareAs<float>>;

// A recorded function in the library's terms.
struct LossRun;
struct LossSetup {
  gdpo::runtime::Loss loss;
  double given = 0;  // Normalizer::given
  Prepare prepare;
  bool weighs_ratio = false;        // the recorded weights enter the ratio of the row
  bool over_padding = false;        // the trainer's sums run over masked positions too
  bool row_advantages = false;      // advantages of tokens are replaced by their means over the row
  std::vector<std::string> passes;  // settings of those of its pre-passes that may be presets
  // Gates and weights whose numbers the trainer logs, with its names for them, in their order.
  std::vector<std::pair<std::string, gdpo::runtime::Prepass>> logged;

  // Compares metrics under the trainer's names for them, and other results than the loss.
  std::function<void(const LossRun&, Comparison&)> metrics = [](const auto&, auto&) {};
  std::function<void(const LossRun&, Comparison&)> outputs = [](const auto&, auto&) {};
};

// The result of one call of the library. Its arrays are padded to (rows, width), whatever the
// layout of the call was.
struct LossRun {
  gdpo::LossResult result;
  gdpo::LossMetrics kept;           // metrics of the same call with tokens of weight 0 masked
  gdpo::LossMetrics before;         // metrics of the batch before its pre-passes
  const TokenInputs* in = nullptr;  // the tokens as they were recorded
  std::vector<double> gradient, entropy_gradient;  // by log-probs, by entropies
  std::vector<double> weights;      // of the surrogate, after the pre-passes; 1 if there are none
  std::vector<unsigned char> mask;  // after the pre-passes
  std::vector<unsigned char> recorded;  // before them
  std::size_t rows = 0;
};

// The loss of a recorded function, whose parameters it must read.
using Mapping = std::function<LossSetup(Params&, const Case&)>;
// Compares the loss, its gradient and its metrics with the record.
Handler losses(Mapping mapping);

// One of several calls whose losses and gradients add up to those of a recorded function, with its
// tokens.
struct Part {
  LossSetup setup;
  TokenInputs in;
  TokenInputs as_recorded;  // before LossSetup's changes; metrics are of these
};
// The calls of a recorded function, from its parameters and all of its tokens.
using Parts = std::function<std::vector<Part>(Params&, const Case&, const TokenInputs&)>;
// The same for several calls. Each compares its own metrics; "loss" is the sum of several.
Handler added(Parts parts);
// Adds the handlers of functions that are several calls.
void add_added_losses(Registry& registry);

// ClippedPGLossFn of NeMo-RL without its likelihood of rewarded rows.
LossSetup nemo_rl_loss(Params& params, const Case& recorded);
// Trinity-RFT: PPOPolicyLossFn with the clip of the parameters and this aggregate.
LossSetup trinity_clip(Params& params, const gdpo::Aggregate& aggregate);

// The same for ms-swift's loss_type="real", which contrasts the rows of groups. `other` runs all
// other cases of the function.
Handler real_or(Handler other);

// The loss on the target of the case. `given` is Normalizer::given.
LossRun run_loss(const AnyLoss& loss, const TokenInputs& in, const Prepare& prepare = {},
                 double given = 0);
LossRun run_loss(const LossSetup& setup, const TokenInputs& in);

// What verl knows of the whole step; 0 where it knows nothing.
struct GlobalBatch {
  double dp_size = 0, tokens = 0, rows = 0, loss_scale_factor = 0;
};

// The aggregate of verl's loss_agg_mode. If it divides by a count of the whole step, that count
// goes into `given`.
gdpo::Aggregate verl_aggregate(Params& params, const GlobalBatch& step, double& given);

// The mean over tokens, or over rows that have some of the means of their tokens, of OpenRLHF's
// token_level_loss.
gdpo::Aggregate openrlhf_aggregate(Params& params, double& given);
// The aggregate of Trinity-RFT's loss_agg_mode. `width` is the padded width.
gdpo::Aggregate trinity_aggregate(Params& params, double width, double& given);

// Runs the case padded and packed. Laws: both have the same bits, and the gradient is exactly 0 at
// every position that the mask does not select.
LossRun padded_and_packed(const TokenInputs& in,
                          const std::function<LossRun(const TokenInputs&)>& run,
                          Comparison& comparison);

// The tokens as an Array of (rows, width).
Array of_tokens(const TokenInputs& in, const std::vector<double>& tokens);

}  // namespace conformance
