#pragma once
/// \file
/// Estimators, losses, pre-passes and the critic's side by name, as in a trainer's configuration.
///
/// A name gives a preset (include/gdpo/presets) in a std::variant, and std::visit calls it. The
/// results are the same as with the type.
///
///     call                          names
///     estimator(name)               "gdpo", "trl::gdpo", "verl::grpo", ...
///     loss(name, level)             "grpo", "trl::dapo", "verl::vanilla", ...
///       level                       "token", "sequence", "sequence_token"; "": the loss's own
///     aggregate(mode)               "token-mean", "token-sum", "seq-mean-token-sum",
///                                   "seq-mean-token-sum-norm", "seq-mean-token-mean"
///     kl(type)                      "kl" or "k1", "abs", "mse" or "k2", "low_var_kl" or "k3";
///                                   with "+" appended: with the gradient of k2;
///                                   with "*" appended: times the ratio
///     prepass(name)                 "trl::token_truncate", "open_instruct::rho", ...
///     shaping(name)                 "soft_overlong", "prime_rl::length_penalty", ...
///     running(name)                 "return_scale", "prime_rl::rae", ...: they keep a state
///     token_advantage(name)         "verl::gae", "openrlhf::reinforce", ...
///     outcome_advantage(name)       "openrlhf::rloo", "slime::grpo", ...
///     step_advantage(name)          "gigpo", "gigpo_no_std", "trinity::gigpo"
///     token_baseline(name)          "verl::optimal_token_baseline", ...
///     value_loss(name)              "verl::value_loss", "slime::value_loss", ...
///     whitening(name)               "tokens", "verl::masked_whiten", ...: for whiten_into
///     configured_loss(line)         a loss with its settings from one line of text
///     configured_estimator(line)    the same for an estimator; configured_shaping, ... for others
///
/// Levels are the importance_sampling_level of TRL and ms-swift, aggregates verl's loss_agg_mode,
/// KL terms verl's kl_loss_type. `estimator_names()`, `loss_names()`, `prepass_names()`,
/// `shaping_names()`, `running_names()`, `token_advantage_names()`, `outcome_advantage_names()`,
/// `step_advantage_names()`, `token_baseline_names()`, `value_loss_names()` and
/// `whitening_names()` list the names.
/// presets/all.hpp (`presets::for_each_estimator` and its siblings) also has the trainer's option
/// behind each name, and the version that it was checked against.
///
/// GRPO advantages and the DAPO loss of TRL, with one ratio per sequence:
///
/// <!-- build: door_runtime run -->
/// ```cpp
/// const std::vector<float> rewards{1, 0, 0.5f, 0.5f};  // one prompt, four completions
/// const auto groups = gdpo::groups_of(4);
/// const auto advantages = std::visit(
///     [&](const auto& e) { return gdpo::advantages(gdpo::view(rewards), groups, e); },
///     gdpo::runtime::estimator("trl::grpo"));
/// const std::vector<float> logp{-1, -2, -1.5f, -1, -0.5f, -2, -1, -1}, old_logp(8, -1.2f);
/// gdpo::TokenBatch<float> batch;
/// batch.logp = gdpo::view(logp.data(), 4, 2);  // two tokens each
/// batch.old_logp = gdpo::view(old_logp.data(), 4, 2);
/// batch.advantages = gdpo::view(advantages);
/// gdpo::Normalizer n = gdpo::count(batch);  // add those of all micro-batches and ranks
/// n.given = n.tokens;                       // required by "trl::dapo", see Inputs
/// const auto loss = gdpo::runtime::loss("trl::dapo", "sequence");
/// const double value = std::visit([&](const auto& l) { return l(batch, n).loss; }, loss);
/// std::printf("loss %.4f\n", value);  // prints loss 0.0644
/// ```
///
/// **Settings.** A line has a name and its settings, as in a configuration file or on a command
/// line:
///
///     gdpo::runtime::configured_loss("trl::dapo sequence surrogate.high=0.28 kl=k3 kl.beta=0.02")
///     gdpo::runtime::configured_estimator("trl::gdpo scale.eps=1e-6 missing.entry=zero")
///
/// A setting has the name of the member, or the end of it if no other setting of that loss or
/// estimator ends the same: `high` for `surrogate.high`, `beta` for `kl.beta`. The dots may be "_".
///
/// `gdpo::runtime::settings(gdpo::runtime::loss("trl::dapo"))` lists the settings of any named
/// thing: name, kind, value, the numbers that fit, and what it means; `shorthands` what sets
/// several of them by one word.
///
/// **Inputs.** As for the calls inside std::visit (advantages.hpp, loss.hpp). Some losses need a
/// number that only the trainer knows:
///
///     "trl::dapo", "ms_swift::dapo",   normalizer.given, which count() leaves at 0: "Denominators"
///       "open_instruct::dapo"            in include/gdpo/loss/README.md says what it is for each.
///                                        If gradients are then averaged over processes, set
///                                        loss.aggregate.scale to their number (trl::dapo:
///                                        presets/trl.hpp)
///     "dr_grpo" of any trainer         loss.aggregate.constant, the maximal completion length
///     "seq-mean-token-sum-norm"        the same; without it, it divides by the padded width
///
/// **Cost.** Look names up once, not in every step: the search is linear and allocates. A loss by
/// name chooses its KL term at run time, and its surrogate and factors too unless that is the
/// clipped ratio; otherwise a call costs what the type costs. std::visit compiles its call for
/// every type of the variant, half a minute with -O2 for the example above: keep it in one source
/// file.
///
/// **Errors.** gdpo::invalid_input for an unknown name, with a list of the known ones and those
/// that are near to it, and what the calls throw, such as for a `normalizer.given` or `constant` of
/// 0 where one is needed.
///
/// **Read on.** include/gdpo/presets/README.md: which preset is which trainer's. presets/trl.hpp,
/// verl.hpp, ...: what each name sets. loss/any_kl.hpp: KL terms chosen at run time.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <gdpo/advantages.hpp>
#include <gdpo/core/near.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/loss/any_level.hpp>
#include <gdpo/presets/all.hpp>
#include <gdpo/value.hpp>
#include <limits>
#include <locale>
#include <sstream>
#include <string_view>
#include <utility>
#include <variant>

