#pragma once
// What the corrections of several trainers have in common; for the headers of this folder alone.
#include <gdpo/prepass.hpp>

GDPO_BEGIN_NAMESPACE
namespace presets {

/// A weight with these bounds.
constexpr prepass::Importance weight(prepass::Statistic statistic, Bounds clip = {},
                                     Bounds clamp = {}, Reach reach = Reach::Surrogate) {
  prepass::Importance pass{};
  pass.statistic = statistic, pass.clip = clip, pass.clamp = clamp, pass.reach = reach;
  return pass;
}
/// A gate that lets [min, max] through.
constexpr prepass::Gate gate(prepass::Estimator estimator, prepass::Statistic statistic, double min,
                             double max, Reach reach = Reach::Surrogate, Bounds clamp = {}) {
  prepass::Gate pass{};
  pass.estimator = estimator, pass.statistic = statistic, pass.min = min, pass.max = max;
  pass.reach = reach, pass.clamp = clamp;
  return pass;
}
/// The gate of DPPO (arXiv 2602.04879): it closes where the update pushes the token further away
/// and the estimate, which has a sign, is outside [-low, high].
constexpr prepass::Gate outward(prepass::Estimator estimator, prepass::Pair pair, double low,
                                double high, double eps = 0) {
  prepass::Gate pass = gate(estimator, prepass::Statistic::Token, -low, high);
  pass.pair = pair, pass.when = prepass::When::Outward, pass.eps = eps;
  return pass;
}
/// A weight and a mask. A missing log-prob of the sampler means to both what it means to the mask.
constexpr prepass::MaskedImportance masked(prepass::Importance weight, const prepass::Gate& gate) {
  weight.missing = gate.missing;
  return {weight, {gate, {}}};
}
/// A weight whose mean over the batch is 1, if it is above `least`.
constexpr prepass::Chain<prepass::Importance, prepass::MeanOne> mean_one(
    const prepass::Importance& weight, prepass::MeanOf of, double count_eps, double least) {
  return {weight, {prepass::MeanOne{of, Reach::Surrogate, count_eps, least}, {}}};
}

}  // namespace presets
GDPO_END_NAMESPACE
