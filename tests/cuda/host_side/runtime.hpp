#pragma once
// Stand-ins for the calls of the CUDA runtime that a launch needs, without a device. They launch
// nothing, and they behave in ways that the documentation allows but a device seldom shows. A
// program that links them uses them in place of libcudart's; libcudart still registers its kernels.
#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace runtime {

constexpr int most_shared = 232448;  // bytes that a block of sm_90 may have
constexpr int own_shared = 4000;     // bytes of static shared memory, for every kernel

/// What the stand-ins know and do. Tests set it.
struct State {
  int device = 0;                         // the current device
  cudaError_t last = cudaSuccess;         // what cudaGetLastError returns
  cudaError_t launch_code = cudaSuccess;  // what the next launch returns
  int launches = 0;                       // launches so far
  // Limits of dynamic shared memory in bytes, by device and kernel.
  std::map<std::pair<int, const void*>, int> limits;
  // Another host thread: it runs once, right after a limit has been set.
  std::function<void()> after_asking;
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  // Copies from pageable memory: cudaMemcpy has returned, but the bytes have not arrived yet.
  std::vector<Copy> under_way;
};
extern State state;

}  // namespace runtime
