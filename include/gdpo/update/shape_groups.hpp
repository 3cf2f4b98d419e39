#pragma once
// shape_rewards by group: rules that see the whole group of a completion.
#include <cmath>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/stats/moments.hpp>
#include <gdpo/update/shape_rewards.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace update {
namespace shaping {

/// What rules may read of each row beside its reward, all optional, (N). The counts are finite and
/// at least 0.
struct Columns {
  Column lengths{};        ///< Tokens of the completion.
  Column valid{};          ///< Flags; a row with 0 is unused. Absent: every row is used.
  Column input_lengths{};  ///< Tokens that were read: prompts, answers of tools and of others.
  Column turns{};          ///< Turns of the conversation.
};

/// A column of counts.
enum class Count : unsigned char { Tokens, InputTokens, Turns };

/// What a rule by group sees of a group: the used rows that have a reward, in their order. The
/// counts are empty where the call has no such column.
struct Group {
  View<const double, 1> rewards;       ///< (n) The rewards after the rules before this one; n > 0.
  View<const double, 1> tokens;        ///< (n) Or empty.
  View<const double, 1> input_tokens;  ///< (n) Or empty.
  View<const double, 1> turns;         ///< (n) Or empty.

  /// The moments of dense numbers of the group, the same bits for every order of the rows.
  static Moments moments(View<const double, 1> x) {
    return moments_of(AnyOrder{}, x.data, nullptr, x.extent[0]);
  }
  /// The least and the largest of them alone.
  static Moments range(View<const double, 1> x) {
    Moments m;
    if (gdpo::detail::range_of(x.data, nullptr, x.extent[0], m)) m.min = m.max = math::nan();
    return m;
  }
  /// How many rewards are above a bound.
  index_t above(double bound) const {
    index_t n = 0;
    for (index_t i = 0; i < rewards.extent[0]; ++i) n += rewards(i) > bound;
    return n;
  }
};

/// reward - m (output q_tokens + input q_input_tokens + turns q_turns), where m is the mean reward
/// of the group and q a count of the row divided by the largest of the group (0 if that is 0). The
/// cost is thus a share of the mean reward: easy prompts pay for length, and a prompt that nobody
/// solves pays nothing. prime-rl's length_penalty, with the weights 0.25, 0.1 and 0.1.
///
/// A weight of 0 needs no column. Where the mean is below 0 the cost is a gain, as in prime-rl.
struct RelativeCost {
  double output = 0.25;  ///< Weight of the tokens of the completion; at least 0.
  double input = 0.1;    ///< Weight of the tokens that it has read; at least 0.
  double turns = 0.1;    ///< Weight of its turns; at least 0.
  /// Whether a column is needed.
  bool reads(Count count) const {
    return (count == Count::Tokens ? output : count == Count::InputTokens ? input : turns) > 0;
  }
  /// What becomes of a row of the group.
  auto in_group(const Group& g) const {
    struct OfRow {
      double mean, weight[3], most[3];
      double operator()(const Args& a) const {
        const double counts[3] = {a.tokens, a.input_tokens, a.turns};
        double cost = 0;
        for (int k = 0; k < 3; ++k)
          if (weight[k] > 0 && most[k] > 0) cost += math::mul(weight[k], counts[k] / most[k]);
        return a.reward - math::mul(mean, cost);
      }
    };
    return OfRow{
        Group::moments(g.rewards).mean,
        {output, input, turns},
        {largest(output, g.tokens), largest(input, g.input_tokens), largest(turns, g.turns)}};
  }
  static constexpr const char* name = "relative_cost";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("output", s.output, at_least(0), "weight of the tokens of the completion");
    field("input", s.input, at_least(0), "weight of the tokens that it has read");
    field("turns", s.turns, at_least(0), "weight of its turns");
  }

 private:
  static double largest(double weight, View<const double, 1> counts) {
    return weight > 0 ? Group::range(counts).max : 0.0;
  }
};

/// Adds weight l to a right answer and weight min(l, 0) to a wrong one, with l = 1/2 - (tokens -
/// min) / (max - min) over the lengths of the group; nothing where they are all equal. The shortest
/// right answer gains half of the weight, the longest answer loses half of it. Kimi k1.5 (arXiv
/// 2501.12599, section 2.3.3, length penalty).
struct RelativeLength {
  static constexpr bool reads_tokens = true;  ///< The rule depends on the length.
  double weight = 1;  ///< What the span of the lengths costs, in units of the reward; at least 0.
  double right = 0;   ///< An answer is right if its reward is above this.
  /// What becomes of a row of the group.
  auto in_group(const Group& g) const {
    struct OfRow {
      double weight, right, min, span;
      double operator()(const Args& a) const {
        if (!(span > 0)) return a.reward;
        const double share = 0.5 - (a.tokens - min) / span;
        const double gain = a.reward > right ? share : (math::min)(share, 0.0);
        return a.reward + math::mul(weight, gain);
      }
    };
    const Moments m = Group::range(g.tokens);
    return OfRow{weight, right, m.min, m.max - m.min};
  }
  static constexpr const char* name = "relative_length";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("weight", s.weight, at_least(0), "what the span of the lengths costs");
    field("right", s.right, finite(), "an answer is right if its reward is above this");
  }
};

