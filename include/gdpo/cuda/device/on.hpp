#pragma once
// The execution tag of CUDA: the only place that launches, and the only one that needs the CUDA toolkit.
#include <cuda_runtime.h>

#include <cstring>
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/device/tuning.hpp>
#if !defined(__CUDACC__)
#error "gdpo/cuda.hpp launches kernels: compile this file with nvcc, or with clang++ -x cuda"
#endif

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// A call of the CUDA runtime or a launch failed; `code` says how. Kernels themselves never trap.
struct error : std::runtime_error {
  cudaError_t code;
  error(const char* function, cudaError_t of)
      : std::runtime_error(std::string(function) + ": " + cudaGetErrorName(of) + ": " +
                           cudaGetErrorString(of)),
        code(of) {}
};

/// Throws cuda::error where `code` is one: what a call of the runtime has just given. It is not left for cudaGetLastError as well, which
/// would blame the program's next launch.
inline void check(const char* function, cudaError_t code) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
#if defined(__cpp_exceptions)
  throw error(function, code);
#else
  on_failure((std::string(function) + ": " + cudaGetErrorName(code)).c_str());
  std::abort();
#endif
}

namespace detail {

#if defined(__CUDA_ARCH__)
/// A T as 32-bit words through a shuffle. No loop over the words: unrolled too late, it would leave them in local memory.
template <class T, std::size_t... w>
__device__ __forceinline__ T shuffle_words(const T& x, unsigned by, std::index_sequence<w...>) {
  static_assert(sizeof(T) % 4 == 0 && std::is_trivially_copyable_v<T>,
                "what is reduced is shuffled as 32-bit words");
  struct Words {
    unsigned of[sizeof...(w)];
  } words;
  memcpy(&words, &x, sizeof x);
  ((words.of[w] = __shfl_down_sync(0xffffffffu, words.of[w], by)), ...);
  T result;
  memcpy(&result, &words, sizeof result);
  return result;
}
#endif

/// The block that a kernel sees on a device (cuda/device/kernel.hpp), of at most so many threads; or, HasTeams, a team of it.
template <int MostThreads, bool HasTeams>
class DeviceBlock {
 public:
  GDPO_INLINE index_t index() const {
#if defined(__CUDA_ARCH__)
    return static_cast<index_t>(blockIdx.x);
#else
    return 0;
#endif
  }
  GDPO_INLINE index_t count() const {
#if defined(__CUDA_ARCH__)
    return static_cast<index_t>(gridDim.x);
#else
    return 0;
#endif
  }
  GDPO_INLINE int threads() const {
#if defined(__CUDA_ARCH__)
    return is_warp() ? acts_for_ : static_cast<int>(blockDim.x);
#else
    return 0;
#endif
  }
  template <class F>
  GDPO_INLINE void each(const F& f) const {
#if defined(__CUDA_ARCH__)
    if constexpr (HasTeams) {
      GDPO_ROLLED
      for (int turn = 0; turn < turns(); ++turn) f(first() + turn * warp);
    } else {
      f(first());
    }
    wait();
#else
    (void)f;
#endif
  }
  template <class T, class F>
  GDPO_INLINE T reduce(const F& f) const {
#if defined(__CUDA_ARCH__)
    __shared__ alignas(16) unsigned char raw[MostThreads / warp * sizeof(T)];
    const int warps = (threads() + warp - 1) / warp, own = static_cast<int>(threadIdx.x) / warp;
    T* const of_warp = reinterpret_cast<T*>(raw) + (is_warp() ? own : 0);
    const auto of_threads = [&](int thread) {  // of a warp, acting or acted for
      T mine = f(thread);
      GDPO_UNROLL
      for (unsigned by = warp / 2; by > 0; by /= 2) {
        mine.add(shuffle_words(mine, by, std::make_index_sequence<sizeof(T) / 4>{}));
      }
      if (thread % warp != 0) return;
      if (!is_warp()) {
        of_warp[own] = mine;
      } else if (thread == 0) {
        of_warp[0] = mine;
      } else {
        of_warp[0].add(mine);
      }
    };
    if constexpr (HasTeams) {
      GDPO_ROLLED
      for (int turn = 0; turn < turns(); ++turn) of_threads(first() + turn * warp);
    } else {
      of_threads(first());
    }
    wait();
    T total = of_warp[0];
    // One by one: several T at a time are more than there are registers.
    GDPO_ROLLED
    for (int w = 1; w < (is_warp() ? 1 : warps); ++w) total.add(of_warp[w]);
    wait();  // before of_warp is written again
    return total;
#else
    (void)f;
    return T{};
#endif
  }
  template <class F>
  GDPO_INLINE void teams(int threads, const F& f) const {
    static_assert(HasTeams, "a kernel with teams says so: static constexpr bool has_teams = true");
#if defined(__CUDA_ARCH__)
    DeviceBlock team;
    team.acts_for_ = threads;
    // Of lane 0: that all lanes have the same number is then known to the compiler.
    const int own = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warp, 0);
    f(team, threads > 0 ? own : 0, threads > 0 ? static_cast<int>(blockDim.x) / warp : 1);
    __syncthreads();
#else
    (void)threads, (void)f;
#endif
  }
  template <class T>
  GDPO_INLINE T* shared() const {
#if defined(__CUDA_ARCH__)
    extern __shared__ uint4 gdpo_shared[];
    return reinterpret_cast<T*>(gdpo_shared);
#else
    return nullptr;
#endif
  }

