#pragma once
// How kernels are written. A kernel is a trivially copyable struct with
//   template <class Block> GDPO_DEVICE void operator()(Block& block) const;
// which every thread of a block runs. What stands in it is the same for all threads of the block, but for what it hands to
//   block.each(f)          f(thread) on every thread, then a barrier: what f wrote, all threads see
//   block.reduce<T>(f)     all f(thread) added as a tree by T::add; the result is known to all threads
// beside which there are
//   block.index(), block.count(), block.threads()          index_t, index_t, int
//   block.template shared<T>()                             memory of the block, of the size given to launch, 16-byte aligned
// A *device* is an execution tag that launches kernels on a grid of such blocks: cuda::On does (cuda/on.hpp), and the tests have one
// that runs them on the host, thread after thread in any order. So that a race shows as wrong bits, on any machine:
// a thread may read what another wrote only after the `each` in which it was written. What no order of threads shows: the code
// outside of `each` has no barrier behind it, so shared memory that it reads must not be written by the next `each`.
//
// The tag has
//   static constexpr bool launches_kernels = true;
//   template <class Kernel> void launch(index_t blocks, int threads, std::size_t shared_bytes, const Kernel& kernel) const;
//   const cuda::Tuning& tuning() const;
//
// The tree of reduce: threads in warps of 32; in a warp thread i takes i + 16, then i + 8, 4, 2, 1; then the warps one after the
// other. It depends on the number of threads only where threads have something to add.
#include <gdpo/core/exec.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {

constexpr int warp = 32, most_threads = 1024;

/// A sum for block.reduce.
template <class T>
struct Sum {
  T value{};
  GDPO_INLINE void add(const Sum& o) { value = value + o.value; }
};

}  // namespace cuda

GDPO_END_NAMESPACE
