#pragma once
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// How kernels are cut for a device: plain values, by compute capability, to be overridden on the tag (cuda::On). None of them
/// changes a bit of a result: sums follow the shape of the data alone.
struct Tuning {
  int blocks = 132 * 8;  ///< most blocks of a grid that walks over its work: multiprocessors times blocks that fit one
  std::size_t shared_bytes =
      48 * 1024;  ///< of a row of logits that a block keeps; the rest is read twice, from L2 if it fits
  int warp_row =
      1024;  ///< tokens: rows that are not longer on average are each of a warp, where there are enough of them

  /// Of sm_80, sm_90, sm_100 and what lies between; `multiprocessors` of the device at hand.
  static constexpr Tuning of(int major, int multiprocessors) {
    Tuning t;
    t.blocks = multiprocessors * 8;
    t.shared_bytes = major >= 9 ? 100 * 1024 : 72 * 1024;
    return t;
  }
};

}  // namespace cuda
GDPO_END_NAMESPACE
