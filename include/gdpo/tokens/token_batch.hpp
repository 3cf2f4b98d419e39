#pragma once
// TokenBatch: the arrays that a loss, a pre-pass or a count reads about its tokens.
#include <gdpo/tokens/array_list.hpp>
#include <gdpo/tokens/metric.hpp>
#include <gdpo/tokens/token_view.hpp>

GDPO_BEGIN_NAMESPACE

/// What prepare() on a device finds out about the numbers of a batch, in device memory.
struct PrepassFindings {
  NonFinite rollout;                          ///< As TokenBatch::rollout_non_finite.
  double entropy_threshold = math::infinity;  ///< As TokenBatch::entropy_threshold.
};

/// What prepare() leaves in a batch, so that count() and a loss can refuse one that is used in the
/// wrong order. A batch that it has not prepared has the initial values.
struct Prepared {
  /// How many calls of prepare() have changed the mask. count() writes it into the Normalizer.
  int mask_changes = 0;
  /// How often the PrepassMemory of this batch has been used; null: its arrays are the caller's.
  const std::uint64_t* uses = nullptr;
  /// The number of uses when this batch was prepared. If `uses` has grown since, the masks and
  /// weights of this batch are overwritten.
  std::uint64_t use = 0;
  /// In device memory, if the batch was prepared there: losses on a device report them in place of
  /// the members of the batch. Else null.
  const PrepassFindings* on_device = nullptr;
};

/// The tokens of one (micro-)batch, with everything that a loss reads about them.
///
/// A row is one sequence (a completion); B is the number of rows.
///
///     gdpo::TokenBatch<float> batch;
///     batch.logp = gdpo::view(logp, rows, width);          // padded, (B, T)
///     batch.old_logp = gdpo::view(old_logp, rows, width);
///     batch.mask = gdpo::view(mask, rows, width);
///     batch.advantages = gdpo::view(advantages, rows);     // (B)
///
/// A padded array may also have rank 3, (prompts, completions, T): its B rows are in the order of
/// the first two axes. Packed batches have token arrays of rank 1 and `offsets` (cu_seqlens): row i
/// is the tokens offsets[i] .. offsets[i + 1] - 1. All token arrays of a batch have the same shape.
///
/// Columns have one number for each row, (B); beside tokens of rank 3 they may be (prompts,
/// completions), as may any column whose rows are in that order.
///
/// S is the type that numbers are read as and that the gradient has: float, also for arrays of
/// 16-bit floats, or double. The members are views: the arrays must outlive the calls.
///
/// Only `logp` and one of the two advantages are required by a loss. Before the forward pass there
/// are no log-probs: count() and prepare() take a batch without them, whose shape is that of the
/// first array that is there. Masked tokens may hold anything, even NaN: they change no bit of a
/// result.
template <class S = float>
struct TokenBatch {
  static_assert(std::is_same_v<S, float> || std::is_same_v<S, double>,
                "a TokenBatch is of float or double");
  /// The type that numbers are read as and that the gradient has.
  using Scalar = S;

  /// Log-probs of the tokens under the policy being trained, in nats. Required by a loss.
  TokenView<S> logp;
  /// Log-probs under the policy that the ratio is against: the one that sampled, or the proximal
  /// one. Absent: the step is on-policy, and the ratio is exactly 1.
  TokenView<S> old_logp;
  /// Log-probs under the reference policy. Needed, and read, only where a KL term against it has
  /// beta != 0, or a policy declares `reads_ref`.
  TokenView<S> ref_logp;
  /// Log-probs under the policy that sampled, as the sampling engine reported them. For pre-passes
  /// that compare them with old_logp, and for KL terms with Against::Rollout.
  TokenView<S> rollout_logp;
  /// Log-probs under a teacher, for KL terms with Against::Teacher.
  TokenView<S> teacher_logp;

  /// (B) One advantage per row. Required, unless token_advantages are given.
  Column advantages;
  /// One advantage per token, instead of one per row.
  TokenView<S> token_advantages;