GDPO_BEGIN_NAMESPACE
namespace runtime {

namespace detail {
/// A std::variant of the types T, each once, in the order in which they first appear.
template <class Set, class... T>
struct Distinct {
  using type = Set;
};
template <class... Known, class T, class... Rest>
struct Distinct<std::variant<Known...>, T, Rest...>
    : std::conditional_t<(std::is_same_v<T, Known> || ...),
                         Distinct<std::variant<Known...>, Rest...>,
                         Distinct<std::variant<Known..., T>, Rest...>> {};

/// Called with a list of presets (in decltype only), gives the variant of their types.
struct OfValues {
  template <class... T>
  typename Distinct<std::variant<>, T...>::type operator()(const Preset<T>&...) const;
};

/// Names with their values.
template <class Value>
using Table = std::vector<std::pair<std::string, Value>>;
/// Adds a line to a table. It is not inlined: lists are long, and of few types.
template <class Value, class T>
GDPO_NOINLINE void add(Table<Value>& table, const char* name, const T& value) {
  table.emplace_back(name, value);
}
/// Called with a list of presets, gives the table of their names and values.
template <class Value>
struct TableOf {
  template <class... T>
  Table<Value> operator()(const Preset<T>&... preset) const {
    Table<Value> table;
    (add(table, preset.name, preset.value), ...);
    return table;
  }
};
/// The table of a list of presets, made once.
template <class Value, class List>
const Table<Value>& table_in(const List& list) {
  static const Table<Value> entries = list(TableOf<Value>{});
  return entries;
}
/// The names of a table, in its order.
template <class Value>
std::vector<std::string> names_of(const Table<Value>& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.first);
  return names;
}
/// The names of a list of presets.
template <class Value, class List>
const std::vector<std::string>& names_in(const List& list) {
  static const std::vector<std::string> names = names_of(table_in<Value>(list));
  return names;
}
/// The value of that name. Errors: `invalid_input` for an unknown name, with a list of the names
/// and what is near, or with the one that is meant where its name in C++ is given, such as
/// "gdpo::trl::dapo_loss".
template <class Value>
const Value& named(const char* function, const char* argument, std::string_view name,
                   const Table<Value>& table) {
  constexpr std::string_view space = "gdpo::";
  std::string_view meant = name;
  if (meant.substr(0, space.size()) == space) meant.remove_prefix(space.size());
  std::string known, needed;
  for (const auto& entry : table) {
    if (entry.first == name) return entry.second;
    known += (known.empty() ? "" : ", ") + entry.first;
    if (meant == entry.first || meant == entry.first + "_loss")
      needed = "'" + entry.first + "', as names have neither gdpo:: before nor _loss behind them";
  }
  contract::fail(
      function, argument, "'" + std::string(name) + "'",
      needed.empty() ? "one of " + known + contract::did_you_mean(name, names_of(table)) : needed);
}
}  // namespace detail

/// A variant of every estimator type that a name can stand for (presets/all.hpp).
using Estimator = decltype(presets::with_estimators(detail::OfValues{}));

namespace detail {
/// The estimators that stand in no trainer's namespace: their names, and what they are in C++,
/// types where all others are values.
constexpr std::pair<const char*, const char*> own_types[] = {{"gdpo", "gdpo::Gdpo"},
                                                             {"grpo", "gdpo::Grpo"},
                                                             {"dr_grpo", "gdpo::DrGrpo"},
                                                             {"rloo", "gdpo::Rloo"},
                                                             {"gdpo_shrunk", "gdpo::ShrunkGdpo"},
                                                             {"grpo_shrunk", "gdpo::ShrunkGrpo"},
                                                             {"maxrl", "gdpo::MaxRl"}};
}  // namespace detail

/// The names of all estimators, in the order of presets/all.hpp.
inline const std::vector<std::string>& estimator_names() {
  return detail::names_in<Estimator>(presets::with_estimators);
}

/// The estimator of that name, such as "trl::gdpo".
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline Estimator estimator(std::string_view name) {
  constexpr const char* function = "gdpo::runtime::estimator";
  for (const auto& [known, type] : detail::own_types) {
    if (name != std::string("gdpo::") + known && name != type) continue;
    contract::fail(function, "name", "'" + std::string(name) + "'",
                   "'" + std::string(known) + "', the name of the type " + type);
  }
  return detail::named(function, "name", name,
                       detail::table_in<Estimator>(presets::with_estimators));
}

/// A variant of every pre-pass type that a name can stand for.
using Prepass = decltype(presets::with_prepasses(detail::OfValues{}));

/// The names of all pre-passes, in the order of presets/all.hpp.
inline const std::vector<std::string>& prepass_names() {
  return detail::names_in<Prepass>(presets::with_prepasses);
}

/// The pre-pass of that name: the rollout correction of a trainer, such as "trl::token_truncate".
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline Prepass prepass(std::string_view name) {
  return detail::named("gdpo::runtime::prepass", "name", name,
                       detail::table_in<Prepass>(presets::with_prepasses));
}

/// A variant of every rule that shapes rewards that a name can stand for (update/shape_groups.hpp).
using Shaping = decltype(presets::with_shapings(detail::OfValues{}));

/// The names of all rules that shape rewards, in the order of presets/all.hpp.
inline const std::vector<std::string>& shaping_names() {
  return detail::names_in<Shaping>(presets::with_shapings);
}

