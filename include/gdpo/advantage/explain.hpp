#pragma once
// explain: one group's numbers stage by stage, by the engine of `advantages`. No other header
// includes it, because few programs need it.
#include <gdpo/advantage/advantages.hpp>
#include <gdpo/advantage/explanation.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The policy's own phrase for what it computes, or `otherwise`.
template <class P, class = void>
struct PhraseOf {
  static const char* of(const P&, const char* otherwise) { return otherwise; }
};
template <class P>
struct PhraseOf<P, std::void_t<decltype(std::declval<const P&>().phrase())>> {
  static const char* of(const P& policy, const char*) { return policy.phrase(); }
};

/// False for every type: explain takes GroupAdvantage in an overload.
template <class Estimator>
constexpr bool is_explained_v = false;

/// Whether a scale divides by a spread with an eps beside it.
template <class S, class = void>
constexpr bool has_eps_v = false;
template <class S>
constexpr bool has_eps_v<S, std::void_t<decltype(S::eps), decltype(S::eps_at)>> = true;

/// The multiplier of a spread S as a formula.
GDPO_COLD inline std::string multiplier_formula(double eps, EpsAt eps_at) {
  const std::string e = formula_number(eps);
  const bool none = eps == 0;
  switch (eps_at) {
    case EpsAt::None:
      return "1";
    case EpsAt::StdOrOne:
      return (none ? "1 / S" : "1 / (S + " + e + ")") + ", 1 where S = 0";
    case EpsAt::Var:
      return none ? "1 / S" : "1 / sqrt(S^2 + " + e + ")";
    case EpsAt::ClampStd:
      return none ? "1 / S" : "1 / max(S, " + e + ")";
    case EpsAt::ClampVar:
      return none ? "1 / S" : "1 / sqrt(max(S^2, " + e + "))";
    default:
      return none ? "1 / S" : "1 / (S + " + e + ")";
  }
}

/// The settings of a policy that its formula does not show, as " [ddof=1 divide_by=any_mean]", or
/// nothing.
template <class P>
GDPO_COLD std::string settings_in_brackets(const P& policy) {
  std::string words;
  if constexpr (has_fields_v<P>) {
    walk_fields(policy, {}, [&](const auto& path, const auto& member, const FieldInfo&) {
      using Member = std::decay_t<decltype(member)>;
      const std::string name = path.text();
      if ((has_eps_v<P> && name == "eps") || name == "eps_at" || name == "of") return;
      if constexpr (has_enumerators_v<Member>) {
        const char* const word = word_of(member);
        words += (words.empty() ? "" : " ") + name + "=" + (word ? word : "?");
      } else if constexpr (std::is_arithmetic_v<Member>) {
        words +=
            (words.empty() ? "" : " ") + name + "=" + formula_number(static_cast<double>(member));
      }
    });
  }
  return words.empty() ? words : " [" + words + "]";
}

/// "x within lo to hi"; x alone where the bounds are off.
GDPO_COLD inline std::string within(const std::string& x, const Bounds& bounds) {
  if (is_off(bounds)) return x;
  return x + " within " + formula_number(bounds.lo) + " to " + formula_number(bounds.hi);
}

