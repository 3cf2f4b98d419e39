// What trainers log and no report of the library has: the one list of recorded metrics that are not
// compared, with the reason.
#pragma once

#include <string>

#include "golden.hpp"

namespace conformance {

// Why this metric of a case that ran is not compared, in a sentence; empty if it is not listed. A
// recorded metric that is neither compared nor listed is a failure, and so is one that is both.
std::string unlogged(const Case& recorded, const std::string& metric);

}  // namespace conformance
