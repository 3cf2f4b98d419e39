#pragma once
#include "gate.hpp"

namespace gates {

/// The experiments of this program. gdpo_gates has all of them (all.cpp); the programs that are
/// built for another instruction set have one (instruction_set.cpp).
std::vector<Experiment> experiments();

/// How the experiments were compiled, and whether this processor has the instructions that this
/// needs.
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
std::vector<Experiment> update();
Experiment accuracy();
Experiment memory();
/// The speed of K1 over naive loops, for 2 x 4096 tokens: `gate` is what a build for this
/// instruction set must reach.
Experiment k1_over_naive(const std::string& instruction_set, Gate gate);

}  // namespace gates
