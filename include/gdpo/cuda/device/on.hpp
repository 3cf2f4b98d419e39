#pragma once
// The execution tag of CUDA, cuda::On. This is the only header that launches kernels and the only
// one that needs the CUDA toolkit.
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

/// Thrown when a call of the CUDA runtime or a launch fails. The kernels themselves never trap.
struct error : std::runtime_error {
  cudaError_t code;  ///< what the CUDA runtime returned
  /// `function`: the call to name in the message. `status`: what the CUDA runtime returned.
  error(const char* function, cudaError_t status)
      : std::runtime_error(std::string(function) + ": " + cudaGetErrorName(status) + ": " +
                           cudaGetErrorString(status)),
        code(status) {}
};

/// Throws cuda::error unless `code`, which a call of the CUDA runtime has just returned, is
/// cudaSuccess. It also clears the runtime's last error: a later cudaGetLastError would otherwise
/// blame the program's next launch for it. Without exceptions it calls gdpo::on_failure, then
/// abort.
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
/// Shuffles a T down by `distance` lanes, as 32-bit words. A fold expression instead of a loop over
/// the words, because nvcc would unroll a loop too late and leave the words in local memory.
template <class T, std::size_t... w>
__device__ __forceinline__ T shuffle_words(const T& x, unsigned distance,
                                           std::index_sequence<w...>) {
  static_assert(sizeof(T) % 4 == 0 && std::is_trivially_copyable_v<T>,
                "what is reduced is shuffled as 32-bit words");
  struct Words {
    unsigned word[sizeof...(w)];
  } words;
  memcpy(&words, &x, sizeof x);
  ((words.word[w] = __shfl_down_sync(0xffffffffu, words.word[w], distance)), ...);
  T result;
  memcpy(&result, &words, sizeof result);
  return result;
}
#endif

/// The block that a kernel sees on a device (cuda/device/kernel.hpp), or a team of it: the same
/// class serves for a warp of the block if the kernel has teams.
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
    return is_warp() ? team_threads_ : static_cast<int>(blockDim.x);
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
    const int warps = (threads() + warp - 1) / warp,
              warp_index = static_cast<int>(threadIdx.x) / warp;
    T* const warp_sums = reinterpret_cast<T*>(raw) + (is_warp() ? warp_index : 0);
    // Adds 32 threads: those of this warp, or 32 of those that it stands in for as a team.
    const auto add_warp = [&](int thread) {
      T sum = f(thread);
      GDPO_UNROLL
      for (unsigned distance = warp / 2; distance > 0; distance /= 2) {
        sum.add(shuffle_words(sum, distance, std::make_index_sequence<sizeof(T) / 4>{}));
      }
      if (thread % warp != 0) return;
      if (!is_warp()) {
        warp_sums[warp_index] = sum;
      } else if (thread == 0) {
        warp_sums[0] = sum;
      } else {
        warp_sums[0].add(sum);
      }
    };
    if constexpr (HasTeams) {
      GDPO_ROLLED
      for (int turn = 0; turn < turns(); ++turn) add_warp(first() + turn * warp);
    } else {
      add_warp(first());
    }
    wait();
    T total = warp_sums[0];
    // Rolled: unrolled, several T at a time would need more registers than there are.
    GDPO_ROLLED
    for (int w = 1; w < (is_warp() ? 1 : warps); ++w) total.add(warp_sums[w]);
    wait();  // the next call of reduce writes warp_sums again
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
    team.team_threads_ = threads;
    // Broadcast from lane 0, which tells the compiler that all lanes hold the same number.
    const int warp_index = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warp, 0);
    f(team, threads > 0 ? warp_index : 0, threads > 0 ? static_cast<int>(blockDim.x) / warp : 1);
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
  GDPO_INLINE bool is_warp() const { return HasTeams && team_threads_ > 0; }
#if defined(__CUDA_ARCH__)
  /// The first thread that this thread stands in for: itself. In the team of a warp it stands in
  /// for first(), first() + 32, and so on, turns() of them.
  __device__ __forceinline__ int first() const {
    const int thread = static_cast<int>(threadIdx.x);
    return is_warp() ? thread % warp : thread;
  }
  __device__ __forceinline__ int turns() const { return is_warp() ? team_threads_ / warp : 1; }
  __device__ __forceinline__ void wait() const {
    if (is_warp()) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
#endif
  int team_threads_ = 0;  ///< how many threads the team of a warp stands in for; 0: not such a team
};

/// Threads of the largest block that a kernel is launched with. A kernel names another number than
/// 256 by `static constexpr int largest_block`.
template <class Kernel, class = void>
constexpr int largest_block_v = 256;
template <class Kernel>
constexpr int largest_block_v<Kernel, std::void_t<decltype(Kernel::largest_block)>> =
    Kernel::largest_block;

