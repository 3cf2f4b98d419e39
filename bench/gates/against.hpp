#pragma once
// `gdpo_gates --against FOLDER`: is the library of this tree as fast as that of another checkout?
#include "experiments.hpp"
#include "report.hpp"
#include "tree/tree.hpp"

namespace gates {

/// What --against needs to compile a tree (build.cpp).
struct Recipe {
  const char *cmake, *generator;
  const char* settings;  // a file with CMake's settings: the compiler, where the packages are
  const char* folder;    // where it may write
  const char* tree;      // this tree
};
Recipe recipe();

/// This tree and another one, compiled and loaded.
class Against {
 public:
  /// Compiles the files of these figures, which `only` selects, for both trees. Throws a
  /// std::runtime_error that says what is wrong with `folder`, or what does not compile.
  Against(const std::string& folder, const std::vector<Figures>& selected, const std::string& only);

  /// Measures each contender of both trees in the same rounds. A figure is the time of the other
  /// tree over that of this one, and its gate 1 - margin. Throws a std::runtime_error if no
  /// contender is in both trees.
  void run(Report& report, double margin) const;
  nlohmann::ordered_json setting() const;

 private:
  std::string folder_, sources_;
  std::vector<TreeExperiment> here_, there_;
};

}  // namespace gates