/// The stages of an estimator, a formula each.
template <class Estimator, class Renorm>
GDPO_COLD void write_stages(const Estimator& e, const Renorm& renorm, Explanation& out) {
  const auto reward = [](index_t c) { return "r" + std::to_string(c); };
  const auto add = [&](const char* name, std::string formula) {
    out.stages.push_back({name, std::move(formula)});
  };
  std::string gates;
  for (const Gate& gate : e.gates) {
    gates += (gates.empty() ? "" : "; ") + reward(gate.reward) + " is 0 where " +
             reward(gate.given) + " < " + formula_number(gate.at_least);
  }
  add("gate", gates.empty() ? "none" : gates);
  const std::string entry = word_of(e.missing.entry), infinite = word_of(e.missing.infinite);
  add("missing", "NaN: " + entry + ", row without rewards: " + word_of(e.missing.row) +
                     ", infinity: " + infinite + ", unused row: " + word_of(e.missing.unused));
  std::string sum;
  for (std::size_t c = 0; c < out.weights.size(); ++c) {
    const double w = out.weights[c];
    if (w == 0) continue;
    const std::string term = (out.sums_first ? "r" : "z") + std::to_string(c);
    sum += (sum.empty() ? (w < 0 ? "-" : "") : w < 0 ? " - " : " + ");
    sum += math::abs(w) == 1 ? term : formula_number(math::abs(w)) + " " + term;
  }
  if (sum.empty()) sum = "0";
  const std::string penalty =
      e.penalty.coef == 0 ? "" : formula_number(e.penalty.coef) + " KL of the row";
  if (out.sums_first) {
    add("penalty", penalty.empty() ? "none" : "the sum minus " + penalty);
    if (!is_off(e.reward_clip)) sum = "(" + within(sum, e.reward_clip) + ")";
    add("sum", "x = " + sum + (penalty.empty() ? "" : " - penalty"));
  } else {
    if (!is_off(e.reward_clip)) add("reward_clip", within("each reward", e.reward_clip));
    add("penalty", penalty.empty() ? "none" : reward(e.penalty.reward) + " minus " + penalty);
  }
  using Baseline = std::decay_t<decltype(e.baseline)>;
  using Scale = std::decay_t<decltype(e.scale)>;
  add("baseline",
      "b = " + std::string(PhraseOf<Baseline>::of(e.baseline, "that of the estimator")) +
          settings_in_brackets(e.baseline));
  std::string scale = PhraseOf<Scale>::of(e.scale, "that of the estimator");
  scale += settings_in_brackets(e.scale);
  if constexpr (has_eps_v<Scale>) {
    const bool divides = e.scale.eps_at != EpsAt::None;
    scale = multiplier_formula(e.scale.eps, e.scale.eps_at) + (divides ? "; S = " + scale : "");
  }
  add("scale", "m = " + scale);
  add("standardized", "z = (x - b) m");
  add("combined", "s = " + (out.sums_first ? std::string("z") : sum));
  const char* const over = renorm.over == RenormOver::Batch   ? "the batch"
                           : renorm.over == RenormOver::Group ? "the group"
                                                              : "the tokens of the batch";
  std::string second = "none";
  if (renorm.over != RenormOver::None) {
    second = "a = (s - mean) m over " + std::string(over);
    if constexpr (std::is_same_v<Renorm, gdpo::Renorm>) {
      if (out.renorm.shift == 0 && out.renorm_mean == 0)
        second = "a = s m over " + std::string(over) + ", whose mean is 0";
      second += "; m = " + multiplier_formula(renorm.eps, renorm.eps_at) +
                " [ddof=" + std::to_string(renorm.ddof) + "]" +
                (renorm.keep_mean ? "; the mean is kept" : "");
    }
  }
  add("renorm", second);
  if (!is_off(e.clip)) add("clip", within("a", e.clip));
}

