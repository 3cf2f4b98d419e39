// Paths of gdpo/prepare.hpp.
#include "experiments.hpp"
#include "paths.hpp"

std::vector<gates::Experiment> gates::path_prepare() { return {}; }
