#pragma once
// Presets of AReaL.
#include <gdpo/prepass.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// The pre-passes of AReaL, areal/trainer/ppo/actor.py.
///
/// rollout_logp is what AReaL calls the behavior policy's log-probs, old_logp the proximal
/// policy's. For prox_logp_method="loglinear" old_logp is that of gdpo::proximal_logp.
namespace areal {
inline constexpr const char* version = "areal 1.0.4";

/// m2_threshold (_apply_m2po_masking): the tokens on which behavior and proximal policy differ most
/// leave the batch, until the second moment of the rest is below 0.04, the threshold of M2PO
/// (arXiv 2510.01161). AReaL has no default: it is off there unless set.
inline constexpr prepass::SecondMoment m2po{};

/// The pre-passes by name.
inline constexpr auto prepasses = [](const auto& f) {
  return f(Preset{"areal::m2po", m2po, "m2_threshold=0.04", version});
};
}  // namespace areal
GDPO_END_NAMESPACE
