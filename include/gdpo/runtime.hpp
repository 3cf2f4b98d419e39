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
#include <gdpo/presets/brief.hpp>
#include <gdpo/presets/liger.hpp>
#include <gdpo/presets/ms_swift.hpp>
#include <gdpo/presets/nvlabs.hpp>
#include <gdpo/presets/open_instruct.hpp>
#include <gdpo/presets/paper.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/presets/tutorial.hpp>
#include <gdpo/presets/verl.hpp>
#include <string_view>
#include <utility>
#include <variant>

GDPO_BEGIN_NAMESPACE
namespace runtime {

/// Every estimator type that a name stands for.
using Estimator = std::variant<Gdpo, Grpo, DrGrpo, Rloo, brief::GroupGdpo, verl::Whitened, verl::WhitenedNoStd,
                               verl::ReinforceBaseline, nvlabs::WhitenedGrpo, ms_swift::ScaledRloo>;

namespace detail {
inline const std::vector<std::pair<std::string, Estimator>>& table() {
  static const std::vector<std::pair<std::string, Estimator>> entries = {
      {"gdpo", Gdpo{}},
      {"grpo", Grpo{}},
      {"dr_grpo", DrGrpo{}},
      {"rloo", Rloo{}},
      {"paper::gdpo", paper::gdpo},
      {"paper::grpo", paper::grpo},
      {"paper::grpo_no_std", paper::grpo_no_std},
      {"trl::grpo", trl::grpo},
      {"trl::grpo_no_scale", trl::grpo_no_scale},
      {"trl::grpo_batch_scale", trl::grpo_batch_scale},
      {"trl::gdpo", trl::gdpo},
      {"verl::grpo", verl::grpo},
      {"verl::grpo_no_std", verl::grpo_no_std},
      {"verl::gdpo", verl::gdpo},
      {"verl::gdpo_no_std", verl::gdpo_no_std},
      {"verl::rloo", verl::rloo},
      {"verl::rloo_vectorized", verl::rloo_vectorized},
      {"verl::reinforce_plus_plus_baseline", verl::reinforce_plus_plus_baseline},
      {"nvlabs::trl_grpo", nvlabs::trl_grpo},
      {"nvlabs::trl_grpo_no_scale", nvlabs::trl_grpo_no_scale},
      {"nvlabs::trl_gdpo", nvlabs::trl_gdpo},
      {"nvlabs::trl_grpo_nan_singleton", nvlabs::trl_grpo_nan_singleton},
      {"nvlabs::trl_gdpo_nan_singleton", nvlabs::trl_gdpo_nan_singleton},
      {"nvlabs::verl_grpo", nvlabs::verl_grpo},
      {"nvlabs::verl_grpo_no_std", nvlabs::verl_grpo_no_std},
      {"nvlabs::verl_grpo_bn", nvlabs::verl_grpo_bn},
      {"nvlabs::verl_grpo_no_std_bn", nvlabs::verl_grpo_no_std_bn},
      {"nvlabs::verl_gdpo", nvlabs::verl_gdpo},
      {"ms_swift::grpo", ms_swift::grpo},
      {"ms_swift::grpo_no_scale", ms_swift::grpo_no_scale},
      {"ms_swift::grpo_batch_scale", ms_swift::grpo_batch_scale},
      {"ms_swift::rloo", ms_swift::rloo},
      {"ms_swift::rloo_group_scale", ms_swift::rloo_group_scale},
      {"ms_swift::rloo_batch_scale", ms_swift::rloo_batch_scale},
      {"ms_swift::reinforce_plus_plus", ms_swift::reinforce_plus_plus},
      {"ms_swift::reinforce_plus_plus_group_scale", ms_swift::reinforce_plus_plus_group_scale},
      {"ms_swift::reinforce_plus_plus_no_scale", ms_swift::reinforce_plus_plus_no_scale},
      {"ms_swift::gdpo", ms_swift::gdpo},
      {"open_instruct::standard", open_instruct::standard},
      {"open_instruct::centered", open_instruct::centered},
      {"tutorial::grpo_numpy", tutorial::grpo_numpy},
      {"tutorial::grpo_torch", tutorial::grpo_torch},
      {"brief::gdpo", brief::gdpo},
  };
  return entries;
}
}  // namespace detail

namespace detail {
template <class Entry>
std::vector<std::string> names_of(const std::vector<Entry>& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.first);
  return names;
}
/// The entry of that name; unknown: invalid_input, which lists the names.
template <class Entry>
const auto& named(const char* function, const char* argument, std::string_view name, const std::vector<Entry>& table) {
  std::string known;
  for (const auto& entry : table) {
    if (entry.first == name) return entry.second;
    known += (known.empty() ? "" : ", ") + std::string(entry.first);
  }
  contract::fail(function, argument, "'" + std::string(name) + "'", "one of " + known);
}
}  // namespace detail

