#include "registry.hpp"

#include <exception>
#include <utility>

#include "device.hpp"
#include "gaps.hpp"
#include "params.hpp"

namespace conformance {

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
      listed.metrics_not_compared = verdict.metrics_compared + verdict.metrics_not_compared;
      return listed;
    }
  }
  return verdict;
}

Verdict Registry::run_handler(const Case& recorded) const {
  Verdict nothing;
  if (const auto metrics = recorded.expected.find("metrics"); metrics != recorded.expected.end()) {
    nothing.metrics_not_compared = metrics->size();
  }
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