/// The rule of that name, such as "prime_rl::length_penalty".
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline Shaping shaping(std::string_view name) {
  return detail::named("gdpo::runtime::shaping", "name", name,
                       detail::table_in<Shaping>(presets::with_shapings));
}

/// update::shape_rewards with rules by name, which are applied in their order.
template <class T, class Groups>
update::ShapedRewards shape_rewards(View<T, 1> rewards, const Groups& groups,
                                    const update::shaping::Columns& columns,
                                    const std::vector<Shaping>& rules) {
  constexpr const char* function = "gdpo::runtime::shape_rewards";
  const auto for_each = [&rules](const auto& f) {
    for (const Shaping& rule : rules) std::visit(f, rule);
  };
  return gdpo::detail::shape_by_group(
      function, rewards, groups, columns,
      [&] { for_each([&](const auto& rule) { gdpo::detail::check_fields(function, rule); }); },
      [&](update::shaping::Count count) {
        bool needed = false;
        for_each([&](const auto& r) { needed = needed || gdpo::detail::needs_count(r, count, 0); });
        return needed;
      },
      [&](gdpo::detail::ShapedGroup& group) {
        for_each([&](const auto& rule) { group.apply(rule); });
      });
}

/// A variant of every type that keeps a state over the steps of a run: update::RunningMoments,
/// EmaBaseline, ReturnScale.
using Running = decltype(presets::with_running(detail::OfValues{}));

/// The names of all that keep a state over the steps of a run, in the order of presets/all.hpp.
inline const std::vector<std::string>& running_names() {
  return detail::names_in<Running>(presets::with_running);
}

/// The one of that name, such as "prime_rl::rae".
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline Running running(std::string_view name) {
  return detail::named("gdpo::runtime::running", "name", name,
                       detail::table_in<Running>(presets::with_running));
}

/// A variant of every estimator over tokens that a name can stand for.
using TokenAdvantage = decltype(presets::with_token_advantages(detail::OfValues{}));

/// The names of all estimators over tokens, in the order of presets/all.hpp.
inline const std::vector<std::string>& token_advantage_names() {
  return detail::names_in<TokenAdvantage>(presets::with_token_advantages);
}

/// The estimator over tokens of that name, such as "verl::gae". Discounts, lambda and the
/// coefficient of the penalty are those of a run: set them in the value.
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline TokenAdvantage token_advantage(std::string_view name) {
  return detail::named("gdpo::runtime::token_advantage", "name", name,
                       detail::table_in<TokenAdvantage>(presets::with_token_advantages));
}

/// A variant of every estimator from rows to tokens that a name can stand for.
using OutcomeAdvantage = decltype(presets::with_outcome_advantages(detail::OfValues{}));

/// The names of all estimators from rows to tokens, in the order of presets/all.hpp.
inline const std::vector<std::string>& outcome_advantage_names() {
  return detail::names_in<OutcomeAdvantage>(presets::with_outcome_advantages);
}

/// The estimator from rows to tokens of that name, such as "openrlhf::rloo". The discount, the
/// coefficient of the penalty and the bounds of the rewards are those of a run: set them in the
/// value.
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline OutcomeAdvantage outcome_advantage(std::string_view name) {
  return detail::named("gdpo::runtime::outcome_advantage", "name", name,
                       detail::table_in<OutcomeAdvantage>(presets::with_outcome_advantages));
}

/// A variant of every estimator of the steps of agents that a name can stand for.
using StepAdvantage = decltype(presets::with_step_advantages(detail::OfValues{}));

/// The names of all estimators of the steps of agents, in the order of presets/all.hpp.
inline const std::vector<std::string>& step_advantage_names() {
  return detail::names_in<StepAdvantage>(presets::with_step_advantages);
}

/// The estimator of the steps of agents of that name, such as "gigpo", for gigpo_into.
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline StepAdvantage step_advantage(std::string_view name) {
  return detail::named("gdpo::runtime::step_advantage", "name", name,
                       detail::table_in<StepAdvantage>(presets::with_step_advantages));
}

/// The names of all token baselines, in the order of presets/all.hpp.
inline const std::vector<std::string>& token_baseline_names() {
  return detail::names_in<OptimalTokenBaseline>(presets::with_token_baselines);
}

/// The token baseline of that name, such as "verl::optimal_token_baseline".
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline OptimalTokenBaseline token_baseline(std::string_view name) {
  return detail::named("gdpo::runtime::token_baseline", "name", name,
                       detail::table_in<OptimalTokenBaseline>(presets::with_token_baselines));
}

/// The loss type of names whose surrogate is the clipped ratio: at a level, with KL term and
/// aggregate chosen at run time.
template <class Level>
using LossAt = PolicyLoss<Level, surrogate::Ratio, AnyKl>;

namespace detail {
/// Called with a list of losses (in decltype only), gives an AnyOf of all their surrogates, or of
/// all their lists of factors.
template <template <class...> class AnyOf, class Known, class... T>
struct AnyOfTypes;
template <template <class...> class AnyOf, class... T>
struct AnyOfTypes<AnyOf, std::variant<T...>> {
  using type = AnyOf<T...>;
};
struct OfSurrogates {
  template <class... L>
  typename AnyOfTypes<gdpo::AnySurrogate, typename Distinct<std::variant<surrogate::Ratio>,
                                                            decltype(L::surrogate)...>::type>::type
  operator()(const Preset<L>&...) const;
};
struct OfFactors {
  template <class... L>
  typename AnyOfTypes<gdpo::AnyFactors, typename Distinct<std::variant<Factors<>>,
                                                          decltype(L::factor)...>::type>::type
  operator()(const Preset<L>&...) const;
};
}  // namespace detail
/// Any surrogate that a name can stand for.
using AnySurrogate = decltype(presets::with_losses(detail::OfSurrogates{}));
/// Any list of detached factors that a name can stand for.
using AnyFactors = decltype(presets::with_losses(detail::OfFactors{}));
/// The loss type of all other names: at a level, with everything else chosen at run time, map and
/// statistic of a level of segments too. A new surrogate adds a formula to it and no type.
template <class Level>
using AnyLossAt =
    PolicyLoss<gdpo::detail::AnyLevel<Level>, AnySurrogate, AnyKl, Aggregate, AnyFactors>;

