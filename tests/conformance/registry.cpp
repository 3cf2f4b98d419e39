#include "registry.hpp"

#include <exception>
#include <utility>

#include "device.hpp"
#include "gaps.hpp"
#include "params.hpp"
#include "unlogged.hpp"

namespace conformance {

namespace {

// The number of metrics that the record of a case has.
std::size_t metrics_of(const Case& recorded) {
  const auto metrics = recorded.expected.find("metrics");
  return metrics == recorded.expected.end() ? 0 : metrics->size();
}

// A metric of a case that ran is either compared or listed in unlogged.cpp; both and neither fail.
void check_list(const Case& recorded, Verdict& verdict) {
  std::vector<std::string> broken;
  for (const std::string& metric : verdict.missing_metrics) {
    const std::string reason = unlogged(recorded, metric);
    if (reason.empty()) {
      broken.push_back(metric +
                       " was recorded, and is neither compared nor listed in unlogged.cpp");
    } else {
      verdict.listed_metrics.emplace_back(metric, reason);
    }
  }
  for (const std::string& metric : verdict.compared_metrics) {
    const std::string reason = unlogged(recorded, metric);
    if (!reason.empty())
      broken.push_back(metric + " is compared, but unlogged.cpp lists it: " + reason);
  }
  if (broken.empty()) return;
  if (verdict.status != Status::Failed) verdict.details.clear();
  verdict.status = Status::Failed;
  verdict.details.insert(verdict.details.end(), broken.begin(), broken.end());
}

}  // namespace

void Registry::add(const std::string& source, const std::string& kind, const std::string& function,
                   Handler handler) {
  handlers_[{source, kind, function}] = std::move(handler);
}

void Registry::add_loss(const std::string& source, const std::string& kind,
                        const std::string& function, Handler handler) {
  add(source, kind, function, std::move(handler));
  losses_.insert({source, kind, function});
}

bool Registry::runs_single(const Case& recorded) const {
  return losses_.count({recorded.source, recorded.kind, recorded.function}) != 0;
}

Verdict Registry::run(const Case& recorded) const {
  Verdict verdict = run_handler(recorded);
  if (const std::string reason = gap(recorded); !reason.empty()) {
    if (verdict.status == Status::Passed) {
      verdict.status = Status::Failed;
      verdict.details = {"passes, but gaps.cpp lists it: " + reason};
    } else {
      Verdict listed;
      listed.listed = true;
      listed.details = {reason};
      listed.metrics_unsupported = metrics_of(recorded);
      return listed;
    }
  }
  check_list(recorded, verdict);
  return verdict;
}

Verdict Registry::run_handler(const Case& recorded) const {
  Verdict nothing;
  nothing.metrics_unsupported = metrics_of(recorded);
  const auto handler = handlers_.find({recorded.source, recorded.kind, recorded.function});
  if (handler == handlers_.end()) {
    nothing.details = {"no preset is mapped to this function"};
    return nothing;
  }
  Comparison comparison(recorded);
  const std::size_t calls = device_calls();
  const auto told = [&](Verdict verdict) {
    verdict.on_device = device_calls() != calls;
    return verdict;
  };
  try {
    handler->second(recorded, comparison);
  } catch (const Unsupported& reason) {
    nothing.details = {reason.what()};
    return nothing;
  } catch (const std::exception& error) {
    nothing.status = Status::Failed;
    nothing.details = {std::string("threw ") + error.what()};
    return told(nothing);
  }
  return told(comparison.verdict());
}

}  // namespace conformance
