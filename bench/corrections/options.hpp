#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiment.hpp"

namespace corrections {

/// The command line, checked.
struct Options {
  Settings settings;
  std::vector<Sampler> samplers;
  std::vector<Correction> corrections;
  int threads = 0;   ///< 0: one for each of the machine
  std::string json;  ///< path of the numbers; empty: none
};

/// What parse_options() found: options, or a text to print before leaving with status 0 (--help,
/// --list).
struct Parsed {
  std::optional<Options> options;
  std::string text;
};

/// Parses the command line. Throws resolution::UserError for an unknown option or name and for a
/// number out of range, and gdpo::invalid_input for a line that describes no pre-pass.
Parsed parse_options(int argc, const char* const* argv);

}  // namespace corrections
