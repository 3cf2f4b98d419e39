#include "experiments.hpp"

std::vector<gates::Figures> gates::figures() {
  return {{"path_advantages", path_advantages()}, {"path_loss", path_loss()},
          {"path_prepare", path_prepare()},       {"path_value", path_value()},
          {"path_logits", path_logits()},         {"path_update", path_update()}};
}
