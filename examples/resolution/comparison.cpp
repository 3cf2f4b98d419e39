#include "comparison.hpp"

#include "errors.hpp"
#include "progress.hpp"

namespace resolution {
namespace {

/// The first result whose estimator passes the test, or null.
template <class Test>
const EstimatorResult* first(const Comparison& comparison, const Test& test) {
  for (const EstimatorResult& result : comparison.results) {
    if (test(result.info)) return &result;
  }
  return nullptr;
}

}  // namespace

const EstimatorResult* Comparison::find(const std::string& name) const {
  return first(*this, [&](const EstimatorInfo& e) { return e.name == name; });
}

const EstimatorResult* Comparison::sum_first() const {
  return first(*this, [](const EstimatorInfo& e) { return e.family == Family::SumFirst; });
}

const EstimatorResult* Comparison::normalize_first(const std::string& renorm) const {
  return first(*this, [&](const EstimatorInfo& e) {
    return e.family == Family::NormalizeFirst && e.value("renorm.over") == renorm;
  });
}

const EstimatorResult* Comparison::normalize_first() const {
  if (const EstimatorResult* result = normalize_first("batch")) return result;
  return first(*this, [](const EstimatorInfo& e) { return e.family == Family::NormalizeFirst; });
}

const EstimatorResult* Comparison::gdpo() const {
  return first(*this, [](const EstimatorInfo& e) {
    return e.preset == "gdpo" && e.value("renorm.over") == "batch";
  });
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
  for (const std::string& line : estimators) {
    infos.push_back(describe(line));
    if (infos.back().value("renorm.over") == "tokens" && comparison.rollouts.lengths.empty()) {
      throw UserError(
          "estimator " + infos.back().name +
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

  const EstimatorResult* compared = comparison.gdpo();
  const std::string gdpo = compared != nullptr ? compared->info.name : "gdpo";
  const auto of_gdpo = [&](const std::string& renorm) {
    return advantages(gdpo + " renorm=" + renorm, comparison.settings, log);
  };
  const std::vector<double> sums = of_gdpo("none");
  comparison.batch_steps = batch_steps(log, sums, measure.rewarded());
  if (!log.lengths.empty()) {
    comparison.length =
        length_weighting(log, sums, compared != nullptr ? compared->advantages : of_gdpo("batch"),
                         of_gdpo("tokens"), measure.rewarded());
  }
  return comparison;
}

}  // namespace resolution