namespace detail {
/// The KL term as an AnyKl, whose estimator and gradient are members.
template <class Estimator, class Gradient, class Factor>
constexpr AnyKl any_kl(const Kl<Estimator, Gradient, Factor>& kl) {
  using gdpo::kl::ClippedImportanceWeighted, gdpo::kl::ImportanceWeightedK2;
  using Gate = Factors<factor::TeacherGate>;
  static_assert(std::is_same_v<Factor, Factors<>> || std::is_same_v<Factor, Gate>,
                "AnyKl has no such factor (loss/any_kl.hpp)");
  constexpr KlEstimator estimator = std::is_same_v<Estimator, gdpo::kl::K1>    ? KlEstimator::K1
                                    : std::is_same_v<Estimator, gdpo::kl::Abs> ? KlEstimator::Abs
                                    : std::is_same_v<Estimator, gdpo::kl::K2>  ? KlEstimator::K2
                                    : std::is_same_v<Estimator, gdpo::kl::ForwardK1>
                                        ? KlEstimator::ForwardK1
                                        : KlEstimator::K3;
  constexpr KlGradient gradient =
      std::is_same_v<Gradient, gdpo::kl::StraightThroughK2>    ? KlGradient::StraightThroughK2
      : std::is_same_v<Gradient, gdpo::kl::ScoreFunction>      ? KlGradient::ScoreFunction
      : std::is_same_v<Gradient, gdpo::kl::ImportanceWeighted> ? KlGradient::ImportanceWeighted
      : std::is_same_v<Gradient, ImportanceWeightedK2>         ? KlGradient::ImportanceWeightedK2
      : std::is_same_v<Gradient, ClippedImportanceWeighted> ? KlGradient::ClippedImportanceWeighted
                                                            : KlGradient::Direct;
  AnyKl any{kl.beta, kl.against, kl.input, kl.output, estimator, gradient};
  if constexpr (std::is_same_v<Gradient, ImportanceWeightedK2> ||
                std::is_same_v<Gradient, ClippedImportanceWeighted>)
    any.max_weight = kl.gradient.max_weight;
  if constexpr (std::is_same_v<Factor, Gate>)
    any.factor = KlFactor::TeacherGate, any.gate_beta = kl.factor.first.gate_beta;
  return any;
}
/// The KL term of a loss by name is one already.
constexpr const AnyKl& any_kl(const AnyKl& kl) { return kl; }
/// The levels at which the clipped ratio has a type of its own: those of most names.
template <class Level>
constexpr bool has_own_type_v = !Level::of_segment || std::is_same_v<Level, level::Sequence<>> ||
                                std::is_same_v<Level, level::SequenceToken<>>;
/// The same loss with its KL term, and all but the clipped ratio, chosen at run time.
template <class L>
constexpr auto any_loss(const L& l) {
  using Level = std::decay_t<decltype(l.level)>;
  constexpr bool clips_ratio = std::is_same_v<decltype(L::surrogate), surrogate::Ratio> &&
                               std::is_same_v<decltype(L::factor), Factors<>>;
  if constexpr (clips_ratio && has_own_type_v<Level>) {
    return LossAt<Level>{l.level,     l.surrogate, any_kl(l.kl),
                         l.aggregate, {},          gdpo::detail::entropy_of(l)};
  } else {
    return AnyLossAt<Level>{
        gdpo::detail::any_level(l.level), l.surrogate, any_kl(l.kl), l.aggregate, l.factor,
        gdpo::detail::entropy_of(l)};
  }
}
/// Called with a list of losses (in decltype only), gives the variant of their types, and of LossAt
/// and AnyLossAt at every level.
struct OfLosses {
  template <class... L>
  typename Distinct<std::variant<LossAt<level::Token<>>, LossAt<level::Sequence<>>,
                                 LossAt<level::SequenceToken<>>, AnyLossAt<level::Token<>>,
                                 AnyLossAt<level::Sequence<>>, AnyLossAt<level::SequenceToken<>>>,
                    decltype(any_loss(std::declval<L>()))...>::type
  operator()(const Preset<L>&...) const;
};
}  // namespace detail

/// A variant of every loss type that a name can stand for, at any level.
using Loss = decltype(presets::with_losses(detail::OfLosses{}));

/// The value loss of any name.
using ValueLoss = gdpo::ValueLoss<>;

namespace detail {
inline const Table<Loss>& losses() {
  static const auto entries = presets::with_losses([](const auto&... preset) {
    Table<Loss> table;
    (add(table, preset.name, any_loss(preset.value)), ...);
    return table;
  });
  return entries;
}
/// The levels by their names, each at the place of its number.
inline const Table<int>& levels() {
  static const Table<int> entries = {{"token", 0}, {"sequence", 1}, {"sequence_token", 2}};
  return entries;
}
template <class Level>
constexpr int level_of = !Level::of_segment         ? 0
                         : !Level::straight_through ? 1
                                                    : 2;
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
inline void read_kl(const char* function, const char* argument, std::string_view text, AnyKl& kl) {
  const char last = text.empty() ? ' ' : text.back();
  const bool marked = last == '+' || last == '*';
  const std::string_view name = text.substr(0, text.size() - (marked ? 1 : 0));
  kl.estimator = named(function, argument, name, estimators_of_kl());
  kl.gradient = last == '+'   ? KlGradient::StraightThroughK2
                : last == '*' ? KlGradient::ImportanceWeighted
                              : KlGradient::Direct;
}
inline const Table<Renorm>& renorms() {
  static const Table<Renorm> entries = [] {
    Table<Renorm> table = {
        {"none", renorm::none()}, {"batch", renorm::batch()}, {"group", renorm::per_group()}};
    for (const auto& entry : table_in<Renorm>(presets::with_whitenings)) table.push_back(entry);
    return table;
  }();
  return entries;
}
}  // namespace detail

