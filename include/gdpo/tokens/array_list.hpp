#pragma once
// Lists of the arrays of a TokenBatch, one array per line. All code that handles every array is
// generated from these lists: the rows that the loss and the pre-passes read, their scratch memory,
// the checks of shapes, the batch on a device, and the counters of inputs that are not finite. To
// add an array, write a documented member of TokenBatch, a line here, and the code that uses it.

/// Arrays of numbers that policies see as members of gdpo::Token. LossMetrics::non_finite counts
/// their values that are not finite.
///
/// The columns of a line:
/// - the member of TokenBatch;
/// - the member of TokenRow, the arrays of one row;
/// - the member of Token, the numbers of one token;
/// - the member of TokenReads that says whether a loss reads the array (`always` is true);
/// - whether a row of a Plain shape has the array (InPlain in loss/shared/row_shape.hpp).
#define GDPO_POLICY_INPUTS(X) \
  GDPO_LOGPS(X)               \
  X(token_advantages, advantages, advantage, always, Absent)

/// The log-probs among the inputs of policies, with the same columns.
#define GDPO_LOGPS(X)                             \
  X(logp, logp, logp, always, Needed)             \
  X(old_logp, old_logp, old_logp, always, Needed) \
  GDPO_OTHER_LOGPS(X)

/// Those that are 0 at the tokens of a batch that does not have them.
#define GDPO_OTHER_LOGPS(X)                                    \
  X(ref_logp, ref_logp, ref_logp, ref, WithKl)                 \
  X(rollout_logp, rollout_logp, rollout_logp, rollout, Absent) \
  X(teacher_logp, teacher_logp, teacher_logp, teacher, Absent)

/// All arrays whose values are counted where they are not finite: each has a counter in
/// NonFiniteInputs.
#define GDPO_COUNTED_INPUTS(X)              \
  GDPO_POLICY_INPUTS(X)                     \
  X(weights, weights, none, always, Absent) \
  X(entropies, entropies, none, always, Absent)

/// All arrays that hold one number per token.
#define GDPO_TOKEN_ARRAYS(X)                                    \
  GDPO_COUNTED_INPUTS(X)                                        \
  X(kl_weights, kl_weights, none, always, Absent)               \
  X(entropy_weights, entropy_weights, none, always, Absent)     \
  X(level_log_weights, level_log_weights, none, always, Absent) \
  X(tags, tags, tag, tags, Absent)

/// Arrays that mark tokens instead of measuring them, with the type that they are read as.
#define GDPO_TOKEN_MARKS(X)         \
  X(mask, unsigned char)            \
  X(completion_mask, unsigned char) \
  X(segments, std::int64_t)

/// Columns of one number per row, with the type that they are read as.
#define GDPO_ROW_COLUMNS(X) \
  X(advantages, double)     \
  X(row_weights, double)    \
  X(group_tokens, double)   \
  X(truncated, double)
