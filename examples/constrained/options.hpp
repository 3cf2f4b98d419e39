#pragma once

#include <optional>
#include <string>

#include "training.hpp"

namespace constrained {

/// The command line: a comparison of controllers or, with a checkpoint, one run of the default
/// controller.
struct Options {
  Settings settings;
  int seeds = 4;     ///< number of tasks to compare on
  std::string html;  ///< path of the report; empty: none
  std::string json;  ///< path of the numbers, "-" for standard output; empty: none

  std::string checkpoint;  ///< path for the state of a single run, written every 50 steps
  int stop_after = 0;      ///< step after which the run dies; 0: it does not
  std::string resume;      ///< path of the checkpoint from which a single run continues
  bool one_run() const { return !checkpoint.empty() || !resume.empty(); }
};

/// The options, or a text to print before leaving (--help).
struct Parsed {
  std::optional<Options> options;
  std::string text;
};

/// Parses the command line. Throws resolution::UserError for one that is wrong.
Parsed parse_options(int argc, const char* const* argv);

}  // namespace constrained
