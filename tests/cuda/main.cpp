// Runs the tests that need a device. Without one it exits with 77, which ctest takes for "skipped".
#include <cuda_runtime.h>

#include <cstdio>
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // lines are there even if this is stopped
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "skipped: no CUDA device (%s)\n", cudaGetErrorString(error));
    return 77;
  }
  cudaDeviceProp device;
  if (cudaGetDeviceProperties(&device, 0) == cudaSuccess) {
    std::printf("on %s, sm_%d%d\n", device.name, device.major, device.minor);
  }
  // Not the number of failures, which Catch returns: it may be 77.
  return Catch::Session().run(argc, argv) == 0 ? 0 : 1;
}
