// The oracle of the randomized tests of advantages: the estimator's formulas in long double with
// plain loops, written from their definition and without any code of the library. It is meant to be
// simple, not fast.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace naive {

using Real = long double;
constexpr Real nan = std::numeric_limits<Real>::quiet_NaN();

enum class Baseline {
  None,
  Mean,
  LeaveOneOut,
  Median,
  TrimmedMean,
  WinsorizedMean,
  SecondBest,
  LengthWeighted,
  External,
  LogMeanExp,
  ShiftedMean,
  BatchMean
};
/// The first are those of the library's StdDev, in the order of its scale::Of.
enum class Scale {
  Group,
  Batch,
  BatchCentered,
  Within,
  GroupOthers,
  GroupRms,
  BatchRms,
  None,
  Others,
  Mad,
  Iqr,
  NonzeroShare,
  Shrunk,
  GroupMean
};
/// The names of their types in the library, in the order of the enumerators.
constexpr const char* baselines[] = {
    "None",       "Mean",           "LeaveOneOut", "Median",     "TrimmedMean", "WinsorizedMean",
    "SecondBest", "LengthWeighted", "External",    "LogMeanExp", "ShiftedMean", "BatchMean"};
constexpr const char* scales[] = {"StdDev", "StdDev",       "StdDev",    "StdDev",         "StdDev",
                                  "StdDev", "StdDev",       "None",      "LeaveOneOutStd", "Mad",
                                  "Iqr",    "NonzeroShare", "ShrunkStd", "GroupMean"};
// The following have the numbers of the library's enumerators.
enum class EpsAt { Std, Var, ClampStd, ClampVar, None, StdOrOne };
enum class Combine { SumThenNormalize, NormalizeThenSum };
enum class Renorm { None, Batch, PerGroup, Tokens };
enum class Entry { Skip, Zero, Propagate };
enum class Row { Exclude, ExcludeUnscored, Keep };
enum class Singleton { Zero, Raw, Exclude, Nan = 4 };

struct Spread {
  int ddof = 1;
  double eps = 0;
  EpsAt eps_at = EpsAt::Std;
  double count_eps = 0;
  bool keep_mean = false;
};
struct Gate {
  int reward = 0, given = 0;
  double at_least = 0;
};

struct Settings {
  Baseline baseline = Baseline::Mean;
  double fraction = 0.25;  // of TrimmedMean and WinsorizedMean
  double tau = 1;          // of LogMeanExp
  double shift = 0;        // of ShiftedMean
  bool others = false;     // of BatchMean: the mean of the others
  Scale scale = Scale::Group;
  Spread scale_spread;
  bool zero_at_zero = false;  // of Mad and Iqr: the multiplier is 0 where they are
  double prior_dof = std::numeric_limits<double>::quiet_NaN();  // of Shrunk; NaN: estimated
  bool equal_groups = false;                                    // of Shrunk: they count
  bool any_mean = false;  // of GroupMean: it divides by means of 0 and below too
  Combine combine = Combine::NormalizeThenSum;
  Renorm renorm = Renorm::Batch;
  Spread renorm_spread;
  Entry entry = Entry::Skip;
  Row row = Row::Exclude;
  Singleton singleton = Singleton::Zero;
  double penalty_coef = 0;
  int penalty_reward = -1;
  std::vector<double> weights;  // empty: every weight is 1
  std::vector<Gate> gates;
  double reward_low = -std::numeric_limits<double>::infinity(), reward_high = -reward_low;
  double low = reward_low, high = reward_high;  // bounds of the advantages

  /// Calls f(name, member) for each setting but the lists, by its name in the library.
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("baseline.fraction", s.fraction), f("baseline.tau", s.tau), f("baseline.shift", s.shift);
    f("baseline.leave_one_out", s.others);
    f("scale.of", s.scale), f("scale.prior_dof", s.prior_dof);
    f("scale.equal_groups", s.equal_groups), f("scale.divide_by", s.any_mean);
    f("scale.at_zero", s.zero_at_zero);
    f("scale.ddof", s.scale_spread.ddof), f("scale.eps", s.scale_spread.eps);
    f("scale.eps_at", s.scale_spread.eps_at);
    f("renorm.over", s.renorm);
    f("renorm.ddof", s.renorm_spread.ddof), f("renorm.eps", s.renorm_spread.eps);
    f("renorm.eps_at", s.renorm_spread.eps_at);
    f("renorm.count_eps", s.renorm_spread.count_eps);
    f("renorm.keep_mean", s.renorm_spread.keep_mean);
    f("missing.entry", s.entry), f("missing.row", s.row), f("singleton", s.singleton);
    f("penalty.coef", s.penalty_coef), f("penalty.reward", s.penalty_reward);
    f("reward_clip.lo", s.reward_low), f("reward_clip.hi", s.reward_high);
    f("clip.lo", s.low), f("clip.hi", s.high);
  }
};

