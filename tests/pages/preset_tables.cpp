// Prints the tables of include/gdpo/presets/README.md, as Markdown, from the list of presets
// (presets/all.hpp). The test pages.presets compares them with the page, and the target `pages`
// puts them there.
//
// An overload of `text` says how the table writes a policy. A policy without one is described by
// its type and settings. The page says above each table what its cells leave out because it holds
// for almost all rows: mean and std are the group's, a std is the sample std, the ratio of a
// sequence is exp of its mean log ratio, and every KL term is K3 against the reference unless it
// says another.
#include <algorithm>
#include <cstdio>
#include <gdpo/dist/describe.hpp>
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

/// "<what> within [lo, hi]", or "<what> +-hi"; a side that is off is left out, and the whole text
/// where both are.
std::string within(const std::string& what, const gdpo::Bounds& b) {
  const bool low = !gdpo::math::is_inf(b.lo), high = !gdpo::math::is_inf(b.hi);
  if (low && high && b.lo == -b.hi) return what + " +-" + number(b.hi);
  if (low && high) return what + " within [" + number(b.lo) + ", " + number(b.hi) + "]";
  if (low) return what + " at least " + number(b.lo);
  if (high) return what + " at most " + number(b.hi);
  return "";
}
void append(std::string& to, const std::string& more) {
  if (!more.empty()) to += (to.empty() ? "" : ", ") + more;
}

/// A policy without words of its own: "Capped, cap 2".
template <class Policy>
std::string words(const Policy& policy) {
  const std::string type = gdpo::detail::type_name<Policy>();
  std::string all = type.substr(type.rfind(':') + 1);
  if constexpr (gdpo::detail::has_fields_v<Policy>) {
    gdpo::detail::walk_fields(policy, {},
                              [&all](const auto& path, const auto& member, const auto& info) {
                                using Member = std::decay_t<decltype(member)>;
                                if constexpr (std::is_enum_v<Member>) {
                                  append(all, path.text() + " " + gdpo::detail::word_of(member));
                                } else if constexpr (std::is_arithmetic_v<Member>) {
                                  const double x = static_cast<double>(member);
                                  if (!gdpo::math::is_inf(x) || !info.range.infinity)
                                    append(all, path.text() + " " + number(x));
                                }
                              });
  }
  return all;
}

// ---- estimators ----

/// A baseline or scale that no other overload knows.
template <class Policy>
std::string text(const Policy& policy) {
  return words(policy);
}
std::string divisor(int ddof, double eps, gdpo::EpsAt eps_at) {
  const std::string of = ddof == 1 ? "" : "population ";
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
      return of + "std" + plus(eps) + " (1 where std is 0)";
    case gdpo::EpsAt::None:
      break;
  }
  return "1";
}

std::string text(const gdpo::baseline::Mean&) { return "mean"; }
std::string text(const gdpo::baseline::LeaveOneOut&) { return "mean of the others"; }

std::string text(const gdpo::baseline::SecondBest&) { return "itself; the best: the second best"; }
std::string text(const gdpo::baseline::LengthWeighted&) { return "mean weighted by length"; }

std::string text(const gdpo::baseline::None&) { return "none"; }
std::string text(const gdpo::baseline::LogMeanExp& b) {
  return "log of the mean exponential" + (b.tau == 1 ? "" : " at temperature " + number(b.tau));
}
std::string text(const gdpo::baseline::ShiftedMean& b) {
  return "mean " + std::string(b.shift < 0 ? "- " : "+ ") + number(std::abs(b.shift));
}
std::string text(const gdpo::baseline::BatchMean& b) {
  return b.leave_one_out ? "mean of the others in the batch" : "mean of the batch";
}

