#pragma once
/// Front door: estimators and losses by the names that stand in a trainer's configuration.
///
///   gdpo::runtime::Estimator e = gdpo::runtime::estimator("trl::gdpo");
///   std::visit([&](const auto& estimator) { gdpo::advantages_into(gdpo::seq, batch, estimator, out, workspace); }, e);
///
///   gdpo::runtime::Loss l = gdpo::runtime::loss("trl::dapo", "sequence");
///   std::visit([&](auto& loss) {
///     loss.kl = gdpo::runtime::kl("k3+", loss.kl);
///     result = loss(batch, normaliser, grad);
///   }, l);
#include <gdpo/advantages.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/presets/all.hpp>
#include <string_view>
#include <utility>
#include <variant>

GDPO_BEGIN_NAMESPACE
namespace runtime {

namespace detail {
/// std::variant of the types, each once, in the order in which they first appear.
template <class Set, class... T>
struct Distinct {
  using type = Set;
};
template <class... Known, class T, class... Rest>
struct Distinct<std::variant<Known...>, T, Rest...>
    : std::conditional_t<(std::is_same_v<T, Known> || ...),
                         Distinct<std::variant<Known...>, Rest...>,
                         Distinct<std::variant<Known..., T>, Rest...>> {};

struct OfValues {
  template <class... T>
  typename Distinct<std::variant<>, T...>::type operator()(const presets::Preset<T>&...) const;
};

template <class Value>
using Table = std::vector<std::pair<std::string, Value>>;
/// A list of presets as a table of their values.
template <class Value>
struct TableOf {
  template <class... T>
  Table<Value> operator()(const presets::Preset<T>&... preset) const {
    return {{preset.name, preset.value}...};
  }
};
template <class Value>
std::vector<std::string> names_of(const Table<Value>& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.first);
  return names;
}
/// Presets whose name has changed: the former one, which configurations may still have, and today's.
inline std::string_view current(std::string_view name) {
  constexpr std::string_view renamed[][2] = {{"brief::gdpo", "per_group::gdpo"},
                                             {"tutorial::grpo_numpy", "textbook::grpo_numpy"},
                                             {"tutorial::grpo_torch", "textbook::grpo_torch"},
                                             {"tutorial::grpo", "textbook::grpo"}};
  for (const auto& [former, today] : renamed) {
    if (name == former) return today;
  }
  return name;
}
/// The entry of that name; unknown: invalid_input, which lists the names.
template <class Value>
const Value& named(const char* function, const char* argument, std::string_view name,
                   const Table<Value>& table) {
  std::string known;
  const std::string_view today = current(name);
  for (const auto& entry : table) {
    if (entry.first == today) return entry.second;
    known += (known.empty() ? "" : ", ") + entry.first;
  }
  contract::fail(function, argument, "'" + std::string(name) + "'", "one of " + known);
}
}  // namespace detail

/// Every estimator type that a name stands for (presets/all.hpp).
using Estimator = decltype(presets::with_estimators(detail::OfValues{}));

namespace detail {
inline const Table<Estimator>& estimators() {
  static const Table<Estimator> entries = presets::with_estimators(TableOf<Estimator>{});
  return entries;
}
}  // namespace detail

/// All names, in the order of the list of presets.
inline const std::vector<std::string>& estimator_names() {
  static const std::vector<std::string> names = detail::names_of(detail::estimators());
  return names;
}

/// The estimator of that name. Unknown: invalid_input, which lists the names.
inline Estimator estimator(std::string_view name) {
  return detail::named("gdpo::runtime::estimator", "name", name, detail::estimators());
}

/// Every pre-pass type that a name stands for.
using Prepass = decltype(presets::with_prepasses(detail::OfValues{}));

namespace detail {
inline const Table<Prepass>& prepasses() {
  static const Table<Prepass> entries = presets::with_prepasses(TableOf<Prepass>{});
  return entries;
}
}  // namespace detail

inline const std::vector<std::string>& prepass_names() {
  static const std::vector<std::string> names = detail::names_of(detail::prepasses());
  return names;
}

