// What no preset of the library computes: the one list of recorded cases that are not compared,
// with the reason.
#pragma once

#include <string>

#include "golden.hpp"

namespace conformance {

// Why the case is not compared, in a phrase that names what the library lacks; empty if it is not
// listed.
std::string gap(const Case& recorded);

}  // namespace conformance
