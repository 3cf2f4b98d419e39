#pragma once
// What a loss is divided by: how the losses of the tokens add up to one number.
#include <gdpo/math/check_fields.hpp>
#include <gdpo/tokens/normalizer.hpp>

namespace gdpo {
/// Which count of the Normalizer a loss is divided by.
enum class Over {
  Tokens,        ///< Normalizer::tokens
  Rows,          ///< Normalizer::rows, rows without valid tokens included
  NonEmptyRows,  ///< Normalizer::non_empty_rows
  Given          ///< Normalizer::given, a count of the caller's own
};
/// The enumerators of Over with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Over) {
  using E = Enumerator<Over>;
  return std::array{E{"tokens", Over::Tokens}, E{"rows", Over::Rows},
                    E{"non_empty_rows", Over::NonEmptyRows}, E{"given", Over::Given}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {
/// The name in messages of a count that the caller fills in (Over::Given).
inline constexpr const char* given_count = "normalizer.given (aggregate.over is Over::Given)";
}  // namespace detail

/// The weight W_i of row i in a loss:
///
///     loss = sum over rows i of W_i (sum over valid tokens t of L_it)
///
/// from the number n_i of valid tokens in the row and the counts of the step (`Normalizer`). Below,
/// `count` is the count that `over` names, plus `count_eps`:
///
///     SeqMeanTokenMean      scale / (count (n_i + row_count_eps))   the mean of the rows' means
///     TokenMean             scale / count                           every token weighs the same
///     SeqMeanTokenSum       scale / count                           the mean of the rows' sums
///     SeqMeanTokenSumNorm   scale / (count length)                  the same by one length for all
///     TokenSum              scale                                   the sum over all tokens
///     GroupMean             scale / (count (m_i + row_count_eps))   the mean of the groups' means
///
/// In SeqMeanTokenMean a token weighs less in a longer row: GRPO (arXiv 2402.03300); TRL grpo over
/// Rows; verl "seq-mean-token-mean" over NonEmptyRows with row_count_eps 1e-8. TokenMean is DAPO's
/// (arXiv 2503.14476), TRL's bnpo, and its dapo with Over::Given. SeqMeanTokenSumNorm is Dr.GRPO
/// (arXiv 2503.20783): a token weighs the same in rows of any length. TokenSum is for trainers that
/// put their weights into the advantages or into `TokenBatch::row_weights`.
///
/// In GroupMean, m_i is the number of valid tokens in all rows of the group that row i belongs to,
/// `TokenBatch::group_tokens`, and `count` the number of groups. A token weighs the same in every
/// row of its group, and the groups weigh the same. With the completions of a prompt as a group it
/// is the mean over prompts of ScaleRL (arXiv 2510.13786) and of SkyRL's "prompt_mean"; with the
/// rows that one rollout was split into, slime's mean over `rollout_ids`. Where each row is a group
/// of one, it is SeqMeanTokenMean.
///
/// `TokenBatch::row_weights` multiply W_i. A row without valid tokens weighs 0, whatever the
/// formula gives, and a quotient whose count is 0 is 0; a loss call refuses a count of 0 for a
/// batch with tokens. The functions of namespace aggregate make one of each formula.
///
/// An aggregate of your own is a type with `double operator()(const AggregateArgs&) const`
/// (GDPO_DEVICE in front, if it is to run on a GPU as well). It may have settings
/// (core/fields.hpp); `bool reads_width() const`, true where it reads `AggregateArgs::row.width`,
/// so that packed batches are refused; `bool reads_group() const`, true where it reads
/// `AggregateArgs::row.group_tokens`, so that batches without them are refused; and `const char*
/// divides_by_nothing(const Normalizer&) const`, which names the count that it divides by where
/// that is 0 and else returns null.
struct Aggregate {
  /// The formulas.
  enum class Mode {
    SeqMeanTokenMean,
    TokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenSum,
    GroupMean
  };
  /// The formulas with verl's words for them, as far as verl has them.
  friend GDPO_DATA_INLINE constexpr auto enumerators(Mode) {
    using E = Enumerator<Mode>;
    return std::array{E{"seq-mean-token-mean", Mode::SeqMeanTokenMean},
                      E{"token-mean", Mode::TokenMean},
                      E{"seq-mean-token-sum", Mode::SeqMeanTokenSum},
                      E{"seq-mean-token-sum-norm", Mode::SeqMeanTokenSumNorm},
                      E{"token-sum", Mode::TokenSum},
                      E{"group-mean-token-mean", Mode::GroupMean}};
  }

  Mode mode = Mode::SeqMeanTokenMean;  ///< The formula.
  Over over = Over::Rows;              ///< The count of the step that divides. Not of TokenSum.
  double count_eps = 0;                ///< Added to that count; a trainer's 1e-8.
  /// Factor of the loss. Set it to the data-parallel size where the framework averages gradients
  /// over ranks, to 1 / accumulation steps where each micro-batch is divided by its own counts.
  double scale = 1;
  /// SeqMeanTokenMean and GroupMean: added to the number of tokens of the row or group.
  double row_count_eps = 0;
  /// SeqMeanTokenSumNorm: the length in tokens, the same in every step: the maximal completion
  /// length. It must be more than 0, unless `padded_width` is set.
  double constant = 0;
  /// SeqMeanTokenSumNorm with constant = 0: divide by the padded width of the (micro-)batch, which
  /// changes from batch to batch (verl without loss_scale_factor). Packed batches have none and are
  /// refused.
  bool padded_width = false;

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("mode", s.mode, "the formula");
    field("over", s.over, "the count of the step that divides");
    field("count_eps", s.count_eps, at_least(0), "added to that count");
    field("scale", s.scale, finite(), "factor of the loss");
    field("row_count_eps", s.row_count_eps, at_least(0),
          "added to the tokens of each row or group");
    field("constant", s.constant, anything().or_nan(""), "the length that divides, in tokens");
    field("padded_width", s.padded_width, "with constant 0, the padded width divides");
  }
  /// Throws unless SeqMeanTokenSumNorm has a length that divides.
  void check_together(const char* function, const detail::FieldPath& path) const {
    if (mode != Mode::SeqMeanTokenSumNorm || reads_width()) return;
    if (constant > 0 && !math::is_inf(constant)) return;
    contract::fail(function, path.text("constant"), contract::text(constant),
                   "a length in tokens, more than 0, the same for the whole training");
  }

  /// W_i of a row.
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    if (mode == Mode::TokenSum) return scale;
    const double count = of(a.normalizer) + count_eps;
    const double share = count > 0 ? scale / count : 0.0;
    if (mode == Mode::SeqMeanTokenMean || mode == Mode::GroupMean) {
      const double n =
          (reads_group() ? a.row.group_tokens : static_cast<double>(a.row.tokens)) + row_count_eps;
      return n > 0 ? share / n : 0.0;
    }
    if (mode == Mode::SeqMeanTokenSumNorm) {
      const double length = reads_width() ? static_cast<double>(a.row.width) : constant;
      return length > 0 ? share / length : 0.0;
    }
    return share;
  }
  /// Whether the padded width is the length that divides.
  GDPO_DEVICE bool reads_width() const {
    return mode == Mode::SeqMeanTokenSumNorm && padded_width && constant == 0;
  }
  /// Whether the tokens of a row's group divide.
  GDPO_DEVICE bool reads_group() const { return mode == Mode::GroupMean; }
  /// The name of the count that divides, if it is 0 in n; else null.
  const char* divides_by_nothing(const Normalizer& n) const {
    if (mode == Mode::TokenSum || of(n) > 0) return nullptr;
    return over == Over::Tokens         ? "normalizer.tokens"
           : over == Over::Rows         ? "normalizer.rows"
           : over == Over::NonEmptyRows ? "normalizer.non_empty_rows"
                                        : detail::given_count;
  }

