#pragma once
// What `gdpo_gates --against` asks of each of the two trees that it compares. The library that is
// compiled from a tree's figures answers (tree.cpp), whatever the other headers of the tree are, so
// this file names the standard library alone. A tree whose copy of it differs in one byte cannot be
// asked; it is compared by the sources of the program's own tree (against.cpp).
#include <functional>
#include <string>
#include <vector>

namespace gates {

/// A contender that is the library.
struct TreeContender {
  std::string name;
  std::string absent = {}, wrong = {};  // why it cannot be measured; what is wrong with its result
  std::function<void()> run = [] {};    // one run, if neither
  double work = 0;                      // elements that one run works on
};

struct TreeExperiment {
  std::string name;
  std::function<std::vector<TreeContender>()> set_up;
};

/// The type of the function `gdpo_tree`. It appends the experiments of one source file, for the
/// figures of which "experiment: figure" contains `only`.
using Tree = void(const std::string& only, std::vector<TreeExperiment>& experiments);

}  // namespace gates
