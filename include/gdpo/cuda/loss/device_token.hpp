#pragma once
// One token of a batch on a device, as TokenTerms reads it.
#include <gdpo/cuda/tokens/device_batch.hpp>
#include <gdpo/loss/shared/row_shape.hpp>
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Which arrays of numbers a batch has.
template <class S>
gdpo::detail::TokenArrays arrays_of(const DeviceBatch<S>& batch) {
  gdpo::detail::TokenArrays has;
#define GDPO_X(in_batch, in_row, ...) has.in_row = static_cast<bool>(batch.in_batch);
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
  return has;
}

/// Token t of a General row: what TokenTerms (loss/shared/token_terms.hpp) calls `from`.
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
}  // namespace cuda
GDPO_END_NAMESPACE
