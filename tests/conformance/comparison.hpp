// Compares what the library returned with what a case expects.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "golden.hpp"

namespace conformance {

enum class Status { Passed, Failed, Unsupported };

struct Verdict {
  Status status = Status::Unsupported;
  // Failed: one line per value that differs. Unsupported: the reason.
  std::vector<std::string> details;
  bool listed = false;  // unsupported for a reason that gaps.cpp has
  // How many of the recorded metrics were compared, and how many were not because the case is
  // unsupported.
  std::size_t metrics_compared = 0, metrics_unsupported = 0;
  // Of a case that ran: the names of the metrics that were compared, and of those that were not.
  std::vector<std::string> compared_metrics, missing_metrics;
  // The metrics that were not compared, and why (unlogged.cpp).
  std::vector<std::pair<std::string, std::string>> listed_metrics;
  bool on_device = false;          // the library ran on the device for all or part of the case
  std::set<std::string> settings;  // of the policies that the case ran (as_is.hpp)
};

// Collects the comparisons of one case. What the record expects and nothing compared is accounted
// for: an output makes the case unsupported, a metric is counted.
class Comparison {
 public:
  explicit Comparison(const Case& recorded) : case_(recorded) {}

  // Compares with expected[name]: the shapes must agree, and every element must be within the
  // case's tolerance. Where `selected` is given (one flag per element), only the elements it
  // selects are compared.
  void output(const std::string& name, const Array& got,
              const std::vector<unsigned char>& selected = {});

  // Compares with expected["metrics"][name]. Nothing happens if the record does not have the
  // metric.
  // With `selected`, one flag per element, only the elements it selects are compared.
  void metric(const std::string& name, const Array& got,
              const std::vector<unsigned char>& selected = {});
  void metric(const std::string& name, double got) { metric(name, Array{{}, {got}}); }

  // A metric that the trainer lists, a number a token, and of which the library has the sum.
  void metric_sum(const std::string& name, double got);

  // From now on every metric is taken as metric_taken_in_float does.
  void take_metrics_in_float() { in_float_ = true; }

  // Whether the record has the metric.
  bool records(const std::string& name) const;

  // A metric that the trainer took as a mean in float32 within a float64 run. One rounding to
  // float, 2^-24 = 6e-8 of the value, is allowed: the relative tolerance is at least 1e-7.
  void metric_taken_in_float(const std::string& name, double got);

  // Notes that the case runs a policy with these settings.
  void runs(const std::string& settings) { settings_.insert(settings); }

  // Checks what must hold whatever the record says; `broken` says how it does not hold.
  void law(bool holds, const std::string& broken);

  Verdict verdict() const;

 private:
  void compare(const Case& recorded, const std::string& name, const Array& got, const Json& wanted,
               const std::vector<unsigned char>& selected);

  const Case& case_;
  bool in_float_ = false;
  std::set<std::string> outputs_, metrics_, settings_;
  std::vector<std::string> differences_;
};

}  // namespace conformance
