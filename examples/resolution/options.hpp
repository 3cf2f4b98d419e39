#pragma once

#include <optional>
#include <string>
#include <vector>

#include "estimators.hpp"
#include "rollouts.hpp"

namespace resolution {

/// The command line, checked as far as it can be without the data.
struct Options {
  std::string input;  ///< empty or "-": standard input
  Format format = Format::Auto;
  Columns columns;
  Settings settings;
  std::vector<std::string> estimators;
  std::string json;  ///< path, "-" for standard output, empty: none
  std::string html;  ///< path, empty: none
  bool count = false;
};

/// What parse_options() found: options, or a text to print and the exit status to leave with (--help, --version).
struct Parsed {
  std::optional<Options> options;
  std::string text;
};

/// Throws UserError: an unknown option, an option that is missing or does not fit another, a name that is no estimator.
Parsed parse_options(int argc, const char* const* argv);

/// 'b:a>=1' -> reward b counts only where reward a is at least 1; names may hold any character.
Condition parse_condition(const std::string& text, const std::vector<std::string>& rewards);

}  // namespace resolution
