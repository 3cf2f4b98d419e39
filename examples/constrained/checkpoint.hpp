#pragma once

#include <string>
#include <utility>

#include "training.hpp"

namespace constrained {

/// Replaces the file as a whole: a run that dies while it writes leaves the checkpoint before. Throws resolution::UserError.
void write_checkpoint(const std::string& path, const Settings& settings,
                      const Training::State& state);

/// Throws resolution::UserError for a file that is not a whole checkpoint. Of the gains, kp and ki are in the file.
std::pair<Settings, Training::State> read_checkpoint(const std::string& path);

}  // namespace constrained