std::string text(const gdpo::scale::None&) { return "1"; }
std::string text(const gdpo::scale::GroupMean& s) {
  return "mean" + plus(s.eps) +
         (s.divide_by == gdpo::scale::DivideBy::AnyMean ? "" : " (0 where mean <= 0)");
}
std::string text(const gdpo::scale::LeaveOneOutStd& s) {
  return "others' " + divisor(s.ddof, s.eps, s.eps_at);
}
std::string text(const gdpo::scale::NonzeroShare&) { return "share of rewards that are not 0"; }
std::string text(const gdpo::scale::ShrunkStd& s) {
  return divisor(1, s.eps, s.eps_at) + " shrunk towards the batch's";
}
std::string text(const gdpo::scale::StdDev& s) {
  const char* whose = s.of == gdpo::scale::Of::Group         ? ""
                      : s.of == gdpo::scale::Of::Batch       ? "batch's "
                      : s.of == gdpo::scale::Of::GroupOthers ? "about the others' means, "
                      : s.of == gdpo::scale::Of::GroupRms    ? "about 0, "
                      : s.of == gdpo::scale::Of::BatchRms    ? "about 0, batch's "
                                                             : "centered batch's ";
  return whose + divisor(s.ddof, s.eps, s.eps_at);
}

std::string text(const gdpo::combine::SumThenNormalize&) { return "sum"; }
std::string text(const gdpo::combine::NormalizeThenSum&) { return "each"; }

std::string text(const gdpo::Renorm& r) {
  using gdpo::RenormOver;
  if (r.over == RenormOver::None) return "";
  const std::string over = r.over == RenormOver::Batch   ? "rows"
                           : r.over == RenormOver::Group ? "group's rows"
                                                         : "tokens";
  std::string stage = over + ": " + divisor(r.ddof, r.eps, r.eps_at);
  if (r.count_eps != 0) stage += ", counts" + plus(r.count_eps);
  if (r.keep_mean) stage += ", mean kept";
  return stage;
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
  return s == gdpo::Singleton::Zero      ? "0"
         : s == gdpo::Singleton::Exclude ? "0, outside of renormalizations"
         : s == gdpo::Singleton::Raw     ? "its value"
         : s == gdpo::Singleton::Nan     ? "NaN"
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
         : k == gdpo::KlEstimator::K3  ? "K3"
                                       : "ForwardK1";
}
template <class KlTerm>
std::string text(const gdpo::penalty::Token<KlTerm>& p) {
  std::string penalty = text(p.kl.estimator);
  if (p.coef != 0) penalty += " " + number(p.coef) + ", against a teacher";
  append(penalty, within("log ratio", p.kl.input));
  append(penalty, within("value", p.kl.output));
  return penalty;
}
std::string text(const gdpo::penalty::Token<gdpo::penalty::Mixture>& p) {
  std::string penalty = "Jensen-Shannon " + number(p.coef) + ", lambda " + number(p.kl.lambda) +
                        ", against a teacher";
  if (p.kl.temperature != 1) append(penalty, "temperature " + number(p.kl.temperature));
  return penalty;
}
template <class Returns, class KlTerm, class Renorm>
Row cells(const gdpo::TokenAdvantage<Returns, KlTerm, Renorm>& e) {
  return {text(e.returns), text(e.returns.steps), text(e.penalty), text(e.renorm)};
}
Row cells(const gdpo::OptimalTokenBaseline& b) {
  return {b.place == gdpo::BaselinePlace::Column ? "position in the row" : "number of valid token",
          b.members == gdpo::BaselineMembers::All ? "all" : "with a token",
          b.tail == gdpo::BaselineTail::Raw ? "its return" : "the formula", number(b.eps)};
}

// ---- estimators from rows to tokens ----

/// The rows of no preset have a second normalization or sum their rewards behind the first one.
template <class Rows, class Tokens>
Row cells(const gdpo::OutcomeAdvantage<Rows, Tokens>& e) {
  const Row of_rows = cells(e.rows), of_tokens = cells(e.tokens);
  const bool last = e.placement == gdpo::Placement::LastStep;
  Row row{of_rows[1], of_rows[2], last ? "last step" : "every token"};
  row.insert(row.end(), of_tokens.begin(), of_tokens.end());
  return row;
}

