#include "experiments.hpp"

std::vector<gates::Figures> gates::figures() {
  return {{"k1", k1()},
          {"k2", k2()},
          {"k3", k3()},
          {"update", update()},
          {"accuracy", accuracy()},
          {"memory", memory()}};
}
