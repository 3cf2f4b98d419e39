#include "experiments.hpp"

std::vector<gates::Experiment> gates::experiments() {
  std::vector<Experiment> all{k1_cold(), k1_hot(), k1_small()};
  for (Experiment& experiment : k2()) all.push_back(std::move(experiment));
  all.push_back(k3());
  for (Experiment& experiment : update()) all.push_back(std::move(experiment));
  all.push_back(accuracy());
  all.push_back(memory());
  return all;
}