 private:
  GDPO_INLINE bool is_warp() const { return HasTeams && acts_for_ > 0; }
#if defined(__CUDA_ARCH__)
  /// This thread acts for thread first(), or, in the team of a warp, for one of every 32 in turn.
  __device__ __forceinline__ int first() const {
    const int own = static_cast<int>(threadIdx.x);
    return is_warp() ? own % warp : own;
  }
  __device__ __forceinline__ int turns() const { return is_warp() ? acts_for_ / warp : 1; }
  __device__ __forceinline__ void wait() const {
    if (is_warp()) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
#endif
  int acts_for_ = 0;  ///< threads, of the team of a warp
};

/// Threads of the largest block that a kernel is launched with: `static constexpr int largest_block`, or 256.
template <class Kernel, class = void>
constexpr int largest_block_v = 256;
template <class Kernel>
constexpr int largest_block_v<Kernel, std::void_t<decltype(Kernel::largest_block)>> =
    Kernel::largest_block;

/// Of which so many are to fit one multiprocessor: `static constexpr int blocks_at_once`, or 1.
template <class Kernel, class = void>
constexpr int blocks_at_once_v = 1;
template <class Kernel>
constexpr int blocks_at_once_v<Kernel, std::void_t<decltype(Kernel::blocks_at_once)>> =
    Kernel::blocks_at_once;

/// Whether it calls block.teams.
template <class Kernel, class = void>
constexpr bool has_teams_v = false;
template <class Kernel>
constexpr bool has_teams_v<Kernel, std::void_t<decltype(Kernel::has_teams)>> = Kernel::has_teams;

template <class Kernel>
__global__ void __launch_bounds__(largest_block_v<Kernel>, blocks_at_once_v<Kernel>)
    run(const __grid_constant__ Kernel kernel) {
  DeviceBlock<largest_block_v<Kernel>, has_teams_v<Kernel>> block;
  kernel(block);
}

/// Lets a kernel be launched with `bytes` of dynamic shared memory on the device that is current, where it may not be yet. The limit is
/// raised to the device's, never to `bytes`: it belongs to kernel and device, so a host thread that needs little could otherwise lower
/// it between another thread's request and launch. Where `bytes` is more than the device has, the launch fails and says so.
inline void allow_shared(const char* function, const void* kernel, std::size_t bytes) {
  cudaFuncAttributes is{};
  check(function, cudaFuncGetAttributes(&is, kernel));
  if (bytes <= static_cast<std::size_t>(is.maxDynamicSharedSizeBytes)) return;
  int device = 0, of_block = 0;
  check(function, cudaGetDevice(&device));
  check(function,
        cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  check(function, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       of_block - static_cast<int>(is.sharedSizeBytes)));
}

}  // namespace detail

/// The execution tag: everything is enqueued on `stream` and nothing waits for it; pointers are of the device that is current.
///   loss(gdpo::cuda::On{stream}, batch, normaliser, gradient, result, scratch);
/// No call allocates, synchronises, or touches another stream, so each of them can be captured into a CUDA graph.
class On {
 public:
  static constexpr bool launches_kernels = true;
  /// Tuned for the device that is current.
  explicit On(cudaStream_t stream) : stream_(stream) {
    int device = 0, major = 0, multiprocessors = 0;
    check("gdpo::cuda::On", cudaGetDevice(&device));
    check("gdpo::cuda::On",
          cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check("gdpo::cuda::On",
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    tuning_ = Tuning::of(major, multiprocessors);
  }
  On(cudaStream_t stream, const Tuning& tuning) : stream_(stream), tuning_(tuning) {}

  cudaStream_t stream() const { return stream_; }
  const Tuning& tuning() const { return tuning_; }

  template <class Kernel>
  void launch(index_t blocks, int threads, std::size_t shared_bytes, const Kernel& kernel) const {
    static_assert(std::is_trivially_copyable_v<Kernel>, "a kernel is copied to the device");
    constexpr const char* function = "gdpo::cuda";
    constexpr std::size_t without_asking =
        32 * 1024;  // 48 KiB together with the static memory of DeviceBlock::reduce
    if (blocks == 0) return;
    const auto* const run = reinterpret_cast<const void*>(&detail::run<Kernel>);
    if (shared_bytes > without_asking) detail::allow_shared(function, run, shared_bytes);
    void* arguments[] = {const_cast<Kernel*>(&kernel)};
    // The launch's own code: cudaGetLastError would answer with, and clear, what an earlier call of the program has left there.
    check(function,
          cudaLaunchKernel(run, dim3(static_cast<unsigned>(blocks)),
                           dim3(static_cast<unsigned>(threads)), arguments, shared_bytes, stream_));
  }

 private:
  cudaStream_t stream_;
  Tuning tuning_;
};

/// What a call left on the device, a LossResult or a Normaliser, on the host. Waits for the stream: for logging, not for graphs.
template <class T>
T to_host(const On& on, const T* on_device) {
  static_assert(std::is_trivially_copyable_v<T>, "results are plain data");
  constexpr const char* function = "gdpo::cuda::to_host";
  T result;
  check(function,
        cudaMemcpyAsync(&result, on_device, sizeof(T), cudaMemcpyDeviceToHost, on.stream()));
  check(function, cudaStreamSynchronize(on.stream()));
  return result;
}

}  // namespace cuda
GDPO_END_NAMESPACE