/// The names of all losses, in the order of presets/all.hpp.
inline const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names = detail::names_of(detail::losses());
  return names;
}

/// The loss of that name: that of a paper, such as "gspo", or of a trainer, such as "trl::dapo".
/// level: "token", "sequence" or "sequence_token" (importance_sampling_level of TRL and ms-swift);
/// empty: the loss's own. A level other than the loss's own has no map and no bounds; all other
/// settings are kept.
/// Errors: `invalid_input` for an unknown name or level, with a list of the known ones.
inline Loss loss(std::string_view name, std::string_view level = "") {
  Loss chosen = detail::named("gdpo::runtime::loss", "name", name, detail::losses());
  if (level.empty()) return chosen;
  const int level_index = detail::named("gdpo::runtime::loss", "level", level, detail::levels());
  return std::visit(
      [level_index](const auto& l) -> Loss {
        if (level_index == detail::level_of<std::decay_t<decltype(l.level)>>) return l;
        if (level_index == 0) return detail::any_loss(with_level<level::Token<>>(l));
        if (level_index == 1) return detail::any_loss(with_level<level::Sequence<>>(l));
        return detail::any_loss(with_level<level::SequenceToken<>>(l));
      },
      chosen);
}
/// The name of a loss's level, as `loss` takes it.
inline const std::string& level_name(const Loss& loss) {
  return std::visit(
      [](const auto& l) -> const std::string& {
        const int level_index = detail::level_of<std::decay_t<decltype(l.level)>>;
        return detail::levels()[static_cast<std::size_t>(level_index)].first;
      },
      loss);
}

/// The names of all value losses, in the order of presets/all.hpp.
inline const std::vector<std::string>& value_loss_names() {
  return detail::names_in<ValueLoss>(presets::with_value_losses);
}

/// The value loss of that name, such as "verl::value_loss". The clip is that of a run: set it in
/// the value.
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline ValueLoss value_loss(std::string_view name) {
  return detail::named("gdpo::runtime::value_loss", "name", name,
                       detail::table_in<ValueLoss>(presets::with_value_losses));
}

/// The names of all whitenings, in the order of presets/all.hpp.
inline const std::vector<std::string>& whitening_names() {
  return detail::names_in<Renorm>(presets::with_whitenings);
}

/// The second normalization over tokens of that name, such as "verl::masked_whiten", for
/// whiten_into and as `renorm` of an estimator over tokens.
/// Errors: `invalid_input` for an unknown name, with a list of the names.
inline Renorm whitening(std::string_view name) {
  return detail::named("gdpo::runtime::whitening", "name", name,
                       detail::table_in<Renorm>(presets::with_whitenings));
}

/// The aggregate of verl's loss_agg_mode, to be set as `loss.aggregate`: "token-mean", "token-sum",
/// "seq-mean-token-sum", "seq-mean-token-sum-norm" or "seq-mean-token-mean".
/// Errors: `invalid_input` for an unknown mode, with a list of the modes.
inline Aggregate aggregate(std::string_view loss_agg_mode) {
  return detail::named("gdpo::runtime::aggregate", "loss_agg_mode", loss_agg_mode,
                       detail::aggregates());
}

/// The KL term of verl's kl_loss_type: "kl" or "k1", "abs", "mse" or "k2", "low_var_kl" or "k3".
/// With a "+" appended, as in verl, the gradient is that of K2 (StraightThroughK2). With a "*"
/// appended, value and gradient are those of the estimate times the ratio (ImportanceWeighted),
/// which is TRL's use_bias_correction_kl. Else the gradient is that of the estimator.
/// The result is `kl` with its estimator and gradient changed; beta, `against` and the clamps are
/// kept. Pass `loss.kl` to keep those of the loss.
/// Errors: `invalid_input` for an unknown type, with a list of the types.
inline AnyKl kl(std::string_view kl_loss_type, AnyKl kl = {}) {
  detail::read_kl("gdpo::runtime::kl", "kl_loss_type", kl_loss_type, kl);
  return kl;
}

namespace detail {

/// Whether a struct is a pair of ends, `lo` and `hi`.
template <class T, class = void>
constexpr bool is_pair_v = false;
template <class T>
constexpr bool is_pair_v<T, std::void_t<decltype(T::lo), decltype(T::hi)>> = true;
/// Whether a member is a setting, with a number or a word for its value.
template <class Member>
constexpr bool is_leaf_v = std::is_arithmetic_v<Member> || gdpo::detail::has_enumerators_v<Member>;
/// Whether a line of text can set several settings of a struct at once, by a word or a pair.
template <class Member>
constexpr bool is_shorthand_v =
    std::is_same_v<Member, AnyKl> || std::is_same_v<Member, Aggregate> ||
    std::is_same_v<Member, Renorm> || std::is_same_v<Member, Missing> || is_pair_v<Member>;

/// Reads a whole text as a number, such as "0.2", "1e-6" or "inf". Returns whether it is one.
template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char *begin = text.data(), *end = begin + text.size();
#if !defined(__cpp_lib_to_chars)  // libc++ before version 20: from_chars reads integers only
  if constexpr (std::is_floating_point_v<Number>) {
    const bool negative = !text.empty() && text[0] == '-';
    if (text.substr(negative) == "inf") {
      number = (negative ? -1 : 1) * std::numeric_limits<Number>::infinity();
      return true;
    }
    std::istringstream stream{std::string(text)};
    stream.imbue(std::locale::classic());  // a decimal point, whatever the program's locale
    stream >> std::noskipws >> number;
    return !text.empty() && text[0] != '+' && !stream.fail() && stream.eof();
  } else
#endif
  {
    const auto [rest, error] = std::from_chars(begin, end, number);
    return error == std::errc{} && rest == end;
  }
}

