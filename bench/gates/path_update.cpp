// Paths of gdpo/update.hpp.
#include "experiments.hpp"
#include "paths.hpp"

std::vector<gates::Experiment> gates::path_update() { return {}; }