/// What was special in a group, a sentence each.
/// lone: the member that Singleton::Exclude leaves out of the renormalization, or -1.
GDPO_COLD inline void write_notes(const Missing& missing, Singleton singleton, index_t lone,
                                  const std::vector<Rule>& rules, Explanation& e) {
  const auto members = e.rows.size(), rewards = e.weights.size();
  const auto rows_where = [&](const auto& test) {
    std::string rows;
    for (std::size_t k = 0; k < members; ++k)
      if (test(k)) rows += (rows.empty() ? "" : ", ") + std::to_string(e.rows[k]);
    return rows;
  };
  const auto note = [&](const std::string& rows, const std::string& words) {
    const bool several = rows.find(',') != std::string::npos;
    if (!rows.empty()) e.notes.push_back((several ? "rows " : "row ") + rows + ": " + words);
  };
  if (members == 0) e.notes.push_back("the group has no rows");
  note(rows_where([&](std::size_t k) { return !e.used[k]; }),
       missing.unused == UnusedRow::Exclude
           ? "unused, in no statistic, advantage 0"
           : "unused, in no statistic; compared with those that are used");
  const auto is_lone = [&](std::size_t k) { return static_cast<index_t>(k) == lone; };
  note(rows_where([&](std::size_t k) { return e.used[k] && e.excluded[k] && !is_lone(k); }),
       "excluded, because it has no reward: in no statistic, advantage 0");
  note(rows_where(is_lone),
       "the only used row (singleton is exclude): in no renormalization, advantage 0");
  for (std::size_t c = 0; c < rewards; ++c) {
    if (e.weights[c] == 0) {
      e.notes.push_back("reward " + std::to_string(c) + ": weight 0, in no sum");
      continue;
    }
    const auto name = "reward " + std::to_string(c);
    const auto i = [&](std::size_t k) { return k * rewards + c; };
    note(rows_where([&](std::size_t k) {
           return !math::is_nan(e.gated[i(k)]) && !(e.gated[i(k)] == e.rewards[i(k)]);
         }),
         name + " is gated: it counts as 0");
    note(rows_where([&](std::size_t k) { return math::is_nan(e.gated[i(k)]); }),
         name + " is missing (missing.entry is " + word_of(missing.entry) + ")");
    note(rows_where([&](std::size_t k) { return math::is_inf(e.gated[i(k)]); }),
         name + " is infinite (missing.infinite is " + word_of(missing.infinite) + ")");
  }
  for (std::size_t j = 0; j < e.columns.size(); ++j) {
    const ExplainedColumn& column = e.columns[j];
    const std::string name =
        column.reward < 0 ? "the weighted sum" : "reward " + std::to_string(column.reward);
    if (column.n == 0) {
      e.notes.push_back(name + ": no value counts, every term is 0");
    } else if (rules[j] == Rule::Unknown) {
      e.notes.push_back(name + ": a value is infinite or NaN, so that its statistics are unknown");
    } else if (column.n == 1) {
      // Where the baseline compares no member with its group, it is no special case.
      if (rules[j] != Rule::Policies)
        e.notes.push_back(name + ": one value counts (singleton is " + word_of(singleton) + ")");
    } else if (column.equal) {
      e.notes.push_back(name + ": all values are equal" +
                        (rules[j] == Rule::Zero ? ", every term is 0" : ""));
    }
  }
  bool apart = false;
  for (const ExplainedColumn& column : e.columns) apart = apart || (column.n > 1 && !column.equal);
  if (members > 0 && e.equal) {
    e.notes.push_back(apart && !e.sums_first
                          ? "the combined values are equal: the rewards cancel each other"
                          : "the combined values are equal: the group is degenerate");
  }
  if (e.over != RenormOver::None && e.over != RenormOver::Group && e.groups == 1)
    e.notes.push_back("the batch has this group only: the second normalization sees nothing else");
}

/// Sees the terms of a group and writes them to the columns of an Explanation.
template <class Scale>
struct WriteTerms {
  const Scale& scale;
  Scale plain;  // the same without eps
  bool replaces_nan;
  std::vector<double>& scratch;
  std::vector<Rule>& rules;
  Explanation& out;

  static void see(void* context, const ObservedTerm& term) {
    static_cast<const WriteTerms*>(context)->write(term);
  }
  void write(const ObservedTerm& term) const {
    ExplainedColumn& column = out.columns[as_size(term.column)];
    const std::size_t k = as_size(term.member);
    const GroupStat& stat = term.args.group;
    rules[as_size(term.column)] = term.rule;
    column.n = stat.n;
    column.mean = mean_or_nan(stat);
    column.std = std_or_nan(stat);
    column.equal = stat.n > 0 && stat.degenerate;
    column.values[k] = term.args.value;
    column.baseline[k] = term.rule != Rule::Zero ? term.baseline
                         : stat.n == 0           ? term.args.value
                                                 : column.mean;
    column.spread[k] = spread(term);
    column.multiplier[k] = term.multiplier;
    column.standardized[k] = term_of(term.centered, term.multiplier, replaces_nan);
    column.weighted[k] = term.term;
  }
  /// What the scale divides by, from its own multiplier without eps.
  double spread(const ObservedTerm& term) const {
    if constexpr (has_eps_v<Scale>) {
      if (term.rule == Rule::Nan || term.rule == Rule::Unknown) return math::nan();
      const bool compares =
          term.args.group.n > 1 || (!per_group_values_v<Scale> && ReadsBatch<Scale>::of(scale));
      if (term.rule == Rule::Zero && !compares) return 0;
      const double multiplier =
          factor_of(plain, Rule::Policies, term.args, term.centered, scratch.data());
      return math::is_zero(multiplier) ? 0.0 : 1.0 / multiplier;
    }
    static_cast<void>(term);
    return math::nan();
  }
};

}  // namespace detail

