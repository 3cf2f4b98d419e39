#pragma once
#include <gdpo/loss/map.hpp>

GDPO_BEGIN_NAMESPACE

/// How the log ratio of a segment comes from the sum over its valid tokens. Contract:
///   double operator()(const RowSum&) const;        the log ratio, in double
///   GDPO_DEVICE double share(double n) const;                  its derivative by one token's log ratio
namespace statistic {

/// sum / (n + count_eps), the log of the geometric mean of the token ratios. GSPO (arXiv 2507.18071) eq. 7.
struct Mean {
  double count_eps = 0;
  GDPO_DEVICE double operator()(const RowSum& s) const {
    return s.n + count_eps > 0 ? s.sum / (s.n + count_eps) : 0.0;
  }
  GDPO_DEVICE double share(double n) const {
    return n + count_eps > 0 ? 1.0 / (n + count_eps) : 0.0;
  }
  void check(const char* function) const {
    detail::check_eps(function, "level.statistic.count_eps", count_eps);
  }
};

/// The sum: the ratio of the sequence probabilities.
struct Sum {
  GDPO_DEVICE double operator()(const RowSum& s) const { return s.sum; }
  GDPO_DEVICE double share(double) const { return 1.0; }
};

}  // namespace statistic

/// Whose ratio the surrogate sees. A level has a `map` of the token's log ratio; the two of sequences also a `statistic`
/// over the segment (TokenBatch::segments; the whole row where there are none) and `bounds` of its result, outside of which
/// no gradient passes. Segments are computed in double whatever the batch stores: clip ranges of 3e-4 are decided as in
/// double arithmetic.
namespace level {

/// The token's own ratio: GRPO, DAPO, PPO.
template <class Map = map::None>
struct Token {
  static_assert(
      is_map_v<Map>,
      "a Map needs: template <class V> gdpo::Mapped<V> operator()(const gdpo::Token<V>&) const");
  static constexpr bool of_segment = false, straight_through = false;
  Map map{};
  void check(const char* function) const { detail::Checks<Map>::run(map, function); }
};

/// One ratio a segment, differentiated through the statistic: GSPO (arXiv 2507.18071) eq. 5 and 7; TRL
/// importance_sampling_level="sequence". d/dlogp_t = pass_t share(n) sum_s W d_log_ratio_s over the segment.
template <class Map = map::None, class Statistic = statistic::Mean>
struct Sequence {
  static_assert(
      is_map_v<Map>,
      "a Map needs: template <class V> gdpo::Mapped<V> operator()(const gdpo::Token<V>&) const");
  static_assert(is_statistic_v<Statistic>,
                "a Statistic needs: double operator()(const gdpo::RowSum&) const, and double "
                "share(double n) const");
  static constexpr bool of_segment = true, straight_through = false;
  Map map{};
  Statistic statistic{};
  Bounds bounds{};
  void check(const char* function) const {
    detail::Checks<Map>::run(map, function);
    detail::Checks<Statistic>::run(statistic, function);
    detail::check_bounds(function, "level.bounds", bounds);
  }
};

/// The same value, but each token keeps its own derivative: d/dlogp_t = pass_t W d_log_ratio_t. GSPO-token, eq. 13-14; verl's
/// gspo; ms-swift "sequence_token". With one advantage a segment the two agree but for the factor n share(n).
template <class Map = map::None, class Statistic = statistic::Mean>
struct SequenceToken {
  static_assert(
      is_map_v<Map>,
      "a Map needs: template <class V> gdpo::Mapped<V> operator()(const gdpo::Token<V>&) const");
  static_assert(is_statistic_v<Statistic>,
                "a Statistic needs: double operator()(const gdpo::RowSum&) const, and double "
                "share(double n) const");
  static constexpr bool of_segment = true, straight_through = true;
  Map map{};
  Statistic statistic{};
  Bounds bounds{};
  void check(const char* function) const {
    detail::Checks<Map>::run(map, function);
    detail::Checks<Statistic>::run(statistic, function);
    detail::check_bounds(function, "level.bounds", bounds);
  }
};

}  // namespace level

namespace detail {
template <class P, class = void>
constexpr bool has_statistic_v = false;
template <class P>
constexpr bool has_statistic_v<P, std::enable_if_t<std::is_same_v<Bounds, decltype(P::bounds)>>> =
    is_statistic_v<decltype(P::statistic)>;
}  // namespace detail

template <class P, class = void>
constexpr bool is_level_v = false;
template <class P>
constexpr bool
    is_level_v<P, std::enable_if_t<std::is_same_v<const bool, decltype(P::straight_through)>>> =
        is_map_v<decltype(P::map)> && (!P::of_segment || detail::has_statistic_v<P>);

GDPO_END_NAMESPACE
