#pragma once
// The metrics of a loss call, each on one line. The members of LossMetrics, its merge, the keys of
// to_map() and every sum of the host and of devices are made from these lists. A new metric is a
// line here and the statement that computes it (loss/engine/token_terms.hpp, or where a row ends).
//
//   member       of LossMetrics, and of the sums
//   added in     the loop over tokens that adds it: that of their Ratios, or that of their Terms
//   kept by      the metrics:: that reports it: Means (and All) or All; Loss: as Means, and summed
//                always, because the loss itself needs the sum
//   where        Always, or only WithKl, WithEntropies, WithBounds (a map or bounds of the level)
//   keys         what to_map() calls it, and what it writes: mean over tokens; row_mean, row_min and
//                row_max of the means of rows; share: of rows if LossMetrics::one_ratio_a_row

/// A number of a token, summed token by token, with its range.
#define GDPO_TOKEN_SUMS(X)                                                                     \
  /* w surrogate */                                                                            \
  X(surrogate, Terms, Loss, Always, keys())                                                    \
  /* The first KL term that is on, without beta and weights. */                                \
  X(kl, Terms, Loss, WithKl, keys("kl", mean))                                                 \
  /* old_logp - logp, after the level's map, nats. */                                          \
  X(approx_kl_k1, Ratios, Means, Always, keys())                                               \
  /* ratio - 1 - log ratio of the token, after the map: an estimate of KL(old || policy). */   \
  X(approx_kl_k3, Ratios, Means, Always, keys())                                               \
  /* TokenBatch::entropies. TRL logs the mean over tokens, ms-swift those over completions. */ \
  X(entropy, Terms, Means, WithEntropies,                                                      \
    keys("entropy", mean, "entropy/mean", row_mean, "entropy/max", row_max, "entropy/min",     \
         row_min))

/// A number of a token whose sum follows from others where a row ends.
#define GDPO_ROW_SUMS(X)                                       \
  /* The level's. */                                           \
  X(ratio, Terms, Means, Always, keys())                       \
  /* w surrogate + sum beta w' kl, before the row's weight. */ \
  X(loss, Terms, Means, Always, keys())

/// A share of the tokens, counted token by token.
#define GDPO_TOKEN_COUNTS(X)                                              \
  /* ratio < 1 - low and A < 0 */                                         \
  X(clip_fraction_low, Terms, Means, Always,                              \
    keys("clip_ratio/low_mean", share, "clip_ratio/low_min", row_min))    \
  /* ratio > 1 + high and A > 0; the ratio is after `delta`. */           \
  X(clip_fraction_high, Terms, Means, Always,                             \
    keys("clip_ratio/high_mean", share, "clip_ratio/high_max", row_max))  \
  /* The ratio is outside 1 - low .. 1 + high, whatever the advantage. */ \
  X(clip_fraction_any, Terms, All, Always, keys())                        \
  /* Held by the dual clip. */                                            \
  X(dual_clip_fraction, Terms, All, Always, keys())                       \
  /* A map or a bound of the level holds the log ratio. */                \
  X(log_ratio_bounded, Terms, All, WithBounds, keys())                    \
  /* A clamp holds the KL estimate (the first term that is on). */        \
  X(kl_bounded, Terms, All, WithKl, keys())

/// A share of the tokens that follows from others where a row ends.
#define GDPO_ROW_COUNTS(X)                                                   \
  /* Clipped either way; the sign of the advantage counts (TRL's region). */ \
  X(clip_fraction, Terms, Means, Always, keys("clip_ratio/region_mean", share))

/// A number of a row alone, always kept.
#define GDPO_ROW_METRICS(X)                                                                \
  /* Its tokens, before pre-passes. */                                                     \
  X(completion_length, keys("completions/mean_length", row_mean, "completions/min_length", \
                            row_min, "completions/max_length", row_max))                   \
  /* TokenBatch::truncated: TRL's completions/clipped_ratio. */                            \
  X(clipped_completions, keys("completions/clipped_ratio", row_mean))

#define GDPO_TOKEN_METRICS(X) \
  GDPO_TOKEN_SUMS(X)          \
  GDPO_ROW_SUMS(X)            \
  GDPO_TOKEN_COUNTS(X)        \
  GDPO_ROW_COUNTS(X)