/// Reads the value of a setting from text; the type of the setting decides what fits.
struct ReadSetting {
  const char* function;
  const std::string& name;
  std::string_view text;

  [[noreturn]] void fail(const char* needed) const {
    contract::fail(function, name, "'" + std::string(text) + "'", needed);
  }
  template <class Number>
  void read(Number& setting, const char* needed) const {
    if (!read_number(text, setting)) fail(needed);
  }
  void operator()(double& setting) const { read(setting, "a number"); }
  void operator()(int& setting) const { read(setting, "an integer"); }
  void operator()(index_t& setting) const { read(setting, "an integer"); }
  void operator()(std::uint64_t& setting) const { read(setting, "an integer of at least 0"); }
  void operator()(bool& setting) const {
    if (text != "true" && text != "false") fail("true or false");
    setting = text == "true";
  }
  template <class E, std::enable_if_t<gdpo::detail::has_enumerators_v<E>, int> = 0>
  void operator()(E& setting) const {
    Table<E> words;
    for (const auto& e : enumerators(setting)) words.emplace_back(e.word, e.value);
    setting = named(function, name.c_str(), text, words);
  }
  void operator()(AnyKl& setting) const { read_kl(function, name.c_str(), text, setting); }
  void operator()(Aggregate& setting) const {
    setting = named(function, name.c_str(), text, aggregates());
  }
  void operator()(Renorm& setting) const {
    setting = named(function, name.c_str(), text, renorms());
  }
  void operator()(Missing& setting) const { (*this)(setting.entry); }
  template <class Pair, std::enable_if_t<is_pair_v<Pair>, int> = 0>
  void operator()(Pair& setting) const {
    const std::size_t comma = text.find(',');
    if (comma == std::string_view::npos || !read_number(text.substr(0, comma), setting.lo) ||
        !read_number(text.substr(comma + 1), setting.hi)) {
      fail("two numbers, the lower and the upper end: LO,HI");
    }
  }
};

/// A member of some value that its lists name: its name, where it is, what fits, and what reads and
/// checks its type.
struct SettingRef {
  std::string name;
  void* member;
  gdpo::detail::FieldInfo info;
  bool standalone;  ///< Whether it is checked by itself: a number, a word, or a pair of ends.
  /// Null: no line can set it.
  void (*read)(const char* function, const std::string& name, std::string_view text, void* member);
  void (*check)(const char* function, const gdpo::detail::FieldPath& path, const void* member,
                const gdpo::detail::FieldInfo& info);
};
template <class Member>
void read_setting(const char* function, const std::string& name, std::string_view text,
                  void* member) {
  ReadSetting{function, name, text}(*static_cast<Member*>(member));
}
template <class Member>
void check_setting(const char* function, const gdpo::detail::FieldPath& path, const void* member,
                   const gdpo::detail::FieldInfo& info) {
  gdpo::detail::CheckField{function}(path, *static_cast<const Member*>(member), info);
}
/// Adds each setting that walk_fields visits to a list.
struct ListSettings {
  std::vector<SettingRef>& list;
  template <class Member>
  GDPO_NOINLINE void operator()(const gdpo::detail::FieldPath& path, Member& member,
                                const gdpo::detail::FieldInfo& info) const {
    constexpr bool standalone = is_leaf_v<Member> || is_pair_v<Member>;
    list.push_back({path.text(), &member, info, standalone, nullptr, &check_setting<Member>});
    if constexpr (is_leaf_v<Member> || is_shorthand_v<Member>)
      list.back().read = &read_setting<Member>;
  }
};
/// The settings of `x`, in the order of its lists. What follows is compiled once for all types.
template <class T>
std::vector<SettingRef> setting_refs(T& x) {
  std::vector<SettingRef> list;
  gdpo::detail::walk_fields(x, {}, ListSettings{list});
  return list;
}

template <class... T>
std::vector<SettingRef> setting_refs(std::variant<T...>& value) {
  return std::visit([](auto& x) { return setting_refs(x); }, value);
}

/// Whether a name, which may have "_" for dots, is that of a setting.
inline bool means(std::string_view name, std::string_view setting) {
  return name.size() == setting.size() &&
         std::equal(name.begin(), name.end(), setting.begin(),
                    [](char n, char s) { return n == s || (n == '_' && s == '.'); });
}
/// Whether it is the end of the name of a setting, behind a dot.
inline bool means_end(std::string_view name, std::string_view setting) {
  if (name.size() >= setting.size()) return false;
  const std::size_t dot = setting.size() - name.size() - 1;
  return setting[dot] == '.' && means(name, setting.substr(dot + 1));
}
/// The setting of a list that a name means: its name, or the end of it that no other setting of the
/// list has. Errors: `invalid_input` for an unknown name, with the list and what is near to it, and
/// for one that several have, with a list of these.
inline const SettingRef& find_setting(const char* function, const std::vector<SettingRef>& list,
                                      const std::string& name) {
  std::string names, candidates;  // of all settings, and of those that the name may mean
  std::vector<std::string> known;
  const SettingRef* end = nullptr;
  int ends = 0;
  for (const SettingRef& setting : list) {
    if (!setting.read) continue;
    if (means(name, setting.name)) return setting;
    names += (names.empty() ? "" : ", ") + setting.name;
    known.push_back(setting.name);
    if (!means_end(name, setting.name)) continue;
    candidates += (candidates.empty() ? "" : ", ") + setting.name;
    end = &setting, ++ends;
  }
  if (ends != 1) {
    contract::fail(
        function, "line", "the setting '" + name + "'",
        "one of " + (ends == 0 ? names + contract::did_you_mean(name, known) : candidates));
  }
  return *end;
}

