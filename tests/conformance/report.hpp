// The outcome of a run: counts per function and in total, and what failed or could not be run.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comparison.hpp"
#include "golden.hpp"

namespace conformance {

struct Tally {
  std::size_t passed = 0, failed = 0, unsupported = 0;
  std::size_t unlisted = 0;   // unsupported for a reason that gaps.cpp does not list
  std::size_t on_device = 0;  // of the cases that passed or failed
  std::size_t metrics_compared = 0, metrics_listed = 0, metrics_unsupported = 0;
  std::map<std::string, std::size_t> reasons;  // why unsupported, and how often
  // Metrics of cases that ran which unlogged.cpp lists: by the reason, how often.
  std::map<std::string, std::map<std::string, std::size_t>> listed_metrics;
};

class Report {
 public:
  void add(const Case& recorded, const Verdict& verdict);

  // True if a passed case of this version of a trainer ran a policy with these settings.
  bool passed_as_is(const std::string& version, const std::string& settings) const {
    return as_is_.count({version, settings}) != 0;
  }

  // True if a case of this version of a trainer ran, whatever its outcome.
  bool has_version(const std::string& version) const { return versions_.count(version) != 0; }

  const Tally& total() const { return total_; }

  void print(std::ostream& out) const;

  // Prints the failures and the total; every line begins with `what`.
  void print_summary(std::ostream& out, const std::string& what) const;

  // Prints how many cases ran on the device, how many on the host instead, and which.
  void print_places(std::ostream& out, const std::string& device) const;

  // {"functions": [{"source", "kind", "function", "passed", "failed", "unsupported",
  //                 "unlisted", "on_device", "metrics_listed": {reason: {name: times}}}],
  //  "files": [{"file", "passed", ...}], "total": {...}}
  Json json() const;

 private:
  using Key = std::tuple<std::string, std::string, std::string>;  // source, kind, function

  std::map<Key, Tally> functions_;
  std::map<std::string, Tally> files_;
  Tally total_;
  std::set<std::pair<std::string, std::string>> as_is_;  // version, settings
  std::set<std::string> versions_;
  std::vector<std::string> failures_;
};

}  // namespace conformance
