#pragma once
// OutcomeAdvantage: an estimator from the rewards of rows to the advantages of tokens.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/value/token_advantage.hpp>

namespace gdpo {

/// Which steps of a row get its advantage as their reward.
enum class Placement {
  /// The last step, where an outcome is known: ReturnBatch::row_rewards. Rewards of tokens are
  /// added, and TokenAdvantage::reward_clip clamps the advantage. OpenRLHF, AReaL.
  LastStep,
  /// Every token: ReturnBatch::rewards. With a discount of 0 each token keeps the advantage of its
  /// row, less its penalty; reward_clip is not read. NeMo-RL, slime, Trinity-RFT.
  EveryToken
};
/// The enumerators of Placement with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Placement) {
  using E = Enumerator<Placement>;
  return std::array{E{"last_step", Placement::LastStep}, E{"every_token", Placement::EveryToken}};
}

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// An estimator from the rewards of rows to the advantages of tokens: an estimator over rows, and
/// one over tokens behind it. For row i with reward R_i and its steps t:
///
///     a_i    = rows(R)_i                             in its group: GroupAdvantage
///     r_t    = rewards_t - coef kl_t                 TokenAdvantage::penalty
///     r_T    = r_T + clamp(a_i)                      Placement::LastStep
///     r_t    = a_i - coef kl_t                       Placement::EveryToken
///     A, G   = the scan of tokens.returns over r
///     A      = (A - mean) multiplier(v)              tokens.renorm, over the valid tokens
///
/// advantages_and_returns_into() with both batches runs it (value/outcome_call.hpp).
///
///     // REINFORCE with the mean of the group as baseline, whitened: OpenRLHF
///     gdpo::OutcomeAdvantage<gdpo::DrGrpo> e;
///     e.tokens.renorm = gdpo::renorm::token_weighted_batch();
///
/// A renormalization of `rows` comes before the penalty of the tokens, that of `tokens` behind it.
template <class Rows = Grpo, class Tokens = TokenAdvantage<returns::RewardToGo>>
struct OutcomeAdvantage {
  static_assert(detail::computes_advantages_v<Rows>,
                "Rows is an estimator over rows: a gdpo::GroupAdvantage or a gdpo::Constrained");
  static_assert(is_token_advantage_v<Tokens>,
                "Tokens is a gdpo::TokenAdvantage, or has its members: returns, penalty, "
                "reward_clip, renorm");

  Rows rows{};      ///< From the rewards of rows to their advantages.
  Tokens tokens{};  ///< From these to the advantages and returns of tokens.
  Placement placement = Placement::LastStep;  ///< Which steps get the advantage of the row.

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("rows", s.rows, "from the rewards of rows to their advantages");
    field("tokens", s.tokens, "from these to the advantages and returns of tokens");
    field("placement", s.placement, "which steps get the advantage of the row");
  }
};

namespace detail {

template <class X>
constexpr bool is_outcome_advantage_v = false;
template <class Rows, class Tokens>
constexpr bool is_outcome_advantage_v<OutcomeAdvantage<Rows, Tokens>> = true;

}  // namespace detail
GDPO_END_NAMESPACE