/// The words of a line, which blanks separate; each call takes the next, and an empty one at its
/// end.
struct Words {
  static constexpr const char* blanks = " \t\r\n";
  std::string_view line;
  std::string_view operator()() {
    line.remove_prefix((std::min)(line.find_first_not_of(blanks), line.size()));
    const std::string_view word = line.substr(0, line.find_first_of(blanks));
    line.remove_prefix(word.size());
    return word;
  }
  /// Whether the next word begins with `first`.
  bool begins_with(char first) const {
    const std::size_t place = line.find_first_not_of(blanks);
    return place != std::string_view::npos && line[place] == first;
  }
};
/// The settings SETTING=VALUE of a line, in their order.
struct AppliedSettings {
  gdpo::detail::GivenNames names;   ///< The names of the settings, and what the line calls them.
  std::vector<std::string> values;  ///< As text.
};

/// Applies settings SETTING=VALUE, of which `word` is the first, and checks each by itself. A
/// setting may change which others there are, so each looks at the list anew. Returns what was set.
/// owner: what messages name before a setting, if anything.
template <class T>
AppliedSettings apply_settings(const char* function, T& x, std::string_view word, Words& next,
                               const gdpo::detail::FieldPath& owner = {}) {
  AppliedSettings applied;
  for (; !word.empty(); word = next()) {
    const std::size_t sign = word.find('=');
    if (sign == std::string_view::npos)
      contract::fail(function, "line", "'" + std::string(word) + "'", "SETTING=VALUE");
    const std::string name(word.substr(0, sign));
    const std::string_view value = word.substr(sign + 1);
    const std::vector<SettingRef> all = setting_refs(x);
    const SettingRef& setting = find_setting(function, all, name);
    for (const auto& [full_name, given_name] : applied.names) {
      if (full_name != setting.name || given_name == name) continue;
      contract::fail(function, name, "beside " + given_name + ", which is the same setting",
                     "one of the two");
    }
    setting.read(function, owner.text(name.c_str()), value, setting.member);
    if (setting.standalone)
      setting.check(function, {&owner, name.c_str()}, setting.member, setting.info);
    applied.names.emplace_back(setting.name, name);
    applied.values.emplace_back(value);
  }
  return applied;
}
/// Throws unless all settings fit, together too; messages call them as a line did.
template <class T>
void check_configured(const char* function, T& x, const AppliedSettings& applied) {
  for (const SettingRef& setting : setting_refs(x)) {
    const gdpo::detail::FieldPath path{nullptr, setting.name.c_str(), &applied.names};
    setting.check(function, path, setting.member, setting.info);
  }
}
/// What a line describes.
template <class Value>
struct Configured {
  Value value;
  std::string words;         ///< The words before the settings: NAME [LEVEL].
  AppliedSettings settings;  ///< The settings behind them.
};
inline Configured<Loss> configured_loss(const char* function, std::string_view line) {
  Words next{line};
  const std::string_view name = next();
  const std::string_view word = next();
  const bool has_level = !word.empty() && word.find('=') == std::string_view::npos;
  if (next.begins_with('=')) {
    contract::fail(function, "line", "'" + std::string(word) + " ='",
                   "SETTING=VALUE, without blanks around =");
  }
  const std::string_view level = has_level ? word : "";
  Configured<Loss> c{loss(name, level), std::string(name), {}};
  if (has_level) c.words += " " + std::string(level);
  c.settings = apply_settings(function, c.value, has_level ? next() : word, next);
  return c;
}
/// The same of a line without a level; `named` is the function that finds a name.
template <class Value>
Configured<Value> configured(const char* function, std::string_view line,
                             Value (*named)(std::string_view)) {
  Words next{line};
  const std::string_view name = next();
  Configured<Value> c{named(name), std::string(name), {}};
  c.settings = apply_settings(function, c.value, next(), next);
  return c;
}

}  // namespace detail

/// The loss that one line of text describes:
///
///     NAME [LEVEL] [SETTING=VALUE ...]          trl::dapo sequence kl=k3 kl.beta=0.02
///
/// Words are separated by blanks, tabs or ends of lines. NAME and LEVEL are those of `loss`. A
/// SETTING is named as in the members of the loss and in messages, such as `surrogate.low` or
/// `aggregate.constant`, or by the end of that where no other setting has it, such as `low` or
/// `constant`, and "_" may stand for the dots; a VALUE is a number ("inf" for infinity), true or
/// false, or a word. Some words set several settings: `kl` takes the types of `kl()` and sets
/// estimator and gradient, `aggregate` the modes of `aggregate()` and sets all of its settings; two
/// ends are LO,HI, as in `kl.input=-20,20`. Settings are applied in their order. `settings` and
/// `shorthands` list what there is.
///
/// Errors: `invalid_input` for an unknown name, level or setting, with a list of the known ones;
/// for an end that several settings have, with a list of these; for a setting by two names; and for
/// a value that does not fit. A message calls the setting as the line does. What several settings
/// decide together is checked by the loss when it is called.
inline Loss configured_loss(std::string_view line) {
  return detail::configured_loss("gdpo::runtime::configured_loss", line).value;
}

