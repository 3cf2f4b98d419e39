#pragma once
// One reverse scan over the steps of a row: the formula of one step, which every execution calls,
// and the rewards that it sees.
#include <gdpo/value/shared/return_layout.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What one step hands to the step before it. V: double or lanes of double.
template <class V>
struct Carried {
  V next_value;  ///< The value of the step.
  V advantages;  ///< What the policy gave in the scan of the advantages.
  V returns;     ///< In the scan of the returns, if there are two.
};

/// What the last step of a row is handed.
template <class Returns, class V>
GDPO_INLINE Carried<V> behind_the_end(const V& bootstrap) {
  const V zero = math::constant<V>(0.0);
  if constexpr (Returns::reads_values) {
    return {bootstrap, zero, zero};
  } else {
    return {zero, bootstrap, bootstrap};
  }
}

/// One step. Twice: the scan of the returns runs beside that of the advantages.
template <bool Twice, class V, class Returns>
GDPO_INLINE Carried<V> step_back(const Returns& policy, const Carried<V>& from, const V& reward,
                                 const V& value, const V& decay, const V& decay_of_returns) {
  Carried<V> to{value,
                policy(ReturnArgs<V>{reward, value, from.next_value, from.advantages, decay}),
                from.returns};
  if constexpr (Twice) {
    to.returns =
        policy(ReturnArgs<V>{reward, value, from.next_value, from.returns, decay_of_returns});
  }
  return to;
}

/// The return of a step.
template <class Returns, class V>
GDPO_INLINE V return_of(const V& scanned, const V& value) {
  if constexpr (Returns::reads_values) {
    return scanned + value;
  } else {
    return scanned;
  }
}

/// A reward less the penalty of its token: reward - coef kl.
template <class V, class KlTerm>
GDPO_INLINE V penalized(const penalty::Token<KlTerm>& penalty, const V& reward, const V& logp,
                        const V& ref_logp) {
  Token<V> token{};
  token.logp = logp;
  token.ref_logp = token.old_logp = token.rollout_logp = token.teacher_logp = ref_logp;
  token.ratio = math::constant<V>(1.0);
  using math::mul;
  return reward - mul(math::constant<V>(penalty.coef), penalty.kl(token).value);
}

/// Whether a position is a step, whether it carries a reward, and whether it ends what is carried.
GDPO_INLINE bool is_step(Steps steps, bool valid) {
  return valid || steps == Steps::Row || steps == Steps::RowRewardOnValid;
}
GDPO_INLINE bool carries_reward(Steps steps, bool valid) { return valid || steps == Steps::Row; }

}  // namespace detail
GDPO_END_NAMESPACE
