#pragma once

#include <string>

#include "experiment.hpp"

namespace corrections {

/// The tables in Markdown, each between the comments <!-- table: NAME --> and <!-- end -->, which
/// tests/pages/pages.py reads. Tables over all samplers only where nothing was left out.
std::string to_markdown(const Results& results);

/// All numbers with their intervals.
std::string to_json(const Results& results);

}  // namespace corrections