  /// 0: the token does not belong to the loss; every other number, also NaN, lets it in. Absent:
  /// all tokens do.
  TokenView<unsigned char> mask;
  /// (B + 1) Where each row begins and the last one ends. Required for packed batches only.
  IndexColumn offsets;
  /// Ids of segments (turns, for example). At a level of segments, a run of equal ids in a row
  /// shares one ratio; at level::Token they have no meaning. Absent: each row is one segment.
  /// Segments that follow each other need different ids, even if masked tokens lie between them.
  /// The ids of masked tokens do not matter.
  TokenView<std::int64_t> segments;

  /// (B) Factor of the row's weight W_i, at least 0. Absent: 1. A loss on the host refuses a
  /// negative one of a row with valid tokens; on a device, where nobody looks first, it counts.
  Column row_weights;
  /// (B) Number of valid tokens in all rows of the row's group, in the whole step
  /// (tokens/count_groups.hpp). Needed, and read, only where an aggregate is a mean over groups
  /// (Aggregate::Mode::GroupMean). A loss on the host refuses a number that is less than the valid
  /// tokens of its row, or not finite; on a device, where nobody looks first, it counts.
  Column group_tokens;
  /// Factor of the surrogate, at least 0; no gradient flows through it. Pre-passes write it.
  /// Absent: 1. No call looks at each token for a negative factor, which counts as it is and clips
  /// the wrong side: negate the advantage instead.
  TokenView<S> weights;
  /// Factor of the KL terms, like weights.
  TokenView<S> kl_weights;
  /// Factor of the entropies in an EntropyBonus, like weights; any sign. Pre-passes with
  /// Reach::Entropy write it.
  TokenView<S> entropy_weights;
  /// Logs of weights of the ratio, in nats: at levels of segments the sum over the valid tokens of
  /// a segment is added to its log ratio (gdpo::level). No gradient flows through it. A number that
  /// belongs to the whole segment stands at one of its valid tokens, with 0 at the others.
  /// Pre-passes with Reach::Level write it. Absent: 0. Refused at level::Token, whose tokens have
  /// Factor `weights` instead. An infinite sum goes to the bound of the level. A NaN makes the
  /// ratio of the segment NaN, as one in old_logp does. NonFiniteInputs::weights counts both.
  TokenView<S> level_log_weights;
  /// Numbers of the caller's own, for policies that read Token::tag.
  TokenView<S> tags;

  /// Entropies of the tokens in nats, for an EntropyBonus, metrics and prepass::TopEntropy.
  TokenView<S> entropies;
  /// (B) Not 0: the completion reached the length limit. For metrics only.
  Column truncated;
  /// Not 0: the token counts towards LossMetrics::completion_length. Absent: mask. prepare() fills
  /// it, so that lengths are those of the completions as they were sampled.
  TokenView<unsigned char> completion_mask;
  /// What prepare() found in rollout_logp, for LossMetrics::non_finite. A loss that does not read
  /// that array reports this instead.
  NonFinite rollout_non_finite;
  /// The threshold that prepass::TopEntropy took, in nats, for LossMetrics. prepare() fills it; of
  /// several it is the last that ran: first those on the mask, then those on the surrogate and the
  /// KL terms, then those on the entropies.
  double entropy_threshold = math::infinity;
  /// What prepare() did to this batch, by which calls refuse a wrong order.
  Prepared prepared;
};

namespace detail {

/// Which of the optional arrays a loss reads.
struct TokenReads {
  bool ref = true, rollout = true, teacher = true, tags = true;
  static constexpr bool always = true;

  static constexpr TokenReads none() {
    TokenReads reads;
    reads.ref = reads.rollout = reads.teacher = reads.tags = false;
    return reads;
  }
};

#define GDPO_ONE_MORE(...) +1
constexpr int token_arrays = 0 GDPO_TOKEN_ARRAYS(GDPO_ONE_MORE);
constexpr int token_marks = 0 GDPO_TOKEN_MARKS(GDPO_ONE_MORE);
constexpr int row_columns = 0 GDPO_ROW_COLUMNS(GDPO_ONE_MORE);
#undef GDPO_ONE_MORE
static_assert(sizeof(TokenBatch<float>) == (token_arrays + token_marks) * sizeof(TokenView<float>) +
                                               row_columns * sizeof(Column) + sizeof(IndexColumn) +
                                               sizeof(NonFinite) + sizeof(double) +
                                               sizeof(Prepared),
              "a new array of TokenBatch needs its line in tokens/array_list.hpp");

}  // namespace detail
GDPO_END_NAMESPACE
