// One training step from logits: a small batch with every array that a loss may read, in memory of
// the host or of a device.
#pragma once
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <reference/naive_logits.hpp>

#include "support/logits.hpp"

namespace logits_step {

/// A loss of the caller's that is not a PolicyLoss. It has the members that the library asks for,
/// and no others.
struct OwnLoss {
  gdpo::level::Token<> level;
  gdpo::surrogate::Ratio surrogate{0.1, 0.3};
  gdpo::Kl<gdpo::kl::K2> kl{0.02};
  gdpo::Aggregate aggregate = gdpo::aggregate::token_mean();
  gdpo::Factors<> factor;
  static constexpr gdpo::metrics::All metrics{};
};

/// Four sequences of five tokens. The mask hides the whole second sequence and some other tokens;
/// their rows of logits hold NaN. Packed, the same tokens are sequences of lengths 5, 0, 8 and 7.
constexpr int sequences = 4, width = 5, tokens = sequences * width;

/// The arrays. Array is std::vector, or OnDevice (support/device.hpp), which is made from a vector
/// and also has data().
template <class T, template <class...> class Array = std::vector>
struct Step {
  int vocabulary;
  Array<T> logits;
  Array<std::int64_t> targets, segments;
  Array<float> old_logp, ref_logp, weights, token_advantages;
  Array<unsigned char> mask;
  Array<double> advantages, row_weights;
  Array<std::int32_t> offsets;

  Step(std::uint64_t seed, int entries) : vocabulary(entries), offsets{0, 5, 5, 13, 20} {
    Random random(seed);
    for (int k = 0; k < tokens; ++k) {
      mask.push_back(k / width != 1 && random.chance(0.8));
      targets.push_back(mask.back() ? random.below(vocabulary) : -100);
      for (const float x : logit_cases::row(random, logit_cases::Kind::Normal, vocabulary)) {
        T element;
        gdpo::store(element, mask.back() ? x : std::nanf(""));
        logits.push_back(element);
      }
      const double logp = mask.back() ? static_cast<double>(naive_logp(k)) : std::nan("");
      // Some ratios are clipped, but none is within 1e-3 of a clip bound: log ratios are multiples
      // of 1/64, and log 0.8 and log 1.2 lie between two of them.
      old_logp.push_back(
          static_cast<float>(logp + std::round(64 * 0.3 * logit_cases::normal(random)) / 64));
      ref_logp.push_back(static_cast<float>(logp + 0.3 * logit_cases::normal(random)));
      weights.push_back(static_cast<float>(random.pick({0.0, 0.5, 1.0})));
      token_advantages.push_back(static_cast<float>(logit_cases::normal(random)));
      segments.push_back(k % width < 2);
    }
    for (int i = 0; i < sequences; ++i) {
      advantages.push_back(logit_cases::normal(random));
      row_weights.push_back(random.pick({0.0, 1.0, 2.0}));
    }
  }
  /// A copy of the arrays in other memory.
  template <template <class...> class Other>
  explicit Step(const Step<T, Other>& s)
      : vocabulary(s.vocabulary),
        logits(s.logits),
        targets(s.targets),
        segments(s.segments),
        old_logp(s.old_logp),
        ref_logp(s.ref_logp),
        weights(s.weights),
        token_advantages(s.token_advantages),
        mask(s.mask),
        advantages(s.advantages),
        row_weights(s.row_weights),
        offsets(s.offsets) {}

  naive::Softmax softmax(int k) const {
    std::vector<double> row;
    for (int j = 0; j < vocabulary; ++j)
      row.push_back(gdpo::load(logits[static_cast<std::size_t>(k * vocabulary + j)]));
    return naive::softmax(row, row.size(), 1);
  }
  long double naive_logp(int k) const {
    return softmax(k).logp(static_cast<std::size_t>(targets[static_cast<std::size_t>(k)]));
  }
};

/// Views of a step: logits (N, V) with packed sequences (Rank 2), or (B, T, V) padded (Rank 3).
template <class T, int Rank, template <class...> class Array = std::vector>
struct Layout {
  Step<T, Array>& s;

  template <class Values>
  static auto by_token(Values& values) {
    if constexpr (Rank == 2) {
      return gdpo::view(values.data(), tokens);
    } else {
      return gdpo::view(values.data(), sequences, width);
    }
  }
  template <class Values>
  auto table(Values& values) const {
    if constexpr (Rank == 2) {
      return gdpo::view(values.data(), tokens, s.vocabulary);
    } else {
      return gdpo::view(values.data(), sequences, width, s.vocabulary);
    }
  }
  gdpo::LogitBatch<T, Rank> logits() const {
    gdpo::LogitBatch<T, Rank> batch;
    batch.logits = table(s.logits);
    batch.targets = by_token(s.targets);
    return batch;
  }
  /// The token arrays. Each bit of `options` adds an array that a batch may have: 1 advantages by
  /// token (else one per row), 2 weights, 4 row weights, 8 segments.
  gdpo::TokenBatch<float> batch(int options) const {
    gdpo::TokenBatch<float> b;
    b.old_logp = by_token(s.old_logp);
    b.ref_logp = b.rollout_logp = by_token(s.ref_logp);
    b.mask = by_token(s.mask);
    if (options & 1) {
      b.token_advantages = by_token(s.token_advantages);
    } else {
      b.advantages = gdpo::view(s.advantages.data(), sequences);
    }
    if (options & 2) b.weights = by_token(s.weights);
    if (options & 4) b.row_weights = gdpo::view(s.row_weights.data(), sequences);
    if (options & 8) b.segments = by_token(s.segments);
    if (Rank == 2) b.offsets = gdpo::view(s.offsets.data(), sequences + 1);
    return b;
  }
};

}  // namespace logits_step
