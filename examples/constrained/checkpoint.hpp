#pragma once

#include <string>
#include <utility>

#include "training.hpp"

namespace constrained {

/// Writes a checkpoint. The file is replaced as a whole: a run that dies while it writes leaves the
/// previous checkpoint intact. Throws resolution::UserError.
void write_checkpoint(const std::string& path, const Settings& settings,
                      const Training::State& state);

/// Reads a checkpoint. Of the controller's gains, only kp and ki are in the file; the others are
/// the defaults. Throws resolution::UserError for a file that is not a complete checkpoint.
std::pair<Settings, Training::State> read_checkpoint(const std::string& path);

}  // namespace constrained
