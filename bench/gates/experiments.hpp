#pragma once
#include "gate.hpp"

namespace gates {

/// The experiments of one source file: those of k1.cpp have the name "k1".
struct Figures {
  std::string file;
  std::vector<Experiment> experiments;
};
/// What this program measures. gdpo_gates has all figures (all.cpp); the programs for another
/// instruction set have one (instruction_set.cpp).
std::vector<Figures> figures();

/// How the experiments were compiled, and whether this processor has the instructions that this
/// needs.
struct Build {
  const char *compiler, *flags;
  bool runs_here;
};
Build build();

std::vector<Experiment> k1();
std::vector<Experiment> k2();
std::vector<Experiment> k3();
std::vector<Experiment> update();
std::vector<Experiment> accuracy();
std::vector<Experiment> memory();
// The map of paths (paths.hpp), which gdpo_paths measures and `gdpo_scaling --paths` prints.
std::vector<Experiment> path_advantages();
std::vector<Experiment> path_loss();
std::vector<Experiment> path_prepare();
std::vector<Experiment> path_value();
std::vector<Experiment> path_logits();
std::vector<Experiment> path_update();
/// The speed of K1 over naive loops, for 2 x 4096 tokens: `gate` is what a build for this
/// instruction set must reach.
Experiment k1_over_naive(const std::string& instruction_set, Gate gate);

}  // namespace gates
