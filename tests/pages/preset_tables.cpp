// Prints the tables of include/gdpo/presets/README.md, as Markdown, from the list of presets
// (presets/all.hpp). The test pages.presets compares them with the page, and the target `pages`
// puts them there.
//
// Each policy is described by one overload of `text`, so a policy that no overload knows does not
// compile: whoever adds one to a preset says here how the table writes it.
#include <cstdio>
#include <gdpo/presets/all.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

using Row = std::vector<std::string>;

std::string number(double x) {
  if (gdpo::math::is_inf(x)) return x < 0 ? "-inf" : "inf";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, x > 0 && x < 1e-3 ? "%.0e" : "%g", x);
  std::string digits = buffer;  // 1e-06
  const std::string::size_type exponent = digits.find("e-0");
  if (exponent != std::string::npos) digits.erase(exponent + 2, 1);
  return digits;
}
std::string plus(double eps) { return eps == 0 ? "" : " + " + number(eps); }

/// "<what> within [lo, hi]"; a side that is off is left out, and so is all of it where both are.
std::string within(const std::string& what, const gdpo::Bounds& b) {
  const bool low = !gdpo::math::is_inf(b.lo), high = !gdpo::math::is_inf(b.hi);
  if (low && high) return what + " within [" + number(b.lo) + ", " + number(b.hi) + "]";
  if (low) return what + " at least " + number(b.lo);
  if (high) return what + " at most " + number(b.hi);
  return "";
}
void append(std::string& to, const std::string& more) {
  if (!more.empty()) to += (to.empty() ? "" : ", ") + more;
}

// ---- estimators ----

std::string divisor(int ddof, double eps, gdpo::EpsAt eps_at) {
  const std::string of = ddof == 1 ? "sample " : "population ";
  switch (eps_at) {
    case gdpo::EpsAt::Std:
      return of + "std" + plus(eps);
    case gdpo::EpsAt::Var:
      return "sqrt(" + of + "variance" + plus(eps) + ")";
    case gdpo::EpsAt::ClampStd:
      return "max(" + of + "std, " + number(eps) + ")";
    case gdpo::EpsAt::ClampVar:
      return "sqrt(max(" + of + "variance, " + number(eps) + "))";
    case gdpo::EpsAt::StdOrOne:
      return of + "std" + plus(eps) + " (1 where it is 0)";
    case gdpo::EpsAt::None:
      break;
  }
  return "1";
}

std::string text(const gdpo::baseline::Mean&) { return "group mean"; }
std::string text(const gdpo::baseline::LeaveOneOut&) { return "mean of the others"; }

std::string text(const gdpo::baseline::SecondBest&) { return "itself; the best: the second best"; }
std::string text(const gdpo::baseline::LengthWeighted&) { return "group mean, by length"; }

std::string text(const gdpo::scale::None&) { return "1"; }
std::string text(const gdpo::scale::LeaveOneOutStd& s) {
  return divisor(s.ddof, s.eps, s.eps_at) + " of the others";
}
std::string text(const gdpo::scale::NonzeroShare&) { return "share of rewards that are not 0"; }
std::string text(const gdpo::scale::ShrunkStd& s) {
  return divisor(1, s.eps, s.eps_at) + " of the group, shrunk towards the batch's";
}
std::string text(const gdpo::scale::StdDev& s) {
  const char* of = s.of == gdpo::scale::Of::Group   ? " of the group"
                   : s.of == gdpo::scale::Of::Batch ? " of the batch"
                                                    : " of the centred batch";
  return divisor(s.ddof, s.eps, s.eps_at) + of;
}

std::string text(const gdpo::combine::SumThenNormalize&) { return "their sum"; }
std::string text(const gdpo::combine::NormalizeThenSum&) { return "each reward"; }

std::string text(const gdpo::renorm::None&) { return "none"; }
template <class Renorm>
std::string second_stage(const char* over, const Renorm& r) {
  std::string stage = over + (", by " + divisor(r.ddof, r.eps, r.eps_at));
  if (r.count_eps != 0) stage += ", counts" + plus(r.count_eps);
  if (r.keep_mean) stage += ", mean kept";
  return stage;
}
std::string text(const gdpo::renorm::Batch& r) { return second_stage("rows of the batch", r); }
std::string text(const gdpo::renorm::PerGroup& r) { return second_stage("rows of the group", r); }
std::string text(const gdpo::renorm::TokenWeightedBatch& r) {
  return second_stage("tokens of the batch", r);
}

