#pragma once
// The arrays of a TokenBatch, each on one line. Everything that walks over them is made from these lists: the rows that the
// loss and the pre-passes read, their scratch, the checks of shapes, the batch of a device, the counters of inputs that are not
// finite. A new array is a documented member of TokenBatch, a line here, and the statement that uses it.

/// Numbers that policies see, in a gdpo::Token, and that LossMetrics::non_finite counts where they are not finite.
///
///   in TokenBatch     in TokenRow    in Token      read where             in a Plain row (loss/engine/span.hpp)
///   token_advantages  advantages     advantage     a flag of TokenReads   InPlain
#define GDPO_POLICY_INPUTS(X)                                  \
  X(logp, logp, logp, always, Needed)                          \
  X(old_logp, old_logp, old_logp, always, Needed)              \
  X(ref_logp, ref_logp, ref_logp, ref, WithKl)                 \
  X(rollout_logp, rollout_logp, rollout_logp, rollout, Absent) \
  X(teacher_logp, teacher_logp, teacher_logp, teacher, Absent) \
  X(token_advantages, advantages, advantage, always, Absent)

/// All numbers that are counted where they are not finite: a member of NonFiniteInputs each.
#define GDPO_COUNTED_INPUTS(X)              \
  GDPO_POLICY_INPUTS(X)                     \
  X(weights, weights, none, always, Absent) \
  X(entropies, entropies, none, always, Absent)

/// All arrays of numbers, one a token.
#define GDPO_TOKEN_ARRAYS(X)                      \
  GDPO_COUNTED_INPUTS(X)                          \
  X(kl_weights, kl_weights, none, always, Absent) \
  X(tags, tags, tag, tags, Absent)

/// What marks tokens instead of measuring them, with the type that it is read as.
#define GDPO_TOKEN_MARKS(X)         \
  X(mask, unsigned char)            \
  X(completion_mask, unsigned char) \
  X(segments, std::int64_t)

/// One number a row, with the type that it is read as.
#define GDPO_ROW_COLUMNS(X) \
  X(advantages, double)     \
  X(row_weights, double)    \
  X(truncated, double)
