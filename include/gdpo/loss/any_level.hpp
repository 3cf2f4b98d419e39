#pragma once
// Maps and statistics of levels chosen at run time, so that all losses by name share one type for
// each level.
#include <gdpo/loss/any_surrogate.hpp>
#include <gdpo/loss/level.hpp>

namespace gdpo {
/// The statistics of namespace statistic, by number.
enum class StatisticKind {
  Mean,  ///< statistic::Mean
  Sum    ///< statistic::Sum
};
/// The enumerators of StatisticKind with their words.
GDPO_DATA_INLINE constexpr auto enumerators(StatisticKind) {
  using E = Enumerator<StatisticKind>;
  return std::array{E{"mean", StatisticKind::Mean}, E{"sum", StatisticKind::Sum}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// A map that is chosen at run time among M..., made from it.
template <class... M>
struct AnyMapOf : detail::OneOf<M...> {
  static_assert((is_map_v<M> && ...), "AnyMapOf takes maps");
  using detail::OneOf<M...>::OneOf;
  template <class V>
  GDPO_DEVICE GDPO_NOINLINE Mapped<V> operator()(const Token<V>& t) const {
    return this->visit([&t](const auto& map) { return map(t); });
  }
};
/// Any map of the library.
using AnyMap = AnyMapOf<map::None, map::Clamp, map::TrustRegion>;

/// A statistic that is chosen at run time.
struct AnyStatistic {
  StatisticKind kind = StatisticKind::Mean;  ///< The statistic.
  double count_eps = 0;                      ///< Added to the number of tokens of a mean.
  constexpr AnyStatistic() = default;
  /// The mean, with its settings.
  constexpr AnyStatistic(const statistic::Mean& mean) : count_eps(mean.count_eps) {}
  /// The sum.
  constexpr AnyStatistic(const statistic::Sum&) : kind(StatisticKind::Sum) {}
  /// The log ratio of a segment.
  GDPO_DEVICE double operator()(const RowSum& s) const {
    return kind == StatisticKind::Sum ? statistic::Sum{}(s) : statistic::Mean{count_eps}(s);
  }
  /// Its derivative by the log ratio of one token.
  GDPO_DEVICE double share(double n) const {
    return kind == StatisticKind::Sum ? statistic::Sum{}.share(n)
                                      : statistic::Mean{count_eps}.share(n);
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("kind", s.kind, "the mean of the log ratios of a segment, or their sum");
    field("count_eps", s.count_eps, at_least(0), "added to the number of tokens of the mean");
  }
};

namespace detail {

/// The same level with map and statistic chosen at run time, if it is one of segments; level::Token
/// keeps its map, for which its loops are compiled.
template <class Map>
constexpr level::Token<Map> any_level(const level::Token<Map>& level) {
  return level;
}
template <class Map, class Statistic>
constexpr level::Sequence<AnyMap, AnyStatistic> any_level(
    const level::Sequence<Map, Statistic>& level) {
  return {level.map, level.statistic, level.bounds};
}
template <class Map, class Statistic>
constexpr level::SequenceToken<AnyMap, AnyStatistic> any_level(
    const level::SequenceToken<Map, Statistic>& level) {
  return {level.map, level.statistic, level.bounds};
}
template <class Level>
using AnyLevel = decltype(any_level(std::declval<const Level&>()));

}  // namespace detail
GDPO_END_NAMESPACE
