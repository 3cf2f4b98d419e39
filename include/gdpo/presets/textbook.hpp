#pragma once
// GRPO as tutorials write it.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>
#include <gdpo/presets/preset.hpp>

GDPO_BEGIN_NAMESPACE
/// GRPO as it is often written by hand, in NumPy and in PyTorch.
///
/// The two differ by a factor sqrt(G / (G - 1)) in the advantages of a group of G rows, because
/// NumPy's std divides by G and PyTorch's by G - 1. examples/trainer_step.cpp computes a worked
/// example with rewards 0.9, 0.3, -0.1 and 0.7; its loss is 0.1048.
namespace textbook {
inline constexpr const char* version = "GRPO tutorial (numpy listing and PyTorch listing)";
/// In NumPy: (r - r.mean()) / (r.std() + 1e-8), the population std.
inline constexpr Grpo grpo_numpy = [] {
  Grpo e{};
  e.scale.ddof = 0;
  e.scale.eps = 1e-8;
  return e;
}();
/// In PyTorch: (r - r.mean()) / r.std().clamp(min=1e-8), the sample std.
inline constexpr Grpo grpo_torch = [] {
  Grpo e{};
  e.scale.eps = 1e-8;
  e.scale.eps_at = EpsAt::ClampStd;
  return e;
}();
// The loss of both: clip 0.2, the KL term K3 with beta 0.04, the mean over rows of their token
// means.
using gdpo::grpo_loss;

/// The estimators by name.
inline constexpr auto estimators = [](const auto& f) {
  return f(Preset{"textbook::grpo_numpy", grpo_numpy, "the numpy listing", version},
           Preset{"textbook::grpo_torch", grpo_torch, "the PyTorch listing", version});
};
/// The losses by name.
inline constexpr auto losses = [](const auto& f) {
  return f(Preset{"textbook::grpo", grpo_loss, "both listings", version});
};
}  // namespace textbook
GDPO_END_NAMESPACE
