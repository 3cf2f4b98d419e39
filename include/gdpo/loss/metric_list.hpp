#pragma once
// Lists of the metrics of a loss call, one metric per line. The members of LossMetrics, its merge,
// the keys of to_map() and every sum on the host and on devices are generated from these lists. To
// add a metric, write a line here and the code that computes it (loss/engine/token_terms.hpp, or
// the end of a row in loss/engine/row_loss.hpp).
//
// The columns of a line:
//   member       its name in LossMetrics and among the sums
//   added in     the loop over tokens that adds it: Ratios, the first, or Terms, the second. The
//                ratio of a level of segments is added once for the segment instead
//   kept by      the smallest set of metrics that reports it: Means or All. Loss is as Means, but
//                the sum is always computed, because the loss itself needs it
//   where        when it is measured: Always, or only WithKl, WithEntropies or WithBounds (a level
//                that has a map or bounds)
//   keys         the keys of to_map(), each with what it writes: mean over tokens; row_mean,
//                row_min or row_max of the means of rows; share, which is the mean over tokens, or
//                row_mean if LossMetrics::one_ratio_a_row

/// Numbers of a token that are added token by token, with their range. Some ends of these ranges
/// follow from others at the end of the call (keeps_min and keeps_max in loss/engine/tally.hpp).
#define GDPO_TOKEN_SUMS(X)                                                                     \
  /* The surrogate times w, the product of factors and weights. */                             \
  X(surrogate, Terms, Loss, Always, keys())                                                    \
  /* The first KL term that is on, without beta and weights. */                                \
  X(kl, Terms, Loss, WithKl, keys("kl", mean))                                                 \
  /* old_logp - logp in nats, after the level's map. */                                        \
  X(approx_kl_k1, Ratios, Means, Always, keys())                                               \
  /* r - 1 - log r of the token's own ratio r, after the map: estimates KL(old || policy). */  \
  X(approx_kl_k3, Ratios, Means, Always, keys())                                               \
  /* TokenBatch::entropies. TRL logs the mean over tokens, ms-swift those over completions. */ \
  X(entropy, Terms, Means, WithEntropies,                                                      \
    keys("entropy", mean, "entropy/mean", row_mean, "entropy/max", row_max, "entropy/min",     \
         row_min))                                                                             \
  /* The level's ratio. */                                                                     \
  X(ratio, Terms, Means, Always, keys())

/// Numbers of a token whose sum over a row follows from other sums at the end of the row.
#define GDPO_ROW_SUMS(X)                                                            \
  /* w surrogate + sum of beta w' kl over the KL terms, before the row's weight. */ \
  X(loss, Terms, Means, Always, keys())

/// Shares of the tokens, counted token by token.
#define GDPO_TOKEN_COUNTS(X)                                                      \
  /* Term::low. For surrogate::Ratio: A < 0 and min(ratio, delta) < 1 - low. */   \
  X(clip_fraction_low, Terms, Means, Always,                                      \
    keys("clip_ratio/low_mean", share, "clip_ratio/low_min", row_min))            \
  /* Term::high. For surrogate::Ratio: A > 0 and min(ratio, delta) > 1 + high. */ \
  X(clip_fraction_high, Terms, Means, Always,                                     \
    keys("clip_ratio/high_mean", share, "clip_ratio/high_max", row_max))          \
  /* Term::outside: the ratio is outside the range, whatever the advantage. */    \
  X(clip_fraction_any, Terms, All, Always, keys())                                \
  /* Term::dual: the dual clip holds the loss. */                                 \
  X(dual_clip_fraction, Terms, All, Always, keys())                               \
  /* The map or the bounds of the level hold the log ratio. */                    \
  X(log_ratio_bounded, Terms, All, WithBounds, keys())                            \
  /* A clamp of the first KL term that is on holds. */                            \
  X(kl_bounded, Terms, All, WithKl, keys())

/// Shares of the tokens that follow from other counts at the end of a row.
#define GDPO_ROW_COUNTS(X)                                    \
  /* clip_fraction_low + clip_fraction_high; TRL's region. */ \
  X(clip_fraction, Terms, Means, Always, keys("clip_ratio/region_mean", share))

/// Numbers of a whole row, always kept.
#define GDPO_ROW_METRICS(X)                                                                \
  /* Number of tokens in the completion, before pre-passes drop some. */                   \
  X(completion_length, keys("completions/mean_length", row_mean, "completions/min_length", \
                            row_min, "completions/max_length", row_max))                   \
  /* 1 where TokenBatch::truncated is not 0; TRL's completions/clipped_ratio. */           \
  X(clipped_completions, keys("completions/clipped_ratio", row_mean))                      \
  /* 1 where a log-prob of the row's first token is positive, by more than rounding. */    \
  X(positive_logp, keys())

/// All metrics of tokens.
#define GDPO_TOKEN_METRICS(X) \
  GDPO_TOKEN_SUMS(X)          \
  GDPO_ROW_SUMS(X)            \
  GDPO_TOKEN_COUNTS(X)        \
  GDPO_ROW_COUNTS(X)