/// The pre-pass of that name: a trainer's rollout correction. Unknown: invalid_input, which lists the names.
inline Prepass prepass(std::string_view name) {
  return detail::named("gdpo::runtime::prepass", "name", name, detail::prepasses());
}

/// An aggregate chosen at run time, on devices too: its mode, and the settings of all modes, of which each reads its own.
struct Aggregate {
  enum class Mode { SeqMeanTokenMean, TokenMean, SeqMeanTokenSum, SeqMeanTokenSumNorm, TokenSum };
  Mode mode = Mode::SeqMeanTokenMean;
  Over over = Over::Rows;
  double count_eps = 0, scale = 1;
  double row_count_eps = 0;   ///< SeqMeanTokenMean
  double constant = 0;        ///< SeqMeanTokenSumNorm
  bool padded_width = false;  ///< SeqMeanTokenSumNorm

  constexpr Aggregate() = default;
  constexpr Aggregate(const aggregate::SeqMeanTokenMean& a)
      : mode(Mode::SeqMeanTokenMean),
        over(a.over),
        count_eps(a.count_eps),
        scale(a.scale),
        row_count_eps(a.row_count_eps) {}
  constexpr Aggregate(const aggregate::TokenMean& a)
      : mode(Mode::TokenMean), over(a.over), count_eps(a.count_eps), scale(a.scale) {}
  constexpr Aggregate(const aggregate::SeqMeanTokenSum& a)
      : mode(Mode::SeqMeanTokenSum), over(a.over), count_eps(a.count_eps), scale(a.scale) {}
  constexpr Aggregate(const aggregate::SeqMeanTokenSumNorm& a)
      : mode(Mode::SeqMeanTokenSumNorm),
        over(a.over),
        count_eps(a.count_eps),
        scale(a.scale),
        constant(a.constant),
        padded_width(a.padded_width) {}
  constexpr Aggregate(const aggregate::TokenSum& a) : mode(Mode::TokenSum), scale(a.scale) {}

 private:
  GDPO_CALLS_ANY
  template <class F>
  GDPO_DEVICE auto chosen(const F& f) const {
    switch (mode) {
      case Mode::TokenMean:
        return f(aggregate::TokenMean{over, count_eps, scale});
      case Mode::SeqMeanTokenSum:
        return f(aggregate::SeqMeanTokenSum{over, count_eps, scale});
      case Mode::SeqMeanTokenSumNorm:
        return f(aggregate::SeqMeanTokenSumNorm{constant, padded_width, over, count_eps, scale});
      case Mode::TokenSum:
        return f(aggregate::TokenSum{scale});
      case Mode::SeqMeanTokenMean:
        break;
    }
    return f(aggregate::SeqMeanTokenMean{over, count_eps, scale, row_count_eps});
  }

 public:
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    return chosen([&](const auto& of) { return of(a); });
  }
  void check(const char* function) const {
    chosen([&](const auto& of) { of.check(function); });
  }
  bool reads_width() const {
    return chosen([](const auto& of) { return gdpo::detail::reads_width(of); });
  }
  const char* divides_by_nothing(const Normaliser& n) const {
    return chosen([&](const auto& of) { return gdpo::detail::divides_by_nothing(of, n); });
  }
};

template <class Level>
using LossAt = PolicyLoss<Level, surrogate::Ratio, AnyKl, Aggregate>;

namespace detail {
/// A KL term as one whose estimator and gradient are chosen at run time.
template <class Estimator, class Gradient>
constexpr AnyKl any_kl(const Kl<Estimator, Gradient>& kl) {
  constexpr KlEstimator estimator = std::is_same_v<Estimator, gdpo::kl::K1>    ? KlEstimator::K1
                                    : std::is_same_v<Estimator, gdpo::kl::Abs> ? KlEstimator::Abs
                                    : std::is_same_v<Estimator, gdpo::kl::K2>  ? KlEstimator::K2
                                                                               : KlEstimator::K3;
  constexpr KlGradient gradient =
      std::is_same_v<Gradient, gdpo::kl::StraightThroughK2>    ? KlGradient::StraightThroughK2
      : std::is_same_v<Gradient, gdpo::kl::ScoreFunction>      ? KlGradient::ScoreFunction
      : std::is_same_v<Gradient, gdpo::kl::ImportanceWeighted> ? KlGradient::ImportanceWeighted
                                                               : KlGradient::Direct;
  return {kl.beta, kl.against, kl.input, kl.output, estimator, gradient};
}
/// The same loss with everything that a name can change chosen at run time.
template <class L>
constexpr auto any_loss(const L& loss) {
  return with_kl(with_aggregate(loss, Aggregate{loss.aggregate}), any_kl(loss.kl));
}
struct OfLosses {
  template <class... L>
  typename Distinct<std::variant<LossAt<level::Token<>>, LossAt<level::Sequence<>>,
                                 LossAt<level::SequenceToken<>>>,
                    decltype(any_loss(std::declval<L>()))...>::type
  operator()(const presets::Preset<L>&...) const;
};
}  // namespace detail

