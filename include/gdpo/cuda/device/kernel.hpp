#pragma once
// How kernels are written. A kernel is a trivially copyable struct with
//   template <class Block> GDPO_DEVICE void operator()(Block& block) const;
// Every thread of a block runs that function. Its code computes the same on all threads of the
// block, except for the functions f that it hands to the block:
//   block.each(f)            f(thread) on every thread, then a barrier; all threads see what f
//                            wrote
//   block.reduce<T>(f)       all f(thread) added as a tree by T::add; all threads get the result
//   block.teams(threads, f)  f(team, i, n), then a barrier. The n warps of the block are its teams,
//                            and `team` is used like a block: in team.each and team.reduce a warp
//                            stands in for a block of `threads` threads and computes the same sums.
//                            It is for work that is too small to be shared by a block. With
//                            threads = 0 the whole block is the only team. A kernel with teams has
//                            `static constexpr bool has_teams = true`.
// A block also has
//   block.index(), block.count(), block.threads()   index_t, index_t, int
//   block.template shared<T>()   shared_bytes (of launch) bytes of the block, 16-byte aligned
//
// A *device* is an execution tag that launches kernels on a grid of such blocks. cuda::On is one
// (cuda/device/on.hpp). The tests have two that run kernels on the host and show races: one runs
// every `each` thread after thread, in any order; the other runs the whole kernel on real threads
// under ThreadSanitizer. A kernel has no race if it keeps two rules:
//   - A thread reads what another thread wrote only after the end of the `each` that wrote it.
//   - No barrier follows the code outside of `each`, so shared memory that this code reads is not
//     written by the next `each`.
//
// The tag has
//   static constexpr bool launches_kernels = true;
//   template <class Kernel>
//   void launch(index_t blocks, int threads, std::size_t shared_bytes, const Kernel& kernel) const;
//   const cuda::Tuning& tuning() const;
//
// The tree of reduce: threads form warps of 32. In a warp, thread i adds the sum of thread i + 16,
// then of i + 8, i + 4, i + 2 and i + 1; then the warps are added one after the other. Further
// threads that have nothing to add do not change the sum.
#include <gdpo/core/exec.hpp>

/// Stand before a loop in a kernel. GDPO_UNROLL: the loop indexes an array that is to stay in
/// registers, which have no addresses, so every index must become a constant. GDPO_ROLLED: the loop
/// is not worth its size when unrolled.
#if defined(__CUDA_ARCH__)
#define GDPO_UNROLL _Pragma("unroll")
#define GDPO_ROLLED _Pragma("unroll 1")
#else
#define GDPO_UNROLL
#define GDPO_ROLLED
#endif

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// Threads of a warp, and of the largest block that CUDA allows.
constexpr int warp = 32, most_threads = 1024;

/// A plain sum, to be added up by block.reduce.
template <class T>
struct Sum {
  T value{};  ///< the sum so far
  /// Adds the sum of another thread.
  GDPO_INLINE void add(const Sum& o) { value = value + o.value; }
};

/// Prefetches the cache line that holds *p into the L2 cache. On the host it does nothing.
GDPO_INLINE void prefetch(const void* p) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
#else
  (void)p;
#endif
}

}  // namespace cuda

GDPO_END_NAMESPACE