std::string text(const gdpo::Missing& m) {
  switch (m.entry) {
    case gdpo::MissingEntry::Skip:
      return m.row == gdpo::MissingRow::Keep      ? "left out; a row without any counts as 0"
             : m.row == gdpo::MissingRow::Exclude ? "left out; a row without any is excluded"
                                                  : "left out; a row without any, also of weight "
                                                    "0, is excluded";
    case gdpo::MissingEntry::Zero:
      return "is 0";
    case gdpo::MissingEntry::Propagate:
      return "not handled: gives NaN";
    case gdpo::MissingEntry::Reject:
      break;
  }
  return "error";
}
std::string text(gdpo::InfiniteEntry infinite) {
  using gdpo::InfiniteEntry;
  return infinite == InfiniteEntry::Propagate  ? "gives NaN"
         : infinite == InfiniteEntry::Missing  ? "is missing"
         : infinite == InfiniteEntry::NanToNum ? "what is NaN counts as 0"
                                               : "error";
}
std::string text(gdpo::Singleton s) {
  return s == gdpo::Singleton::Zero  ? "0"
         : s == gdpo::Singleton::Raw ? "its value"
         : s == gdpo::Singleton::Nan ? "NaN"
                                     : "error";
}

template <class Baseline, class Scale, class Combine, class Renorm>
Row cells(const gdpo::GroupAdvantage<Baseline, Scale, Combine, Renorm>& e) {
  return {text(Combine{}), text(e.baseline), text(e.scale), text(e.renorm)};
}

// ---- estimators over tokens ----

std::string text(gdpo::Steps s) {
  return s == gdpo::Steps::Valid              ? "valid tokens"
         : s == gdpo::Steps::Row              ? "every position"
         : s == gdpo::Steps::RowRewardOnValid ? "every position, rewards on valid ones"
                                              : "runs of valid tokens";
}
std::string text(const gdpo::returns::RewardToGo& r) {
  return "reward to go, gamma " + number(r.gamma);
}
std::string text(const gdpo::returns::Gae& r) {
  std::string line = "GAE, gamma " + number(r.gamma) + ", lambda ";
  line += r.length_alpha > 0 ? "1 - 1 / (" + number(r.length_alpha) + " tokens)" : number(r.lambda);
  if (!gdpo::math::is_nan(r.lambda_returns)) line += ", of returns " + number(r.lambda_returns);
  return line;
}
std::string text(gdpo::KlEstimator k) {
  return k == gdpo::KlEstimator::K1    ? "K1"
         : k == gdpo::KlEstimator::Abs ? "Abs"
         : k == gdpo::KlEstimator::K2  ? "K2"
                                       : "K3";
}
template <class Returns, class KlTerm, class Renorm>
Row cells(const gdpo::TokenAdvantage<Returns, KlTerm, Renorm>& e) {
  std::string penalty = text(e.penalty.kl.estimator);
  append(penalty, within("log ratio", e.penalty.kl.input));
  append(penalty, within("value", e.penalty.kl.output));
  return {text(e.returns), text(e.returns.steps), penalty, text(e.renorm)};
}

// ---- losses ----

std::string text(const gdpo::map::None&) { return ""; }
std::string text(const gdpo::map::Clamp& m) { return within("log ratio", {m.lo, m.hi}); }
std::string text(const gdpo::statistic::Mean&) { return "mean"; }

template <class Map>
std::string text(const gdpo::level::Token<Map>& level) {
  std::string of = "token";
  append(of, text(level.map));
  return of;
}
template <class Level>
std::string of_segment(std::string of, const Level& level) {
  of += " (" + text(level.statistic) + " of the log ratios";
  append(of, text(level.map));
  append(of, within("it", level.bounds));
  return of + ")";
}
template <class Map, class Statistic>
std::string text(const gdpo::level::Sequence<Map, Statistic>& level) {
  return of_segment("sequence", level);
}
template <class Map, class Statistic>
std::string text(const gdpo::level::SequenceToken<Map, Statistic>& level) {
  return of_segment("sequence, own gradient a token", level);
}

std::string text(const gdpo::surrogate::Ratio& s) {
  std::string clip = number(s.low) + " / " + number(s.high);
  if (!gdpo::math::is_inf(s.delta)) append(clip, "delta " + number(s.delta));
  if (!gdpo::math::is_inf(s.dual)) append(clip, "dual " + number(s.dual));
  return clip;
}