struct Data {
  int rows = 0, reward_count = 0;
  std::vector<double> rewards;                 // (rows, reward_count) row-major; NaN: missing
  std::vector<long long> ids;                  // one per row
  std::vector<double> tokens, valid, penalty;  // one per row, or empty: absent
  std::vector<double> external;                // one per row, or empty: all 0
  // Of a penalty that is a sum: its number of terms, and per row the sum of their absolute values.
  int penalty_terms = 0;
  std::vector<double> penalty_size;

  std::map<long long, std::vector<int>> groups() const {
    std::map<long long, std::vector<int>> members;
    for (int i = 0; i < rows; ++i) members[ids[std::size_t(i)]].push_back(i);
    return members;
  }
};

/// What stands for a rollout of several rows.
enum class Take { Last, First, Sum, Mean, Max };

/// One row a rollout, in the order of their first rows. `row` receives the rollout of each row.
inline Data rollouts(const Data& d, const std::vector<long long>& ids, Take take,
                     std::vector<int>& row) {
  std::map<long long, int> number;
  std::vector<std::vector<int>> members, used;
  row.clear();
  for (int i = 0; i < d.rows; ++i) {
    const auto [found, is_new] = number.emplace(ids[std::size_t(i)], int(members.size()));
    if (is_new) members.emplace_back(), used.emplace_back();
    row.push_back(found->second);
    members[std::size_t(found->second)].push_back(i);
    if (d.valid.empty() || d.valid[std::size_t(i)] != 0)
      used[std::size_t(found->second)].push_back(i);
  }
  Data one;
  one.rows = int(members.size()), one.reward_count = d.reward_count;
  const auto taken = [&](const std::vector<int>& rows, Take rule, bool skips, const auto& value) {
    if (rule == Take::First) return value(rows.front());
    if (rule == Take::Last) return value(rows.back());
    std::vector<double> x;
    for (const int i : rows)
      if (!skips || !std::isnan(value(i))) x.push_back(value(i));
    if (x.empty()) return std::numeric_limits<double>::quiet_NaN();
    if (rule == Take::Max) return *std::max_element(x.begin(), x.end());
    Real sum = 0;
    for (const double v : x) sum += v;
    return static_cast<double>(rule == Take::Mean ? sum / Real(x.size()) : sum);
  };
  for (std::size_t m = 0; m < members.size(); ++m) {
    const std::vector<int>& rows = used[m].empty() ? members[m] : used[m];
    one.ids.push_back(d.ids[std::size_t(rows[0])]);
    for (int c = 0; c < d.reward_count; ++c) {
      one.rewards.push_back(taken(
          rows, take, true, [&](int i) { return d.rewards[std::size_t(i * d.reward_count + c)]; }));
    }
    const auto column = [&](std::vector<double> Data::*values, Take rule) {
      if ((d.*values).empty()) return;
      (one.*values).push_back(taken(rows, rule, false, [&](int i) {
        return (d.*values)[std::size_t(i)];
      }));
    };
    const Take added = take == Take::Mean || take == Take::Max ? Take::Sum : take;
    column(&Data::tokens, added), column(&Data::penalty, added), column(&Data::external, take);
    if (!d.valid.empty()) one.valid.push_back(!used[m].empty());
  }
  return one;
}

struct Result {
  std::vector<Real> advantages, sums;
  /// How far one rounding in double can move an advantage, in units of 2^-53. Infinite where a
  /// spread is exactly 0 and decides between a factor of 0 and of 1 / 0: a rounding can turn that
  /// over, so there is no number to compare with.
  Real sensitivity = 1;
};

