#pragma once
// Random token batches for benchmarks, the same in every run. No ratio is so near an edge of the
// clip range that rounding decides whether it is clipped.
#include <cmath>
#include <cstdint>
#include <gdpo/loss.hpp>
#include <random>
#include <vector>

#include "naive.hpp"

struct TokenData {
  gdpo::index_t rows, width;
  std::vector<float> logp, old_logp, ref_logp, advantages, gradient;
  std::vector<unsigned char> mask;    // the last tokens of a row, at most a sixteenth, are padding
  std::vector<std::int64_t> offsets;  // the same tokens as a packed batch, the padding included

  /// sd: standard deviation of the log-ratios, to the old policy and to the reference policy.
  TokenData(gdpo::index_t rows_, gdpo::index_t width_, double sd = 0.1, unsigned seed = 1)
      : rows(rows_), width(width_), advantages(static_cast<std::size_t>(rows_)) {
    const auto tokens = static_cast<std::size_t>(rows * width);
    for (auto* array : {&logp, &old_logp, &ref_logp, &gradient}) array->resize(tokens);
    mask.resize(tokens);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.001f, 1);
    std::uniform_int_distribution<gdpo::index_t> padding(0, width / 16);
    const auto near = [](float x, double edge) {
      return std::abs(std::exp(double(x)) - edge) < 1e-4;
    };
    for (gdpo::index_t i = 0, k = 0; i < rows; ++i) {
      // With a mean of 0 the terms of the loss would cancel, and rounding would dominate its error.
      advantages[static_cast<std::size_t>(i)] = 0.5f + normal(random);
      const gdpo::index_t length = width - padding(random);
      for (gdpo::index_t t = 0; t < width; ++t, ++k) {
        const auto at = static_cast<std::size_t>(k);
        logp[at] = std::log(uniform(random));
        do {
          old_logp[at] = logp[at] + static_cast<float>(sd) * normal(random);
        } while (near(logp[at] - old_logp[at], 0.8) || near(logp[at] - old_logp[at], 1.2));
        ref_logp[at] = logp[at] + static_cast<float>(sd) * normal(random);
        mask[at] = t < length;
      }
    }
    for (gdpo::index_t i = 0; i <= rows; ++i) offsets.push_back(i * width);
  }

  naive::GrpoBatch as_naive(bool masked = true, double beta = 0.04) const {
    return {rows,
            width,
            logp.data(),
            old_logp.data(),
            ref_logp.data(),
            masked ? mask.data() : nullptr,
            advantages.data(),
            0.2,
            0.2,
            beta};
  }
  gdpo::TokenBatch<float> padded() const {
    gdpo::TokenBatch<float> batch =
        arrays([this](const auto* data) { return gdpo::view(data, rows, width); });
    batch.mask = gdpo::view(mask.data(), rows, width);
    return batch;
  }
  /// Packed, without a mask: the padding counts as well.
  gdpo::TokenBatch<float> packed() const {
    gdpo::TokenBatch<float> batch =
        arrays([this](const auto* data) { return gdpo::view(data, rows * width); });
    batch.offsets = gdpo::view(offsets);
    return batch;
  }
  gdpo::TokenOut<float> padded_gradient() { return gdpo::view(gradient.data(), rows, width); }
  gdpo::TokenOut<float> packed_gradient() { return gdpo::view(gradient.data(), rows * width); }

 private:
  template <class ToView>
  gdpo::TokenBatch<float> arrays(const ToView& to_view) const {
    gdpo::TokenBatch<float> batch;
    batch.logp = to_view(logp.data());
    batch.old_logp = to_view(old_logp.data());
    batch.ref_logp = to_view(ref_logp.data());
    batch.advantages = gdpo::view(advantages);
    return batch;
  }
};
