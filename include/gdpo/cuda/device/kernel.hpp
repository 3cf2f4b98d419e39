#pragma once
// How kernels are written. A kernel is a trivially copyable struct with
//   template <class Block> GDPO_DEVICE void operator()(Block& block) const;
// which every thread of a block runs. What stands in it is the same for all threads of the block, but for what it hands to
//   block.each(f)          f(thread) on every thread, then a barrier: what f wrote, all threads see
//   block.reduce<T>(f)     all f(thread) added as a tree by T::add; the result is known to all threads
//   block.teams(threads, f)   f(team, i, n), then a barrier. Each of the n warps of the block is a team, which does by itself, in team.each
//                             and team.reduce, what a block of so many threads does: the same sums, for work too small to be
//                             shared. 0 threads: the block is the one team. A kernel with teams says
//                             `static constexpr bool has_teams = true`.
// beside which there are
//   block.index(), block.count(), block.threads()          index_t, index_t, int
//   block.template shared<T>()                             memory of the block, of the size given to launch, 16-byte aligned
// A *device* is an execution tag that launches kernels on a grid of such blocks: cuda::On does (cuda/device/on.hpp), and the tests have two
// that run them on the host: each phase thread after thread in any order, and threads that run the whole kernel, under
// ThreadSanitizer. So that a race shows on any machine: a thread may read what another wrote only after the `each` in which it was
// written; and the code outside of `each` has no barrier behind it, so shared memory that it reads must not be written by the next
// `each`.
//
// The tag has
//   static constexpr bool launches_kernels = true;
//   template <class Kernel> void launch(index_t blocks, int threads, std::size_t shared_bytes, const Kernel& kernel) const;
//   const cuda::Tuning& tuning() const;
//
// The tree of reduce: threads in warps of 32; in a warp thread i takes i + 16, then i + 8, 4, 2, 1; then the warps one after the
// other. It depends on the number of threads only where threads have something to add.
#include <gdpo/core/exec.hpp>

/// Before a loop in a kernel: registers have no addresses, so a loop over them has to disappear; others are not worth their
/// unrolled size.
#if defined(__CUDA_ARCH__)
#define GDPO_UNROLL _Pragma("unroll")
#define GDPO_ROLLED _Pragma("unroll 1")
#else
#define GDPO_UNROLL
#define GDPO_ROLLED
#endif

GDPO_BEGIN_NAMESPACE
namespace cuda {

constexpr int warp = 32, most_threads = 1024;

/// A sum for block.reduce.
template <class T>
struct Sum {
  T value{};
  GDPO_INLINE void add(const Sum& o) { value = value + o.value; }
};

/// Asks for the line of the L2 cache that holds *p.
GDPO_INLINE void prefetch(const void* p) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
#else
  (void)p;
#endif
}

}  // namespace cuda

GDPO_END_NAMESPACE
