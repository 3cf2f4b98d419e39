#pragma once
#include "gate.hpp"

namespace gates {

/// What a program measures: gdpo_gates (all.cpp) or, built for another instruction set, a part of it (instruction_set.cpp).
std::vector<Experiment> experiments();

/// How they were compiled, and whether this processor has those instructions.
struct Build {
  const char *compiler, *flags;
  bool runs_here;
};
Build build();

Experiment k1_cold();
Experiment k1_hot();
Experiment k1_small();
std::vector<Experiment> k2();
Experiment k3();
Experiment accuracy();
Experiment memory();
/// K1 over naive loops, 2 x 4096 tokens: what a build for one instruction set must reach.
Experiment k1_over_naive(const std::string& instruction_set, Gate gate);

}  // namespace gates
