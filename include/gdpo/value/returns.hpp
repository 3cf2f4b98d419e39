#pragma once
// Returns policies: how the rewards of a row become the advantages and the returns of its tokens.
#include <gdpo/core/declares.hpp>
#include <gdpo/lanes/pack.hpp>
#include <gdpo/math/check_fields.hpp>

namespace gdpo {

/// Which positions of a row are steps of its episode, and which of them carry a reward.
///
/// A position is valid where the mask is not 0. A position that is no step changes nothing: no
/// discount passes over it, its reward and its value are not read. Whatever the choice, both
/// outputs are exactly 0 where the mask is 0.
enum class Steps {
  /// The valid positions are the steps, and the row's reward stands on the last of them. Several
  /// turns with the output of tools between them are one episode: the last token of a turn is
  /// followed by the first token of the next one. verl, NeMo-RL.
  Valid,
  /// Every position is a step with its reward and its penalty, and the row's reward stands on the
  /// last position. The arrays are read at masked positions, which must hold numbers. slime, ppo;
  /// Trinity-RFT; SkyRL, gae.
  Row,
  /// Every position is a step, but only valid ones carry a reward and a penalty, and the row's
  /// reward stands on the last valid one. A policy that reads values reads them at masked
  /// positions. slime, reinforce++; OpenRLHF.
  RowRewardOnValid,
  /// Each run of valid positions is an episode of its own: nothing is carried over a masked
  /// position. The row's reward and its bootstrap belong to the last run. SkyRL.
  Turns
};
/// The enumerators of Steps with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Steps) {
  using E = Enumerator<Steps>;
  return std::array{E{"valid", Steps::Valid}, E{"row", Steps::Row},
                    E{"row_reward_on_valid", Steps::RowRewardOnValid}, E{"turns", Steps::Turns}};
}

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// For `returns::Gae::lambda_returns`: the same lambda as `lambda`. It is a NaN.
inline constexpr double same_lambda = std::numeric_limits<double>::quiet_NaN();

/// What a returns policy sees of one step, walking from the end of the row to its beginning.
template <class V>
struct ReturnArgs {
  V reward;      ///< Of the step, without its penalty, with the row's reward at the last step.
  V value;       ///< The critic's value of the state before the step; 0 if none are read.
  V next_value;  ///< The value before the next step; at the last step the bootstrap or 0.
  V carried;     ///< What the policy gave for the next step; at the last step see `reads_values`.
  V decay;       ///< The factor of `carried`, from Decay.
};

/// The factors of ReturnArgs::carried in a row. Both are equal if the policy needs one scan alone.
struct Decay {
  double advantages;  ///< In the scan that gives the advantages.
  double returns;     ///< In the scan that gives the returns.
};

/// Policies that turn the rewards of a row into its advantages and returns, by one reverse scan.
///
/// Contract of a policy:
///
///     Steps steps;                               // which positions are steps
///     static constexpr bool reads_values = ...;  // whether it needs the critic's values
///     bool scans_twice() const;                  // whether the two factors of Decay may differ
///     Decay decay(index_t tokens) const;         // of a row with so many valid tokens, at least 1
///     template <class V> V operator()(const ReturnArgs<V>&) const;  // one step of the scan
///
/// With reads_values the scan begins with carried = 0 and next_value = the row's bootstrap; what
/// it gives is the advantage A_t, and the return is A_t + V_t. Without, it begins with carried =
/// the bootstrap, and what it gives is both. V is double or a pack of double.
namespace returns {

/// The discounted sum of the rewards from a token on, which is both its advantage and its return.
///
///     G_t = r_t + gamma G_next
///
/// REINFORCE with reward to go; with the KL penalty inside the reward it is REINFORCE++ (arXiv
/// 2501.03262). Values are neither needed nor read. For a row that was cut off, the bootstrap
/// stands for the G behind its end.
///
/// With gamma 0 a token has its own reward, and one that is NaN or infinite shows at no other
/// token.
struct RewardToGo {
  double gamma = 1;            ///< Discount of a step, from 0 to 1.
  Steps steps = Steps::Valid;  ///< Which positions are steps.

