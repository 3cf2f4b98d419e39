#pragma once

#include "support/device.hpp"

namespace conformance {

// The device of one call. If it is simulated, each call visits threads and blocks in another order,
// on another number of blocks.
TestDevice next_device();

}  // namespace conformance
