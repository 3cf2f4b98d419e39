#pragma once
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/loss/named.hpp>

GDPO_BEGIN_NAMESPACE
/// GRPO as textbooks write it by hand, in NumPy and in PyTorch: the two listings of one tutorial. They normalise differently, by
/// a factor sqrt(G / (G - 1)), because NumPy's std divides by G and PyTorch's by G - 1. Rewards 0.9, 0.3, -0.1, 0.7 of its worked
/// example give a loss of 0.1048 (its prose says 0.000); examples/trainer_step.cpp computes it.
namespace textbook {
inline constexpr const char* version = "GRPO tutorial (numpy listing and PyTorch listing)";
/// numpy: population std + 1e-8.
inline constexpr Grpo grpo_numpy = [] {
  Grpo e{};
  e.scale.ddof = 0;
  e.scale.eps = 1e-8;
  return e;
}();
/// torch: sample std, at least 1e-8.
inline constexpr Grpo grpo_torch = [] {
  Grpo e{};
  e.scale.eps = 1e-8;
  e.scale.eps_at = EpsAt::ClampStd;
  return e;
}();
/// Both: clip 0.2, K3 with beta 0.04, the mean over sequences of their token means.
using gdpo::grpo_loss;
}  // namespace textbook

/// Former names.
namespace tutorial {
[[deprecated("use gdpo::textbook::grpo_numpy")]] inline constexpr Grpo grpo_numpy =
    textbook::grpo_numpy;
[[deprecated("use gdpo::textbook::grpo_torch")]] inline constexpr Grpo grpo_torch =
    textbook::grpo_torch;
[[deprecated("use gdpo::textbook::grpo_loss")]] inline constexpr auto grpo_loss = gdpo::grpo_loss;
}  // namespace tutorial
GDPO_END_NAMESPACE