/// How many blocks of a kernel are to fit one multiprocessor at a time, which bounds the registers
/// of a thread. A kernel names another number than 1 by `static constexpr int blocks_at_once`.
template <class Kernel, class = void>
constexpr int blocks_at_once_v = 1;
template <class Kernel>
constexpr int blocks_at_once_v<Kernel, std::void_t<decltype(Kernel::blocks_at_once)>> =
    Kernel::blocks_at_once;

/// Whether a kernel calls block.teams: it then has `static constexpr bool has_teams = true`.
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

/// Lets a kernel be launched with `bytes` of dynamic shared memory on the current device. The limit
/// is raised to the most that the device has, never to `bytes` alone: it belongs to kernel and
/// device, so a host thread that needs less could lower it between another thread's request and its
/// launch. If `bytes` exceeds what the device has, the launch fails and reports it.
inline void allow_shared(const char* function, const void* kernel, std::size_t bytes) {
  cudaFuncAttributes attributes{};
  check(function, cudaFuncGetAttributes(&attributes, kernel));
  if (bytes <= static_cast<std::size_t>(attributes.maxDynamicSharedSizeBytes)) return;
  int device = 0, block_limit = 0;
  check(function, cudaGetDevice(&device));
  check(function,
        cudaDeviceGetAttribute(&block_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  check(function, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       block_limit - static_cast<int>(attributes.sharedSizeBytes)));
}

}  // namespace detail

/// The execution tag of CUDA: a call that takes it enqueues its work on `stream` and returns.
///
///     loss(gdpo::cuda::On{stream}, batch, normalizer, gradient, result, scratch);
///
/// All pointers are of the device that is current. No call allocates, synchronizes or touches
/// another stream, so each can be captured into a CUDA graph.
class On {
 public:
  /// Marks the tag as a device (core/exec.hpp).
  static constexpr bool launches_kernels = true;
  /// With the tuning of the current device. Throws cuda::error if there is no device.
  explicit On(cudaStream_t stream) : stream_(stream) {
    int device = 0, major = 0, multiprocessors = 0;
    check("gdpo::cuda::On", cudaGetDevice(&device));
    check("gdpo::cuda::On",
          cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check("gdpo::cuda::On",
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    tuning_ = Tuning::of(major, multiprocessors);
  }
  /// With a tuning of your own. Does not call the CUDA runtime.
  On(cudaStream_t stream, const Tuning& tuning) : stream_(stream), tuning_(tuning) {}

  /// The stream on which calls are enqueued.
  cudaStream_t stream() const { return stream_; }
  /// How kernels are cut for the device. No bit of a result depends on it.
  const Tuning& tuning() const { return tuning_; }

  /// Enqueues `kernel` on a grid of `blocks` blocks; with 0 blocks it does nothing. The library's
  /// own calls use it (cuda/device/kernel.hpp). Throws cuda::error if the launch fails.
  template <class Kernel>
  void launch(index_t blocks, int threads, std::size_t shared_bytes, const Kernel& kernel) const {
    static_assert(std::is_trivially_copyable_v<Kernel>, "a kernel is copied to the device");
    constexpr const char* function = "gdpo::cuda";
    // The limit of a block is 48 KiB unless a kernel raises it. 16 KiB of them are left for the
    // static memory of DeviceBlock::reduce.
    constexpr std::size_t default_limit = 32 * 1024;
    if (blocks == 0) return;
    const auto* const run = reinterpret_cast<const void*>(&detail::run<Kernel>);
    if (shared_bytes > default_limit) detail::allow_shared(function, run, shared_bytes);
    void* arguments[] = {const_cast<Kernel*>(&kernel)};
    // cudaLaunchKernel returns the error of this launch. cudaGetLastError could return, and would
    // clear, an error that an earlier call of the program left there.
    check(function,
          cudaLaunchKernel(run, dim3(static_cast<unsigned>(blocks)),
                           dim3(static_cast<unsigned>(threads)), arguments, shared_bytes, stream_));
  }

 private:
  cudaStream_t stream_;
  Tuning tuning_;
};

/// Copies a LossResult or a Normalizer from the device to the host. It waits for the stream, so it
/// is for logging and cannot be captured into a graph. Throws cuda::error, also if earlier work
/// failed.
template <class T>
T to_host(const On& device, const T* source) {
  static_assert(std::is_trivially_copyable_v<T>, "results are plain data");
  constexpr const char* function = "gdpo::cuda::to_host";
  T result;
  check(function,
        cudaMemcpyAsync(&result, source, sizeof(T), cudaMemcpyDeviceToHost, device.stream()));
  check(function, cudaStreamSynchronize(device.stream()));
  return result;
}

}  // namespace cuda
GDPO_END_NAMESPACE
