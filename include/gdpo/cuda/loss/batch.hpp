#pragma once
// A TokenBatch as kernels read it.
#include <gdpo/cuda/device/array.hpp>
#include <gdpo/loss/engine/rows.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::RowSpan;

template <class S>
struct DeviceBatch {
  DeviceTokens<S> logp, old_logp, ref_logp, rollout_logp, teacher_logp, token_advantages, weights, kl_weights, tags,
      entropies;
  DeviceTokens<unsigned char> mask, completion_mask;
  DeviceTokens<std::int64_t> segments;
  DeviceColumn<double> advantages, row_weights, truncated;
  DeviceColumn<index_t> offsets;
  index_t rows = 0, width = 0, tokens = 0;

  /// What the loss does not read stays absent.
  DeviceBatch(const char* function, const TokenBatch<S>& b, const gdpo::detail::TokenLayout& layout,
              const gdpo::detail::TokenReads& reads)
      : logp(function, "batch.logp", b.logp),
        old_logp(function, "batch.old_logp", b.old_logp),
        token_advantages(function, "batch.token_advantages", b.token_advantages),
        weights(function, "batch.weights", b.weights),
        kl_weights(function, "batch.kl_weights", b.kl_weights),
        entropies(function, "batch.entropies", b.entropies),
        mask(function, "batch.mask", b.mask),
        completion_mask(function, "batch.completion_mask", b.completion_mask),
        segments(function, "batch.segments", b.segments),
        advantages(function, "batch.advantages", b.advantages),
        row_weights(function, "batch.row_weights", b.row_weights),
        truncated(function, "batch.truncated", b.truncated),
        offsets(function, "batch.offsets", layout.offsets),
        rows(layout.rows),
        width(layout.width),
        tokens(layout.tokens) {
    if (rows > INT_MAX) {
      contract::fail(function, "batch.logp", contract::text(rows) + " rows", "fewer than 2^31");
    }
    if (reads.ref) ref_logp = {function, "batch.ref_logp", b.ref_logp};
    if (reads.rollout) rollout_logp = {function, "batch.rollout_logp", b.rollout_logp};
    if (reads.teacher) teacher_logp = {function, "batch.teacher_logp", b.teacher_logp};
    if (reads.tags) tags = {function, "batch.tags", b.tags};
  }

  /// Offsets that decrease or exceed the tokens, which the host cannot see, make rows shorter: nothing else is read.
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

/// Token t of a row, for TokenTerms (loss/engine/token_terms.hpp).
template <class C, class S>
struct DeviceToken {
  const DeviceBatch<S>& batch;
  RowSpan row;
  index_t t;
  GDPO_INLINE bool has_old() const { return static_cast<bool>(batch.old_logp); }
  GDPO_INLINE bool has_ref() const { return static_cast<bool>(batch.ref_logp); }
  GDPO_INLINE bool has_rollout() const { return static_cast<bool>(batch.rollout_logp); }
  GDPO_INLINE bool has_teacher() const { return static_cast<bool>(batch.teacher_logp); }
  GDPO_INLINE bool has_advantages() const { return static_cast<bool>(batch.token_advantages); }
  GDPO_INLINE bool has_weights() const { return static_cast<bool>(batch.weights); }
  GDPO_INLINE bool has_kl_weights() const { return static_cast<bool>(batch.kl_weights); }
  GDPO_INLINE bool has_entropies() const { return static_cast<bool>(batch.entropies); }
  GDPO_INLINE C weight() const { return read(batch.weights); }
  GDPO_INLINE C kl_weight() const { return read(batch.kl_weights); }
  GDPO_INLINE C entropy() const { return read(batch.entropies); }

  /// All but what the level makes of it; 0 where the batch has nothing. Not valid: nothing is read.
  GDPO_INLINE Token<C> load(bool valid, C advantage, C row_advantage) const {
    Token<C> x{};
    if (!valid) return x;
    x.logp = read(batch.logp);
    x.old_logp = has_old() ? read(batch.old_logp) : x.logp;
    if (has_ref()) x.ref_logp = read(batch.ref_logp);
    if (has_rollout()) x.rollout_logp = read(batch.rollout_logp);
    if (has_teacher()) x.teacher_logp = read(batch.teacher_logp);
    if (batch.tags) x.tag = read(batch.tags);
    x.advantage = has_advantages() ? read(batch.token_advantages) : advantage;
    x.row_advantage = row_advantage;
    x.token_log_ratio = has_old() ? x.logp - x.old_logp : C(0);
    return x;
  }

 private:
  GDPO_INLINE C read(const DeviceTokens<S>& tokens) const { return static_cast<C>(DeviceBatch<S>::at(tokens, row, t)); }
};

/// A row of which nothing but the arrays of a Plain shape is looked at.
template <class C>
struct NoMore {
  GDPO_INLINE bool has_old() const { return true; }
  GDPO_INLINE bool has_ref() const { return false; }
  GDPO_INLINE bool has_rollout() const { return false; }
  GDPO_INLINE bool has_teacher() const { return false; }
  GDPO_INLINE bool has_advantages() const { return false; }
  GDPO_INLINE bool has_weights() const { return false; }
  GDPO_INLINE bool has_kl_weights() const { return false; }
  GDPO_INLINE bool has_entropies() const { return false; }
  GDPO_INLINE C weight() const { return C(1); }
  GDPO_INLINE C kl_weight() const { return C(1); }
  GDPO_INLINE C entropy() const { return C(0); }
};

}  // namespace detail

/// What a loss on a device is divided by: counts that the host knows, or those that count_into() left on the device.
class DeviceNormaliser {
 public:
  DeviceNormaliser(const Normaliser& value) : value_(value) {}
  DeviceNormaliser(const Normaliser* on_device) : on_device_(on_device) {}
  GDPO_INLINE Normaliser operator()() const { return on_device_ ? *on_device_ : value_; }
  /// Known to the host.
  const Normaliser* known() const { return on_device_ ? nullptr : &value_; }

 private:
  Normaliser value_{};
  const Normaliser* on_device_ = nullptr;
};

}  // namespace cuda
GDPO_END_NAMESPACE
