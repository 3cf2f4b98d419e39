#pragma once
// The kernels that every prepare() on a device begins with: copies of the masks and weights that it
// will change, and what it reports about rollout_logp.
#include <gdpo/cuda/prepass/prepass_rows.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Copies arrays of the batch to memory; what the batch does not have is 1, of logs 0. Null: not
/// copied. The weights with Reach::Level begin as 1.
template <class S>
struct CopyArrays {
  unsigned char *mask = nullptr, *completion = nullptr;
  S *weights = nullptr, *kl_weights = nullptr, *entropy_weights = nullptr,
    *level_log_weights = nullptr, *level_weights = nullptr;
  bool any() const {
    return mask || completion || weights || kl_weights || entropy_weights || level_log_weights ||
           level_weights;
  }
  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    const index_t k = span.begin + t;
    if (mask) mask[k] = batch.valid(span, t);
    if (completion) completion[k] = one_or(batch.completion_mask, span, t) != 0;
    if (weights) weights[k] = one_or(batch.weights, span, t);
    if (kl_weights) kl_weights[k] = one_or(batch.kl_weights, span, t);
    if (entropy_weights) entropy_weights[k] = one_or(batch.entropy_weights, span, t);
    if (level_log_weights) {
      level_log_weights[k] =
          batch.level_log_weights ? one_or(batch.level_log_weights, span, t) : S(0);
    }
    if (level_weights) level_weights[k] = S(1);
  }

 private:
  template <class X>
  GDPO_INLINE static X one_or(const DeviceTokens<X>& tokens, const RowSpan& span, index_t t) {
    return tokens ? DeviceBatch<S>::at(tokens, span, t) : X(1);
  }
};

/// Numbers that are not finite, and where the first one is.
struct FirstNonFinite {
  NonFinite found;
  GDPO_INLINE void add(const FirstNonFinite& o) {
    const bool before =
        o.found.row < found.row || (o.found.row == found.row && o.found.token < found.token);
    if (o.found.count > 0 && (found.count == 0 || before))
      found.row = o.found.row, found.token = o.found.token;
    found.count += o.found.count;
  }
};
/// Counts the valid tokens of a block's units whose rollout_logp is not finite.
template <class S>
struct CountRollout {
  static constexpr int most_blocks = 256, largest_block = TokenUnits::threads;
  DeviceBatch<S> batch;
  TokenUnits units;
  FirstNonFinite* of_blocks;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const FirstNonFinite all = block.template reduce<FirstNonFinite>([&](int thread) {
      FirstNonFinite mine;
      for (index_t unit = block.index(); unit < units.count(); unit += block.count()) {
        const RowSpan span = batch.span(unit / units.parts);
        const index_t first = unit % units.parts * block.threads() + thread;
        for (index_t t = first; t < span.length; t += units.parts * block.threads()) {
          if (batch.valid(span, t) &&
              math::not_finite(DeviceBatch<S>::at(batch.rollout_logp, span, t)))
            mine.add({{1, span.row, t}});
        }
      }
      return mine;
    });
    block.each([&](int thread) {
      if (thread == 0) of_blocks[block.index()] = all;
    });
  }
};
/// Writes what is reported: a count that is there already is kept, because an earlier prepare() may
/// have masked some of those tokens since.
struct WriteFindings {
  static constexpr int threads = 64, largest_block = threads;
  const FirstNonFinite* of_blocks;
  int blocks;
  PrepassFindings given;  ///< Of the batch.
  const PrepassFindings*
      before;  ///< Of an earlier prepare() on a device, perhaps *out; null: none.
  PrepassFindings* out;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const FirstNonFinite all = block.template reduce<FirstNonFinite>([&](int thread) {
      FirstNonFinite mine;
      for (int b = thread; b < blocks; b += block.threads()) mine.add(of_blocks[b]);
      return mine;
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      PrepassFindings findings = before ? *before : given;
      if (findings.rollout.count == 0) findings.rollout = all.found;
      *out = findings;
    });
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
