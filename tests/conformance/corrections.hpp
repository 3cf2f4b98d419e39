// Corrections between sampler and trainer, as pre-passes.
#pragma once

#include <gdpo/prepass.hpp>
#include <string>
#include <vector>

#include "loss.hpp"
#include "params.hpp"

namespace conformance {

// The gates of verl's rollout_rs, which unsloth-zoo has too: options such as "token_k1" and, in the
// same order, their thresholds, "upper" or for k1 "lower_upper" as bounds of a ratio. Each of both
// may be lists with commas between their entries.
std::vector<gdpo::prepass::Gate> rejections(const std::vector<std::string>& options,
                                            const std::string& thresholds, gdpo::prepass::Pair pair,
                                            gdpo::Reach reach);

// SkyRL's off_policy_correction. Returns whether it takes tokens out of the mask that metrics are
// means over.
bool skyrl_correction(Params& params, LossSetup& setup);

// AReaL's m2_threshold.
void areal_m2po(Params& params, LossSetup& setup);
// The weights of ms-swift's loss_type "fipo"; nothing for another type.
void swift_fipo(Params& params, LossSetup& setup);

}  // namespace conformance
