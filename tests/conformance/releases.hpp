// What a release of a trainer computes in another way than the preset that its function is by
// default.
#pragma once

#include <gdpo/presets/trl.hpp>
#include <string>

#include "golden.hpp"

namespace conformance {

// The preset of the case, whose function is `preset` by default: from the release on that changed
// the function, it is another one.
std::string preset_of(const Case& recorded, const std::string& preset);

// TRL's off_policy_mask_threshold.
inline gdpo::prepass::Gate trl_off_policy_mask(const Case& recorded, double max) {
  gdpo::prepass::Gate gate = gdpo::trl::off_policy_mask;
  gate.max = max;
  if (!since(recorded, {1, 11})) gate.missing = gdpo::prepass::MissingRollout::Drop;
  return gate;
}

}  // namespace conformance
