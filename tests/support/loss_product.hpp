// Every loss of the product of axes: each level, surrogate and KL term through one function that is
// not a template, on TokenBatch<double>. Each level is compiled once, in a file of its own
// (support/loss_product/), for all tests that call it.
#pragma once
#include <gdpo/runtime.hpp>
#include <stdexcept>
#include <tuple>

#include "support/loss_calls.hpp"

namespace loss_product {

namespace detail {
template <class... P>
std::tuple<P...> types_of(const gdpo::detail::OneOf<P...>&);
template <class... P>
std::tuple<P...> single_types_of(const gdpo::detail::OneOf<gdpo::Factors<>, gdpo::Factors<P>...>&);
}  // namespace detail
/// The surrogates and detached factors of the losses that have names: those of the list of presets.
using Surrogates = decltype(detail::types_of(std::declval<gdpo::runtime::AnySurrogate>()));
using DetachedFactors =
    decltype(detail::single_types_of(std::declval<gdpo::runtime::AnyFactors>()));
/// How many there are, without a factor among them.
constexpr int surrogates = static_cast<int>(std::tuple_size_v<Surrogates>),
              factors = 1 + static_cast<int>(std::tuple_size_v<DetachedFactors>);
/// Number `at` of the surrogates, as the oracle knows it.
naive_loss::Surrogate surrogate_at(int at);
/// Number `at` of the factors, as the oracle knows it; 0: none.
naive_loss::Factor factor_at(int at);

/// Whether a composition is compiled in this build. `cmake/dev check-all` compiles all of them
/// (GDPO_TEST_FULL_PRODUCT in tests/CMakeLists.txt). Every other build compiles
/// - every level and surrogate without a KL term,
/// - every option of one axis with the defaults of the other axes (Token, Ratio, K3, Direct),
/// - a cover in which every two options of different axes meet: an orthogonal array over the field
///   of four elements, in which addition is ^ and `twice` is multiplication by one of its elements.
///   Its columns are the level, the estimator, the rule (level + estimator) and twice the level +
///   estimator, which is the surrogate; a fifth surrogate has the rows of the first, and so on. The
///   fifth estimator and the rules from the fifth on are not in it: they meet the others where
///   these have the number of the level.
constexpr bool is_compiled(int level, int surrogate, int estimator, int rule) {
#if defined(GDPO_TEST_FULL_PRODUCT)
  return level + surrogate + estimator + rule >= 0;
#else
  constexpr int twice[] = {0, 2, 3, 1};
  // How many axes are not at their default.
  const int changed = (level != 0) + (surrogate != 0) + (estimator != 3) + (rule != 0);
  if (changed <= 1) return true;
  if (estimator > 3 || rule > 3) {
    return surrogate % 4 == level &&
           (estimator > 3 ? rule > 3 ? level < 2 : rule == level : estimator == level);
  }
  return rule == (level ^ estimator) && surrogate % 4 == (twice[level] ^ estimator);
#endif
}

/// Calls the gdpo::PolicyLoss of these settings, with at most one KL term and any aggregate. A map
/// or Statistic::Sum at a level of segments is called as run_any() does.
Outcome run(const Settings& settings, const Data& data,
            const gdpo::Normalizer* normalizer = nullptr);
Outcome run_token(const Settings& settings, const Data& data, const gdpo::Normalizer* normalizer);
Outcome run_clamped(const Settings& settings, const Data& data, const gdpo::Normalizer* normalizer);
Outcome run_sequence(const Settings& settings, const Data& data,
                     const gdpo::Normalizer* normalizer);
Outcome run_sequence_token(const Settings& settings, const Data& data,
                           const gdpo::Normalizer* normalizer);
/// Calls the loss type of names (gdpo::runtime::AnyLossAt) of these settings: every surrogate and
/// KL term, in one type for each level.
Outcome run_any(const Settings& settings, const Data& data, const gdpo::Normalizer* normalizer);
namespace detail {
template <int Surrogate>
using SurrogateAt = std::tuple_element_t<static_cast<std::size_t>(Surrogate), Surrogates>;
template <class Level, class Surrogate, class Kl>
Outcome run_one(const Settings& s, const Data& data, const gdpo::Normalizer* normalizer) {
  return call<double>(loss_of<gdpo::PolicyLoss<Level, Surrogate, Kl>>(s), data, normalizer);
}
template <int Index, class Level, int Surrogate, int E, class Estimator, int R, class... Rules>
Outcome run_rule(const Settings& s, const Data& data, const gdpo::Normalizer* normalizer) {
  if constexpr (sizeof...(Rules) > 0) {
    using List = std::tuple<Rules...>;
    if (static_cast<int>(s.kl[0].rule) == R) {
      if constexpr (is_compiled(Index, Surrogate, E, R)) {
        using Rule = std::tuple_element_t<static_cast<std::size_t>(R), List>;
        return run_one<Level, SurrogateAt<Surrogate>, gdpo::Kl<Estimator, Rule>>(s, data,
                                                                                 normalizer);
      }
    }
    if constexpr (R + 1 < static_cast<int>(sizeof...(Rules)))
      return run_rule<Index, Level, Surrogate, E, Estimator, R + 1, Rules...>(s, data, normalizer);
  }
  throw std::logic_error("not compiled in this build");
}
template <int Index, class Level, int Surrogate>
Outcome run_kl(const Settings& s, const Data& data, const gdpo::Normalizer* normalizer) {
  using namespace gdpo::kl;
  if (s.kl.empty()) return run_one<Level, SurrogateAt<Surrogate>, None>(s, data, normalizer);
  const auto with = [&](auto number, auto estimator) {
    return run_rule<Index, Level, Surrogate, decltype(number)::value, decltype(estimator), 0,
                    Direct, StraightThroughK2, ScoreFunction, ImportanceWeighted,
                    ImportanceWeightedK2, ClippedImportanceWeighted>(s, data, normalizer);
  };
  switch (s.kl[0].estimator) {
    case naive_loss::Estimator::K1:
      return with(std::integral_constant<int, 0>{}, K1{});
    case naive_loss::Estimator::Abs:
      return with(std::integral_constant<int, 1>{}, Abs{});
    case naive_loss::Estimator::K2:
      return with(std::integral_constant<int, 2>{}, K2{});
    case naive_loss::Estimator::K3:
      return with(std::integral_constant<int, 3>{}, K3{});
    default:
      return with(std::integral_constant<int, 4>{}, ForwardK1{});
  }
}
/// It is instantiated once for each level, in a file of its own (support/loss_product/).
template <int Index, class Level, int Surrogate = 0>
Outcome run_level(const Settings& s, const Data& data, const gdpo::Normalizer* normalizer) {
  if constexpr (Surrogate + 1 < surrogates) {
    if (surrogate_at(Surrogate).index() != s.surrogate.index())
      return run_level<Index, Level, Surrogate + 1>(s, data, normalizer);
  }
  return run_kl<Index, Level, Surrogate>(s, data, normalizer);
}
}  // namespace detail

/// Calls visit(settings) for every composition of one level that is compiled; of all levels where
/// `only` is -1.
template <class Visit>
void for_each_type(int only, const Visit& visit) {
  using namespace naive_loss;
  for (int level = 0; level < 4; ++level) {
    if (only >= 0 && level != only) continue;
    if (level >= 2) {  // the maps and statistics of segments, chosen at run time
      Settings s;
      s.level = level == 2 ? Level::Sequence : Level::SequenceToken;
      s.kl.assign(1, naive_loss::Kl{});
      for (const Map map : {Map::None, Map::Clamp, Map::TrustRegion}) {
        for (const Statistic statistic : {Statistic::Mean, Statistic::Sum}) {
          s.map = map, s.statistic = statistic;
          if (map != Map::None || statistic != Statistic::Mean) visit(s);
        }
      }
    }
    Settings s;
    s.level = level < 2 ? Level::Token : level == 2 ? Level::Sequence : Level::SequenceToken;
    s.map = level == 1 ? Map::Clamp : Map::None;
    for (int surrogate = 0; surrogate < surrogates; ++surrogate) {
      s.surrogate = surrogate_at(surrogate);
      s.kl.clear();
      visit(s);
      for (int estimator = 0; estimator < naive_loss::estimators; ++estimator) {
        for (int rule = 0; rule < naive_loss::rules; ++rule) {
          if (!is_compiled(level, surrogate, estimator, rule)) continue;
          s.kl.assign(1, naive_loss::Kl{});
          s.kl[0].estimator = static_cast<Estimator>(estimator);
          s.kl[0].rule = static_cast<Rule>(rule);
          visit(s);
        }
      }
    }
  }
}

}  // namespace loss_product