/// All names, in the order of the trainers.
inline const std::vector<std::string>& estimator_names() {
  static const std::vector<std::string> names = detail::names_of(detail::table());
  return names;
}

/// The estimator of that name. Unknown: invalid_input, which lists the names.
inline Estimator estimator(std::string_view name) {
  return detail::named("gdpo::runtime::estimator", "name", name, detail::table());
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
/// Every loss type that a name stands for.
using Loss = std::variant<LossAt<level::Token<>>, LossAt<level::Token<map::Clamp>>, LossAt<level::Sequence<>>,
                          LossAt<level::SequenceToken<>>>;

namespace detail {
/// The same loss with everything that a name can change chosen at run time.
template <class L>
Loss any(const L& loss) {
  const AnyKl kl{loss.kl.beta, loss.kl.against, loss.kl.input, loss.kl.output};
  return with_kl(with_aggregate(loss, Aggregate{loss.aggregate}), kl);
}
inline const std::vector<std::pair<std::string, Loss>>& losses() {
  static const std::vector<std::pair<std::string, Loss>> entries = {
      {"grpo", any(grpo_loss)},
      {"dapo", any(dapo_loss)},
      {"dr_grpo", any(dr_grpo_loss)},
      {"gspo", any(gspo_loss)},
      {"gspo_token", any(gspo_token_loss)},
      {"trl::grpo", any(trl::grpo_loss)},
      {"trl::bnpo", any(trl::bnpo_loss)},
      {"trl::dr_grpo", any(trl::dr_grpo_loss)},
      {"trl::dapo", any(trl::dapo_loss)},
      {"verl::vanilla", any(verl::vanilla_loss)},
      {"verl::gspo", any(verl::gspo_loss)},
      {"nvlabs::trl_grpo", any(nvlabs::trl_grpo_loss)},
      {"nvlabs::trl_bnpo", any(nvlabs::trl_bnpo_loss)},
      {"nvlabs::trl_dr_grpo", any(nvlabs::trl_dr_grpo_loss)},
      {"nvlabs::verl", any(nvlabs::verl_loss)},
      {"ms_swift::grpo", any(ms_swift::grpo_loss)},
      {"ms_swift::bnpo", any(ms_swift::bnpo_loss)},
      {"ms_swift::dr_grpo", any(ms_swift::dr_grpo_loss)},
      {"ms_swift::dapo", any(ms_swift::dapo_loss)},
      {"open_instruct::dapo", any(open_instruct::dapo_loss)},
      {"liger::grpo", any(liger::grpo_loss)},
      {"liger::bnpo", any(liger::bnpo_loss)},
      {"liger::dr_grpo", any(liger::dr_grpo_loss)},
      {"liger::dapo", any(liger::dapo_loss)},
      {"tutorial::grpo", any(tutorial::grpo_loss)},
  };
  return entries;
}
inline const std::vector<std::pair<std::string, Aggregate>>& aggregates() {
  static const std::vector<std::pair<std::string, Aggregate>> entries = {
      {"token-mean", {verl::token_mean}},
      {"token-sum", {verl::token_sum}},
      {"seq-mean-token-sum", {verl::seq_mean_token_sum}},
      {"seq-mean-token-sum-norm", {verl::seq_mean_token_sum_norm}},
      {"seq-mean-token-mean", {verl::seq_mean_token_mean}},
  };
  return entries;
}
inline const std::vector<std::pair<std::string, KlEstimator>>& estimators_of_kl() {
  static const std::vector<std::pair<std::string, KlEstimator>> entries = {
      {"kl", KlEstimator::K1}, {"k1", KlEstimator::K1},         {"abs", KlEstimator::Abs}, {"mse", KlEstimator::K2},
      {"k2", KlEstimator::K2}, {"low_var_kl", KlEstimator::K3}, {"k3", KlEstimator::K3}};
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
  static const std::vector<std::pair<std::string, int>> levels = {{"token", 0}, {"sequence", 1}, {"sequence_token", 2}};
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
  return detail::named("gdpo::runtime::aggregate", "loss_agg_mode", loss_agg_mode, detail::aggregates());
}

/// verl's kl_loss_type: "kl" or "k1", "abs", "mse" or "k2", "low_var_kl" or "k3"; with "+" the gradient of K2. Changes those
/// two members of `kl` and leaves its beta and clamps.
inline AnyKl kl(std::string_view kl_loss_type, AnyKl kl = {}) {
  const bool straight_through = !kl_loss_type.empty() && kl_loss_type.back() == '+';
  const std::string_view name = kl_loss_type.substr(0, kl_loss_type.size() - (straight_through ? 1 : 0));
  kl.estimator = detail::named("gdpo::runtime::kl", "kl_loss_type", name, detail::estimators_of_kl());
  kl.gradient = straight_through ? KlGradient::StraightThroughK2 : KlGradient::Direct;
  return kl;
}

}  // namespace runtime
GDPO_END_NAMESPACE