/// Every loss type that a name stands for, at any level: losses that differ in their KL term or aggregate share one.
using Loss = decltype(presets::with_losses(detail::OfLosses{}));

namespace detail {
inline const Table<Loss>& losses() {
  static const auto entries = presets::with_losses([](const auto&... preset) {
    return Table<Loss>{{preset.name, any_loss(preset.value)}...};
  });
  return entries;
}
inline const Table<Aggregate>& aggregates() {
  static const Table<Aggregate> entries = presets::with_aggregates(TableOf<Aggregate>{});
  return entries;
}
inline const Table<KlEstimator>& estimators_of_kl() {
  static const Table<KlEstimator> entries = {
      {"kl", KlEstimator::K1},  {"k1", KlEstimator::K1}, {"abs", KlEstimator::Abs},
      {"mse", KlEstimator::K2}, {"k2", KlEstimator::K2}, {"low_var_kl", KlEstimator::K3},
      {"k3", KlEstimator::K3}};
  return entries;
}
}  // namespace detail

inline const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names = detail::names_of(detail::losses());
  return names;
}

/// The loss of that name: the paper's, or a trainer's loss_type. `level` is importance_sampling_level: "token", "sequence",
/// "sequence_token"; empty: the loss's own; another one begins without its map and bounds. Unknown: invalid_input, which lists the names.
inline Loss loss(std::string_view name, std::string_view level = "") {
  Loss chosen = detail::named("gdpo::runtime::loss", "name", name, detail::losses());
  if (level.empty()) return chosen;
  static const detail::Table<int> levels = {{"token", 0}, {"sequence", 1}, {"sequence_token", 2}};
  const int at = detail::named("gdpo::runtime::loss", "level", level, levels);
  return std::visit(
      [at](const auto& l) -> Loss {
        using Own = std::decay_t<decltype(l.level)>;
        if (at == (!Own::of_segment ? 0 : !Own::straight_through ? 1 : 2)) return l;
        if (at == 0) return with_level<level::Token<>>(l);
        if (at == 1) return with_level<level::Sequence<>>(l);
        return with_level<level::SequenceToken<>>(l);
      },
      chosen);
}

/// verl's loss_agg_mode: "token-mean", "seq-mean-token-mean", ... Set it as loss.aggregate.
inline Aggregate aggregate(std::string_view loss_agg_mode) {
  return detail::named("gdpo::runtime::aggregate", "loss_agg_mode", loss_agg_mode,
                       detail::aggregates());
}

/// verl's kl_loss_type: "kl" or "k1", "abs", "mse" or "k2", "low_var_kl" or "k3"; with "+" the gradient of K2. Changes those
/// two members of `kl` and leaves its beta and clamps.
inline AnyKl kl(std::string_view kl_loss_type, AnyKl kl = {}) {
  const bool straight_through = !kl_loss_type.empty() && kl_loss_type.back() == '+';
  const std::string_view name =
      kl_loss_type.substr(0, kl_loss_type.size() - (straight_through ? 1 : 0));
  kl.estimator =
      detail::named("gdpo::runtime::kl", "kl_loss_type", name, detail::estimators_of_kl());
  kl.gradient = straight_through ? KlGradient::StraightThroughK2 : KlGradient::Direct;
  return kl;
}

}  // namespace runtime
GDPO_END_NAMESPACE
