#pragma once
// Explanation: the numbers of one group, stage by stage, as data and as text.
#include <cstdio>
#include <gdpo/advantage/workspace.hpp>
#include <string>
#include <vector>

GDPO_BEGIN_NAMESPACE

/// A column of an estimator in one group: what is centered and scaled by itself. With
/// NormalizeThenSum that is a reward whose weight is not 0, with SumThenNormalize the weighted sum.
/// The lists hold one number for each member (K), NaN where the member has no value.
struct ExplainedColumn {
  index_t reward = -1;  ///< The reward; -1: the weighted sum.
  double weight = 1;    ///< Its weight; 1 for the weighted sum.
  index_t n = 0;        ///< How many values count.
  double mean = 0,      ///< Their mean; NaN where there is none.
      std = 0;          ///< Their standard deviation, ddof 1; NaN below two.
  bool equal = false;   ///< All of them are equal, weighted sums up to rounding.
  /// x: after gates, missing rewards, weighted sum, bounds of the reward and penalty.
  std::vector<double> values;
  /// b: what is subtracted. Where a rule of the group decides in place of the baseline (equal
  /// values, one value), it is the mean of the values that count; where none counts, the own value.
  std::vector<double> baseline;
  /// The spread that the scale divides by, without eps: 1 / m of the same scale with eps 0 and
  /// EpsAt::Std. 0 where there is none; NaN for a scale without eps, such as scale::None.
  std::vector<double> spread;
  std::vector<double> multiplier;    ///< m: what x - b is multiplied by; 0 where a rule says 0.
  std::vector<double> standardized;  ///< z = (x - b) m.
  std::vector<double> weighted;      ///< w z, as it enters the combined value.
};

/// One group of a call of `advantages`, stage by stage; explain() makes it. K: members of the
/// group, C: rewards. All numbers are those of the engine: `advantage` has the bits of the call.
struct Explanation {
  index_t group = 0,                ///< Which group: a number of the grouping.
      groups = 0;                   ///< How many there are.
  bool sums_first = false;          ///< SumThenNormalize: one column, the weighted sum.
  std::vector<index_t> rows;        ///< (K) row of each member in the batch.
  std::vector<unsigned char> used,  ///< (K) 0: the row has valid == 0 and is in no statistic.
      /// (K) 1: the row gets 0: it has no reward, is left out with UnusedRow::Exclude, or is the
      /// only used row with Singleton::Exclude.
      excluded;
  std::vector<double> weights;  ///< (C) of the rewards.
  std::vector<double> rewards,  ///< (K, C) row-major: as the array has them.
      gated,  ///< (K, C) after the gates: 0 where one is closed, NaN where its condition is.
      known;  ///< (K, C) after the rule for missing and infinite rewards; NaN: missing.
  std::vector<double> penalty;           ///< (K) what the penalty takes off; 0 without one.
  std::vector<ExplainedColumn> columns;  ///< Of rewards with a weight, or of the weighted sum.
  std::vector<double> sum;               ///< (K) s: the combined values before the renormalization.
  bool equal = false;  ///< All s are equal (GroupReport::degenerate): the group is degenerate.
  RenormOver over = RenormOver::None;  ///< What the second normalization runs over.
  /// Of the values that the second normalization runs over: their number (rows, or tokens).
  double renorm_n = 0;
  /// Their mean; 0 where it is 0 by construction. NaN without one, and where one of them is NaN.
  double renorm_mean = 0;
  /// Their standard deviation, as its ddof and count_eps say; NaN without one, and where a
  /// renormalization of the caller's own has no ddof.
  double renorm_std = 0;
  Affine renorm;                  ///< a = (s - shift) multiplier + back, within the bounds.
  std::vector<double> advantage;  ///< (K) a, with the bits of `advantages`.

