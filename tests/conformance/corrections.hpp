// Corrections between sampler and trainer, as pre-passes.
#pragma once

#include <gdpo/prepass.hpp>
#include <string>
#include <vector>

#include "loss.hpp"
#include "params.hpp"

namespace conformance {

// verl's rollout_is with its threshold, a number or "low_high".
void verl_weights(Params& params, LossSetup& setup, gdpo::prepass::Pair pair);
// The gates of rollout_rs, the presets of `trainer` with that name: options such as "token_k1" and,
// in the same order, their thresholds, "upper" or for k1 "lower_upper" as bounds of a ratio. Both
// may be lists with commas between their entries.
void rejections(Params& params, LossSetup& setup, const std::string& trainer,
                gdpo::prepass::Pair pair);
// The statistics that verl logs in bypass mode, of the ratio of the current policy and the sampler.
// `correction` is rollout_correction, `gates` its rejections.
void compare_bypass(const Json& correction,
                    const std::vector<std::pair<std::string, gdpo::runtime::Prepass>>& gates,
                    const LossRun& run, Comparison& comparison);
// What SkyRL logs of the passes of its correction (LossSetup::logged), one after the other.
void compare_skyrl_correction(
    const TokenInputs& in,
    const std::vector<std::pair<std::string, gdpo::runtime::Prepass>>& passes,
    Comparison& comparison);
// The pre-pass of that name.
template <class Pass>
Pass prepass_named(const std::string& name) {
  return std::get<Pass>(gdpo::runtime::prepass(name));
}

// SkyRL's off_policy_correction.
void skyrl_correction(Params& params, LossSetup& setup);

// AReaL's m2_threshold.
void areal_m2po(Params& params, LossSetup& setup);
// The weights of ms-swift's loss_type "fipo"; nothing for another type.
void swift_fipo(Params& params, LossSetup& setup);

}  // namespace conformance
