#pragma once
// A figure and its gate; an experiment, which measures figures that belong together.
#include <cstdio>
#include <iterator>
#include <map>

#include "rounds.hpp"

namespace gates {

struct Gate {
  enum class Side { None, AtLeast, AtMost } side = Side::None;
  double bound = 0;

  bool passes(double value) const {
    return side == Side::None || (side == Side::AtLeast ? value >= bound : value <= bound);
  }
  std::string text() const {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%s %.3g", side == Side::AtLeast ? ">=" : "<=", bound);
    return side == Side::None ? "" : buffer;
  }
};
inline Gate at_least(double bound) { return {Gate::Side::AtLeast, bound}; }
inline Gate at_most(double bound) { return {Gate::Side::AtMost, bound}; }
inline Gate no_gate() { return {}; }

/// The median, over quiet rounds, of factor x (time of `over`) / (time of `under`); without `under`, the number called `over`.
struct Row {
  std::string figure;
  Gate gate;
  std::string over, under = {};
  double factor = 1;
};

class Bench;
struct Experiment {
  std::string name;
  std::vector<Row> rows;
  std::function<void(Bench&)> set_up;
};

/// What an experiment sets up: contenders and numbers by name. Names that no selected row asks for are left out.
class Bench {
 public:
  explicit Bench(const std::vector<Row>& rows) : rows_(rows) {}

  bool wants(const std::string& name) const {
    return std::any_of(rows_.begin(), rows_.end(),
                       [&](const Row& r) { return r.over == name || r.under == name; });
  }
  /// `check` says what is wrong after a first run, "" if nothing. `work`: elements that a call gets through.
  void add(const std::string& name, double work, std::function<void()> run,
           const std::function<std::string()>& check) {
    if (!wants(name)) return;
    run();
    if (const std::string problem = check(); !problem.empty()) {
      wrong_[name] = problem;
      return;
    }
    contenders_.push_back({name, std::move(run), work});
  }
  /// Nothing to check: a probe of the machine.
  void add_probe(const std::string& name, double work, std::function<void()> run) {
    add(name, work, std::move(run), [] { return std::string(); });
  }
  void absent(const std::string& name, const std::string& why) { absent_[name] = why; }
  void number(const std::string& name, double value) { numbers_[name] = value; }

 private:
  friend class Report;

  /// Leaves out contenders that every row would compare with one that is absent or wrong.
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
  std::vector<Contender> contenders_;
  std::map<std::string, std::string> wrong_, absent_;
  std::map<std::string, double> numbers_;
};

}  // namespace gates