  /// A stage by its name and its formula; "none" where the estimator has no such stage.
  struct Stage {
    std::string name;     ///< "gate", "missing", "penalty", "sum", "baseline", "scale", ...
    std::string formula;  ///< One line.
  };
  std::vector<Stage> stages;       ///< In the order of the computation.
  std::vector<std::string> notes;  ///< What was special in this group, a sentence each.

  /// The explanation as a table for a terminal. names: of the C rewards; empty: "reward 0" and so
  /// on. title: a line of the caller's in front, such as the name of the estimator.
  std::string to_text(const std::vector<std::string>& names = {},
                      const std::string& title = "") const;
};

namespace detail {

/// Calls f(name, numbers) for each list of an Explanation, and f(name, number) for each of its
/// numbers; those of a column begin with "columns.0.". What carries an explanation elsewhere walks
/// this list.
template <class F>
void for_each_explained(const Explanation& e, const F& f) {
  f("group", e.group), f("groups", e.groups), f("sums_first", e.sums_first);
  f("rows", e.rows), f("used", e.used), f("excluded", e.excluded), f("weights", e.weights);
  f("rewards", e.rewards), f("gated", e.gated), f("known", e.known), f("penalty", e.penalty);
  for (std::size_t j = 0; j < e.columns.size(); ++j) {
    const ExplainedColumn& c = e.columns[j];
    const std::string name = "columns." + std::to_string(j) + ".";
    f(name + "reward", c.reward), f(name + "weight", c.weight), f(name + "n", c.n);
    f(name + "mean", c.mean), f(name + "std", c.std), f(name + "equal", c.equal);
    f(name + "values", c.values), f(name + "baseline", c.baseline), f(name + "spread", c.spread);
    f(name + "multiplier", c.multiplier), f(name + "standardized", c.standardized);
    f(name + "weighted", c.weighted);
  }
  f("sum", e.sum), f("equal", e.equal);
  f("renorm_n", e.renorm_n), f("renorm_mean", e.renorm_mean), f("renorm_std", e.renorm_std);
  f("renorm_shift", e.renorm.shift), f("renorm_multiplier", e.renorm.multiplier);
  f("renorm_back", e.renorm.back), f("advantage", e.advantage);
}

/// A number for a table: four decimals, or an exponent where those would hide it; `none` for NaN.
GDPO_COLD inline std::string table_number(double x, const char* none = "-") {
  char text[40];
  if (math::is_nan(x)) return none;
  const double size = math::abs(x);
  const bool plain = math::is_zero(x) || (size >= 0.00095 && size < 1e6);
  std::snprintf(text, sizeof text, plain ? "%.4f" : "%.3e", x);
  return text;
}
/// A number inside a formula: up to six digits.
GDPO_COLD inline std::string formula_number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}
/// Whether all numbers that are not NaN are one number.
inline bool one_number(const std::vector<double>& x) {
  const double* first = nullptr;
  for (const double& value : x) {
    if (math::is_nan(value)) continue;
    if (first && *first != value) return false;
    first = &value;
  }
  return true;
}
/// That number; NaN where there is none.
inline double number_in(const std::vector<double>& x) {
  for (const double value : x)
    if (!math::is_nan(value)) return value;
  return math::nan();
}
/// Whether two lists show the same numbers.
inline bool shows_same(const std::vector<double>& a, const std::vector<double>& b) {
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (a[k] != b[k] && !(math::is_nan(a[k]) && math::is_nan(b[k]))) return false;
  }
  return true;
}

