#pragma once
// Pair: which two policies a correction compares, and the difference of their log-probs.
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/loss/map.hpp>
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Which two policies are compared, as the difference x of a token's log-probs in nats.
///
/// `old` is TokenBatch::old_logp, or logp where the batch has none.
enum class Pair {
  Mismatch,  ///< x = old - rollout: one policy, as the trainer and as the sampling engine see it.
  Update,    ///< x = logp - old: what the updates since have changed.
  Drift      ///< x = logp - rollout: both; x = logp - old where the batch has no rollout_logp.
};
/// The enumerators of Pair with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Pair) {
  using E = Enumerator<Pair>;
  return std::array{E{"mismatch", Pair::Mismatch}, E{"update", Pair::Update},
                    E{"drift", Pair::Drift}};
}

/// What a token means whose rollout_logp is NaN, because the sampling engine has given none.
///
/// NonFiniteInputs::rollout_logp counts these tokens in either case.
enum class MissingRollout {
  /// It is dropped, and where the statistic is one number per row, the row is.
  Drop,
  /// The two policies do not differ at it: its log ratio is 0, so it has weight 1 and enters
  /// the statistic of its row as 0 (TRL since 1.11.0).
  NoDifference
};
/// The enumerators of MissingRollout with their words.
GDPO_DATA_INLINE constexpr auto enumerators(MissingRollout) {
  using E = Enumerator<MissingRollout>;
  return std::array{E{"drop", MissingRollout::Drop},
                    E{"no_difference", MissingRollout::NoDifference}};
}

}  // namespace prepass

namespace detail {

/// The log-probs of a token under the two policies of a pair, and their difference; V is double or
/// a pack of doubles, one token a lane.
template <class V>
struct DifferenceOf {
  V left, right;  ///< In nats: x = left - right, before any bound.
  V x;
};
using Difference = DifferenceOf<double>;

/// The arrays of a pair: of a row, or of a batch.
template <class Array>
struct PairOf {
  Array left, right;
  Array missing;  ///< Where NaN means that the two do not differ; absent: nowhere.

  /// The difference of the token whose number in an array a is at(a).
  template <class At>
  GDPO_INLINE Difference of(const At& at) const {
    const auto a = static_cast<double>(at(left)), b = static_cast<double>(at(right));
    if (missing && math::is_nan(at(missing))) return {a, a, 0.0};
    return {a, b, a - b};
  }
};
template <class Array>
PairOf<Array> pair_of(prepass::Pair pair, prepass::MissingRollout missing, const Array& logp,
                      const Array& old_logp, const Array& rollout_logp) {
  using prepass::Pair;
  const Array old = old_logp ? old_logp : logp;
  const bool of_rollout = pair != Pair::Update && rollout_logp;
  return {pair == Pair::Mismatch ? old : logp, of_rollout ? rollout_logp : old,
          of_rollout && missing == prepass::MissingRollout::NoDifference ? rollout_logp : Array{}};
}

/// The two policies of a pair, in the arrays of one row. Both are null in a row without tokens.
template <class S>
struct PairOfRow {
  PairOf<const S*> arrays;

  /// The differences of the tokens from t on, one a lane of V.
  template <class V = double>
  GDPO_INLINE DifferenceOf<V> at(index_t t) const {
    const V a = math::Lanes<V>::load(arrays.left + t), b = math::Lanes<V>::load(arrays.right + t);
    if (!arrays.missing) return {a, b, a - b};
    const auto none = math::is_nan(math::Lanes<V>::load(arrays.missing + t));
    return {a, math::select(none, a, b), math::select(none, math::constant<V>(0.0), a - b)};
  }
};

/// The pair of a row whose arrays are there (need_pair).
template <class S>
PairOfRow<S> pair_of(prepass::Pair pair, prepass::MissingRollout missing, const TokenRow<S>& row) {
  return {pair_of(pair, missing, row.logp, row.old_logp, row.rollout_logp)};
}

/// Throws unless the batch has the log-probs that a pair compares. `name` is the pre-pass.
inline void need_pair(prepass::Pair pair, bool has_logp, bool has_old, bool has_rollout,
                      const char* name) {
  if (pair == prepass::Pair::Mismatch && !has_rollout) {
    contract::fail("gdpo::prepare", "batch.rollout_logp", "no array",
                   contract::Text("the sampling policy's log-probs, because of ") + name +
                       " on Pair::Mismatch");
  }
  if ((pair == prepass::Pair::Mismatch && has_old) || has_logp) return;
  contract::fail(
      "gdpo::prepare", "batch.logp", "no array",
      contract::Text("the log-probs of the policy being trained, because of ") + name +
          (pair == prepass::Pair::Mismatch ? " without batch.old_logp" : " on this pair"));
}

}  // namespace detail
GDPO_END_NAMESPACE
