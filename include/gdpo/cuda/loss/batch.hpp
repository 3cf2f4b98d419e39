#pragma once
// A TokenBatch as kernels read it.
#include <gdpo/cuda/device/array.hpp>
#include <gdpo/loss/engine/span.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::RowSpan;

/// A TokenBatch in device memory. The lists of loss/array_list.hpp give it a member for each array.
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
  gdpo::detail::TokenArrays arrays() const {
    gdpo::detail::TokenArrays has;
#define GDPO_X(in_batch, in_row, ...) has.in_row = static_cast<bool>(in_batch);
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
    return has;
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
  GDPO_INLINE bool valid(const RowSpan& at, index_t t) const {
    return !mask || mask.at(mask.first(at.row, at.begin), t) != 0;
  }
  template <class X>
  GDPO_INLINE static X at(const DeviceTokens<X>& tokens, const RowSpan& row, index_t t) {
    return tokens.at(tokens.first(row.row, row.begin), t);
  }
};

/// Token t of a General row: what TokenTerms (loss/engine/token_terms.hpp) calls `from`.
template <class C, class S>
struct DeviceToken {
  const DeviceBatch<S>& batch;
  RowSpan row;
  index_t t;
#define GDPO_X(in_batch, in_row, ...)                                                 \
  GDPO_INLINE bool has_##in_row() const { return static_cast<bool>(batch.in_batch); } \
  GDPO_INLINE C in_row() const { return read(batch.in_batch); }
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X

  /// The token with every input that does not depend on the level; 0 for arrays that the batch does
  /// not have. A token that is not valid is not read.
  GDPO_INLINE Token<C> load(bool valid, C advantage, C row_advantage) const {
    Token<C> x{};
    if (!valid) return x;
    x.logp = read(batch.logp);
    x.old_logp = has_old_logp() ? read(batch.old_logp) : x.logp;
#define GDPO_X(in_batch, in_row, in_token, ...) \
  if (batch.in_batch) x.in_token = read(batch.in_batch);
    GDPO_OTHER_LOGPS(GDPO_X)
#undef GDPO_X
    if (batch.tags) x.tag = read(batch.tags);
    x.advantage = has_advantages() ? read(batch.token_advantages) : advantage;
    x.row_advantage = row_advantage;
    x.token_log_ratio = has_old_logp() ? x.logp - x.old_logp : C(0);
    return x;
  }

 private:
  GDPO_INLINE C read(const DeviceTokens<S>& tokens) const {
    return static_cast<C>(DeviceBatch<S>::at(tokens, row, t));
  }
};

/// Which arrays a Plain row has. Their numbers are already in the token, so the terms never ask for
/// one.
template <class C, bool WithKl>
struct PlainArrays {
#define GDPO_X(in_batch, in_row, in_token, read, in_plain)                     \
  GDPO_INLINE bool has_##in_row() const {                                      \
    return gdpo::detail::is_in_plain(gdpo::detail::InPlain::in_plain, WithKl); \
  }                                                                            \
  GDPO_INLINE C in_row() const { return C(0); }
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
};

}  // namespace detail

/// What a loss on a device is divided by: counts that the host knows, or counts in device memory.
/// Both convert to it, so a call takes a Normaliser or a pointer to one.
class DeviceNormaliser {
 public:
  /// Counts that the host knows. They are checked, as on the host.
  DeviceNormaliser(const Normaliser& value) : value_(value) {}
  /// Counts on the device, as count_into() leaves them. The call reads them when it runs on the
  /// stream, and does not check them.
  DeviceNormaliser(const Normaliser* on_device) : on_device_(on_device) {}
  /// The counts, for a kernel.
  GDPO_INLINE Normaliser operator()() const { return on_device_ ? *on_device_ : value_; }
  /// The counts that the host knows; null: they are on the device.
  const Normaliser* known() const { return on_device_ ? nullptr : &value_; }

 private:
  Normaliser value_{};
  const Normaliser* on_device_ = nullptr;
};

}  // namespace cuda
GDPO_END_NAMESPACE
