// Tests what the host does around a launch, without a device (runtime.hpp). Exit status 1 if a
// check fails.
#define GDPO_TEST_ON_GPU
#include <algorithm>
#include <cstdio>
#include <string>

#include "runtime.hpp"
#include "support/device.hpp"

using runtime::state;

namespace {

int failures = 0;
void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  ++failures;
}

template <int Which>
struct Kernel {
  float* to;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      if (thread == 0) *to = Which;
    });
  }
};
constexpr std::size_t kib = 1024;

/// The code of the error that a launch throws, or cudaSuccess if it throws none.
template <int Which = 0>
cudaError_t code_of_launch(std::size_t shared_bytes) {
  try {
    gdpo::cuda::On(nullptr).launch(1, 128, shared_bytes, Kernel<Which>{});
    return cudaSuccess;
  } catch (const gdpo::cuda::error& e) {
    check(std::string(e.what()).find(cudaGetErrorName(e.code)) != std::string::npos,
          "the message names the code");
    return e.code;
  }
}

void shared_memory() {
  check(code_of_launch(20 * kib) == cudaSuccess, "a launch within 48 KiB");
  check(state.limits.size() == 1 && state.limits.begin()->second < 48 * 1024,
        "which asks for nothing");
  check(code_of_launch(100 * kib) == cudaSuccess, "a launch with more");
  check(code_of_launch(60 * kib) == cudaSuccess, "one with less after it");
  check(code_of_launch(100 * kib) == cudaSuccess, "one with more again");

  // Between this thread's request and its launch, another host thread launches the same kernel with
  // less memory.
  state.after_asking = [] {
    check(code_of_launch<1>(60 * kib) == cudaSuccess, "the other thread's launch");
  };
  check(code_of_launch<1>(100 * kib) == cudaSuccess,
        "a launch beside another thread's, which needs less");

  state.device = 1;
  check(code_of_launch<1>(100 * kib) == cudaSuccess,
        "a launch on a second device, whose limit is its own");
  state.device = 0;

  const int before = state.launches;
  check(code_of_launch(224 * kib) == cudaErrorInvalidValue,
        "a launch with more than the device has");
  check(state.launches == before, "which launches nothing");
  check(cudaGetLastError() == cudaSuccess,
        "and leaves no code to blame the program's next launch with");
}

void errors_of_others() {
  state.last = cudaErrorMemoryAllocation;  // left by an earlier call of the program
  check(code_of_launch(0) == cudaSuccess, "a launch is not blamed for an earlier error");
  check(code_of_launch(100 * kib) == cudaSuccess, "nor one that asks for memory");
  check(cudaGetLastError() == cudaErrorMemoryAllocation, "and leaves it to the program");
  state.launch_code = cudaErrorLaunchOutOfResources;
  check(code_of_launch(0) == cudaErrorLaunchOutOfResources,
        "a launch that fails says its own code");
}

void arrays_of_tests() {
  const std::vector<int> values{3, 1, 4, 1, 5};
  const OnDevice<int> array(values);
  // A kernel on a non-blocking stream could read the array at this moment.
  check(std::equal(values.begin(), values.end(), array.data()),
        "an array is on the device when it is made");
  check(array.host() == values, "and comes back");
}

}  // namespace

int main() {
  shared_memory();
  errors_of_others();
  arrays_of_tests();
  if (failures == 0) std::puts("launches, errors and copies are as they must be");
  return failures == 0 ? 0 : 1;
}