namespace detail {

inline std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct Statistics {
  Real n = 0, mean = 0, square = 0, low = 0, high = 0;
  std::vector<Real> values, tokens;
  Real rounding = 0;  // the largest difference that rounding alone gives to equal values
};
inline Statistics statistics(const std::vector<Real>& x) {
  Statistics s;
  s.n = static_cast<Real>(x.size());
  s.values = x;
  if (x.empty()) return s;
  s.low = s.high = x[0];
  for (const Real v : x) s.mean += v / s.n;
  for (const Real v : x) {
    s.square += (v - s.mean) * (v - s.mean);
    s.low = std::fmin(s.low, v);
    s.high = std::fmax(s.high, v);
  }
  if (s.low == s.high) s.mean = s.low, s.square = 0;
  for (const Real v : x) {
    if (std::isnan(v)) s.mean = s.square = s.low = s.high = nan;
  }
  return s;
}

/// True if the values of a group less their baselines sum to 0, and still do when scaled: under
/// Scale::Others each member has a multiplier of its own.
inline bool sums_to_zero(const Settings& e) {
  return (e.baseline == Baseline::Mean || e.baseline == Baseline::LeaveOneOut) &&
         e.scale != Scale::Others;
}

/// False if the baseline compares a value with no member of its group.
inline bool compares(Baseline of) {
  return of != Baseline::None && of != Baseline::External && of != Baseline::BatchMean;
}
/// Whether the baseline of equal values is that value.
inline bool from_group(Baseline of) { return compares(of) && of != Baseline::ShiftedMean; }

inline Real median(std::vector<Real> x) {
  std::sort(x.begin(), x.end());
  return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}
/// NumPy's quantile: linear between the neighbors of place q (n - 1).
inline Real quantile(std::vector<Real> x, Real q) {
  std::sort(x.begin(), x.end());
  const Real place = q * static_cast<Real>(x.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const Real above = below + 1 < x.size() ? x[below + 1] : x[below];
  return x[below] + (place - std::floor(place)) * (above - x[below]);
}
/// The mean of x without floor(fraction n) values at each end; keep: they are replaced by the
/// nearest value that is left.
inline Real mean_of_bulk(std::vector<Real> x, Real fraction, bool keep) {
  std::sort(x.begin(), x.end());
  const auto cut = static_cast<std::size_t>(fraction * static_cast<Real>(x.size()));
  Real sum = 0, n = 0;
  for (std::size_t j = 0; j < x.size(); ++j) {
    if (!keep && (j < cut || j >= x.size() - cut)) continue;
    sum += x[std::min(std::max(j, cut), x.size() - 1 - cut)];
    n += 1;
  }
  return sum / n;
}

/// The baseline of one member of a group with the statistics s: of the used value number `own`, or
/// of an unused row where own is -1. batch: the used values of the column in all groups.
inline Real baseline(const Settings& e, const Statistics& s, const std::vector<Real>& batch,
                     int own, Real value, Real external) {
  const std::vector<Real>& x = s.values;
  Real others = 0, best = -std::numeric_limits<Real>::infinity(), weighted = 0, tokens = 0;
  for (int j = 0; j < static_cast<int>(x.size()); ++j) {
    others += j == own ? 0 : x[at(j)] / (s.n - 1);
    if (j != own) best = std::fmax(best, x[at(j)]);
    weighted += s.tokens[at(j)] * x[at(j)];
    tokens += s.tokens[at(j)];
  }
  switch (e.baseline) {
    case Baseline::None:
      return 0;
    case Baseline::Mean:
      return s.mean;
    case Baseline::LeaveOneOut:
      return own < 0 ? s.mean : others;
    case Baseline::Median:
      return median(x);
    case Baseline::TrimmedMean:
      return mean_of_bulk(x, e.fraction, false);
    case Baseline::WinsorizedMean:
      return mean_of_bulk(x, e.fraction, true);
    case Baseline::SecondBest:  // only who leads all others is compared with them
      return value - best > s.rounding ? best : value;
    case Baseline::LengthWeighted:
      return tokens > 0 ? weighted / tokens : s.mean;
    case Baseline::External:
      return external;
    case Baseline::LogMeanExp: {
      Real mean = 0;
      for (const Real v : x) mean += std::expm1((v - s.high) / e.tau) / s.n;
      return s.high + e.tau * std::log1p(mean);
    }
    case Baseline::ShiftedMean:
      return s.mean + e.shift;
    case Baseline::BatchMean: {
      const Real mean = statistics(batch).mean, n = static_cast<Real>(batch.size());
      if (!e.others || own < 0) return mean;
      return n > 1 ? (mean * n - value) / (n - 1) : 0;
    }
  }
  return nan;
}

inline Real multiplier(const Spread& spread, Real variance, Real dof) {
  const Real eps = spread.eps;
  if (spread.eps_at == EpsAt::None) return 1;
  if (spread.eps_at == EpsAt::StdOrOne)
    return dof <= 0 || variance == 0 ? 1 : 1 / (std::sqrt(variance) + eps);
  if (dof <= 0) return 0;
  Real denominator = 0;
  if (spread.eps_at == EpsAt::Std) denominator = std::sqrt(variance) + eps;
  if (spread.eps_at == EpsAt::Var) denominator = std::sqrt(variance + eps);
  if (spread.eps_at == EpsAt::ClampStd)
    denominator = std::sqrt(variance) < eps ? eps : std::sqrt(variance);
  if (spread.eps_at == EpsAt::ClampVar) denominator = std::sqrt(variance < eps ? eps : variance);
  return denominator == 0 ? 0 : 1 / denominator;
}

/// The sum of squares that a std is made of: about the mean, about the mean of the others, about 0.
inline Real square_of(Scale of, const Statistics& s) {
  if (of == Scale::GroupRms || of == Scale::BatchRms) {
    Real sum = 0;
    for (const Real x : s.values) sum += x * x;
    return sum;
  }
  return of == Scale::GroupOthers && s.n > 1 ? s.square * s.n * s.n / ((s.n - 1) * (s.n - 1))
                                             : s.square;
}
/// Whether the multiplier is that of a spread of exactly 0.
inline bool has_no_spread(const Spread& spread, Real factor, Real square) {
  return factor == 0 || (spread.eps_at == EpsAt::StdOrOne && square == 0);
}

/// The multiplier of a scale by other measures than the spread of a group or of the batch. `own`:
/// as for baseline(). share: one over the share of the used values of the batch that are not 0.
inline Real robust_factor(const Settings& e, const Statistics& s, int own, Real share) {
  if (e.scale == Scale::NonzeroShare) return share;
  const Spread& spread = e.scale_spread;
  const bool unknown = std::isnan(s.mean);
  if (e.scale == Scale::GroupMean) {
    if (unknown) return nan;
    if (s.n == 1) return 1;
    const Real divisor = s.mean + spread.eps;
    return (e.any_mean ? divisor == 0 : !(s.mean > 0)) ? 0 : 1 / divisor;
  }
  if (s.n == 1) return multiplier(spread, 1, 1);
  if (e.scale == Scale::Others) {
    std::vector<Real> x = s.values;
    if (own >= 0) x.erase(x.begin() + own);
    const Statistics others = statistics(x);
    const Real dof = others.n - spread.ddof;
    const bool equal = others.high - others.low <= s.rounding;
    return multiplier(spread,
                      unknown             ? nan
                      : equal || dof <= 0 ? 0
                                          : others.square / dof,
                      unknown ? 1 : dof);
  }
  if (unknown || s.high - s.low <= s.rounding) return multiplier(spread, unknown ? nan : 0, 1);
  constexpr Real three_quarters = 0.674489750196081743202227014541307188L;  // normal quantile
  Real measure = quantile(s.values, 0.75L) - quantile(s.values, 0.25L);
  Real std = measure / (2 * three_quarters);
  if (e.scale == Scale::Mad) {
    std::vector<Real> distance;
    for (const Real x : s.values) distance.push_back(std::fabs(x - median(s.values)));
    measure = median(distance);
    std = measure / three_quarters;
  }
  if (measure > s.rounding) return multiplier(spread, std * std, 1);
  if (spread.eps_at != EpsAt::None && e.zero_at_zero) return 0;
  return multiplier(spread, s.square / (s.n - 1), 1);
}
inline bool is_robust(Scale of) {
  return of == Scale::Others || of == Scale::Mad || of == Scale::Iqr || of == Scale::NonzeroShare ||
         of == Scale::GroupMean;
}

/// What the groups of a column say about the variance inside a group. It takes those of two or more
/// values; for Scale::Shrunk without equal_groups, those with a spread.
struct Pool {
  Real groups = 0, dof = 0, dof_squares = 0, squares = 0, fourth = 0;

  Pool(const Settings& e, const std::map<long long, Statistics>& of_group) {
    for (const auto& [id, s] : of_group) {
      if (s.n < 2 || (e.scale == Scale::Shrunk && !e.equal_groups && s.square == 0)) continue;
      const Real d = s.n - 1;
      groups += 1;
      dof += d;
      dof_squares += d * d;
      squares += s.square;
      fourth += s.square * s.square / (d + 2);
    }
  }
  Real mean() const { return dof > 0 ? squares / dof : 0; }
  /// The mean of v^2, and the square of the mean of v.
  Real second() const { return fourth / dof; }
  Real e() const { return dof_squares / (dof * dof); }
  Real h() const { return (dof_squares + 2 * dof) / (dof * dof); }
  /// The estimated degrees of freedom of the prior.
  Real prior() const {
    constexpr Real infinity = std::numeric_limits<Real>::infinity();
    if (groups < 2 || squares == 0) return infinity;
    const Real q = second(), p = std::fmax((mean() * mean() - h() * q) / (1 - e()), Real(0));
    return q <= p ? infinity : 2 * q / (q - p);
  }
  /// How far a relative error of 1 in the sums moves the variance of a group at most. With r =
  /// second() / mean()^2, 1 / nu = (r - (1 - h r) / (1 - e)) / (2 r), and the variance
  /// (m + k d s^2) / (1 + k d), k = 1 / nu, moves by at most D times the change of k, relative to
  /// itself, because d s^2 <= D m.
  Real condition() const {
    if (groups < 2 || !(squares > 0)) return 0;
    const Real r = second() / (mean() * mean());
    return dof * (1 + (1 + h() * r) / ((1 - e()) * r));
  }
};
inline bool is_pooled(Scale of) { return of == Scale::Within || of == Scale::Shrunk; }

/// The multiplier of a group with the variance of all groups, or shrunk towards it.
inline Real pooled_factor(const Settings& e, const Pool& pool, const Statistics& s) {
  const Spread& spread = e.scale_spread;
  if (e.scale == Scale::Within) {
    const Real dof = pool.dof + pool.groups * (1 - spread.ddof);
    return multiplier(spread, dof > 0 ? pool.squares / dof : 0, dof);
  }
  const Real d = s.n - 1;
  if (e.prior_dof == 0) {
    return s.n == 1 ? multiplier(spread, 1, 1) : multiplier(spread, d > 0 ? s.square / d : 0, d);
  }
  const Real nu = std::isnan(e.prior_dof) ? pool.prior() : Real(e.prior_dof);
  const bool alone = std::isinf(nu) || d <= 0;
  return multiplier(spread, alone ? pool.mean() : (nu * pool.mean() + s.square) / (nu + d),
                    pool.dof);
}

/// The values that are centered and scaled together: one reward, or the weighted sum of all. A
/// value per row is NaN where it is missing or where a NaN propagates; its magnitude is the sum of
/// the absolute values of its terms, which bounds its rounding error.
struct Column {
  std::vector<Real> value, magnitude;
  int terms = 1;
  Real weight = 1;
};

/// The largest max - min that rounding in double can give to sums that are equal in exact
/// arithmetic.
inline Real rounding(int terms, Real magnitude) {
  return terms < 2 ? 0 : 4 * static_cast<Real>(terms) * 0x1p-53L * magnitude;
}

}  // namespace detail

/// Whether a row that has reward c is one with a reward.
inline bool counts_as_reward(const Settings& e, int c) {
  return e.weights.empty() || e.weights[detail::at(c)] != 0 || e.row == Row::ExcludeUnscored;
}

inline Result advantages(const Settings& e, const Data& d) {
  using detail::at;
  const auto missing = [&](Real x) { return e.entry == Entry::Skip && std::isnan(x); };
  const auto used = [&](int i) { return d.valid.empty() || d.valid[at(i)] != 0; };
  const auto weight = [&](int c) { return e.weights.empty() ? Real(1) : Real(e.weights[at(c)]); };

  // Gates, missing entries and the penalty are applied to the rewards.
  const auto reward = [&](int i, int c) {
    const auto raw = [&](int k) { return Real(d.rewards[at(i * d.reward_count + k)]); };
    Real x = raw(c);
    for (const Gate& gate : e.gates) {
      if (gate.reward != c) continue;
      if (std::isnan(raw(gate.given))) return e.entry == Entry::Zero ? Real(0) : nan;
      if (raw(gate.given) < gate.at_least) x = 0;
    }
    return std::isnan(x) && e.entry == Entry::Zero ? Real(0) : x;
  };
  std::vector<bool> excluded(at(d.rows), false);
  std::vector<detail::Column> columns;
  for (int i = 0; i < d.rows; ++i) {
    bool any = false;
    for (int c = 0; c < d.reward_count; ++c)
      any = any || (counts_as_reward(e, c) && !missing(reward(i, c)));
    excluded[at(i)] = !any && e.entry == Entry::Skip && e.row != Row::Keep;
  }
  if (e.combine == Combine::SumThenNormalize) {
    detail::Column sum;
    sum.terms = e.penalty_coef != 0 ? 1 : 0;
    for (int c = 0; c < d.reward_count; ++c) sum.terms += weight(c) != 0;
    for (int i = 0; i < d.rows; ++i) {
      Real x = 0, magnitude = 0;
      for (int c = 0; c < d.reward_count; ++c) {
        if (weight(c) == 0 || missing(reward(i, c))) continue;
        x += weight(c) * reward(i, c);
        magnitude += std::fabs(weight(c) * reward(i, c));
      }
      if (x < e.reward_low || x > e.reward_high) {
        x = x < e.reward_low ? e.reward_low : e.reward_high;
        magnitude = std::fabs(x);
      }
      if (e.penalty_coef != 0) {
        x -= e.penalty_coef * Real(d.penalty[at(i)]);
        magnitude += std::fabs(e.penalty_coef * Real(d.penalty[at(i)]));
      }
      sum.value.push_back(excluded[at(i)] ? nan : x);
      sum.magnitude.push_back(magnitude);
    }
    columns.push_back(sum);
  } else {
    for (int c = 0; c < d.reward_count; ++c) {
      if (weight(c) == 0) continue;
      detail::Column column;
      column.weight = weight(c);
      const bool penalized = e.penalty_coef != 0 && e.penalty_reward == c;
      for (int i = 0; i < d.rows; ++i) {
        Real x = reward(i, c);
        if (x < e.reward_low) x = e.reward_low;
        if (x > e.reward_high) x = e.reward_high;
        const Real before = std::fabs(x);
        if (penalized) x -= e.penalty_coef * Real(d.penalty[at(i)]);
        column.value.push_back(x);
        column.magnitude.push_back(
            penalized && d.penalty_terms > 0 ? before + Real(d.penalty_size[at(i)]) : std::fabs(x));
      }
      // Beside a penalty that is a sum, used values that differ by rounding alone are one number.
      for (const auto& group : d.groups()) {
        if (!penalized || d.penalty_terms == 0) continue;
        Real low = std::numeric_limits<Real>::infinity(), high = -low, largest = 0;
        bool unknown = false;
        std::vector<int> in;
        for (const int i : group.second) {
          if (!used(i) || missing(column.value[at(i)])) continue;
          in.push_back(i);
          unknown = unknown || !std::isfinite(column.value[at(i)]);
          low = std::fmin(low, column.value[at(i)]), high = std::fmax(high, column.value[at(i)]);
          largest = std::fmax(largest, column.magnitude[at(i)]);
        }
        if (unknown || high - low > detail::rounding(1 + d.penalty_terms, largest)) continue;
        for (const int i : in) column.value[at(i)] = low;
      }
      columns.push_back(column);
    }
  }

  // Each column is centered and scaled, then added to the sum.
  const auto groups = d.groups();
  const bool zero_alone = e.singleton == Singleton::Zero || e.singleton == Singleton::Exclude;
  Result result;
  std::vector<Real> sum(at(d.rows), 0), magnitude(at(d.rows), 0);
  Real error = 0;  // bound on the error of a combined value, in units of 2^-53
  bool raw_singleton = false, on_an_edge = false;
  std::map<long long, bool> raw_in_group;
  for (const detail::Column& column : columns) {
    std::vector<Real> centered(at(d.rows), 0), all_raw, all_centered;
    std::vector<int> number(at(d.rows), -1);  // of a used value among those of its group
    std::map<long long, detail::Statistics> of_group;
    // True if a group has nothing to compare: its terms are exactly 0, whatever the batch's spread.
    std::map<long long, bool> zero;
    for (int i = 0; i < d.rows; ++i) {
      if (used(i) && !missing(column.value[at(i)])) all_raw.push_back(column.value[at(i)]);
    }
    for (const auto& [id, members] : groups) {
      std::vector<int> in;
      for (const int i : members) {
        if (used(i) && !missing(column.value[at(i)])) in.push_back(i);
      }
      std::vector<Real> x;
      Real largest = 0;
      for (const int i : in) {
        number[at(i)] = static_cast<int>(x.size());
        x.push_back(column.value[at(i)]);
      }
      for (const int i : members) {
        if (used(i)) largest = std::fmax(largest, column.magnitude[at(i)]);
      }
      detail::Statistics s = detail::statistics(x);
      for (const int i : in) s.tokens.push_back(d.tokens.empty() ? 1 : Real(d.tokens[at(i)]));
      s.rounding = detail::rounding(column.terms, largest);
      const bool equal = !x.empty() && s.high - s.low <= s.rounding;
      if (equal) s.square = 0;
      of_group[id] = s;
      const bool compares = detail::compares(e.baseline), lone = x.size() == 1 && compares;
      zero[id] = x.empty() || (compares && !std::isnan(s.mean) &&
                               (lone ? zero_alone : equal && detail::from_group(e.baseline)));
      raw_singleton = raw_singleton || (lone && e.singleton == Singleton::Raw);
      raw_in_group[id] = raw_in_group[id] || (lone && e.singleton == Singleton::Raw);
      for (const int i : members) {
        const Real value = column.value[at(i)];
        if (missing(value) || x.empty()) continue;
        Real base = 0;
        if (compares && std::isnan(s.mean)) {
          base = nan;
        } else if (lone) {
          base = zero_alone ? value : e.singleton == Singleton::Nan ? nan : 0;
        } else if (equal && detail::from_group(e.baseline)) {
          base = value;
        } else {
          base = detail::baseline(e, s, all_raw, number[at(i)], value,
                                  d.external.empty() ? 0 : Real(d.external[at(i)]));
        }
        centered[at(i)] = value - base;
      }
      for (const int i : in) all_centered.push_back(centered[at(i)]);
    }
    const detail::Statistics raw = detail::statistics(all_raw),
                             after = detail::statistics(all_centered);
    Real largest_step = 0, nonzero = 0;
    for (const Real x : all_raw) nonzero += x != 0;
    const Real share = raw.n / (nonzero > 0 ? nonzero : 1);
    const detail::Pool pool(e, of_group);
    Real largest_shrunk = 0;
    for (const auto& [id, members] : groups) {
      const detail::Statistics& s = e.scale == Scale::Batch || e.scale == Scale::BatchRms ? raw
                                    : e.scale == Scale::BatchCentered                     ? after
                                                                      : of_group[id];
      const Real dof = s.n - e.scale_spread.ddof;
      Real factor = 1;
      if (detail::is_pooled(e.scale)) {
        factor = detail::pooled_factor(e, pool, s);
        on_an_edge = on_an_edge || (detail::has_no_spread(e.scale_spread, factor, pool.squares) &&
                                    pool.dof > 0 && !detail::from_group(e.baseline));
      } else if (e.scale != Scale::None && !detail::is_robust(e.scale)) {
        const bool batch = e.scale == Scale::Batch || e.scale == Scale::BatchRms ||
                           e.scale == Scale::BatchCentered;
        const bool one = !batch && s.n == 1;
        const Real square = detail::square_of(e.scale, s);
        factor = one ? detail::multiplier(e.scale_spread, 1, 1)
                     : detail::multiplier(e.scale_spread, dof > 0 ? square / dof : 0, dof);
        on_an_edge = on_an_edge || (detail::has_no_spread(e.scale_spread, factor, square) &&
                                    dof > 0 && !one && !detail::from_group(e.baseline));
      }
      for (const int i : members) {
        const Real value = column.value[at(i)];
        if (missing(value)) continue;
        if (detail::is_robust(e.scale))
          factor = detail::robust_factor(e, of_group[id], number[at(i)], share);
        const bool lone_nan =
            of_group[id].n == 1 && detail::compares(e.baseline) && e.singleton == Singleton::Nan;
        // A factor of 0 gives a term of 0 without a product: 0 x infinity would be NaN.
        Real term = 0;
        const bool unknown = detail::compares(e.baseline) && std::isnan(of_group[id].mean);
        if (zero[id] || (factor == 0 && !lone_nan && !unknown)) {
          term = 0;
        } else if (lone_nan || std::isnan(centered[at(i)]) || std::isnan(factor)) {
          term = nan;
        } else if (centered[at(i)] != 0 && factor != 0) {
          term = column.weight * (centered[at(i)] * factor);
        }
        sum[at(i)] += term;
        magnitude[at(i)] += std::fabs(term);
        if (e.scale == Scale::GroupMean && !zero[id] && of_group[id].n > 1) {
          // A mean near 0 turns over with its rounding; any other is off by that of its values.
          const detail::Statistics& group = of_group[id];
          const Real size = std::fmax(std::fabs(group.low), std::fabs(group.high));
          const Real divisor =
              std::fmin(std::fabs(group.mean), std::fabs(group.mean + e.scale_spread.eps));
          on_an_edge = on_an_edge || (size > 0 && divisor <= 1e-6L * size);
          if (divisor > 0 && used(i)) largest_step += std::fabs(term) * size / divisor;
        }
        if (e.scale == Scale::Shrunk) largest_shrunk = std::fmax(largest_shrunk, std::fabs(term));
        if (centered[at(i)] != 0 && used(i)) {
          largest_step =
              std::fmax(largest_step, std::fabs(column.weight * factor) * column.magnitude[at(i)]);
        }
      }
    }
    error += largest_step;
    if (largest_shrunk > 0) error += largest_shrunk * pool.condition();
  }

  // If the combined values of a group are equal up to rounding and sum to 0 by construction, each
  // is 0.
  for (const auto& [id, members] : groups) {
    Real low = std::numeric_limits<Real>::infinity(), high = -low, largest = 0;
    bool unknown = false;
    for (const int i : members) {
      if (!used(i)) continue;
      largest = std::fmax(largest, magnitude[at(i)]);
      if (excluded[at(i)]) continue;
      low = std::fmin(low, sum[at(i)]);
      high = std::fmax(high, sum[at(i)]);
      unknown = unknown || std::isnan(sum[at(i)]);
    }
    const int terms = e.combine == Combine::NormalizeThenSum ? static_cast<int>(columns.size()) : 1;
    const bool equal = !unknown && high - low <= detail::rounding(terms, largest);
    if (equal && detail::sums_to_zero(e) && !raw_in_group[id]) {
      for (const int i : members) {
        if (used(i)) sum[at(i)] = 0;
      }
    }
  }

  // A row that is alone in its group is not in the renormalization.
  std::vector<bool> left_out = excluded;
  for (const auto& [id, members] : groups) {
    std::vector<int> counted;
    for (const int i : members) {
      if (used(i) && !excluded[at(i)]) counted.push_back(i);
    }
    if (e.singleton == Singleton::Exclude && detail::compares(e.baseline) && counted.size() == 1)
      left_out[at(counted[0])] = true;
  }

  // Renormalization.
  const bool centered_by_construction =
      detail::sums_to_zero(e) && !raw_singleton && e.renorm != Renorm::Tokens;
  result.advantages = result.sums = sum;
  Real largest_factor = 1, largest_advantage = 0;
  const auto renormalize = [&](const std::vector<int>& scope) {
    Real tokens = 0, mean = 0, square = 0, largest = 0;
    for (const int i : scope) {
      if (!used(i) || left_out[at(i)]) continue;
      const Real w = e.renorm == Renorm::Tokens ? Real(d.tokens[at(i)]) : 1;
      if (w == 0) continue;
      tokens += w;
      mean += w * sum[at(i)];
      largest = std::fmax(largest, std::fabs(sum[at(i)]));
    }
    const Spread& spread = e.renorm_spread;
    const Real count = tokens + spread.count_eps;
    mean = count > 0 ? mean / count : 0;
    for (const int i : scope) {
      if (!used(i) || left_out[at(i)]) continue;
      const Real w = e.renorm == Renorm::Tokens ? Real(d.tokens[at(i)]) : 1;
      if (w != 0) square += w * (sum[at(i)] - mean) * (sum[at(i)] - mean);
    }
    const Real dof = tokens - spread.ddof;
    const Real variance = dof > 0 ? square / count * (tokens / dof) : 0;
    const Real factor = count > 0 ? detail::multiplier(spread, variance, dof > 0 ? 1 : 0) : 0;
    on_an_edge =
        on_an_edge || (detail::has_no_spread(spread, factor, variance) && dof > 0 && largest > 0);
    largest_factor = std::fmax(largest_factor, factor);
    for (const int i : scope) {
      const Real shift = count > 0 && !centered_by_construction ? mean : 0,
                 back = spread.keep_mean ? shift : 0;
      const Real difference = sum[at(i)] - shift;
      const bool unknown = std::isnan(mean) || std::isnan(factor);
      result.advantages[at(i)] = unknown ? nan : (difference == 0 ? 0 : difference * factor) + back;
    }
  };
  if (e.renorm == Renorm::PerGroup) {
    for (const auto& group : groups) renormalize(group.second);
  } else if (e.renorm != Renorm::None) {
    std::vector<int> all;
    for (int i = 0; i < d.rows; ++i) all.push_back(i);
    renormalize(all);
  }
  Real largest_sum = 0;
  for (int i = 0; i < d.rows; ++i) {
    if (left_out[at(i)]) result.advantages[at(i)] = 0, result.sums[at(i)] = 0;
    Real& advantage = result.advantages[at(i)];
    if (advantage < e.low) advantage = e.low;
    if (advantage > e.high) advantage = e.high;
    if (!std::isnan(result.advantages[at(i)])) {
      largest_advantage = std::fmax(largest_advantage, std::fabs(result.advantages[at(i)]));
      largest_sum = std::fmax(largest_sum, magnitude[at(i)]);
    }
  }
  // The relative error of a spread is the rounding error of its values divided by the spread, so
  // the error of a scaled value grows in proportion to that value.
  result.sensitivity =
      (error + largest_sum + 1) * (1 + largest_sum) * largest_factor * (1 + largest_advantage);
  if (on_an_edge) result.sensitivity = std::numeric_limits<Real>::infinity();
  return result;
}

}  // namespace naive
