#pragma once
// A TokenBatch, and the counts that a loss is divided by, as kernels read them.
#include <gdpo/cuda/tokens/device_tokens.hpp>
#include <gdpo/tokens/normalizer.hpp>
#include <gdpo/tokens/token_layout.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::RowSpan;

/// A TokenBatch in device memory. The lists of tokens/array_list.hpp give it a member for each
/// array.
template <class S>
struct DeviceBatch {
#define GDPO_X(in_batch, ...) DeviceTokens<S> in_batch;
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(in_batch, type) DeviceTokens<type> in_batch;
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
#define GDPO_X(in_batch, type) DeviceColumn<type> in_batch;
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  DeviceColumn<index_t> offsets;
  index_t rows = 0, width = 0, tokens = 0;

  /// Arrays that the loss does not read stay absent.
  DeviceBatch(const char* function, const TokenBatch<S>& b, const gdpo::detail::TokenLayout& layout,
              const gdpo::detail::TokenReads& reads)
      : offsets(function, "batch.offsets", layout.offsets),
        rows(layout.rows),
        width(layout.width),
        tokens(layout.tokens) {
    if (rows > INT_MAX) {
      contract::fail(function, "batch.logp", contract::text(rows) + " rows", "fewer than 2^31");
    }
#define GDPO_X(in_batch, in_row, in_token, read, ...) \
  if (reads.read) in_batch = {function, "batch." #in_batch, b.in_batch};
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(in_batch, ...) in_batch = {function, "batch." #in_batch, b.in_batch};
    GDPO_TOKEN_MARKS(GDPO_X)
    GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  }

  /// f(array) for every array of numbers that is present.
  template <class F>
  void for_each_array(const F& f) const {
#define GDPO_X(in_batch, ...) \
  if (in_batch) f(in_batch);
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
  }
  /// The place of a row. The host cannot check offsets in device memory: if they decrease or exceed
  /// the number of tokens, rows become shorter, and nothing outside the arrays is read.
  GDPO_INLINE RowSpan span(index_t row) const {
    if (!offsets) return {row, row * width, width};
    const index_t first = offsets(row), last = offsets(row + 1);
    const index_t begin = first < 0 ? 0 : first > tokens ? tokens : first;
    const index_t end = last < begin ? begin : last > tokens ? tokens : last;
    return {row, begin, end - begin};
  }
  GDPO_INLINE bool valid(const RowSpan& span, index_t t) const {
    return !mask || mask.at(mask.first(span.row, span.begin), t) != 0;
  }
  template <class X>
  GDPO_INLINE static X at(const DeviceTokens<X>& tokens, const RowSpan& row, index_t t) {
    return tokens.at(tokens.first(row.row, row.begin), t);
  }
};

}  // namespace detail

/// What a loss on a device is divided by: counts that the host knows, or counts in device memory.
/// Both convert to it, so a call takes a Normalizer or a pointer to one.
class DeviceNormalizer {
 public:
  /// Counts that the host knows. They are checked, as on the host.
  DeviceNormalizer(const Normalizer& value) : value_(value) {}
  /// Counts on the device, as count_into() leaves them. The call reads them when it runs on the
  /// stream, and does not check them.
  DeviceNormalizer(const Normalizer* on_device) : on_device_(on_device) {}
  /// The counts, for a kernel.
  GDPO_INLINE Normalizer operator()() const { return on_device_ ? *on_device_ : value_; }
  /// The counts that the host knows; null: they are on the device.
  const Normalizer* known() const { return on_device_ ? nullptr : &value_; }

 private:
  Normalizer value_{};
  const Normalizer* on_device_ = nullptr;
};

}  // namespace cuda
GDPO_END_NAMESPACE
