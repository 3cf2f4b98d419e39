// Compares what the library returned with what a case expects.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "golden.hpp"

namespace conformance {

enum class Status { Passed, Failed, Unsupported };

struct Verdict {
  Status status = Status::Unsupported;
  std::vector<std::string>
      details;  // Failed: one line per value that differs. Unsupported: the reason
  std::size_t metrics_compared = 0, metrics_not_compared = 0;
  std::vector<std::string> missing_metrics;  // names of those that a case which ran did not compare
  bool on_device = false;          // the library ran on the device, if only for a part of the case
  std::set<std::string> settings;  // of the policies that the case ran (as_is.hpp)
};

// Collects the comparisons of one case. Whatever the record expects and nobody compared is accounted for:
// an output makes the case unsupported, a metric is counted.
class Comparison {
 public:
  explicit Comparison(const Case& recorded) : case_(recorded) {}

  // expected[name]: the same shape, and every element within the case's tolerance. Where `selected` is given (one
  // flag per element), only the elements it selects are compared.
  void output(const std::string& name, const Array& got,
              const std::vector<unsigned char>& selected = {});

  // expected["metrics"][name]; nothing happens if the record does not have it.
  void metric(const std::string& name, const Array& got);
  void metric(const std::string& name, double got) { metric(name, Array{{}, {got}}); }

  // A metric that the trainer took as a mean in float32 within a float64 run: one rounding, 2^-24 = 6e-8 of the value,
  // is allowed.
  void metric_taken_in_float(const std::string& name, double got);

  // The case runs a policy with these settings.
  void runs(const std::string& settings) { settings_.insert(settings); }

  // What must hold whatever the record says; `broken` tells how it does not.
  void law(bool holds, const std::string& broken);

  Verdict verdict() const;

 private:
  void compare(const Case& recorded, const std::string& name, const Array& got, const Json& wanted,
               const std::vector<unsigned char>& selected);

  const Case& case_;
  std::set<std::string> outputs_, metrics_, settings_;
  std::vector<std::string> differences_;
};

}  // namespace conformance