std::string text(const gdpo::kl::K3&) { return "K3"; }
std::string text(const gdpo::kl::Direct&) { return ""; }
template <class Estimator, class Gradient>
std::string text(const gdpo::Kl<Estimator, Gradient>& kl) {
  std::string term = text(Estimator{}) + ", beta " + number(kl.beta);
  if (kl.beta == 0) term += " (off)";
  append(term, text(Gradient{}));
  append(term, within("log ratio", kl.input));
  append(term, within("value", kl.output));
  return term;
}

std::string over(gdpo::Over of) {
  return of == gdpo::Over::Tokens         ? "tokens"
         : of == gdpo::Over::Rows         ? "rows"
         : of == gdpo::Over::NonEmptyRows ? "rows with tokens"
                                          : "`normaliser.given`";
}
std::string quotient(const std::string& numerator, std::string count, double eps) {
  if (eps != 0) count = "(" + count + plus(eps) + ")";
  return numerator + " / " + count;
}
std::string text(const gdpo::aggregate::TokenMean& a) {
  return quotient("sum over tokens", over(a.over), a.count_eps);
}
std::string text(const gdpo::aggregate::SeqMeanTokenMean& a) {
  const std::string row = quotient("row's sum", "row's tokens", a.row_count_eps);
  return quotient("sum of (" + row + ")", over(a.over), a.count_eps);
}
std::string text(const gdpo::aggregate::SeqMeanTokenSum& a) {
  return quotient("sum over tokens", over(a.over), a.count_eps);
}
std::string text(const gdpo::aggregate::SeqMeanTokenSumNorm& a) {
  const std::string length = a.constant != 0  ? number(a.constant)
                             : a.padded_width ? "padded width"
                                              : "`aggregate.constant`";
  return quotient("sum over tokens / " + length, over(a.over), a.count_eps);
}
std::string text(const gdpo::aggregate::TokenSum&) { return "sum over tokens"; }

template <class Level, class Surrogate, class Kl, class Aggregate>
Row cells(const gdpo::PolicyLoss<Level, Surrogate, Kl, Aggregate>& loss) {
  return {text(loss.level), text(loss.surrogate), text(loss.kl), text(loss.aggregate)};
}
template <class Aggregate>
Row cells(const gdpo::ValueLoss<Aggregate>& loss) {
  return {loss.half ? "1/2" : "1", gdpo::math::is_inf(loss.clip) ? "none" : number(loss.clip),
          text(loss.aggregate)};
}
template <class Aggregate, class = std::enable_if_t<gdpo::is_aggregate_v<Aggregate>>>
Row cells(const Aggregate& aggregate) {
  return {text(aggregate)};
}

// ---- pre-passes ----

std::string text(gdpo::prepass::Statistic s) {
  using gdpo::prepass::Statistic;
  return s == Statistic::Token          ? "token"
         : s == Statistic::SequenceMean ? "sequence, mean of the log ratios"
         : s == Statistic::SequenceSum  ? "sequence, sum of the log ratios"
                                        : "sequence, largest log ratio";
}
std::string text(gdpo::Reach r) {
  return r == gdpo::Reach::None             ? "nothing"
         : r == gdpo::Reach::Surrogate      ? "surrogate"
         : r == gdpo::Reach::SurrogateAndKl ? "surrogate and KL"
                                            : "surrogate, KL and counts";
}
Row cells(const gdpo::prepass::Importance& p) {
  std::string weight = "ratio old / rollout";
  append(weight, within("log ratio of a token", p.token_clamp));
  append(weight, within("log ratio", p.clamp));
  append(weight, within("weight", p.clip));
  return {"weight", text(p.statistic), weight, text(p.reach)};
}
Row cells(const gdpo::prepass::Gate& p) {
  std::string gate;
  append(gate, within("log ratio", p.clamp));
  append(gate, within("ratio old / rollout", {p.min, p.max}));
  return {"mask", text(p.statistic), gate, text(p.reach)};
}

// ---- the page ----

void print(const Row& row) {
  std::printf("|");
  for (const std::string& cell : row) std::printf(" %s |", cell.c_str());
  std::printf("\n");
}
/// A table with this head and the rows that rows() prints.
template <class Rows>
void table(const char* name, const Row& head, const Rows& rows) {
  std::printf("<!-- table: %s -->\n", name);
  print(head);
  print(Row(head.size(), "---"));
  rows();
  std::printf("<!-- end -->\n");
}

