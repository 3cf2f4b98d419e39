#pragma once

#include <gdpo/constraint.hpp>
#include <string>
#include <vector>

namespace constrained {

/// A rule that moves the multipliers, and how reports describe it.
struct Controller {
  std::string name;   ///< key in JSON
  std::string label;  ///< name in tables
  std::string about;  ///< what the rule is, in a sentence or two
  gdpo::PidGains gains;
};

/// All controllers: the library's default first, with the gains `chosen`, then the rules that it is
/// compared with.
std::vector<Controller> controllers(const gdpo::PidGains& chosen);

}  // namespace constrained
