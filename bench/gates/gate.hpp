#pragma once
// A figure and its gate, and an experiment, which measures figures that belong together.
#include <cstdio>
#include <iterator>
#include <map>

#include "processor.hpp"
#include "rounds.hpp"

namespace gates {

/// The bound that a figure must reach, if it has one.
struct Gate {
  enum class Side { None, AtLeast, AtMost } side = Side::None;
  double bound = 0;
  /// The kind of processor that it holds for, as Processor::kind() calls it; null: all. A ratio of
  /// a kernel to the memory, or to other code, is another one on every processor.
  const char* processor = nullptr;

  /// The same bound, for this kind of processor alone.
  constexpr Gate on(const char* kind) const { return {side, bound, kind}; }
  bool holds_on(const std::string& kind) const { return !processor || kind == processor; }
  bool passes(double value) const {
    return side == Side::None || (side == Side::AtLeast ? value >= bound : value <= bound);
  }
  std::string text() const {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%s %.3g", side == Side::AtLeast ? ">=" : "<=", bound);
    if (side == Side::None) return "";
    return processor ? buffer + std::string(" on ") + processor : buffer;
  }
};
inline Gate at_least(double bound) { return {Gate::Side::AtLeast, bound}; }
inline Gate at_most(double bound) { return {Gate::Side::AtMost, bound}; }
inline Gate no_gate() { return {}; }

/// One figure: the median, over quiet rounds, of factor x (time of contender `over`) / (time of
/// contender `under`). Without `under` it is the number that is called `over`.
struct Row {
  std::string figure;
  Gate gate;
  std::string over, under = {};
  double factor = 1;
  bool trees = false;  // the contenders are one and the same, of two trees (against.cpp)
};

class Bench;
/// Figures that are measured in the same rounds.
struct Experiment {
  std::string name;
  std::vector<Row> rows;
  std::function<void(Bench&)> set_up;
  std::string element = "element";  // what a time is divided by
};
/// Keeps the figures whose line "experiment: figure" contains `only`, and the experiments that have
/// some.
inline std::vector<Experiment> select(std::vector<Experiment> experiments,
                                      const std::string& only) {
  std::vector<Experiment> selected;
  for (Experiment& experiment : experiments) {
    std::vector<Row>& rows = experiment.rows;
    const auto is_out = [&](const Row& row) {
      return (experiment.name + ": " + row.figure).find(only) == std::string::npos;
    };
    rows.erase(std::remove_if(rows.begin(), rows.end(), is_out), rows.end());
    if (!rows.empty()) selected.push_back(std::move(experiment));
  }
  return selected;
}

/// What an experiment sets up: contenders and numbers, by name. A contender that no selected row
/// asks for is left out.
class Bench {
 public:
  explicit Bench(const std::vector<Row>& rows, bool library_alone = false)
      : rows_(rows), library_alone_(library_alone) {}

  /// Whether only the library's contenders are asked for, to be compared with those of another
  /// tree. Then no gate counts, and whoever sets up leaves out what the library is compared with.
  bool library_alone() const { return library_alone_; }
  bool wants(const std::string& name) const {
    return std::any_of(rows_.begin(), rows_.end(),
                       [&](const Row& r) { return r.over == name || r.under == name; });
  }
  /// Adds a contender. `check` is called after a first run and returns what is wrong with the
  /// result, or "". `work`: elements that one run works on.
  /// `bytes`: that it must read and write for one of them, where that is known.
  void add(const std::string& name, double work, std::function<void()> run,
           const std::function<std::string()>& check, double bytes = 0) {
    if (!wants(name)) return;
    run();
    if (const std::string problem = check(); !problem.empty()) {
      wrong_[name] = problem;
      return;
    }
    contenders_.push_back({name, std::move(run), work, bytes});
  }
  /// Adds a probe of the machine, or another call, whose result is not checked. `bytes`: what it
  /// moves for an element.
  void add_probe(const std::string& name, double work, std::function<void()> run,
                 double bytes = 0) {
    add(
        name, work, std::move(run), [] { return std::string(); }, bytes);
  }
  /// Says why a contender cannot be measured here.
  void absent(const std::string& name, const std::string& why) { absent_[name] = why; }
  /// Adds a figure that is not a time.
  void number(const std::string& name, double value) { numbers_[name] = value; }

  const std::vector<Contender>& contenders() const { return contenders_; }
  /// Contenders with wrong results, and those that cannot be measured here: what is wrong, and why.
  const std::map<std::string, std::string>& wrong() const { return wrong_; }
  const std::map<std::string, std::string>& absent() const { return absent_; }

 private:
  friend class Report;

  /// Leaves out a contender if every row compares it with one that is absent or wrong.
  void drop_unpaired() {
    const auto is_here = [&](const std::string& name) {
      return std::any_of(contenders_.begin(), contenders_.end(),
                         [&](const Contender& c) { return c.name == name; });
    };
    const auto is_needed = [&](const Contender& c) {
      return std::any_of(rows_.begin(), rows_.end(), [&](const Row& r) {
        return (r.over == c.name && is_here(r.under)) || (r.under == c.name && is_here(r.over));
      });
    };
    std::vector<Contender> needed;
    std::copy_if(contenders_.begin(), contenders_.end(), std::back_inserter(needed), is_needed);
    contenders_ = std::move(needed);
  }

  const std::vector<Row>& rows_;
  const bool library_alone_;
  std::vector<Contender> contenders_;
  std::map<std::string, std::string> wrong_, absent_;
  std::map<std::string, double> numbers_;
};

}  // namespace gates
