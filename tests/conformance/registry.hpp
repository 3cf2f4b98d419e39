// Which code answers for which recorded function. A kind of case (advantage, loss, ...) is one function that adds its
// functions here.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "comparison.hpp"
#include "golden.hpp"

namespace conformance {

// Runs the library on the inputs of a case and compares the results; throws Unsupported where it cannot.
using Handler = std::function<void(const Case&, Comparison&)>;

class Registry {
 public:
  void add(const std::string& source, const std::string& kind, const std::string& function, Handler handler);

  // Never throws for what a case holds: a function or parameter nobody mapped is Unsupported, anything the library or
  // the reading of the inputs throws is Failed.
  Verdict run(const Case& recorded) const;

 private:
  std::map<std::tuple<std::string, std::string, std::string>, Handler> handlers_;
};

void add_advantages(Registry& registry);
void add_losses(Registry& registry);
void add_kl_estimates(Registry& registry);
void add_reductions(Registry& registry);

}  // namespace conformance