/// A table of columns of numbers, with a word behind each line.
class NumberTable {
 public:
  GDPO_COLD void add(const std::string& heading, const std::vector<double>& numbers,
                     const char* none = "-") {
    std::vector<std::string> cells{heading};
    for (const double x : numbers) cells.push_back(table_number(x, none));
    columns_.push_back(cells);
  }
  GDPO_COLD void add_rows(const std::vector<index_t>& rows) {
    std::vector<std::string> cells{"row"};
    for (const index_t row : rows) cells.push_back(std::to_string(row));
    columns_.push_back(cells);
  }
  GDPO_COLD std::string text(const std::vector<std::string>& words) const {
    std::string lines;
    for (std::size_t i = 0; i < columns_.front().size(); ++i) {
      lines += " ";
      for (const auto& column : columns_) {
        std::size_t width = 6;
        for (const std::string& cell : column) width = cell.size() > width ? cell.size() : width;
        lines += std::string(width + 2 - column[i].size(), ' ') + column[i];
      }
      if (i > 0 && !words[i - 1].empty()) lines += "  " + words[i - 1];
      lines += "\n";
    }
    return lines;
  }

 private:
  std::vector<std::vector<std::string>> columns_;
};

/// Writes an Explanation as text.
class ExplanationText {
 public:
  ExplanationText(const Explanation& e, const std::vector<std::string>& names)
      : e_(e), names_(names), members_(e.rows.size()), rewards_(e.weights.size()) {}

  GDPO_COLD std::string operator()(const std::string& title) {
    if (!title.empty()) text_ += title + "\n";
    text_ += "group " + std::to_string(e_.group) + " of " + std::to_string(e_.groups) + ": " +
             counted(members_, "member") + ", " + counted(rewards_, "reward") + "\n";
    for (const Explanation::Stage& stage : e_.stages) {
      if (stage.formula != "none") line(stage.name, stage.formula);
    }
    if (members_ > 0) {
      for (const ExplainedColumn& column : e_.columns) add_column(column);
      add_advantages();
    }
    if (!e_.notes.empty()) text_ += "\n";
    for (const std::string& note : e_.notes) text_ += "  ! " + named(note) + "\n";
    return text_;
  }

