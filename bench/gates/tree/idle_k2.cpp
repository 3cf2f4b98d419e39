// Figures for a test of --against, in place of k2.cpp: a library that takes no time, and a
// contender that no other tree has.
#include "experiments.hpp"

std::vector<gates::Experiment> gates::k2() {
  return {{"K2, 64 prompts of 8 completions, 3 rewards",
           {{"nothing", no_gate(), "another 1T", "gdpo 1T"}},
           [](Bench& bench) {
             for (const char* name : {"gdpo 1T", "another 1T"}) bench.add_probe(name, 512, [] {});
           }}};
}
