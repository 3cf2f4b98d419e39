// The target Exec::Device: a simulated grid, or a GPU if the runner is compiled for one
// (GDPO_TEST_ON_GPU).
#pragma once

#include <cstddef>
#include <string>

namespace conformance {

// The name of this build's device in --exec: "grid" or "cuda".
extern const char* const kDevice;

// Empty if the device can run, otherwise the reason why it cannot.
std::string no_device();

// How often the library was called on the device.
std::size_t device_calls();

}  // namespace conformance