  static constexpr bool reads_values = false;  ///< It needs no values.
  /// Never: advantages and returns are the same.
  GDPO_INLINE bool scans_twice() const { return false; }
  /// gamma, for any row.
  GDPO_INLINE Decay decay(index_t) const { return {gamma, gamma}; }
  /// One step.
  template <class V>
  GDPO_INLINE V operator()(const ReturnArgs<V>& a) const {
    using math::mul;
    const V zero = math::constant<V>(0.0);
    return a.reward + math::select(a.decay > zero, mul(a.decay, a.carried), zero);
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("gamma", s.gamma, at_least(0).at_most(1), "discount of a step");
    field("steps", s.steps, "which positions are steps");
  }
};

/// Generalized advantage estimation: Schulman et al., arXiv 1506.02438, eq. 16, by its recursion.
///
///     delta_t   = r_t + gamma V_next - V_t
///     A_t       = delta_t + gamma lambda A_next
///     returns_t = A_t + V_t               A_t computed with lambda_returns
///
/// Eq. 16 is the sum of (gamma lambda)^l delta_{t+l} over l; taking out its first term gives the
/// second line. lambda 0 is the error of one step, lambda 1 the reward to go minus V_t. The returns
/// are what a critic learns; with lambda_returns 1 they are the reward to go, free of the critic's
/// own bias.
///
/// The order of one step is ((r + gamma V_next) - V) + (gamma lambda) A_next in double, each
/// product rounded (no fma).
struct Gae {
  double gamma = 1;   ///< Discount of a step, from 0 to 1.
  double lambda = 1;  ///< Decay of the errors of later steps in the advantages, from 0 to 1.
  /// Decay in the returns, from 0 to 1; same_lambda: `lambda`. VC-PPO (arXiv 2503.01491) and VAPO
  /// (arXiv 2504.05118) decouple the two and take 1 for the returns. Another number than `lambda`
  /// costs a second recursion.
  double lambda_returns = same_lambda;
  /// At least 0; 0: off. Else row i with n_i valid tokens has lambda = max(0, 1 - 1/(length_alpha
  /// n_i)) for its advantages, whatever `lambda` is: the length-adaptive GAE of VAPO (arXiv
  /// 2504.05118, section 4.2). The returns keep lambda_returns, or `lambda` if that is same_lambda.
  double length_alpha = 0;
  Steps steps = Steps::Valid;  ///< Which positions are steps.

  static constexpr bool reads_values = true;  ///< It needs the critic's values.
  /// The lambda of the returns.
  GDPO_INLINE double returns_lambda() const {
    return math::is_nan(lambda_returns) ? lambda : lambda_returns;
  }
  /// Whether the advantages and the returns have different lambdas.
  GDPO_INLINE bool scans_twice() const { return length_alpha > 0 || returns_lambda() != lambda; }
  /// gamma lambda of the two scans.
  GDPO_INLINE Decay decay(index_t tokens) const {
    double of_row = lambda;
    if (length_alpha > 0)
      of_row = (math::max)(0.0, 1 - 1 / math::mul(length_alpha, static_cast<double>(tokens)));
    return {math::mul(gamma, of_row), math::mul(gamma, returns_lambda())};
  }
  /// One step.
  template <class V>
  GDPO_INLINE V operator()(const ReturnArgs<V>& a) const {
    using math::mul;
    const V delta = (a.reward + mul(math::constant<V>(gamma), a.next_value)) - a.value;
    return delta + mul(a.decay, a.carried);
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("gamma", s.gamma, at_least(0).at_most(1), "discount of a step");
    field("lambda", s.lambda, at_least(0).at_most(1), "decay of later errors in the advantages");
    field("lambda_returns", s.lambda_returns, at_least(0).at_most(1).or_nan("NaN: lambda"),
          "the same in the returns");
    field("length_alpha", s.length_alpha, at_least(0).with_note("0: off"),
          "above 0: lambda follows from the length of the row");
    field("steps", s.steps, "which positions are steps");
  }
};

}  // namespace returns

/// Whether P meets the contract of a returns policy (namespace returns).
template <class P, class = void>
constexpr bool is_returns_v = false;
template <class P>
constexpr bool is_returns_v<
    P, std::void_t<decltype(P::reads_values), decltype(std::declval<const P&>().scans_twice()),
                   decltype(Steps{std::declval<const P&>().steps}),
                   decltype(Decay{std::declval<const P&>().decay(index_t{})})>> =
    std::is_invocable_r_v<double, const P&, const ReturnArgs<double>&>;

GDPO_END_NAMESPACE
