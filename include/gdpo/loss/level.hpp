#pragma once
// Levels: whether the ratio belongs to a token or to a sequence.
#include <gdpo/loss/map.hpp>

GDPO_BEGIN_NAMESPACE

/// Statistics: how the log ratio of a segment is computed from those of its valid tokens.
///
/// Contract of a statistic, in double (GDPO_DEVICE in front, if it is to run on a GPU as well):
///
///     double operator()(const RowSum&) const;  // log ratio of the segment
///     double share(double n) const;            // its derivative by the log ratio of one token
///
/// `share` has no access to the sum, so a statistic is linear in the log ratios.
namespace statistic {

/// The mean, sum / (n + count_eps): the log of the geometric mean of the tokens' ratios.
///
/// GSPO (arXiv 2507.18071) eq. 7.
struct Mean {
  double count_eps = 0;  ///< Added to the number of tokens; a trainer's 1e-8.
  /// sum / (n + count_eps); 0 for a segment without valid tokens.
  GDPO_DEVICE double operator()(const RowSum& s) const {
    return s.n + count_eps > 0 ? s.sum / (s.n + count_eps) : 0.0;
  }
  /// 1 / (n + count_eps): each token moves the mean by its own share.
  GDPO_DEVICE double share(double n) const {
    return n + count_eps > 0 ? 1.0 / (n + count_eps) : 0.0;
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("count_eps", s.count_eps, at_least(0), "added to the number of tokens");
  }
};

/// The sum: its exponential is the ratio of the probabilities of the whole segment.
struct Sum {
  /// The sum of the tokens' log ratios.
  GDPO_DEVICE double operator()(const RowSum& s) const { return s.sum; }
  /// 1: each token's log ratio is one term of the sum.
  GDPO_DEVICE double share(double) const { return 1.0; }
};

}  // namespace statistic

/// Levels: whose ratio the surrogate sees, the token's own or that of its segment.
///
/// Below, x_t = map(logp_t - old_logp_t) is the mapped log ratio of token t; pass_t is 1 where the
/// map lets the gradient through, else 0; g_t is the derivative of the token's loss by the level's
/// log ratio, with all weights (row, token, factor, beta). What a term contributes by the token's
/// own logp (`Term::d_logp`) is added to each gradient below.
///
/// A segment is a run of valid tokens with equal `TokenBatch::segments`, or the whole row where the
/// batch has none. Levels of segments compute one log ratio per segment,
///
///     s = clamp(statistic(sum of x_t, n), bounds),    ratio e^s at each of the n tokens
///
/// where masked tokens count neither in the sum nor in n. They compute in double whatever the batch
/// stores, so that clip ranges as narrow as 3e-4 are decided as in double arithmetic. Outside of
/// `bounds` no gradient passes through s.
///
/// Where the batch has TokenBatch::level_log_weights, the log l_t of a weight at each token, they
/// are added after the statistic, whatever that is, and the bounds are applied again:
///
///     s = clamp(clamp(statistic(sum of x_t, n), bounds) + sum of l_t, bounds)
///
/// The l_t are constants. A gradient passes where neither of the two clamps holds s. VESPO
/// (arXiv 2602.10693) corrects for the sampling engine in this way; TRL loss_type="vespo".
namespace level {

/// The token's own ratio e^(x_t): PPO, GRPO, DAPO.
///
/// Gradient: dloss/dlogp_t = pass_t g_t, because d x_t / d logp_t = pass_t.
template <class Map = map::None>
struct Token {
  static_assert(
      is_map_v<Map>,
      "a Map needs: template <class V> gdpo::Mapped<V> operator()(const gdpo::Token<V>&) const");
  static constexpr bool of_segment = false;        ///< The ratio is the token's own.
  static constexpr bool straight_through = false;  ///< There is no segment to pass through.
  Map map{};                                       ///< Map of the token's log ratio.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("map", s.map, "what is done to the log ratio of each token");
  }
};

/// One ratio per segment, differentiated through the statistic.
///
/// GSPO (arXiv 2507.18071) eq. 5 and 7; TRL importance_sampling_level="sequence".
///
/// Gradient: each token moves s, and s moves the loss of every token u of the segment, so
///
///     dloss/dlogp_t = pass_t share(n) (sum over the segment of g_u)
///
/// and every token of the segment that passes gets the same.
template <class Map = map::None, class Statistic = statistic::Mean>
struct Sequence {
  static_assert(
      is_map_v<Map>,
      "a Map needs: template <class V> gdpo::Mapped<V> operator()(const gdpo::Token<V>&) const");
  static_assert(is_statistic_v<Statistic>,
                "a Statistic needs: double operator()(const gdpo::RowSum&) const, and double "
                "share(double n) const");
  static constexpr bool of_segment = true;         ///< The ratio is that of the segment.
  static constexpr bool straight_through = false;  ///< The gradient goes through the statistic.
  Map map{};                                       ///< Map of each token's log ratio.
  Statistic statistic{};                           ///< From the tokens' log ratios to s.
  Bounds bounds{};                                 ///< Bounds of s, in nats.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("map", s.map, "what is done to the log ratio of each token");
    field("statistic", s.statistic, "from the log ratios of a segment to its own");
    field("bounds", s.bounds, "bounds of that log ratio, in nats");
  }
};

/// The ratio of the segment in value, but each token keeps its own derivative.
///
/// GSPO-token (arXiv 2507.18071) eq. 13 and 14; verl's gspo; ms-swift "sequence_token".
///
/// The log ratio of token t is s + x_t - detach(x_t): its value is s, and its derivative is that of
/// the token alone (a straight-through gradient), so that per-token advantages stay apart:
///
///     dloss/dlogp_t = pass_t g_t
///
/// Where all tokens of a segment have one g, as with one advantage per row, Sequence gives the same
/// times n share(n), which is 1 for the plain mean.
template <class Map = map::None, class Statistic = statistic::Mean>
struct SequenceToken {
  static_assert(
      is_map_v<Map>,
      "a Map needs: template <class V> gdpo::Mapped<V> operator()(const gdpo::Token<V>&) const");
  static_assert(is_statistic_v<Statistic>,
                "a Statistic needs: double operator()(const gdpo::RowSum&) const, and double "
                "share(double n) const");
  static constexpr bool of_segment = true;        ///< The value of the ratio is the segment's.
  static constexpr bool straight_through = true;  ///< The gradient is the token's own.
  Map map{};                                      ///< Map of each token's log ratio.
  Statistic statistic{};                          ///< From the tokens' log ratios to s.
  Bounds bounds{};                                ///< Bounds of s, in nats.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("map", s.map, "what is done to the log ratio of each token");
    field("statistic", s.statistic, "from the log ratios of a segment to its own");
    field("bounds", s.bounds, "bounds of that log ratio, in nats");
  }
};

}  // namespace level

namespace detail {
/// Whether a level has a statistic and bounds.
template <class P, class = void>
constexpr bool has_statistic_v = false;
template <class P>
constexpr bool has_statistic_v<P, std::enable_if_t<std::is_same_v<Bounds, decltype(P::bounds)>>> =
    is_statistic_v<decltype(P::statistic)>;
}  // namespace detail

/// Whether P is a level: it has the members of level::Token, or of level::Sequence.
template <class P, class = void>
constexpr bool is_level_v = false;
template <class P>
constexpr bool
    is_level_v<P, std::enable_if_t<std::is_same_v<const bool, decltype(P::straight_through)>>> =
        is_map_v<decltype(P::map)> && (!P::of_segment || detail::has_statistic_v<P>);

GDPO_END_NAMESPACE