// ---- estimators of the steps of agents ----

/// Episodes and steps have the same estimator in all presets.
template <class Episode, class Step>
Row cells(const gdpo::Gigpo<Episode, Step>& e) {
  const Row of_steps = cells(e.step);
  return {of_steps[1], of_steps[2], e.pool_states ? "all tasks" : "the task", number(e.omega),
          number(e.gamma)};
}

// ---- losses ----

std::string text(const gdpo::map::None&) { return ""; }
std::string text(const gdpo::map::Clamp& m) { return within("log ratio", {m.lo, m.hi}); }
std::string text(const gdpo::map::TrustRegion& m) {
  const bool same = m.low == m.high;
  return "token log ratio at most " + number(m.high) + " where A > 0, at least " +
         (same ? "minus that" : number(-m.low)) + " where A < 0";
}
std::string text(const gdpo::statistic::Mean&) { return "mean log ratio"; }
std::string text(const gdpo::statistic::Sum&) { return "sum of log ratios"; }

template <class Map>
std::string text(const gdpo::level::Token<Map>& level) {
  std::string of = "token";
  append(of, text(level.map));
  return of;
}
template <class Level>
std::string of_segment(std::string of, const Level& level) {
  append(of, text(level.map));
  const std::string bounds = within(text(level.statistic), level.bounds);
  const bool mean = std::is_same_v<decltype(level.statistic), gdpo::statistic::Mean>;
  append(of, bounds.empty() && !mean ? text(level.statistic) : bounds);
  return of;
}
template <class Map, class Statistic>
std::string text(const gdpo::level::Sequence<Map, Statistic>& level) {
  return of_segment("sequence", level);
}
template <class Map, class Statistic>
std::string text(const gdpo::level::SequenceToken<Map, Statistic>& level) {
  return of_segment("sequence, gradient per token", level);
}

std::string text(const gdpo::surrogate::Ratio& s) {
  const bool unclipped = gdpo::math::is_inf(s.low) || s.low >= 1;
  if (unclipped && gdpo::math::is_inf(s.high)) return "none";
  std::string clip = number(s.low);
  if (s.high != s.low) clip += " / " + number(s.high);
  if (!gdpo::math::is_inf(s.delta)) append(clip, "delta " + number(s.delta));
  if (!gdpo::math::is_inf(s.dual)) append(clip, "dual " + number(s.dual));
  return clip;
}

std::string clip(const gdpo::surrogate::Ratio& s, const gdpo::Factors<>&) { return text(s); }
std::string clip(const gdpo::surrogate::None&, const gdpo::Factors<>&) { return "no surrogate"; }
/// CISPO: the bounds hold the detached ratio.
std::string clip(const gdpo::surrogate::Reinforce&,
                 const gdpo::Factors<gdpo::factor::ClippedRatio>& factors) {
  const gdpo::factor::ClippedRatio& f = factors.first;
  return within("detached ratio",
                {f.min_ratio > 0 ? f.min_ratio : -gdpo::math::infinity, f.max_ratio});
}

/// All factors of a loss.
template <class... F>
std::string words(const gdpo::Factors<F...>& factors) {
  if constexpr (sizeof...(F) == 0) {
    return "";
  } else {
    std::string all = "times " + words(factors.first);
    append(all, words(factors.rest));
    return all;
  }
}
template <class Surrogate, class Factors>
std::string clip(const Surrogate& surrogate, const Factors& factors) {
  std::string all = words(surrogate);
  append(all, words(factors));
  return all;
}

