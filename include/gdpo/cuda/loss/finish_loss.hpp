#pragma once
// The kernel that writes the result of a call from the tallies of the spans.
#include <gdpo/cuda/tokens/add_tallies.hpp>
#include <gdpo/loss/shared/write_result.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::Tally;

/// Adds the tallies of the spans and writes the LossResult, in one block. Each warp writes one
/// metric at a time.
template <class Metrics>
struct FinishLoss {
  using Sum = SumOfSpans<Tally>;
  static constexpr int largest_block = Sum::threads;
  Tally* tallies;
  Spans spans;
  DeviceNormalizer normalizer;
  gdpo::detail::ResultTraits traits;
  LossResult* result;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const Tally& total = Sum::of(block, tallies, spans);
    block.each([&](int thread) {
      for (int q = thread / warp; thread % warp == 0 && q < gdpo::detail::metrics_of_tokens;
           q += block.threads() / warp)
        gdpo::detail::write_metric<Metrics>(*result, q, gdpo::detail::written_metric(q), total,
                                            traits);
      if (thread == block.threads() - 1)
        gdpo::detail::write_others(*result, total, normalizer(), traits);
    });
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