/// Explains one group of a call of `advantages`: every number between its rewards and its
/// advantages, by the engine itself, so that `Explanation::advantage` has the bits of `advantages`
/// (of any execution tag).
///
///     const gdpo::Explanation e =
///         gdpo::explain(gdpo::view(rewards, N, C), gdpo::groups_of(8), gdpo::Gdpo{}, 3);
///     std::fputs(e.to_text({"correct", "short"}).c_str(), stdout);  // a table, and formulas
///     e.columns[0].standardized;                                    // its numbers
///
/// group: a number of the grouping, 0 to groups - 1 (by_id: groups are numbered by ascending id).
/// The whole batch is computed, because statistics and the second normalization may read it: a call
/// takes as long as `advantages` and allocates. It is for a look at a run, not for every step.
///
/// A gdpo::Constrained is not explained. Its `estimator` is; set the weights of the rewards to 0
/// that only the constraints read.
///
/// Errors: invalid_input where `advantages` throws it, and for a group that there is not.
template <class T, class Groups, class B, class S, class C, class Renorm>
Explanation explain(const RewardBatch<T, Groups>& batch,
                    const GroupAdvantage<B, S, C, Renorm>& estimator, index_t group) {
  using namespace detail;
  constexpr const char* function = "gdpo::explain";
  constexpr bool sums_first = sums_first_v<C>;
  contract::check_array(function, "rewards", batch.rewards);
  check_batch_step(function, batch, estimator.renorm);
  Workspace workspace;
  EstimatorScratch& work = ScratchOf::estimator(workspace);
  GroupReport report;
  Evaluation<T, Groups, B, S> evaluation(function, seq, batch, estimator, work, &report);
  const index_t rows = batch.rewards.extent[0], rewards = batch.rewards.extent[1];
  Explanation e;
  e.group = group;
  e.groups = batch.groups.count(rows);
  if (group < 0 || group >= e.groups) {
    contract::fail(function, "group", contract::text(group),
                   e.groups == 0 ? contract::Text("a batch with groups")
                                 : "0 to " + contract::text(e.groups - 1));
  }
  evaluation(seq);
  std::vector<result_t<T>> advantages(as_size(rows));
  batch_step(seq, evaluation.units(), evaluation.workers(), batch, estimator.renorm, work,
             gdpo::view(advantages));
  clip_advantages(seq, estimator.clip, gdpo::view(advantages));

  const index_t members = batch.groups.length(group);
  const std::size_t size = as_size(members);
  e.sums_first = sums_first;
  for (index_t c = 0; c < rewards; ++c)
    e.weights.push_back(estimator.weights.empty() ? 1.0 : estimator.weights[c]);
  const auto& reader = evaluation.reader();
  index_t lone = -1;
  for (index_t k = 0; k < members; ++k) {
    const index_t i = batch.groups.row(group, k);
    e.rows.push_back(i);
    e.used.push_back(!batch.valid || batch.valid(i) != 0);
    e.excluded.push_back(gets_zero(work.state(i)));
    if (work.state(i) == RowState::Lone) lone = k;
    e.penalty.push_back(estimator.penalty.coef == 0 ? 0.0 : reader.penalty_of(i));
    for (index_t c = 0; c < rewards; ++c) {
      e.rewards.push_back(load(batch.rewards(i, c)));
      e.gated.push_back(reader.gated(i, c));
      e.known.push_back(settled(estimator.missing, e.gated.back()));
    }
  }
  const index_t columns = sums_first ? 1 : static_cast<index_t>(work.used_rewards.size());
  for (index_t j = 0; j < columns; ++j) {
    ExplainedColumn column;
    if (!sums_first) column.reward = work.used_rewards[as_size(j)];
    if (!sums_first) column.weight = work.reward_weights[as_size(j)];
    column.mean = column.std = math::nan();
    for (auto* list : {&column.values, &column.baseline, &column.spread, &column.multiplier,
                       &column.standardized, &column.weighted})
      list->assign(size, math::nan());
    e.columns.push_back(std::move(column));
  }
  S plain = estimator.scale;
  if constexpr (has_eps_v<S>) plain.eps = 0, plain.eps_at = EpsAt::Std;
  std::vector<double> scratch(size);
  std::vector<Rule> rules(as_size(columns), Rule::Zero);
  WriteTerms<S> terms{estimator.scale, plain, reader.replaces_nan(), scratch, rules, e};
  evaluation.observe(group, {&terms, &WriteTerms<S>::see});
  e.equal = report.degenerate[as_size(group)] != 0;

  e.over = estimator.renorm.over;
  e.renorm_mean = e.renorm_std = math::nan();
  if (e.over != RenormOver::None) {
    const bool centered = work.combined.zero_sum;
    const RenormArgs args =
        e.over == RenormOver::Group
            ? group_args(batch, group, centered, work, scratch.data())
            : RenormArgs{batch_moments(RowBlocks<Seq>(seq, rows), batch, e.over, work),
                         rescales(e.over, centered)};
    e.renorm = estimator.renorm(args);
    e.renorm_n = args.moments.weight;
    // A NaN or an infinity has no mean of 0, by whatever construction.
    e.renorm_mean = args.centered && !math::not_finite(args.moments.mean) ? 0.0 : args.moments.mean;
    if constexpr (std::is_same_v<Renorm, gdpo::Renorm>) {
      const Spread spread =
          spread_of(args.moments, estimator.renorm.ddof, estimator.renorm.count_eps);
      e.renorm_std = spread.known ? std::sqrt(spread.variance) : math::nan();
      if (!args.centered) e.renorm_mean = spread.mean;
    }
  }
  for (const index_t i : e.rows) {
    e.sum.push_back(work.row_sums[as_size(i)]);
    e.advantage.push_back(static_cast<double>(advantages[as_size(i)]));
  }
  write_stages(estimator, estimator.renorm, e);
  write_notes(estimator.missing, estimator.singleton, lone, rules, e);
  return e;
}

/// Taken by calls with another estimator: it only says what is wrong, by static_assert.
template <class T, class Groups, class Estimator>
Explanation explain(const RewardBatch<T, Groups>&, const Estimator&, index_t) {
  static_assert(detail::is_explained_v<Estimator>,
                "explain takes a gdpo::GroupAdvantage (gdpo::Gdpo{}, a preset); of a "
                "gdpo::Constrained its `estimator`, and of a gdpo::runtime::Estimator what "
                "std::visit gives");
  return {};
}

/// The same for rewards (N, C) in groups, in the order of arguments of `advantages`.
template <class T, class Groups, class Estimator>
Explanation explain(View<T, 2> rewards, const Groups& groups, const Estimator& estimator,
                    index_t group) {
  return explain(RewardBatch<std::remove_const_t<T>, Groups>{rewards, groups}, estimator, group);
}
/// The same for a single reward, (N).
template <class T, class Groups, class Estimator>
Explanation explain(View<T, 1> rewards, const Groups& groups, const Estimator& estimator,
                    index_t group) {
  return explain(RewardBatch<std::remove_const_t<T>, Groups>{rewards, groups}, estimator, group);
}

GDPO_END_NAMESPACE
