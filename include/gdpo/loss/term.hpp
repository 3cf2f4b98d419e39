#pragma once
// What the policies of the loss see and give back. V is float, double, or lanes of them.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/math/settings.hpp>

namespace gdpo {

/// What a loss is divided by, over the whole optimiser step: add the counts of all micro-batches, ranks included.
///   Normaliser n = count(batch);  n += count(another);        loss(batch, n, grad)
struct Normaliser {
  double tokens = 0;          ///< valid tokens
  double rows = 0;            ///< rows, empty ones included
  double non_empty_rows = 0;  ///< rows with a valid token
  /// The caller's own, for Over::Given: num_items_in_batch, a global batch size. count() leaves it 0: set it once, on the sum.
  double given = 0;

  GDPO_DATA_INLINE Normaliser& operator+=(const Normaliser& o) {
    tokens += o.tokens, rows += o.rows, non_empty_rows += o.non_empty_rows, given += o.given;
    return *this;
  }
  friend GDPO_DATA_INLINE Normaliser operator+(Normaliser a, const Normaliser& b) { return a += b; }
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// One valid token. Log-probs in nats; what the batch does not have is 0, and is not read by the composition.
template <class V>
struct Token {
  V logp, old_logp, ref_logp, rollout_logp, teacher_logp;
  V advantage;
  V row_advantage;    ///< mean of the advantages over the row's valid tokens
  V token_log_ratio;  ///< logp - old_logp as it stands, before the level's map
  V log_ratio;        ///< what the level makes of it: of the token, or of its segment
  V ratio;            ///< e^log_ratio, saturating (math::exp_limit)
  V tag;              ///< the caller's or a pre-pass's (TokenBatch::tags)
};

/// The answer of a comparison of two V.
template <class V>
using mask_t = std::decay_t<decltype(std::declval<const V&>() < std::declval<const V&>())>;

/// A term of the loss at one token. `d_log_ratio` is its derivative by the level's log ratio, which the level spreads over the
/// segment; `d_logp` its derivative by the token's own logp with that ratio held.
template <class V>
struct Term {
  V value, d_log_ratio, d_logp;
  mask_t<V> low{}, high{};  ///< clipped: the ratio is below the range and A < 0; above it and A > 0
  mask_t<V> outside{};  ///< the ratio is outside the range, whatever A (a KL term: a clamp holds)
  mask_t<V> dual{};     ///< the dual clip holds the value
};

/// A token's log ratio after the level's map; `pass` is 1 where the gradient goes through, else 0.
template <class V>
struct Mapped {
  V log_ratio, pass;
};

/// Sum of the mapped log ratios of a segment, and its number of valid tokens.
struct RowSum {
  double sum;
  double n;
};

/// Valid tokens of one row; `width` is the padded width, 0 in a packed batch.
struct RowCounts {
  index_t tokens;
  index_t width;
};

struct AggregateArgs {
  RowCounts row;
  const Normaliser& normaliser;
};

namespace detail {

/// Probes of the contracts.
template <class P, class V>
constexpr bool gives_term_v = std::is_invocable_r_v<Term<V>, const P&, const Token<V>&>;
template <class P, class V>
constexpr bool gives_value_v = std::is_invocable_r_v<V, const P&, const Token<V>&>;

}  // namespace detail

template <class P>
constexpr bool is_surrogate_v = detail::gives_term_v<P, float>&& detail::gives_term_v<P, double>;
template <class P>
constexpr bool is_factor_v = detail::gives_value_v<P, float>&& detail::gives_value_v<P, double>;
template <class P>
constexpr bool is_map_v = std::is_invocable_r_v<Mapped<float>, const P&, const Token<float>&>&&
    std::is_invocable_r_v<Mapped<double>, const P&, const Token<double>&>;
template <class P, class = void>
constexpr bool is_statistic_v = false;
template <class P>
constexpr bool is_statistic_v<P, std::void_t<decltype(std::declval<const P&>().share(1.0))>> =
    std::is_invocable_r_v<double, const P&, const RowSum&>;
template <class P>
constexpr bool is_aggregate_v = std::is_invocable_r_v<double, const P&, const AggregateArgs&>;

GDPO_END_NAMESPACE
