#pragma once
// The map of paths: the calls of a public door, each with the time of one element, the bytes that
// it must move for one, and its time over that of the plain call. gdpo_paths measures them like
// gates; `gdpo_scaling --paths` prints them as tables.
#include "gate.hpp"

namespace gates {

/// The calls of one door, measured in the same rounds.
class Paths {
 public:
  using Run = std::function<void()>;

  /// `plain`: the name of the call that the others are compared with. `element`: what a time is
  /// divided by, such as "token".
  Paths(std::string name, std::string element, std::string plain)
      : experiment_{std::move(name), {}, {}, std::move(element)}, plain_(std::move(plain)) {}

  /// Adds a call, the plain one first. `goal`: its time an element over that of the plain call.
  /// `bytes`: what it reads and writes for an element, each array once. `make` sets the call up; it
  /// is not called where the figure is not asked for.
  void add(const std::string& name, Gate goal, double elements, double bytes,
           std::function<Run()> make) {
    calls_.push_back({name, elements, bytes, std::move(make)});
    if (name == plain_) {
      plain_elements_ = elements;
    } else {
      experiment_.rows.push_back({name, goal, name, plain_, plain_elements_ / elements});
    }
  }
  void add(const std::string& name, double elements, double bytes, std::function<Run()> make) {
    add(name, no_gate(), elements, bytes, std::move(make));
  }

  Experiment experiment() && {
    experiment_.set_up = [calls = std::move(calls_)](Bench& bench) {
      for (const Call& call : calls) {
        if (bench.wants(call.name))
          bench.add_probe(call.name, call.elements, call.make(), call.bytes);
      }
    };
    return std::move(experiment_);
  }

 private:
  struct Call {
    std::string name;
    double elements, bytes;
    std::function<Run()> make;
  };
  Experiment experiment_;
  std::string plain_;
  double plain_elements_ = 0;
  std::vector<Call> calls_;
};

}  // namespace gates
