// Which code runs which recorded function. Each kind of case (advantage, loss, ...) has a function
// below that adds its handlers here.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "comparison.hpp"
#include "golden.hpp"

namespace conformance {

// Runs the library on the inputs of a case and compares the results. Throws Unsupported where it
// cannot.
using Handler = std::function<void(const Case&, Comparison&)>;

class Registry {
 public:
  void add(const std::string& source, const std::string& kind, const std::string& function,
           Handler handler);

  // Adds a handler that runs a loss on the target of the case, which may be the kernels of float.
  void add_loss(const std::string& source, const std::string& kind, const std::string& function,
                Handler handler);

  // True if the case runs on the kernels of float too.
  bool runs_single(const Case& recorded) const;

  // Never throws for what a case holds: a function or parameter without a mapping is Unsupported,
  // and anything the library or the reading of the inputs throws is Failed. A case that gaps.cpp
  // lists is Unsupported for the reason there, and Failed if it passes.
  Verdict run(const Case& recorded) const;

 private:
  Verdict run_handler(const Case& recorded) const;

  using Key = std::tuple<std::string, std::string, std::string>;  // source, kind, function

  std::map<Key, Handler> handlers_;
  std::set<Key> losses_;
};

void add_advantages(Registry& registry);
void add_explained(Registry& registry);
void add_rollouts(Registry& registry);
void add_losses(Registry& registry);
void add_release_losses(Registry& registry);
void add_corrections(Registry& registry);
void add_batch_corrections(Registry& registry);
void add_mismatch(Registry& registry);
void add_values(Registry& registry);
void add_outcomes(Registry& registry);
void add_kl_estimates(Registry& registry);
void add_reductions(Registry& registry);
void add_constraints(Registry& registry);

}  // namespace conformance
