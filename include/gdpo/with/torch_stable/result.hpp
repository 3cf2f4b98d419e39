#pragma once
// Results and reports as tensors of numbers, and the operators on them.
#include <gdpo/advantage/report.hpp>
#include <gdpo/loss/loss_result.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/value/value_result.hpp>
#include <gdpo/with/torch_stable/contrastive_line.hpp>
#include <gdpo/with/torch_stable/tensor.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

// A result as one row of doubles. for_each_number alone defines their order: it calls one of the
// functions below for every number, with its name in two parts.

struct CountNumbers {
  std::int64_t& count;
  template <class T>
  void operator()(const char*, const char*, const T&) const {
    ++count;
  }
};
struct WriteNumbers {
  double*& out;
  template <class T>
  GDPO_INLINE void operator()(const char*, const char*, const T& number) const {
    *out++ = static_cast<double>(number);
  }
};
struct ReadNumbers {
  const double*& source;
  template <class T>
  void operator()(const char*, const char*, T& number) const {
    number = static_cast<T>(*source++);
  }
};
struct NameNumbers {
  std::string& names;
  template <class T>
  void operator()(const char* owner, const char* member, const T&) const {
    names += (names.empty() ? "" : "\n") + std::string(owner) + member;
  }
};

GDPO_CALLS_ANY
template <class M, class F>
GDPO_DEVICE void for_each_moment(const char* name, M& m, const F& f) {
  f(name, ".n", m.n), f(name, ".weight", m.weight), f(name, ".mean", m.mean);
  f(name, ".mean_low", m.mean_low), f(name, ".m2", m.m2);
  f(name, ".min", m.min), f(name, ".max", m.max);
}
GDPO_CALLS_ANY
template <class M, class F>
GDPO_DEVICE void for_each_part(const char* name, M& m, const F& f) {
  f(name, ".sum", m.sum), f(name, ".count", m.count), f(name, ".min", m.min);
  f(name, ".max", m.max), f(name, ".row_sum", m.row_sum), f(name, ".rows", m.rows);
  f(name, ".row_min", m.row_min), f(name, ".row_max", m.row_max);
}
GDPO_CALLS_ANY
template <int q, class M, class F>
GDPO_DEVICE void visit_metric(M& m, const F& f) {
  constexpr gdpo::detail::metric::Facts facts = gdpo::detail::metric::list[q];
  for_each_part(facts.name, m.*facts.member, f);
}
GDPO_CALLS_ANY
template <class N, class F>
GDPO_DEVICE void for_each_count(N& n, const F& f) {
  f("normalizer", ".tokens", n.tokens), f("normalizer", ".rows", n.rows);
  f("normalizer", ".non_empty_rows", n.non_empty_rows), f("normalizer", ".given", n.given);
}
GDPO_CALLS_ANY
template <class M, class F>
GDPO_DEVICE void for_each_place(const char* name, M& m, const F& f) {
  f(name, ".count", m.count), f(name, ".row", m.row), f(name, ".token", m.token);
}
/// Calls f for each number of a LossResult.
GDPO_CALLS_ANY
template <class R, class F, std::enable_if_t<std::is_same_v<std::decay_t<R>, LossResult>, int> = 0>
GDPO_DEVICE void for_each_number(R&& r, const F& f) {
  f("", "loss", r.loss), f("", "policy_loss", r.policy_loss), f("", "kl_loss", r.kl_loss);
  f("", "entropy_loss", r.entropy_loss);
  for_each_count(r.normalizer, f);
  f("", "over", r.over);
  auto& m = r.metrics;
  gdpo::detail::with_places<gdpo::detail::metrics_of_tokens + gdpo::detail::row_metrics>(
      [&](auto... q) { (visit_metric<q>(m, f), ...); });
  for_each_moment("advantage", m.advantage, f);
#define GDPO_X(in_batch, in_row, ...) \
  for_each_place("non_finite." #in_batch, m.non_finite.in_row, f);
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
  f("", "rows", m.rows), f("", "empty_rows", m.empty_rows);
  f("", "degenerate_rows", m.degenerate_rows), f("", "entropy_threshold", m.entropy_threshold);
  f("", "one_ratio_a_row", m.one_ratio_a_row);
}
/// Calls f for each number of a ValueLossResult.
GDPO_CALLS_ANY
template <class R, class F,
          std::enable_if_t<std::is_same_v<std::decay_t<R>, ValueLossResult>, int> = 0>
GDPO_DEVICE void for_each_number(R&& r, const F& f) {
  f("", "loss", r.loss);
  for_each_count(r.normalizer, f);
  f("", "over", r.over);
  auto& m = r.metrics;
  for_each_part("value_loss", m.loss, f), for_each_part("value", m.value, f);
  for_each_part("error", m.error, f), for_each_part("clip_fraction", m.clip_fraction, f);
  for_each_moment("returns", m.returns, f), for_each_moment("residuals", m.residuals, f);
  for_each_place("non_finite.values", m.non_finite.values, f);
  for_each_place("non_finite.old_values", m.non_finite.old_values, f);
  for_each_place("non_finite.returns", m.non_finite.returns, f);
  for_each_place("non_finite.row_weights", m.non_finite.weights, f);
  f("", "rows", m.rows), f("", "empty_rows", m.empty_rows);
}
/// Of flags (groups, `rewards`), how many groups have the flag of reward c.
inline index_t flags_set(const std::vector<unsigned char>& flags, std::size_t rewards,
                         std::size_t c) {
  index_t set = 0;
  for (std::size_t k = c; k < flags.size(); k += rewards) set += flags[k] != 0;
  return set;
}
/// Makes flags of groups whose counts are known: `degenerate` groups come first, and of these the
/// `canceled`, in which some reward differs, come last. set_next() then flags groups of a reward.
struct MakeFlags {
  GroupReport& report;
  std::size_t equal, canceled, next = 0;
  MakeFlags(GroupReport& r, index_t degenerate, index_t canceled_groups) : report(r) {
    const auto groups = static_cast<std::size_t>((std::max<index_t>)(r.groups, 0));
    r.degenerate.assign(groups, 0);
    r.reward_degenerate.assign(groups * r.rewards.size(), 0);
    const auto within = [](index_t n, std::size_t most) {
      return (std::min)(static_cast<std::size_t>((std::max<index_t>)(n, 0)), most);
    };
    const std::size_t dead = within(degenerate, groups);
    canceled = within(canceled_groups, dead), equal = dead - canceled;
    std::fill_n(r.degenerate.begin(), dead, static_cast<unsigned char>(1));
  }
  /// Flags `set` groups of reward c: the equal ones, those that are alive, and then the canceled
  /// ones in turns with the other rewards, so that in each some reward still differs.
  void set_next(std::size_t c, index_t set) {
    const std::size_t groups = report.degenerate.size(), rewards = report.rewards.size();
    const auto flag = [&](std::size_t g) { report.reward_degenerate[g * rewards + c] = 1; };
    for (std::size_t g = 0; g < equal && set > 0; ++g, --set) flag(g);
    for (std::size_t g = equal + canceled; g < groups && set > 0; ++g, --set) flag(g);
    for (std::size_t n = 0; n < canceled && set > 0; ++n, ++next, --set)
      flag(equal + next % canceled);
  }
};

/// Calls f for each number of a GroupReport. What belongs to single groups is not among them: of
/// flags there are their counts, and of the rest nothing.
template <class R, class F, std::enable_if_t<std::is_same_v<std::decay_t<R>, GroupReport>, int> = 0>
void for_each_number(R&& r, const F& f) {
  for (const auto& count : gdpo::detail::report_counts) f("", count.name, r.*count.member);
  constexpr bool reads = !std::is_const_v<std::remove_reference_t<R>>;
  const std::size_t rewards = r.rewards.size();
  index_t degenerate = flags_set(r.degenerate, 1, 0), canceled = gdpo::detail::canceled_groups(r);
  f("", "degenerate_groups", degenerate), f("", "canceled_groups", canceled);
  std::optional<MakeFlags> flags;
  if constexpr (reads) flags.emplace(r, degenerate, canceled);
  for (const auto& [name, member] : gdpo::detail::report_moments)
    for_each_moment(name, r.*member, f);
  for (std::size_t c = 0; c < r.rewards.size(); ++c) {
    const std::string name = "rewards." + std::to_string(c);
    auto& reward = r.rewards[c];
    for_each_moment((name + ".values").c_str(), reward.values, f);
    f(name.c_str(), ".known_groups", reward.known_groups);
    f(name.c_str(), ".flat_groups", reward.flat_groups);
    degenerate = flags_set(r.reward_degenerate, rewards, c);
    f(name.c_str(), ".degenerate_groups", degenerate);
    f(name.c_str(), ".explained_squares", reward.explained_squares);
    f(name.c_str(), ".explained", reward.explained);  // follows from the others when it is read
    if constexpr (reads) flags->set_next(c, degenerate);
  }
  for (const auto& [name, member] : gdpo::detail::report_sums) f("", name, r.*member);
  for (std::size_t a = 0, p = 0; a < rewards; ++a) {
    for (std::size_t b = a + 1; b < rewards; ++b, p += 3) {
      const std::string name = "pairs." + std::to_string(a) + "." + std::to_string(b);
      f(name.c_str(), ".products", r.pairs[p]);
      f(name.c_str(), ".first_squares", r.pairs[p + 1]);
      f(name.c_str(), ".second_squares", r.pairs[p + 2]);
      double correlation = r.correlation(static_cast<index_t>(a), static_cast<index_t>(b));
      f(name.c_str(), ".correlation", correlation);
    }
  }
}
/// How many numbers a result has.
template <class R>
std::int64_t size_of(const R& result) {
  std::int64_t size = 0;
  for_each_number(result, CountNumbers{size});
  return size;
}
/// The numbers of a result as a float64 tensor of rank 1.
template <class R>
Tensor numbers_of(const R& result) {
  Tensor tensor = doubles({size_of(result)});
  double* out = data_of(tensor);
  for_each_number(result, WriteNumbers{out});
  return tensor;
}
/// Reads what numbers_of() wrote into a result with as many numbers.
template <class R>
void read_numbers(const char* function, const char* name, const Tensor& tensor, R& result) {
  const std::int64_t size = size_of(result);
  const double* source =
      doubles_in(function, name, tensor, 1, size,
                 "the float64 tensor of " + contract::text(static_cast<index_t>(size)) +
                     " numbers that the call returned");
  for_each_number(result, ReadNumbers{source});
}
/// The numbers of merge() of two results R, by theirs.
template <class R>
Tensor merged(const char* function, const Tensor& a, const Tensor& b) {
  R first, second;
  read_numbers(function, "a", a, first), read_numbers(function, "b", b, second);
  return numbers_of(merge(first, second));
}
/// A report of that many rewards.
inline GroupReport report_of(std::int64_t rewards) {
  GroupReport report;
  report.rewards.resize(static_cast<std::size_t>(rewards));
  report.pairs.resize(3 * gdpo::detail::pair_count(report.rewards.size()));
  return report;
}
/// The report whose numbers a tensor holds, with what follows from them.
inline GroupReport report_from(const char* function, const char* name, const Tensor& tensor) {
  std::int64_t rewards = 0;
  while (size_of(report_of(rewards + 1)) <= tensor.numel()) ++rewards;
  GroupReport report = report_of(rewards);
  read_numbers(function, name, tensor, report);
  gdpo::detail::derive(report);
  return report;
}

/// A map as its keys, one a line, and its values.
inline std::tuple<std::string, Tensor> lines_of(const std::map<std::string, double>& map) {
  std::string keys;
  Tensor values = doubles({static_cast<std::int64_t>(map.size())});
  double* value = data_of(values);
  for (const auto& [key, number] : map) keys += (keys.empty() ? "" : "\n") + key, *value++ = number;
  return {keys, values};
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* names_schema = "names(str what, int rewards=0) -> str";
/// Lists of names, one a line: those of "estimators", "losses", "contrastive_losses", "prepasses",
/// "token_advantages", "outcome_advantages", "step_advantages", "token_baselines", "value_losses",
/// "whitenings", "shapings" or "running", or of the numbers of a "result", which policy_loss
/// returns, of a "value_result", which value_loss returns, or of a "report" of that many rewards,
/// which advantages returns. Errors: `invalid_input` for another word.
inline std::string names(const std::string& what, std::int64_t rewards) {
  std::string lines;
  constexpr std::pair<const char*, std::vector<std::string> (*)()> lists[] = {
      {"estimators", [] { return runtime::estimator_names(); }},
      {"losses", [] { return runtime::loss_names(); }},
      {"contrastive_losses",
       [] { return runtime::detail::names_of(detail::contrastive_losses()); }},
      {"prepasses", [] { return runtime::prepass_names(); }},
      {"token_advantages", [] { return runtime::token_advantage_names(); }},
      {"outcome_advantages", [] { return runtime::outcome_advantage_names(); }},
      {"step_advantages", [] { return runtime::step_advantage_names(); }},
      {"token_baselines", [] { return runtime::token_baseline_names(); }},
      {"value_losses", [] { return runtime::value_loss_names(); }},
      {"whitenings", [] { return runtime::whitening_names(); }},
      {"shapings", [] { return runtime::shaping_names(); }},
      {"running", [] { return runtime::running_names(); }}};
  std::string words;
  for (const auto& [word, names_in_list] : lists) {
    words += std::string(word) + ", ";
    if (what != word) continue;
    for (const std::string& name : names_in_list()) lines += (lines.empty() ? "" : "\n") + name;
    return lines;
  }
  if (what == "result") {
    detail::for_each_number(LossResult{}, detail::NameNumbers{lines});
  } else if (what == "value_result") {
    detail::for_each_number(ValueLossResult{}, detail::NameNumbers{lines});
  } else if (what == "report" && rewards >= 0) {
    detail::for_each_number(detail::report_of(rewards), detail::NameNumbers{lines});
  } else {
    contract::fail("gdpo::names", "what", "'" + what + "'",
                   words + "result, value_result or report");
  }
  return lines;
}

/// What an operator of this name declares.
inline constexpr const char* metrics_map_schema =
    "metrics_map(Tensor result, str prefix) -> (str, Tensor)";
/// LossMetrics::to_map of a result of policy_loss: the keys, one a line, and their values.
inline std::tuple<std::string, Tensor> metrics_map(const Tensor& result,
                                                   const std::string& prefix) {
  LossResult r;
  detail::read_numbers("gdpo::metrics_map", "result", result, r);
  return detail::lines_of(r.metrics.to_map(prefix));
}

/// What an operator of this name declares.
inline constexpr const char* merge_results_schema = "merge_results(Tensor a, Tensor b) -> Tensor";
/// merge() of the results of two micro-batches or ranks.
inline Tensor merge_results(const Tensor& a, const Tensor& b) {
  return detail::merged<LossResult>("gdpo::merge_results", a, b);
}

/// What an operator of this name declares.
inline constexpr const char* value_metrics_map_schema =
    "value_metrics_map(Tensor result, str prefix) -> (str, Tensor)";
/// ValueMetrics::to_map of a result of value_loss: the keys, one a line, and their values.
inline std::tuple<std::string, Tensor> value_metrics_map(const Tensor& result,
                                                         const std::string& prefix) {
  ValueLossResult r;
  detail::read_numbers("gdpo::value_metrics_map", "result", result, r);
  return detail::lines_of(r.metrics.to_map(prefix));
}

/// What an operator of this name declares.
inline constexpr const char* explained_variance_schema =
    "explained_variance(Tensor result, float eps=0.0) -> float";
/// ValueMetrics::explained_variance of a result of value_loss. Errors: `invalid_input` for a
/// negative `eps`.
inline double explained_variance(const Tensor& result, double eps) {
  constexpr const char* function = "gdpo::explained_variance";
  gdpo::detail::check_eps(function, "eps", eps);
  ValueLossResult r;
  detail::read_numbers(function, "result", result, r);
  return r.metrics.explained_variance(eps);
}

/// What an operator of this name declares.
inline constexpr const char* merge_value_results_schema =
    "merge_value_results(Tensor a, Tensor b) -> Tensor";
/// merge() of the results of value_loss of two micro-batches or ranks.
inline Tensor merge_value_results(const Tensor& a, const Tensor& b) {
  return detail::merged<ValueLossResult>("gdpo::merge_value_results", a, b);
}

/// What an operator of this name declares.
inline constexpr const char* report_map_schema =
    "report_map(Tensor report, str prefix, str[] names, str zero_std, str std) -> (str, Tensor)";
/// GroupReport::to_map of a report of advantages: the keys, one a line, and their values.
/// `zero_std`: "groups", "batch" or "sum"; `std`: "batch" or "mean_of_groups".
inline std::tuple<std::string, Tensor> report_map(const Tensor& report, const std::string& prefix,
                                                  const std::vector<std::string>& names,
                                                  const std::string& zero_std,
                                                  const std::string& std) {
  constexpr const char* function = "gdpo::report_map";
  ZeroStd row_rule{};
  RewardStd reward_rule{};
  runtime::detail::ReadSetting{function, "zero_std", zero_std}(row_rule);
  runtime::detail::ReadSetting{function, "std", std}(reward_rule);
  return detail::lines_of(
      detail::report_from(function, "report", report).to_map(prefix, names, row_rule, reward_rule));
}

/// What an operator of this name declares.
inline constexpr const char* merge_reports_schema = "merge_reports(Tensor a, Tensor b) -> Tensor";
/// merge() of the reports of two micro-batches or ranks.
inline Tensor merge_reports(const Tensor& a, const Tensor& b) {
  constexpr const char* function = "gdpo::merge_reports";
  return detail::numbers_of(
      merge(detail::report_from(function, "a", a), detail::report_from(function, "b", b)));
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