/// The estimator that one line of text describes:
///
///     NAME [SETTING=VALUE ...]          trl::gdpo scale.eps=1e-6 missing.entry=zero
///
/// NAME is that of `estimator`; SETTING and VALUE are as in configured_loss. An estimator has the
/// settings of its own scale, and those of a renormalization unless `renorm.over` is none. `renorm`
/// (none, batch, group, or one of whitening_names()) sets all of the renormalization, `missing` is
/// short for `missing.entry`. Weights and gates are lists: set them in the
/// value.
///
/// Errors: as those of configured_loss.
inline Estimator configured_estimator(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_estimator", line, &estimator).value;
}
/// The pre-pass that a line NAME [SETTING=VALUE ...] describes, as in configured_estimator.
inline Prepass configured_prepass(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_prepass", line, &prepass).value;
}
/// The same for a rule that shapes rewards: "soft_overlong max_length=20480 buffer=4096".
inline Shaping configured_shaping(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_shaping", line, &shaping).value;
}
/// The same for what keeps a state over the steps of a run: "ema_baseline decay=0.9".
inline Running configured_running(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_running", line, &running).value;
}
/// The same for an estimator over tokens: "verl::gae gamma=0.99 lambda=0.95".
inline TokenAdvantage configured_token_advantage(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_token_advantage", line, &token_advantage)
      .value;
}
/// The same for an estimator from rows to tokens: "openrlhf::rloo gamma=0.99
/// tokens.penalty.coef=0.05". What both estimators have, needs its whole name.
inline OutcomeAdvantage configured_outcome_advantage(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_outcome_advantage", line, &outcome_advantage)
      .value;
}
/// The same for an estimator of the steps of agents: "gigpo omega=0.5 episode.scale.eps=1e-6".
inline StepAdvantage configured_step_advantage(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_step_advantage", line, &step_advantage)
      .value;
}
/// The same for a token baseline: "verl::optimal_token_baseline tail=cancel".
inline OptimalTokenBaseline configured_token_baseline(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_token_baseline", line, &token_baseline)
      .value;
}
/// The same for a value loss: "verl::value_loss clip=0.2".
inline ValueLoss configured_value_loss(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_value_loss", line, &value_loss).value;
}
/// The same for a whitening: "verl::masked_whiten keep_mean=true".
inline Renorm configured_whitening(std::string_view line) {
  return detail::configured("gdpo::runtime::configured_whitening", line, &whitening).value;
}

/// A setting of a loss, an estimator, ... as a line of text writes it.
struct Setting {
  std::string
      name,     ///< The name of the member, "surrogate.low"; its end does where no other ends so.
      kind,     ///< "number", "integer", "true or false", or the words: "std | var | none".
      value,    ///< What it is now: "0.2", "inf", "true", "std".
      fits,     ///< The numbers that fit, "at least 0 (infinity: off)"; empty for words.
      meaning;  ///< What it means, in a phrase.
};

namespace detail {
/// A number as a line writes it: the fewest digits that read back as the same number.
inline std::string shortest(double x) {
  char text[32];
  for (const int digits : {6, 15, 17}) {
    std::snprintf(text, sizeof text, "%.*g", digits, x);
    double back = 0;
    if (read_number(std::string_view(text), back) && back == x) break;
  }
  return text;
}
template <class Member>
Setting setting_of(std::string name, const Member& member, const gdpo::detail::FieldInfo& info) {
  Setting s{std::move(name), "", "", "", info.meaning};
  if constexpr (std::is_same_v<Member, bool>) {
    s.kind = "true or false", s.value = member ? "true" : "false";
  } else if constexpr (std::is_enum_v<Member>) {
    const char* const word = gdpo::detail::word_of(member);
    s.kind = gdpo::detail::words_of<Member>().joined(" | "), s.value = word ? word : "";
  } else {
    constexpr bool integer = std::is_integral_v<Member>;
    s.kind = integer ? "integer" : "number";
    s.value = shortest(static_cast<double>(member));
    s.fits = gdpo::detail::needed(info.range, integer);
  }
  return s;
}
template <class Value>
std::string words_in(const Table<Value>& table) {
  std::string words;
  for (const auto& entry : table) words += (words.empty() ? "" : " | ") + entry.first;
  return words;
}
inline std::string words_for(const AnyKl&) {
  return words_in(estimators_of_kl()) + ", and + (gradient of k2) or * (times the ratio) behind it";
}
inline std::string words_for(const Aggregate&) { return words_in(aggregates()); }
inline std::string words_for(const Renorm&) { return words_in(renorms()); }
inline std::string words_for(const Missing&) {
  return gdpo::detail::words_of<MissingEntry>().joined(" | ");
}
template <class Pair>
std::string words_for(const Pair&) {
  return "two numbers, LO,HI";
}
}  // namespace detail

/// The settings of a struct that lists them (core/fields.hpp), in their order.
template <class T>
std::vector<Setting> settings(const T& x) {
  std::vector<Setting> list;
  gdpo::detail::walk_fields(
      x, {}, [&list](const auto& path, const auto& member, const gdpo::detail::FieldInfo& info) {
        if constexpr (detail::is_leaf_v<std::decay_t<decltype(member)>>)
          list.push_back(detail::setting_of(path.text(), member, info));
      });
  return list;
}
/// What sets several of the settings at once, by one word or a pair: `kl`, `aggregate`, `renorm`,
/// `missing`, and all with two ends, such as `kl.input`. Their value is empty.
template <class T>
std::vector<Setting> shorthands(const T& x) {
  std::vector<Setting> list;
  gdpo::detail::walk_fields(
      x, {}, [&list](const auto& path, const auto& member, const gdpo::detail::FieldInfo& info) {
        using Member = std::decay_t<decltype(member)>;
        if constexpr (detail::is_shorthand_v<Member>)
          list.push_back({path.text(), detail::words_for(member), "", "", info.meaning});
      });
  return list;
}
/// The settings of a loss, an estimator, ... by name: `settings(loss("trl::dapo"))`.
template <class... T>
std::vector<Setting> settings(const std::variant<T...>& named) {
  return std::visit([](const auto& x) { return settings(x); }, named);
}
/// The shorthands of a loss, an estimator, ... by name.
template <class... T>
std::vector<Setting> shorthands(const std::variant<T...>& named) {
  return std::visit([](const auto& x) { return shorthands(x); }, named);
}

}  // namespace runtime
GDPO_END_NAMESPACE
