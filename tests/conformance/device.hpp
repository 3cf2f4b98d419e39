// The target Exec::Device: a simulated grid, or a GPU where the runner is compiled for one (GDPO_TEST_ON_GPU).
#pragma once

#include <cstddef>
#include <string>

namespace conformance {

// What --exec calls the device of this build: "grid" or "cuda".
extern const char* const kDevice;

// Empty, or why nothing can run on it.
std::string no_device();

// How often the library was called on it.
std::size_t device_calls();

}  // namespace conformance