 private:
  GDPO_DEVICE double of(const Normalizer& n) const {
    return over == Over::Tokens         ? n.tokens
           : over == Over::Rows         ? n.rows
           : over == Over::NonEmptyRows ? n.non_empty_rows
                                        : n.given;
  }
};

/// One Aggregate of each formula, with the count that its papers divide by.
namespace aggregate {

/// The mean over rows of their token means.
constexpr Aggregate seq_mean_token_mean(Over over = Over::Rows) {
  return {Aggregate::Mode::SeqMeanTokenMean, over};
}
/// The mean over groups of rows of their token means. `Normalizer::given` is the number of groups,
/// and the batch needs the column `group_tokens`.
constexpr Aggregate group_mean(Over over = Over::Given) {
  return {Aggregate::Mode::GroupMean, over};
}
/// The mean over the tokens.
constexpr Aggregate token_mean(Over over = Over::Tokens) {
  return {Aggregate::Mode::TokenMean, over};
}
/// The mean over rows of their token sums.
constexpr Aggregate seq_mean_token_sum(Over over = Over::Rows) {
  return {Aggregate::Mode::SeqMeanTokenSum, over};
}
/// The same, divided by one length for all rows. `constant`: that length; it must be set.
constexpr Aggregate seq_mean_token_sum_norm(double constant = 0, Over over = Over::Rows) {
  Aggregate a{Aggregate::Mode::SeqMeanTokenSumNorm, over};
  a.constant = constant;
  return a;
}
/// The sum over all tokens.
constexpr Aggregate token_sum(double scale = 1) {
  return {Aggregate::Mode::TokenSum, Over::Rows, 0, scale};
}

}  // namespace aggregate
GDPO_END_NAMESPACE