/// Multiplies the reward of a right answer by exp(-alpha z), where z = (tokens - mean) / (std +
/// eps) over the lengths of the right answers of the group, with the population std. Where these
/// are all equal z is 0. A wrong answer keeps its reward. GRPO-LEAD (arXiv 2504.09696,
/// length-dependent accuracy reward), which gives right answers the reward 1.
struct LengthAmongRight {
  static constexpr bool reads_tokens = true;  ///< The rule depends on the length.
  double alpha = 0.05;  ///< What a std more costs, as a share of the reward; at least 0.
  double eps = 0;       ///< Added to the std, in tokens; at least 0.
  double right = 0;     ///< An answer is right if its reward is above this.
  /// What becomes of a row of the group.
  auto in_group(const Group& g) const {
    struct OfRow {
      double alpha, right, mean, std;
      double operator()(const Args& a) const {
        if (!(a.reward > right) || !(std > 0)) return a.reward;
        return math::mul(a.reward, std::exp(-math::mul(alpha, (a.tokens - mean) / std)));
      }
    };
    std::vector<double> lengths;
    lengths.reserve(static_cast<std::size_t>(g.rewards.extent[0]));
    for (index_t i = 0; i < g.rewards.extent[0]; ++i)
      if (g.rewards(i) > right) lengths.push_back(g.tokens(i));
    const Moments m = Group::moments(gdpo::view(std::as_const(lengths)));
    return OfRow{alpha, right, m.mean, degenerate(m) || m.n == 0 ? 0 : stddev(m, 0) + eps};
  }
  static constexpr const char* name = "length_among_right";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("alpha", s.alpha, at_least(0), "what a std more costs, as a share of the reward");
    field("eps", s.eps, at_least(0), "added to the std, in tokens");
    field("right", s.right, finite(), "an answer is right if its reward is above this");
  }
};

/// reward - alpha max(p, 1 / n) tokens, where p is the share of right answers among the n of the
/// group: a token costs most on a prompt that is always solved, and least on a hard one. ALP,
/// adaptive length penalty (arXiv 2506.05256; alpha is its beta / N).
struct SolveRateLength {
  static constexpr bool reads_tokens = true;  ///< The rule depends on the length.
  double alpha = 0.0001;  ///< What a token costs where every answer is right; at least 0.
  double right = 0;       ///< An answer is right if its reward is above this.
  /// What becomes of a row of the group.
  auto in_group(const Group& g) const {
    struct OfRow {
      double price;
      double operator()(const Args& a) const { return a.reward - math::mul(price, a.tokens); }
    };
    const auto solved = static_cast<double>((std::max)(g.above(right), index_t{1}));
    return OfRow{math::mul(alpha, solved / static_cast<double>(g.rewards.extent[0]))};
  }
  static constexpr const char* name = "solve_rate_length";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("alpha", s.alpha, at_least(0), "what a token costs where every answer is right");
    field("right", s.right, finite(), "an answer is right if its reward is above this");
  }
};

}  // namespace shaping
}  // namespace update

