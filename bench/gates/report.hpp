#pragma once
// Prints what is measured as it comes, and keeps it for the JSON file.
#include <nlohmann/json.hpp>

#include "gate.hpp"

namespace gates {

class Report {
 public:
  Report(RoundLimits limits, std::string processor)
      : limits_(limits), processor_(std::move(processor)) {}

  /// From now on, says of each contender what bounds it: its bytes against the time of reading as
  /// many, and its instructions.
  void explain() { explains_ = true; }
  /// Sets up, measures and prints the figures of one experiment.
  void run(const Experiment& experiment);
  void print_summary() const;
  nlohmann::ordered_json json() const;
  /// 1: a gate is missed or a result is wrong. 3: the rounds do not tell. 0: neither.
  int exit_status() const { return missed_ + wrong_ > 0 ? 1 : inconclusive_ > 0 ? 3 : 0; }

 private:
  nlohmann::ordered_json row(const Row& row, const Bench& bench, const Timings& timings);
  /// The values of a figure in all rounds that count.
  static std::vector<double> values_of(const Row& row, const Bench& bench, const Timings& timings);
  void times(const Bench& bench, const Timings& timings, nlohmann::ordered_json& json) const;
  void explain(const Contender& contender, double seconds, nlohmann::ordered_json& json) const;

  RoundLimits limits_;
  std::string processor_;  // its kind
  std::mt19937 random_{20260601};
  nlohmann::ordered_json experiments_ = nlohmann::ordered_json::array();
  int passed_ = 0, missed_ = 0, wrong_ = 0, inconclusive_ = 0, not_measured_ = 0;
  bool busy_ = false, explains_ = false;
  std::map<std::string, int> reasons_;
};

}  // namespace gates
