#pragma once
// Token batches on the device.
#include "measure.hpp"

namespace bench {

/// Log-probs of a policy in (-7, 0) and two others with log-ratios of standard deviation 0.1; up to a sixteenth of a row is padding.
template <class S>
struct Tokens {
  index_t rows, width;
  Array<S> logp, old_logp, ref_logp;
  Array<float> gradient, advantages;
  Array<unsigned char> mask;
  Array<gdpo::LossResult> result{1};

  static double bytes_a_token(bool with_ref) { return (with_ref ? 3 : 2) * sizeof(S) + sizeof(float) + 1; }

  Tokens(const gdpo::cuda::On& on, index_t rows_, index_t width_, unsigned seed)
      : rows(rows_),
        width(width_),
        logp(rows * width),
        old_logp(rows * width),
        ref_logp(rows * width),
        gradient(rows * width),
        advantages(rows),
        mask(rows * width) {
    for_each(on, rows * width, Fill{logp.data(), old_logp.data(), ref_logp.data(), mask.data(), width, 100 * seed});
    for_each(on, rows, Bell<float>{advantages.data(), 1, 0.5f, 100 * seed + 50});  // about 0 the loss would cancel
  }
  gdpo::TokenBatch<float> batch(bool with_ref) const {
    const auto of = [this](const auto& array) { return gdpo::view(array.data(), rows, width); };
    gdpo::TokenBatch<float> b;
    b.logp = of(logp), b.old_logp = of(old_logp), b.mask = of(mask);
    if (with_ref) b.ref_logp = of(ref_logp);
    b.advantages = gdpo::view(advantages.data(), rows);
    return b;
  }
  gdpo::View<float, 2> out() const { return gdpo::view(gradient.data(), rows, width); }

  struct Fill {
    S *logp, *old_logp, *ref_logp;
    unsigned char* mask;
    index_t width;
    unsigned seed;
    GDPO_DEVICE void operator()(index_t i) const {
      const float x = -7 * uniform(i, seed);
      put(logp[i], x);
      put(old_logp[i], x + 0.1f * bell(i, seed + 10));
      put(ref_logp[i], x + 0.1f * bell(i, seed + 20));
      const index_t row = i / width, t = i % width;
      mask[i] = static_cast<float>(width - t) > uniform(row, seed + 30) * static_cast<float>(width) / 16 ? 1 : 0;
    }
  };
};

}  // namespace bench
