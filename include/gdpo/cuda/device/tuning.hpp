#pragma once
// The launch configuration of kernels.
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// The launch configuration of kernels on a device. cuda::On{stream} takes it from Tuning::of();
/// cuda::On{stream, tuning} overrides it. No value changes a bit of a result: the order of every
/// sum depends on the shape of the data alone.
struct Tuning {
  /// Most blocks of a grid whose blocks each take several pieces of work: number of multiprocessors
  /// times the blocks that fit one.
  int blocks = 132 * 8;
  /// Bytes of a row of logits that a block keeps in shared memory between its sums and its
  /// gradient. The rest of the row is read twice, the second time from the L2 cache if it is still
  /// there.
  std::size_t shared_bytes = 48 * 1024;
  /// Tokens. A loss over more than 3072 rows computes each row by a warp, not by a block, if the
  /// mean length of the rows is at most this.
  int warp_row = 1024;

  /// The tuning for compute capability `major`.x. `shared_bytes` is chosen so that a multiprocessor
  /// of sm_80, sm_90 or sm_100 holds two rows of logits at a time. Other devices from sm_80 on have
  /// at least this much memory for a block.
  static constexpr Tuning of(int major, int multiprocessors) {
    Tuning t;
    t.blocks = multiprocessors * 8;
    t.shared_bytes = major == 9 || major == 10 ? 100 * 1024 : 72 * 1024;
    return t;
  }
};

}  // namespace cuda
GDPO_END_NAMESPACE
