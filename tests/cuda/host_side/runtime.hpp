#pragma once
// The calls of the CUDA runtime that a launch is made of, without a device: nothing is launched, and what the documentation allows is
// done where a device seldom shows it. A program has them in place of libcudart's, which still registers its kernels.
#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace runtime {

constexpr int most_shared = 232448;  // bytes that a block of sm_90 may have
constexpr int own_shared = 4000;     // bytes of static shared memory, for every kernel

struct State {
  int device = 0;  // that is current
  cudaError_t last = cudaSuccess,
              launch_code = cudaSuccess;  // cudaGetLastError's; what the next launch gives
  int launches = 0;
  std::map<std::pair<int, const void*>, int>
      limits;                          // of dynamic shared memory, by device and kernel
  std::function<void()> after_asking;  // another host thread, which runs once a limit has been set
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  std::vector<Copy>
      under_way;  // from pageable memory: cudaMemcpy has returned, the bytes have not arrived
};
extern State state;

}  // namespace runtime