namespace detail {

/// Whether a rule sees its group: it has `in_group(const shaping::Group&) const`, which gives a
/// rule for the rows.
template <class Rule, class = void>
constexpr bool is_group_rule_v = false;
template <class Rule>
constexpr bool is_group_rule_v<Rule, std::void_t<decltype(std::declval<const Rule&>().in_group(
                                         std::declval<const update::shaping::Group&>()))>> = true;

/// What is called for a row: the rule itself, or what a rule by group gives.
template <class Rule, class = void>
struct RowRule {
  using type = Rule;
};
template <class Rule>
struct RowRule<Rule, std::enable_if_t<is_group_rule_v<Rule>>> {
  using type =
      decltype(std::declval<const Rule&>().in_group(std::declval<const update::shaping::Group&>()));
};
template <class Rule>
constexpr bool is_shaping_rule_v =
    std::is_invocable_r_v<double, const typename RowRule<Rule>::type&,
                          const update::shaping::Args&>;

/// Whether a rule needs a column of counts.
template <class Rule>
auto needs_count(const Rule& rule, update::shaping::Count count, int)
    -> decltype(rule.reads(count)) {
  return rule.reads(count);
}
template <class Rule>
bool needs_count(const Rule&, update::shaping::Count count, long) {
  return count == update::shaping::Count::Tokens && reads_tokens_v<Rule>;
}

/// The rewards of a group while the rules are applied.
class ShapedGroup {
 public:
  /// Reads the members; returns how many have no reward.
  template <class T, class Groups>
  index_t read(View<T, 1> rewards, const Groups& groups, index_t g,
               const update::shaping::Columns& columns) {
    length_ = static_cast<std::size_t>(groups.length(g));
    if (length_ > rows_.size()) make_room();
    bool consecutive = true;
    index_t missing = 0;
    for (std::size_t k = 0; k < length_; ++k) {
      rows_[k] = groups.row(g, static_cast<index_t>(k));
      consecutive = consecutive && rows_[k] - rows_[0] == static_cast<index_t>(k);
      rewards_[k] = originals_[k] = load(rewards(rows_[k]));
      const bool is_missing = math::is_nan(rewards_[k]);
      states_[k] = is_missing ? State::Missing : State::Shaped;
      missing += is_missing;
    }
    const Column* const given[] = {&columns.lengths, &columns.input_lengths, &columns.turns,
                                   &columns.valid};
    for (std::size_t c = 0; c < 4; ++c) {
      has_[c] = static_cast<bool>(*given[c]);
      if (!has_[c]) continue;
      if (consecutive) {
        given[c]->copy_rows(length_ > 0 ? rows_[0] : 0, groups.length(g), given_[c].data());
      } else {
        for (std::size_t k = 0; k < length_; ++k) given_[c][k] = (*given[c])(rows_[k]);
      }
    }
    all_used_ = missing == 0;
    for (std::size_t k = 0; k < length_ && has_[3]; ++k)
      all_used_ = all_used_ && !math::is_zero(given_[3][k]);
    for (std::size_t c = 0; c < 3; ++c) used_[c].clear();
    for (std::size_t c = 0; c < 3 && !all_used_; ++c)
      if (has_[c]) pick_used(given_[c], used_[c]);
    return missing;
  }
  /// Applies a rule to every member. The rule of a group without used members does nothing.
  template <class Rule>
  void apply(const Rule& rule) {
    if constexpr (is_group_rule_v<Rule>) {
      if (!all_used_) pick_used(rewards_, used_[3]);
      const auto used = [&](const std::vector<double>& all, std::size_t c) {
        return all_used_
                   ? gdpo::view(all.data(), static_cast<index_t>(c == 3 || has_[c] ? length_ : 0))
                   : gdpo::view(std::as_const(used_[c]));
      };
      const update::shaping::Group group{used(rewards_, 3), used(given_[0], 0), used(given_[1], 1),
                                         used(given_[2], 2)};
      if (group.rewards.extent[0] == 0) return;
      const auto of_row = rule.in_group(group);
      apply_to_rows(of_row);
    } else {
      apply_to_rows(rule);
    }
  }
  template <class T>
  void write(View<T, 1> rewards, update::ShapedRewards& shaped) const {
    for (std::size_t k = 0; k < length_; ++k) {
      if (states_[k] != State::Missing)
        store_shaped(rewards(rows_[k]), originals_[k], rewards_[k], shaped);
    }
  }

