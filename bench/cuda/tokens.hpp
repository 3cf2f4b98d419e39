#pragma once
// Token batches on the device.
#include <random>

#include "measure.hpp"

namespace bench {

/// The shape of a batch: `count` padded rows of `width` tokens; or packed rows of mixed lengths
/// (width 0), which begin at `offsets`.
struct Rows {
  index_t count = 0, width = 0, tokens = 0;
  std::vector<std::int64_t> offsets;

  static Rows padded(index_t count, index_t width) { return {count, width, count * width, {}}; }
  /// Rows of 1 to 2 * mean tokens. Most of them do not begin at a place where a vector is aligned.
  static Rows packed(index_t tokens, index_t mean) {
    std::mt19937 random(1);
    std::uniform_int_distribution<index_t> length(1, 2 * mean);
    Rows rows{0, 0, tokens, {0}};
    for (; rows.offsets.back() < tokens; ++rows.count) {
      rows.offsets.push_back(
          (std::min)(rows.offsets.back() + length(random), static_cast<std::int64_t>(tokens)));
    }
    return rows;
  }
  /// The first rows, of about `most` tokens together, at least one row.
  Rows first(index_t most) const {
    if (most >= tokens) return *this;
    if (width > 0) return padded((std::max)(most / width, index_t{1}), width);
    Rows rows{1, 0, 0, {0, offsets[1]}};
    for (; offsets[static_cast<std::size_t>(rows.count) + 1] <= most; ++rows.count) {
      rows.offsets.push_back(offsets[static_cast<std::size_t>(rows.count) + 1]);
    }
    rows.tokens = rows.offsets.back();
    return rows;
  }
  /// Makes `to` a view of the tokens at `data`.
  template <class T, class View>
  void put(View& to, T* data) const {
    if (width > 0) {
      to = gdpo::view(data, count, width);
    } else {
      to = gdpo::view(data, tokens);
    }
  }
};

/// A batch of arrays of the host or of the device. `mask` is for padded rows, `offsets` for packed
/// rows.
template <class S>
gdpo::TokenBatch<float> batch_of(const Rows& rows, const S* logp, const S* old_logp,
                                 const S* ref_logp, const unsigned char* mask,
                                 const std::int64_t* offsets, const float* advantages) {
  gdpo::TokenBatch<float> b;
  rows.put(b.logp, logp), rows.put(b.old_logp, old_logp);
  if (ref_logp) rows.put(b.ref_logp, ref_logp);
  if (rows.width > 0) {
    rows.put(b.mask, mask);
  } else {
    b.offsets = gdpo::view(offsets, rows.count + 1);
  }
  b.advantages = gdpo::view(advantages, rows.count);
  return b;
}

/// A random batch on the device: log-probs of a policy in (-7, 0), and of two others whose
/// log-ratios have standard deviation 0.1. At most a sixteenth of a padded row is padding.
template <class S>
struct Tokens {
  Rows rows;
  Array<S> logp, old_logp, ref_logp;
  Array<float> gradient, advantages;
  Array<unsigned char> mask;
  Array<std::int64_t> offsets;
  Array<gdpo::LossResult> result{1};

  /// Bytes that a call must read and write.
  static double bytes_of(const Rows& rows, bool with_ref) {
    const double of_token =
        (with_ref ? 3 : 2) * sizeof(S) + sizeof(float) + (rows.width > 0 ? 1 : 0);
    const double of_row = sizeof(float) + (rows.width > 0 ? 0 : sizeof(std::int64_t));
    return of_token * static_cast<double>(rows.tokens) + of_row * static_cast<double>(rows.count);
  }

  Tokens(const gdpo::cuda::On& on, const Rows& of, unsigned seed)
      : rows(of),
        logp(rows.tokens),
        old_logp(rows.tokens),
        ref_logp(rows.tokens),
        gradient(rows.tokens),
        advantages(rows.count),
        mask(rows.width > 0 ? rows.tokens : 1),
        offsets(rows.count + 1) {
    for_each(
        on, rows.tokens,
        Fill{logp.data(), old_logp.data(), ref_logp.data(), mask.data(), rows.width, 100 * seed});
    // A mean of 0.5: about 0 the terms of the loss would cancel.
    for_each(on, rows.count, Bell<float>{advantages.data(), 1, 0.5f, 100 * seed + 50});
    if (rows.width == 0) offsets.copy(rows.offsets);
  }
  gdpo::TokenBatch<float> batch(bool with_ref) const {
    return batch_of(rows, logp.data(), old_logp.data(), with_ref ? ref_logp.data() : nullptr,
                    mask.data(), offsets.data(), advantages.data());
  }
  gdpo::TokenOut<float> out() const {
    gdpo::TokenOut<float> view;
    rows.put(view, gradient.data());
    return view;
  }

  struct Fill {
    S *logp, *old_logp, *ref_logp;
    unsigned char* mask;
    index_t width;  // 0: no mask
    unsigned seed;
    GDPO_DEVICE void operator()(index_t i) const {
      const float x = -7 * uniform(i, seed);
      bench::put(logp[i], x);
      bench::put(old_logp[i], x + 0.1f * bell(i, seed + 10));
      bench::put(ref_logp[i], x + 0.1f * bell(i, seed + 20));
      if (width == 0) return;
      const index_t row = i / width, t = i % width;
      mask[i] =
          static_cast<float>(width - t) > uniform(row, seed + 30) * static_cast<float>(width) / 16
              ? 1
              : 0;
    }
  };
};

}  // namespace bench
