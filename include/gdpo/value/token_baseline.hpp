#pragma once
// The settings and the batch of optimal_token_baseline_into.
#include <gdpo/math/check_fields.hpp>
#include <gdpo/tokens/token_batch.hpp>

namespace gdpo {

/// Which tokens of the rows of a group share a baseline.
enum class BaselinePlace {
  Column,  ///< Those at the same position of their rows, masked positions counted.
  Ordinal  ///< Those with the same number among the valid tokens of their rows.
};
/// The enumerators of BaselinePlace with their words.
GDPO_DATA_INLINE constexpr auto enumerators(BaselinePlace) {
  using E = Enumerator<BaselinePlace>;
  return std::array{E{"column", BaselinePlace::Column}, E{"ordinal", BaselinePlace::Ordinal}};
}
/// Which rows a group has. A group of one has no baseline.
enum class BaselineMembers {
  NonEmpty,  ///< Those with a valid token.
  All        ///< Those without one too.
};
/// The enumerators of BaselineMembers with their words.
GDPO_DATA_INLINE constexpr auto enumerators(BaselineMembers) {
  using E = Enumerator<BaselineMembers>;
  return std::array{E{"non_empty", BaselineMembers::NonEmpty}, E{"all", BaselineMembers::All}};
}
/// What the end of the longest row gets, which no other row reaches.
enum class BaselineTail {
  /// The formula, whose baseline is then the row's own return: its advantage is 0.
  Cancel,
  /// No baseline, so that the advantage is the return: at each place from n on, where n is the
  /// second largest number of valid tokens of a row of the group. Only of a row that has more valid
  /// tokens than each other one. With BaselinePlace::Column and a mask with holes the number n is
  /// taken for a position all the same, as verl does.
  Raw
};
/// The enumerators of BaselineTail with their words.
GDPO_DATA_INLINE constexpr auto enumerators(BaselineTail) {
  using E = Enumerator<BaselineTail>;
  return std::array{E{"cancel", BaselineTail::Cancel}, E{"raw", BaselineTail::Raw}};
}

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The baseline of the least variance for each position of a group, and A = G - B.
///
///     w_t = (1 - 2 pi_t + sum_v pi_v^2) rho_t^2     pi_t = e^logp, v over the vocabulary
///     W_t = the sum of w over the row's valid tokens up to t
///     B_c = sum_j G_jc W_jc / (sum_j W_jc + eps)    j over the rows with a valid token at place c
///     A_t = G_t - B_c                               c: the place of token t
///
/// W estimates the squared norm of the gradient that the tokens up to t have, and weighs the
/// returns by it. w is the squared distance of the token's distribution from certainty, so W is at
/// least 0 up to rounding.
/// rho is TokenBaselineBatch::weights, 1 without them.
///
/// A group of one row has B = 0. Where all returns of a place are equal, B is that return times
/// sum W / (sum W + eps): with eps = 0 their advantages are exactly 0, also without any weight. Of
/// other returns B is 0 where sum W + eps is 0.
///
/// w is not cut at 0, as in verl. Where pi is nearly 1, the rounding of sum_pi_squared may make it
/// negative (by up to 1e-7 for float), and at a place that is certain in every row W is then
/// nothing but rounding, and B any number. An eps well above that, such as 1e-4, keeps B near 0
/// there.
///
/// verl algorithm.adv_estimator="optimal_token_baseline" (compute_optimal_token_baseline_advantage)
/// and "tir_optimal_token_baseline" (compute_multi_turn_optimal_token_baseline_advantage).
struct OptimalTokenBaseline {
  double eps = 0;                                       ///< Added to the sum of the weights.
  BaselinePlace place = BaselinePlace::Ordinal;         ///< Which tokens share a baseline.
  BaselineMembers members = BaselineMembers::NonEmpty;  ///< Which rows a group has.
  BaselineTail tail = BaselineTail::Cancel;             ///< What the end of the longest row gets.

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("eps", s.eps, at_least(0), "added to the sum of the weights");
    field("place", s.place, "which tokens share a baseline");
    field("members", s.members, "which rows a group has");
    field("tail", s.tail, "what the end of the longest row gets");
  }

  /// w of a token. V: double or a pack of it.
  template <class V>
  GDPO_INLINE static V weight(const V& pi, const V& sum_pi_squared) {
    return (math::constant<V>(1.0) - (pi + pi)) + sum_pi_squared;
  }
};

/// The tokens of one batch, with everything that an OptimalTokenBaseline reads.
///
/// Shapes are those of a TokenBatch: token arrays are padded, (B, T) or (prompts, completions, T),
/// or packed, (tokens) with `offsets`; all of them and the output have one shape, with any strides.
/// The members are views, and the arrays must outlive the calls.
///
/// S is the type that numbers are read as and that the output has: float, also for arrays of 16-bit
/// floats, or double. All arithmetic is in double.
template <class S = float>
struct TokenBaselineBatch {
  static_assert(std::is_same_v<S, float> || std::is_same_v<S, double>,
                "a TokenBaselineBatch is of float or double");
  /// The type that numbers are read as and that the output has.
  using Scalar = S;

  /// The return of each token. Required.
  TokenView<S> returns;
  /// Log-probs under the policy that wrote the tokens, in nats. Required.
  TokenView<S> logp;
  /// The sum of the squared probabilities of the vocabulary at each token, from 0 to 1. Required.
  ///
  /// Two calls of token_logprobs_into give it: it is e^(L' - 2 L), where L is the logsumexp at the
  /// temperature T of the sampler, and L' that of the same logits at the temperature T / 2.
  TokenView<S> sum_pi_squared;
  /// Ratios of the policy that is trained to the sampler. Absent: 1.
  TokenView<S> weights;
  /// 0: no token of the policy (prompt, output of a tool, padding); every other number, also NaN,
  /// makes it valid. Absent: all are valid.
  TokenView<unsigned char> mask;
  /// (B + 1) Where each row begins and the last one ends. Required for packed batches only.
  IndexColumn offsets;
};

GDPO_END_NAMESPACE
