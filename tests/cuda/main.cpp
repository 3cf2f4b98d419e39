// The tests that need a device; 77, which ctest takes for "skipped", where there is none.
#include <cuda_runtime.h>

#include <cstdio>
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // what has been said is there if this is stopped
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
  return Catch::Session().run(argc, argv) == 0 ? 0
                                               : 1;  // not the number of failures, which may be 77
}