/// As code where it is a name or options; a phrase such as "the numpy listing" stays as it is.
std::string code(std::string text) {
  if (text.find_first_of("=_:@") == std::string::npos) return text;
  if (text.find(" or ") == std::string::npos) {
    for (std::string::size_type at = 0; (at = text.find(' ', at)) != std::string::npos; at += 4)
      text.replace(at, 1, "`, `");
  }
  return "`" + text + "`";
}

/// A table with a row for each preset that for_each(f) visits: its name, what selects it in the
/// trainer, and its cells, which stand under `columns`.
template <class ForEach>
void preset_table(const char* name, const char* what, const Row& columns, const ForEach& for_each) {
  Row head{what, "the trainer's option or function"};
  head.insert(head.end(), columns.begin(), columns.end());
  table(name, head, [&] {
    for_each([](const auto& preset) {
      Row row{"`" + std::string(preset.name) + "`", code(preset.option)};
      for (const std::string& cell : cells(preset.value)) row.push_back(cell);
      print(row);
    });
  });
}

/// "trl::" of "trl::gdpo"; empty for a name without a trainer.
std::string trainer_of(const std::string& name) {
  const std::string::size_type colon = name.find("::");
  return colon == std::string::npos ? "" : name.substr(0, colon + 2);
}

/// Which sources a trainer's presets were checked against, each once, in the order of the list.
class Versions {
 public:
  template <class T>
  void operator()(const gdpo::presets::Preset<T>& preset) {
    const std::string trainer = trainer_of(preset.name);
    if (!trainer.empty() && known_.insert(trainer).second)
      print({code(trainer), code(preset.version)});
  }

 private:
  std::set<std::string> known_;
};

/// What estimators make of a missing and of an infinite reward and of a group of one, and which do
/// the same. A trainer whose presets all agree stands as "trl::"; else its presets stand by name.
class Conventions {
 public:
  template <class T>
  void operator()(const gdpo::presets::Preset<T>& preset) {
    const Row does{text(preset.value.missing), text(preset.value.missing.infinite),
                   text(preset.value.singleton)};
    if (presets_.count(does) == 0) order_.push_back(does);
    presets_[does].push_back(preset.name);
    of_trainer_[trainer_of(preset.name)].insert(does);
  }
  void print_rows() const {
    for (const Row& does : order_) {
      std::vector<std::string> who;
      for (const std::string& name : presets_.at(does)) {
        const std::string trainer = trainer_of(name);
        const bool agrees = !trainer.empty() && of_trainer_.at(trainer).size() == 1;
        const std::string as = "`" + (agrees ? trainer : name) + "`";
        if (who.empty() || who.back() != as) who.push_back(as);
      }
      std::string names;
      for (const std::string& name : who) append(names, name);
      print({names, does[0], does[1], does[2]});
    }
  }

 private:
  std::vector<Row> order_;
  std::map<Row, std::vector<std::string>> presets_;
  std::map<std::string, std::set<Row>> of_trainer_;
};

}  // namespace

int main() {
  namespace presets = gdpo::presets;
  const auto estimators = [](const auto& f) { presets::for_each_estimator(f); };
  const auto losses = [](const auto& f) { presets::for_each_loss(f); };
  const auto prepasses = [](const auto& f) { presets::for_each_prepass(f); };
  const auto token_advantages = [](const auto& f) { presets::for_each_token_advantage(f); };
  const auto value_losses = [](const auto& f) { presets::for_each_value_loss(f); };
  const auto aggregates = [](const auto& f) { presets::for_each_aggregate(f); };

  table("versions", {"presets", "checked against"}, [&] {
    Versions versions;
    const auto version = [&versions](const auto& preset) { versions(preset); };
    estimators(version);
    losses(version);
    prepasses(version);
    token_advantages(version);
    value_losses(version);
  });
  preset_table("estimators", "estimator",
               {"normalises", "minus", "divided by", "second normalisation"}, estimators);
  table("conventions", {"estimators", "missing reward", "infinite reward", "group of one"}, [&] {
    Conventions conventions;
    estimators([&conventions](const auto& preset) { conventions(preset); });
    conventions.print_rows();
  });
  preset_table("token_advantages", "estimator",
               {"computes", "steps", "KL in the reward", "advantages whitened over"},
               token_advantages);
  preset_table("value_losses", "value loss", {"factor", "clip", "loss"}, value_losses);
  preset_table("losses", "loss", {"ratio of the", "clip low / high", "KL term", "loss"}, losses);
  preset_table("aggregates", "aggregate", {"loss"}, aggregates);
  preset_table("prepasses", "pre-pass", {"gives a", "of the", "from the", "which multiplies"},
               prepasses);
}