/// K3 of the reference with its own gradient has no words but the coefficient.
template <class Estimator, class Gradient, class Factor>
std::string text(const gdpo::Kl<Estimator, Gradient, Factor>& kl) {
  const bool k3 = std::is_same_v<Estimator, gdpo::kl::K3>;
  std::string term = k3 ? number(kl.beta) : words(Estimator{}) + " " + number(kl.beta);
  if (kl.against != gdpo::Against::Ref)
    append(term, std::string("against ") + gdpo::detail::word_of(kl.against));
  if constexpr (!std::is_same_v<Gradient, gdpo::kl::Direct>) append(term, words(kl.gradient));
  append(term, words(kl.factor));
  append(term, within("log ratio", kl.input));
  append(term, within("value", kl.output));
  return term;
}

std::string over(gdpo::Over of) {
  return of == gdpo::Over::Tokens         ? "tokens"
         : of == gdpo::Over::Rows         ? "rows"
         : of == gdpo::Over::NonEmptyRows ? "rows with tokens"
                                          : "`normalizer.given`";
}
std::string count(const std::string& of, double eps) {
  return eps == 0 ? of : "(" + of + plus(eps) + ")";
}
std::string text(const gdpo::Aggregate& a) {
  using Mode = gdpo::Aggregate::Mode;
  const std::string step = count(over(a.over), a.count_eps);
  switch (a.mode) {
    case Mode::SeqMeanTokenMean:
      return count("row's tokens", a.row_count_eps) + " x " + step;
    case Mode::GroupMean:
      return count("group's tokens", a.row_count_eps) + " x " + step;
    case Mode::SeqMeanTokenSumNorm:
      return (a.constant != 0  ? number(a.constant)
              : a.padded_width ? "padded width"
                               : "`aggregate.constant`") +
             " x " + step;
    case Mode::TokenSum:
      return "1";
    default:
      return step;
  }
}

template <class Level, class Surrogate, class Kl, class Aggregate, class Factors>
Row cells(const gdpo::PolicyLoss<Level, Surrogate, Kl, Aggregate, Factors>& loss) {
  return {text(loss.level), clip(loss.surrogate, loss.factor), text(loss.kl), text(loss.aggregate)};
}
template <class Aggregate>
Row cells(const gdpo::ValueLoss<Aggregate>& loss) {
  return {loss.half ? "1/2" : "1", gdpo::math::is_inf(loss.clip) ? "none" : number(loss.clip),
          text(loss.aggregate)};
}

// ---- pre-passes ----

