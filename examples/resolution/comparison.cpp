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

std::vector<std::size_t> Comparison::counted_rows(std::size_t group) const {
  std::vector<std::size_t> rows;
  for (std::size_t row = rollouts.rows_of(group).begin; row < rollouts.rows_of(group).end; ++row) {
    if (rewarded[row] != 0) rows.push_back(row);
  }
  return rows;
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

  // Each estimator goes over the rows twice, to compute and to count.
  const Rollouts& log = comparison.rollouts;
  const double passes = 1 + 2 * static_cast<double>(infos.size());
  double passes_done = 0;
  Progress progress("counting rewards", log.rows());
  const auto on_rows = [&](std::size_t rows) {
    const double share = static_cast<double>(rows) / static_cast<double>(log.rows());
    progress.update(rows, (passes_done + share) / passes);
  };
  const Measure measure(log, comparison.settings, on_rows);
  comparison.gated = measure.gated();
  comparison.rewarded = measure.rewarded();
  comparison.rewards = measure.rewards();
  comparison.curves = measure.curves();
  for (const EstimatorInfo& info : infos) {
    progress.rename(info.name + ", estimator " + std::to_string(comparison.results.size() + 1) +
                    " of " + std::to_string(infos.size()));
    EstimatorResult result;
    result.info = info;
    result.advantages = advantages(info.name, comparison.settings, log);
    passes_done += 2;
    result.metrics = measure.of(result.advantages, on_rows);
    comparison.results.push_back(std::move(result));
  }

  const auto of_gdpo = [&](const std::string& name) {
    const EstimatorResult* result = comparison.find(name);
    return result != nullptr ? result->advantages : advantages(name, comparison.settings, log);
  };
  const std::vector<double> sums = of_gdpo("gdpo_pre_bn");
  comparison.batch_steps = batch_steps(log, sums, measure.rewarded());
  if (!log.lengths.empty()) {
    comparison.length =
        length_weighting(comparison.settings, log, sums, of_gdpo("gdpo"), measure.rewarded());
  }
  return comparison;
}

}  // namespace resolution
