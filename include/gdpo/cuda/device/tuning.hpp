#pragma once
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// How kernels are cut for a device: plain values, by compute capability, to be overridden on the tag (cuda::On). None of them
/// changes a bit of a result: sums follow the shape of the data alone.
struct Tuning {
  /// Most blocks of a grid that walks over its work: multiprocessors times blocks that fit one.
  int blocks = 132 * 8;
  /// Of a row of logits that a block keeps; the rest is read twice, from L2 if it fits.
  std::size_t shared_bytes = 48 * 1024;
  /// Tokens: rows that are not longer on average are each of a warp, where there are enough of them.
  int warp_row = 1024;

  /// Of compute capability major.x with so many multiprocessors. sm_80, sm_90 and sm_100 have memory for two rows of logits at a time;
  /// every other device gives a block what is asked for here.
  static constexpr Tuning of(int major, int multiprocessors) {
    Tuning t;
    t.blocks = multiprocessors * 8;
    t.shared_bytes = major == 9 || major == 10 ? 100 * 1024 : 72 * 1024;
    return t;
  }
};

}  // namespace cuda
GDPO_END_NAMESPACE
