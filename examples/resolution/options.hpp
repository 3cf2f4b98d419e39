#pragma once

#include <optional>
#include <string>
#include <vector>

#include "estimators.hpp"
#include "input/rollouts.hpp"

namespace resolution {

/// The command line, checked as far as it can be without reading the log.
struct Options {
  std::vector<std::string> inputs;  ///< paths of the log; none or "-": standard input
  Reading reading;
  Columns columns;
  Settings settings;
  std::vector<std::string> estimators;
  std::string json;         ///< path of the numbers, "-" for standard output; empty: none
  std::string html;         ///< path of the report; empty: none
  std::string svg;          ///< folder of the pictures of surrogates; empty: none
  std::string explain;      ///< the group whose numbers are printed instead; empty: none
  bool count = false;       ///< run the counting experiment instead of reading a log
  bool surrogates = false;  ///< show what each policy loss makes of the ratio instead
};

/// What parse_options() found: options, or a text to print before leaving with status 0 (--help,
/// --version).
struct Parsed {
  std::optional<Options> options;
  std::string text;
};

/// Parses the command line. Throws UserError for an unknown option, for an option that is missing
/// or does not fit another, and for a name that is no estimator.
Parsed parse_options(int argc, const char* const* argv);

/// Parses a condition: 'b:a>=1' says that reward b counts only where reward a is at least 1. Names
/// may hold any character.
Condition parse_condition(const std::string& text, const std::vector<std::string>& rewards);

}  // namespace resolution
