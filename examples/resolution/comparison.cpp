#include "comparison.hpp"

#include "errors.hpp"
#include "progress.hpp"

namespace resolution {
namespace {

/// The result of the first of these names that was computed, else the first result of the family,
/// else null.
const EstimatorResult* preferred(const Comparison& comparison,
                                 const std::vector<std::string>& names, Family family) {
  for (const std::string& name : names) {
    if (const EstimatorResult* result = comparison.find(name)) return result;
  }
  for (const EstimatorResult& result : comparison.results) {
    if (result.info.family == family) return &result;
  }
  return nullptr;
}

}  // namespace

const EstimatorResult* Comparison::find(const std::string& name) const {
  for (const EstimatorResult& result : results) {
    if (result.info.name == name) return &result;
  }
  return nullptr;
}

const EstimatorResult* Comparison::sum_first() const {
  return preferred(*this, {"grpo", "grpo_no_std"}, Family::SumFirst);
}

const EstimatorResult* Comparison::normalise_first() const {
  return preferred(*this, {"gdpo", "gdpo_pre_bn"}, Family::NormaliseFirst);
}

Comparison compare(Rollouts rollouts, Settings settings,
                   const std::vector<std::string>& estimators) {
  Comparison comparison;
  comparison.rollouts = std::move(rollouts);
  comparison.settings = std::move(settings);

  std::vector<EstimatorInfo> infos;
  for (const std::string& name : estimators) {
    infos.push_back(describe(name));
    if (infos.back().needs_lengths && comparison.rollouts.lengths.empty()) {
      throw UserError(
          "estimator " + name +
          " weights completions by their number of tokens: name that column with --length");
    }
  }

  Progress progress("comparing estimators", estimators.size() + 1);
  progress.update_at(0, Progress::Clock::now());
  const Measure measure(comparison.rollouts, comparison.settings);
  comparison.gated = measure.gated();
  comparison.rewards = measure.rewards();
  for (const EstimatorInfo& info : infos) {
    progress.update_at(comparison.results.size() + 1, Progress::Clock::now());
    EstimatorResult result;
    result.info = info;
    result.advantages = advantages(info.name, comparison.settings, comparison.rollouts);
    result.metrics = measure.of(result.advantages);
    comparison.results.push_back(std::move(result));
  }

  const std::vector<double> sums =
      advantages("gdpo_pre_bn", comparison.settings, comparison.rollouts);
  comparison.batch = batch_step(sums);
  if (!comparison.rollouts.lengths.empty()) {
    comparison.length =
        length_weighting(comparison.settings, comparison.rollouts, sums,
                         advantages("gdpo", comparison.settings, comparison.rollouts));
  }
  return comparison;
}

}  // namespace resolution