/// The word of an enumerator, with blanks.
template <class E>
std::string spoken(E x) {
  std::string word = gdpo::detail::word_of(x);
  std::replace(word.begin(), word.end(), '_', ' ');
  return word;
}
/// "token weight", "sequence mask (sum of log ratios)", "sequence mask (mean of k3)"
std::string gives(const std::string& what, gdpo::prepass::Statistic statistic,
                  gdpo::prepass::Estimator estimator) {
  const std::string word = spoken(statistic);
  const std::string::size_type blank = word.find(' ');
  if (blank == std::string::npos) return word + " " + what;
  const std::string reduction = word.substr(blank + 1);
  const bool ratio = estimator == gdpo::prepass::Estimator::Ratio;
  const std::string of = ratio ? "log ratio" : spoken(estimator), plural = ratio ? "s" : "";
  return word.substr(0, blank) + " " + what + " (" +
         (reduction == "max"    ? "largest " + of
          : reduction == "mean" ? "mean of " + of + plural
          : reduction == "sum"  ? "sum of " + of + plural
                                : reduction + " of " + of + plural) +
         ")";
}
std::string text(gdpo::prepass::Pair pair) {
  using gdpo::prepass::Pair;
  return pair == Pair::Mismatch ? "" : pair == Pair::Update ? "logp to old" : "logp to rollout";
}
std::string text(gdpo::Reach r) {
  return r == gdpo::Reach::None             ? "nothing"
         : r == gdpo::Reach::Surrogate      ? "surrogate"
         : r == gdpo::Reach::SurrogateAndKl ? "surrogate and KL"
         : r == gdpo::Reach::Kl             ? "KL"
         : r == gdpo::Reach::Level          ? "ratio"
                                            : "surrogate, KL and counts";
}
Row cells(const gdpo::prepass::Importance& p) {
  std::string what = gives("weight", p.statistic, gdpo::prepass::Estimator::Ratio), bounds;
  append(what, text(p.pair));
  append(bounds, within("token log ratio", p.token_clamp));
  append(bounds, within("log ratio", p.clamp));
  append(bounds, within("weight", p.clip));
  return {what, bounds, text(p.reach)};
}
Row cells(const gdpo::prepass::Gate& p) {
  using gdpo::prepass::When;
  std::string what = gives("mask", p.statistic, p.estimator), bounds;
  append(what, text(p.pair));
  if (p.when == When::NegativeAdvantage) append(what, "where A < 0");
  if (p.when == When::Outward) append(what, "where the update goes further out");
  append(bounds, within("log ratio", p.clamp));
  append(bounds, within(spoken(p.estimator), {p.min, p.max}));
  return {what, bounds, text(p.reach)};
}
Row cells(const gdpo::prepass::MeanOne& p) {
  return {"weights divided by their mean over " + spoken(p.of), "", text(p.reach)};
}
Row cells(const gdpo::prepass::SecondMoment& p) {
  return {"token mask (smallest squared log ratios)", "their mean below " + number(p.threshold),
          text(p.reach)};
}
Row cells(const gdpo::prepass::Covariance& p) {
  const bool top = p.pick == gdpo::prepass::CovariancePick::Top;
  std::string bounds = "share " + number(p.share);
  if (!top) append(bounds, within("covariance", {p.min, p.max}));
  const std::string picks = top ? "the largest covariances" : "picks by covariance";
  const bool kept = p.keep == gdpo::prepass::CovarianceKeep::Picked;
  return {std::string("token mask (") + (kept ? "only " : "all but ") + picks + ")", bounds,
          text(p.reach)};
}
Row cells(const gdpo::prepass::EntropyClip& p) {
  const bool tags = p.center == gdpo::EntropyCenter::Tags;
  std::string bounds = number(p.mu) + " std below " + (tags ? "`tags`" : "the mean of the batch");
  if (p.max_share < 1) append(bounds, "share " + number(p.max_share));
  return {std::string("token mask (change of entropy), where A ") +
              (p.zero_advantage ? "<= 0" : "< 0") +
              (p.policy == gdpo::Against::Rollout ? ", by the sampler" : ", by the old policy"),
          bounds, text(p.reach)};
}
Row cells(const gdpo::prepass::FutureKl& p) {
  std::string bounds;
  append(bounds, within("weight", p.clip));
  return {"token weight (decayed sum of later log ratios)", bounds, text(p.reach)};
}
Row cells(const gdpo::prepass::TeacherRatio& p) {
  std::string what = "token weight (ratio of the teacher, mixed " + number(p.mix) + ")", bounds;
  if (p.negative_only) append(what, "where A < 0");
  append(bounds, within("ratio", p.clip));
  return {what, bounds, text(p.reach)};
}
Row cells(const gdpo::prepass::TeacherPrefix& p) {
  return {"token weight (distance to the teacher before the token)",
          "weight within [1, " + number(1 + p.gain) + "]", text(p.reach)};
}
template <class... P>
Row cells(const gdpo::prepass::Chain<P...>& p) {
  Row row = cells(p.first);
  if constexpr (sizeof...(P) > 1) {
    const Row rest = cells(p.rest);
    row[0] += "; " + rest[0];
    if (rest[1].compare(0, row[1].size(), row[1]) == 0)  // the same clamp
      row[1] = rest[1];
    else if (!rest[1].empty())
      row[1] += "; " + rest[1];
    if (row[2] != rest[2]) row[2] += "; " + rest[2];
  }
  return row;
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
/// trainer, and its cells, which go under `columns`.
template <class ForEach>
void preset_table(const char* name, const char* what, const Row& columns, const ForEach& for_each) {
  Row head{what, "option or function"};
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
  void operator()(const gdpo::Preset<T>& preset) {
    const std::string trainer = trainer_of(preset.name);
    if (!trainer.empty() && known_.insert(trainer).second)
      print({code(trainer), code(preset.version)});
  }

 private:
  std::set<std::string> known_;
};

/// What estimators make of a missing and of an infinite reward and of a group of one, and which do
/// the same. "`trl::`" is all presets of a trainer. Where they differ, "other `verl::`" is what
/// most of them do, and the exceptions have their names.
class Conventions {
 public:
  template <class T>
  void operator()(const gdpo::Preset<T>& preset) {
    const Row does{text(preset.value.missing), text(preset.value.missing.infinite),
                   text(preset.value.singleton)};
    if (presets_.count(does) == 0) order_.push_back(does);
    presets_[does].push_back(preset.name);
    ++of_trainer_[trainer_of(preset.name)][does];
  }
  void print_rows() const {
    for (const Row& does : order_) {
      std::vector<std::string> who;
      for (const std::string& name : presets_.at(does)) {
        const std::string as = listed_as(name, does);
        if (who.empty() || who.back() != as) who.push_back(as);
      }
      std::string names;
      for (const std::string& name : who) append(names, name);
      print({names, does[0], does[1], does[2]});
    }
  }

 private:
  std::string listed_as(const std::string& name, const Row& does) const {
    const std::string trainer = trainer_of(name);
    if (trainer.empty()) return "`" + name + "`";
    const std::map<Row, int>& counts = of_trainer_.at(trainer);
    if (counts.size() == 1) return "`" + trainer + "`";
    const auto most =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return most->first == does ? "other `" + trainer + "`" : "`" + name + "`";
  }

  std::vector<Row> order_;
  std::map<Row, std::vector<std::string>> presets_;
  std::map<std::string, std::map<Row, int>> of_trainer_;
};

}  // namespace