 private:
  /// Undefined: a rule has made NaN of the reward, and infinity stands for it.
  enum class State : unsigned char { Missing, Shaped, Undefined };
  void make_room() {
    rows_.resize(length_), rewards_.resize(length_), originals_.resize(length_);
    states_.resize(length_);
    for (std::size_t c = 0; c < 4; ++c) given_[c].assign(length_, c == 3 ? 1.0 : math::nan());
  }
  /// The numbers of the used members that have a reward.
  void pick_used(const std::vector<double>& all, std::vector<double>& used) const {
    used.clear();
    for (std::size_t k = 0; k < length_; ++k) {
      if (states_[k] != State::Missing && !math::is_zero(given_[3][k])) used.push_back(all[k]);
    }
  }
  template <class Rule>
  void apply_to_rows(const Rule& rule) {
    for (std::size_t k = 0; k < length_; ++k) {
      if (states_[k] != State::Shaped) continue;
      update::shaping::Args args{rewards_[k], given_[0][k], given_[1][k], given_[2][k], rows_[k]};
      const bool defined = shape(rule, args);
      if (!defined) states_[k] = State::Undefined;
      rewards_[k] = defined ? args.reward : math::infinity;
    }
  }
  std::size_t length_ = 0;
  bool all_used_ = true,  // every member is used and has a reward
      has_[4] = {};
  std::vector<index_t> rows_;
  std::vector<double> rewards_, originals_;  // of the members
  std::vector<State> states_;
  std::vector<double> given_[4];  // the columns, `valid` last; NaN, or 1, where there is none
  std::vector<double> used_[4];   // of the used members: the columns, and rewards_ last
};

/// What shape_rewards() does, whatever holds the rules: check() checks their settings,
/// needs(count) tells whether one reads a column, apply(group) applies them to a group.
template <class T, class Groups, class Check, class Needs, class Apply>
update::ShapedRewards shape_by_group(const char* function, View<T, 1> rewards, const Groups& groups,
                                     const update::shaping::Columns& columns, const Check& check,
                                     const Needs& needs, const Apply& apply) {
  using update::shaping::Count;
  static_assert(!std::is_const_v<T>, "`rewards` is a read-only view: it cannot be shaped in place");
  static_assert(!std::is_integral_v<T>, "rewards that are shaped are floating-point numbers");
  const index_t rows = contract::check_written(function, "rewards", rewards);
  groups.check(function, rows);
  check();
  check_shaping_counts(function, "columns.lengths", "token counts", columns.lengths, rows,
                       needs(Count::Tokens));
  check_shaping_counts(function, "columns.input_lengths", "token counts", columns.input_lengths,
                       rows, needs(Count::InputTokens));
  check_shaping_counts(function, "columns.turns", "counts of turns", columns.turns, rows,
                       needs(Count::Turns));
  if (columns.valid) contract::check_entries(function, "columns.valid", columns.valid.size(), rows);

  update::ShapedRewards shaped;
  ShapedGroup group;
  for (index_t g = 0; g < groups.count(rows); ++g) {
    shaped.missing += group.read(rewards, groups, g, columns);
    apply(group);
    group.write(rewards, shaped);
  }
  return shaped;
}

}  // namespace detail

namespace update {

/// Replaces each reward by what the rules make of it, among them rules that see its group.
///
///     // prime-rl's length penalty
///     gdpo::update::shaping::Columns columns;
///     columns.lengths = gdpo::view(output), columns.input_lengths = gdpo::view(input);
///     columns.turns = gdpo::view(turns);
///     gdpo::update::shape_rewards(gdpo::view(rewards), gdpo::groups_of(8), columns,
///                                 gdpo::update::shaping::RelativeCost{0.25, 0.1, 0.1});
///
/// Rules by row and by group may be mixed; each sees what the rules before it have made of all rows
/// of the group. A rule of your own by group is a struct with `in_group(const shaping::Group&)
/// const`, which is called once for each group that has used rows and returns the rule for its
/// rows, `double operator()(const shaping::Args&) const`. It declares what it reads as other rules
/// do, or by `bool reads(shaping::Count) const`.
///
/// A missing reward (NaN) stays as it is and is in no statistic. An unused row (`columns.valid`) is
/// in no statistic, and is shaped by those of its group: an unused answer may be longer than the
/// longest. In a group without used rows rules by group change nothing. Where a rule makes NaN of a
/// reward, infinity is written, and counts as such for the rules after it. An infinite reward makes
/// a mean NaN: RelativeCost then gives infinity to the whole group.
///
/// The statistics are the same bits for every order of the rows of a group, with every grouping.
/// Over ranks, gather the rows first, with dist::gather_rows: the counts but the lengths as further
/// rewards.
///
/// rewards: (N), of float, double or a 16-bit float, with any stride but 0; written in place.
/// groups: groups_of, by_offsets or by_id. columns: what the rules read. Time O(N) for each rule;
/// allocates as much as the largest group needs.
///
/// Errors, all before anything is written: invalid_input for settings of a rule out of their range,
/// for shapes and groups that do not fit, for counts that are not finite or below 0, and for a
/// column that is absent while a rule reads it.
template <class T, class Groups, class... Rules,
          std::enable_if_t<detail::is_host_grouping_v<Groups>, int> = 0>
ShapedRewards shape_rewards(View<T, 1> rewards, const Groups& groups,
                            const shaping::Columns& columns, const Rules&... rules) {
  static_assert((detail::is_shaping_rule_v<Rules> && ...),
                "a rule needs: double operator()(const gdpo::update::shaping::Args&) const, or "
                "in_group(const gdpo::update::shaping::Group&) const that returns such a rule");
  constexpr const char* function = "gdpo::update::shape_rewards";
  return detail::shape_by_group(
      function, rewards, groups, columns,
      [&] { (gdpo::detail::check_fields(function, rules), ...); },
      [&]([[maybe_unused]] shaping::Count count) {
        return (detail::needs_count(rules, count, 0) || ...);
      },
      [&](detail::ShapedGroup& group) { (group.apply(rules), ...); });
}

}  // namespace update
GDPO_END_NAMESPACE
