#pragma once

#include <gdpo/runtime.hpp>
#include <string>
#include <vector>

namespace corrections {

/// A correction: pre-passes of the library that run one after the other.
struct Correction {
  std::string name;
  std::string lines;  ///< of runtime::configured_prepass, joined by " + "; empty: none
};

/// All corrections, in the order of the page. A new one is a line of this list.
///
/// The first two are run in every case, because their expected gradients are known exactly.
const std::vector<Correction>& all_corrections();

/// The pre-passes of a correction. Throws gdpo::invalid_input for a line that does not fit.
std::vector<gdpo::runtime::Prepass> passes_of(const Correction& correction);

}  // namespace corrections