int main() {
  namespace presets = gdpo::presets;
  table("versions", {"presets", "checked against"}, [&] {
    Versions versions;
    const auto version = [&versions](const auto& preset) { versions(preset); };
    presets::for_each_list([&version](const auto& for_each) { for_each(version); });
  });
  preset_table("estimators", "estimator",
               {"normalizes", "minus", "divided by", "second normalization"},
               presets::for_each_estimator);
  table("conventions", {"estimators", "missing reward", "infinite reward", "group of one"}, [&] {
    Conventions conventions;
    presets::for_each_estimator([&conventions](const auto& preset) { conventions(preset); });
    conventions.print_rows();
  });
  preset_table("token_advantages", "estimator",
               {"computes", "steps", "KL in the reward", "second normalization"},
               presets::for_each_token_advantage);
  preset_table("outcome_advantages", "estimator",
               {"minus", "divided by", "placed at", "computes", "steps", "KL in the reward",
                "normalization of tokens"},
               presets::for_each_outcome_advantage);
  preset_table("step_advantages", "estimator",
               {"minus", "divided by", "states of", "omega", "gamma"},
               presets::for_each_step_advantage);
  preset_table("token_baselines", "token baseline",
               {"tokens of one place", "rows", "end of the longest row", "eps"},
               presets::for_each_token_baseline);
  preset_table("value_losses", "value loss", {"factor", "clip", "divided by"},
               presets::for_each_value_loss);
  preset_table("losses", "loss", {"ratio", "clip", "KL beta", "divided by"},
               presets::for_each_loss);
  table("aggregates", {"`loss_agg_mode`", "divided by"}, [&] {  // their names are verl's options
    presets::for_each_aggregate([](const auto& preset) {
      print({"`" + std::string(preset.name) + "`", text(preset.value)});
    });
  });
  preset_table("prepasses", "pre-pass", {"gives", "bounds", "multiplies"},
               presets::for_each_prepass);
}