 private:
  static GDPO_COLD std::string counted(std::size_t n, const char* word) {
    return std::to_string(n) + " " + word + (n == 1 ? "" : "s");
  }
  GDPO_COLD std::string name(index_t c) const {
    return names_.empty() ? "reward " + std::to_string(c) : names_[as_size(c)];
  }
  /// A note with the names of the rewards in place of "reward 0" and so on.
  GDPO_COLD std::string named(std::string note) const {
    for (std::size_t c = names_.size(); c-- > 0;) {  // 10 before 1
      const std::string number = "reward " + std::to_string(c);
      const std::size_t at = note.find(number);
      if (at != std::string::npos) return note.replace(at, number.size(), names_[c]);
    }
    return note;
  }
  GDPO_COLD void line(std::string label, const std::string& words) {
    label.resize(label.size() < 14 ? 14 : label.size() + 1, ' ');
    text_ += "  " + label + words + "\n";
  }
  GDPO_COLD std::vector<double> of_reward(const std::vector<double>& list, index_t c) const {
    std::vector<double> values;
    for (std::size_t k = 0; k < members_; ++k) values.push_back(list[k * rewards_ + as_size(c)]);
    return values;
  }
  /// What is special about each member; with a reward, also about its entry.
  GDPO_COLD std::vector<std::string> words(index_t reward) const {
    std::vector<std::string> all;
    for (std::size_t k = 0; k < members_; ++k) {
      std::string word = e_.used[k] ? "" : "unused";
      if (e_.excluded[k]) word += word.empty() ? "excluded" : ", excluded";
      for (index_t c = 0; c < static_cast<index_t>(rewards_); ++c) {
        if (reward >= 0 && reward != c) continue;
        const std::size_t i = k * rewards_ + as_size(c);
        const std::string which = reward >= 0 || rewards_ == 1 ? "" : name(c) + " ";
        if (math::is_nan(e_.known[i]) && e_.weights[as_size(c)] != 0)
          word += (word.empty() ? "" : ", ") + which + "missing";
        else if (!shows_same({e_.rewards[i]}, {e_.gated[i]}))
          word += (word.empty() ? "" : ", ") + which + "gated";
      }
      all.push_back(word);
    }
    return all;
  }
  GDPO_COLD void add_reward(NumberTable& table, index_t c) const {
    const auto given = of_reward(e_.rewards, c), gated = of_reward(e_.gated, c),
               known = of_reward(e_.known, c);
    table.add(e_.sums_first || rewards_ > 1 ? name(c) : "reward", given);
    if (!shows_same(given, gated)) table.add("gated", gated);
    if (!shows_same(gated, known)) table.add("known", known);
  }
  GDPO_COLD void add_column(const ExplainedColumn& column) {
    NumberTable table;
    table.add_rows(e_.rows);
    text_ += "\n";
    if (column.reward < 0) {
      text_ += "weighted sum\n";
      for (index_t c = 0; c < static_cast<index_t>(rewards_); ++c)
        if (e_.weights[as_size(c)] != 0) add_reward(table, c);
    } else {
      text_ += name(column.reward) +
               (names_.empty() ? "" : " (r" + std::to_string(column.reward) + ")") + ", weight " +
               formula_number(column.weight) + "\n";
      if (!shows_same(of_reward(e_.rewards, column.reward), column.values))
        add_reward(table, column.reward);
    }
    if (!one_number(e_.penalty) || !(number_in(e_.penalty) == 0)) {
      const bool here =
          column.reward < 0 || !shows_same(of_reward(e_.known, column.reward), column.values);
      if (here) table.add("penalty", e_.penalty);
    }
    table.add("x", column.values);
    std::string constants = "n = " + std::to_string(column.n) +
                            ", mean = " + table_number(column.mean) +
                            ", std = " + table_number(column.std);
    const auto show = [&](const char* label, const std::vector<double>& numbers) {
      if (math::is_nan(number_in(numbers))) return;
      if (one_number(numbers)) {
        constants += std::string(", ") + label + " = " + table_number(number_in(numbers));
      } else {
        table.add(label, numbers);
      }
    };
    show("b", column.baseline);
    show("S", column.spread);
    show("m", column.multiplier);
    table.add("z", column.standardized);
    if (column.reward >= 0) table.add("w z", column.weighted);
    text_ += "  " + constants + "\n" + table.text(words(column.reward));
  }
  GDPO_COLD void add_advantages() {
    NumberTable table;
    table.add_rows(e_.rows);
    for (const ExplainedColumn& column : e_.columns) {
      if (column.reward >= 0) table.add(name(column.reward), column.weighted);
    }
    table.add("s", e_.sum, "nan");  // every row has these: NaN is no gap
    table.add("a", e_.advantage, "nan");
    text_ += "\nadvantage\n";
    if (e_.over != RenormOver::None) {
      text_ += "  n = " + formula_number(e_.renorm_n) + ", mean = " + table_number(e_.renorm_mean) +
               ", S = " + table_number(e_.renorm_std) +
               ", m = " + table_number(e_.renorm.multiplier) + "\n";
    }
    std::vector<std::string> marks;
    for (std::size_t k = 0; k < members_; ++k)
      marks.push_back(e_.excluded[k] ? "excluded" : e_.used[k] ? "" : "unused");
    text_ += table.text(marks);
  }

  const Explanation& e_;
  const std::vector<std::string>& names_;
  std::size_t members_, rewards_;
  std::string text_;
};

}  // namespace detail

GDPO_COLD inline std::string Explanation::to_text(const std::vector<std::string>& names,
                                                  const std::string& title) const {
  if (!names.empty() && names.size() != weights.size()) {
    contract::fail(
        "gdpo::Explanation::to_text", "names",
        contract::text(static_cast<index_t>(names.size())) + " names",
        contract::text(static_cast<index_t>(weights.size())) + ", one for each reward, or none");
  }
  return detail::ExplanationText(*this, names)(title);
}

GDPO_END_NAMESPACE
