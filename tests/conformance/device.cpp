#include "device.hpp"

#include "next_device.hpp"

namespace conformance {
namespace {

std::size_t calls = 0;

}  // namespace

#if defined(GDPO_TEST_ON_GPU)
const char* const kDevice = "cuda";
std::string no_device() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess) return cudaGetErrorString(code);
  return devices == 0 ? "no CUDA device" : "";
}
#else
const char* const kDevice = "grid";
std::string no_device() { return ""; }
#endif

std::size_t device_calls() { return calls; }

TestDevice next_device() {
  const auto call = static_cast<unsigned>(calls++);
#if defined(GDPO_TEST_ON_GPU)
  return test_device(call);
#else
  gdpo::cuda::Tuning tuning;
  tuning.blocks = 1 + static_cast<int>(call * 7 % 40);
  return test_device(call, tuning);
#endif
}

}  // namespace conformance
