#pragma once
// What the policies of a loss are given and what they return. V is float, double, or a vector
// register of either, so that one formula serves scalar code, vector code and GPU kernels.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/math/settings.hpp>

namespace gdpo {

/// Which batch count() has counted, so that a loss can refuse the counts that a batch had before
/// prepare() changed its mask.
struct CountedBatch {
  /// Prepared::mask_changes of that batch; -1: these are not the counts of one call of count().
  int mask_changes = -1;
  double tokens = 0,  ///< The tokens that were counted. Other counts have been changed since.
      rows = 0;       ///< The rows that were counted.
};

/// The counts that a loss is divided by.
///
/// They belong to the whole optimiser step: add the counts of all its micro-batches, on all ranks,
/// and give the sum to each call. The losses of the calls then add up to the loss of the step.
///
///     gdpo::Normaliser n = gdpo::count(batch);
///     n += gdpo::count(another);
///     loss(batch, n, gradient);
struct Normaliser {
  double tokens = 0;          ///< Number of valid tokens (mask not 0).
  double rows = 0;            ///< Number of rows, including those without a valid token.
  double non_empty_rows = 0;  ///< Number of rows that have a valid token.
  /// A count of the caller's own, which aggregates with `Over::Given` divide by: the trainer's
  /// num_items_in_batch or a global batch size. count() leaves it 0. Set it on the sum of the
  /// counts, because += adds it up as well.
  double given = 0;
  /// Written by count(). Sums, and counts filled in by hand, are those of no batch: a loss takes
  /// them as they are.
  CountedBatch counted{};

  /// Adds the counts of another micro-batch or rank, `given` included.
  GDPO_DATA_INLINE Normaliser& operator+=(const Normaliser& o) {
    tokens += o.tokens, rows += o.rows, non_empty_rows += o.non_empty_rows, given += o.given;
    counted = CountedBatch{};
    return *this;
  }
  /// The counts of two micro-batches or ranks together, `given` included.
  friend GDPO_DATA_INLINE Normaliser operator+(Normaliser a, const Normaliser& b) { return a += b; }
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// What the policies of a loss see of one token, or of one register of tokens.
///
/// Log-probs and log ratios are in nats. A member whose array is absent, or is not read by the
/// loss, is 0; only `old_logp` is `logp` where it is absent. At masked tokens the members may hold
/// anything: what a policy returns there is discarded.
template <class V>
struct Token {
  V logp;             ///< Log-prob under the policy being trained.
  V old_logp;         ///< Log-prob under the policy that the ratio is against.
  V ref_logp;         ///< Log-prob under the reference policy.
  V rollout_logp;     ///< Log-prob as the sampling engine reported it.
  V teacher_logp;     ///< Log-prob under a teacher.
  V advantage;        ///< Advantage of the token, or of its row.
  V row_advantage;    ///< Mean of the advantages over the row's valid tokens.
  V token_log_ratio;  ///< logp - old_logp of this token, before the level's map.
  V log_ratio;        ///< Log ratio that the level gives: of the token, or of its segment.
  V ratio;            ///< e^log_ratio. It saturates at e^80 in a float batch, e^700 in double.
  V tag;              ///< Number from TokenBatch::tags.
};

/// The result of comparing two V: bool, or one flag for each lane.
template <class V>
using mask_t = std::decay_t<decltype(std::declval<const V&>() < std::declval<const V&>())>;

/// The value of a surrogate or KL term at one token, with both of its derivatives.
///
/// A term depends on the token's logp in two ways: through the level's log ratio, and directly.
/// The two derivatives are apart because the ratio may belong to a whole segment: the level then
/// spreads `d_log_ratio` over the segment's tokens, while `d_logp` stays with the token.
template <class V>
struct Term {
  V value;              ///< The term at this token.
  V d_log_ratio;        ///< Derivative by the level's log ratio.
  V d_logp;             ///< Derivative by the token's own logp, with the level's ratio held fixed.
  mask_t<V> low{};      ///< Clipped from below: the ratio is below the range and A < 0.
  mask_t<V> high{};     ///< Clipped from above: the ratio is above the range and A > 0.
  mask_t<V> outside{};  ///< The ratio is outside the range, whatever A. KL terms: a clamp holds.
  mask_t<V> dual{};     ///< The dual clip holds the value.
};

/// What a map makes of a token's log ratio.
template <class V>
struct Mapped {
  V log_ratio;  ///< The mapped log ratio, in nats.
  V pass;       ///< 1 where the gradient passes through the map, 0 where it stops.
};

/// What a statistic is computed from: the valid tokens of one segment.
struct RowSum {
  double sum;  ///< Sum of their mapped log ratios, in nats.
  double n;    ///< Their number.
};

/// The size of one row.
struct RowCounts {
  index_t tokens;  ///< Number of valid tokens in the row.
  index_t width;   ///< Padded width of the batch, in tokens; 0 in a packed batch.
};

/// What an aggregate is given to compute the weight of a row.
struct AggregateArgs {
  RowCounts row;                 ///< Size of the row.
  const Normaliser& normaliser;  ///< Counts of the whole optimiser step.
};

namespace detail {

/// Whether a policy can be called as its contract says: on a Token it gives a Term, or a number.
template <class P, class V>
constexpr bool gives_term_v = std::is_invocable_r_v<Term<V>, const P&, const Token<V>&>;
template <class P, class V>
constexpr bool gives_value_v = std::is_invocable_r_v<V, const P&, const Token<V>&>;

}  // namespace detail

/// Whether P meets the contract of a surrogate (loss/surrogate.hpp).
template <class P>
constexpr bool is_surrogate_v = detail::gives_term_v<P, float>&& detail::gives_term_v<P, double>;
/// Whether P meets the contract of a factor (loss/factor.hpp).
template <class P>
constexpr bool is_factor_v = detail::gives_value_v<P, float>&& detail::gives_value_v<P, double>;
/// Whether P meets the contract of a map (loss/map.hpp).
template <class P>
constexpr bool is_map_v = std::is_invocable_r_v<Mapped<float>, const P&, const Token<float>&>&&
    std::is_invocable_r_v<Mapped<double>, const P&, const Token<double>&>;
/// Whether P meets the contract of a statistic (loss/level.hpp).
template <class P, class = void>
constexpr bool is_statistic_v = false;
template <class P>
constexpr bool is_statistic_v<P, std::void_t<decltype(std::declval<const P&>().share(1.0))>> =
    std::is_invocable_r_v<double, const P&, const RowSum&>;
/// Whether P meets the contract of an aggregate (loss/aggregate.hpp).
template <class P>
constexpr bool is_aggregate_v = std::is_invocable_r_v<double, const P&, const AggregateArgs&>;

GDPO_END_NAMESPACE
