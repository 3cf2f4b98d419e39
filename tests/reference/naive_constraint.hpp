// The oracle of constrained estimators: what each placement does with the violations of a batch,
// written from its formula on top of naive.hpp and without any code of the library.
#pragma once
#include <reference/naive.hpp>

namespace naive {

enum class Bound { AtMost, AtLeast };
enum class Signal { Linear, Hinge, Indicator };
enum class LambdaNorm { None, Sum, Diff };
enum class Placement { Composite, NormalizeThenCombine, FixedScale, AdvantageMix };

struct Constraint {
  int reward = 0;
  double lambda = 0, limit = 0, scale = 1;
  Bound bound = Bound::AtLeast;
  Signal signal = Signal::Linear;
};

struct Constrained {
  Settings estimator;
  Placement placement = Placement::FixedScale;
  LambdaNorm norm = LambdaNorm::Sum;
  // In Composite the reward that carries the violations; -1: the only primary one.
  int carrier = -1;
  std::vector<Constraint> constraints;
};

/// The violation of one sample in units of the scale, NaN where its reward is missing. In double,
/// because the definition rounds twice: after the subtraction and after the division.
inline double violation(const Constraint& c, double x) {
  const double v = c.bound == Bound::AtLeast ? c.limit - x : x - c.limit;
  if (std::isnan(x) || c.signal == Signal::Linear) return v / c.scale;
  const bool violated = c.bound == Bound::AtLeast ? x < c.limit : x > c.limit;
  if (c.signal == Signal::Indicator) return violated ? 1 : 0;
  return violated ? v / c.scale : 0;
}

/// The violation v of every row.
inline std::vector<double> violations(const Settings& e, const Data& d, const Constraint& c) {
  std::vector<double> v;
  for (int i = 0; i < d.rows; ++i) {
    const double x = d.rewards[detail::at(i * d.reward_count + c.reward)];
    v.push_back(violation(c, std::isnan(x) && e.entry == Entry::Zero ? 0 : x));
  }
  return v;
}

/// The estimator of the primary rewards. Without weights of its own, the rewards that a constraint
/// names get weight 0 and the others 1.
inline Settings primary(const Constrained& c, const Data& d) {
  Settings e = c.estimator;
  if (!e.weights.empty()) return e;
  e.weights.assign(detail::at(d.reward_count), 1);
  for (const Constraint& k : c.constraints) e.weights[detail::at(k.reward)] = 0;
  return e;
}

/// The estimator of one reward, the violations: without weights, gates and penalty, which belong to
/// the rewards. For a single reward both orders of sum and normalization agree, except that
/// NormalizeThenSum never counts a missing value as a sum of 0.
inline Settings of_violations(Settings e) {
  e.combine = Combine::NormalizeThenSum;
  e.weights.clear();
  e.gates.clear();
  e.penalty_coef = 0;
  return e;
}

inline Data with_rewards(const Data& d, const std::vector<std::vector<double>>& added,
                         bool keep_rewards) {
  Data joined = d;
  joined.rewards.clear();
  for (int i = 0; i < d.rows; ++i) {
    for (int c = 0; keep_rewards && c < d.reward_count; ++c)
      joined.rewards.push_back(d.rewards[detail::at(i * d.reward_count + c)]);
    for (const std::vector<double>& reward : added) joined.rewards.push_back(reward[detail::at(i)]);
  }
  joined.reward_count = static_cast<int>(added.size()) + (keep_rewards ? d.reward_count : 0);
  return joined;
}

/// True if the row has a primary reward once the gates are applied.
inline bool has_primary(const Settings& e, const Data& d, int i) {
  for (int c = 0; c < d.reward_count; ++c) {
    if (!counts_as_reward(e, c)) continue;
    bool missing = std::isnan(d.rewards[detail::at(i * d.reward_count + c)]), unknown = false;
    for (const Gate& gate : e.gates) {
      if (gate.reward != c) continue;
      const double given = d.rewards[detail::at(i * d.reward_count + gate.given)];
      unknown = unknown || std::isnan(given);
      // A reward that fails its gate is 0, so not missing.
      missing = missing && !(given < gate.at_least);
    }
    if (!missing && !unknown) return true;
  }
  return false;
}
/// True if the row is in the statistics of its primary rewards; otherwise it is excluded.
inline bool counts(const Settings& e, const Data& d, int i) {
  return e.entry != Entry::Skip || e.row == Row::Keep || has_primary(e, d, i);
}

namespace detail {

/// The violations as rewards. With need_primary, a row that the primary rewards exclude has NaN
/// there, so that its violations do not bring it back.
inline std::vector<std::vector<double>> violations(const Constrained& c, const Settings& e,
                                                   const Data& d, bool need_primary) {
  std::vector<std::vector<double>> added;
  for (const Constraint& k : c.constraints) {
    added.push_back(violations(e, d, k));
    for (int i = 0; need_primary && i < d.rows; ++i) {
      if (!counts(e, d, i)) added.back()[at(i)] = std::nan("");
    }
  }
  return added;
}
/// The estimator on the rewards [R | v] with weights [first * w | -others * lambda].
inline Result as_rewards(const Constrained& c, Settings e, const Data& d, Real first, Real others,
                         bool need_primary) {
  const Data joined = with_rewards(d, violations(c, e, d, need_primary), true);
  for (double& w : e.weights) w = static_cast<double>(first * w);
  for (const Constraint& k : c.constraints)
    e.weights.push_back(static_cast<double>(-others * k.lambda));
  return advantages(e, joined);
}

inline Result composite(const Constrained& c, const Settings& e, const Data& d) {
  if (e.combine == Combine::SumThenNormalize) return as_rewards(c, e, d, 1, 1, true);
  Settings carried = e;
  Data penalized = d;
  penalized.penalty.assign(at(d.rows), 0);
  penalized.penalty_size.assign(at(d.rows), 0);
  penalized.penalty_terms = static_cast<int>(c.constraints.size()) + (e.penalty_coef != 0 ? 1 : 0);
  carried.penalty_coef = 1;
  carried.penalty_reward = c.carrier;
  for (int k = 0; c.carrier < 0 && k < d.reward_count; ++k) {
    if (e.weights[at(k)] != 0) carried.penalty_reward = k;
  }
  for (int i = 0; i < d.rows; ++i) {
    Real sum = e.penalty_coef != 0 ? e.penalty_coef * Real(d.penalty[at(i)]) : 0,
         size = std::fabs(sum);
    for (const Constraint& k : c.constraints) {
      const double v = violations(e, d, k)[at(i)];
      if (e.entry == Entry::Skip && std::isnan(v)) continue;
      sum += k.lambda * Real(v);
      size += std::fabs(k.lambda * Real(v));
    }
    penalized.penalty[at(i)] = static_cast<double>(sum);
    penalized.penalty_size[at(i)] = static_cast<double>(size);
  }
  return advantages(carried, penalized);
}

/// renorm(first s_0 - sum_c others lambda_c s_c), where s are values before renormalization: s_0 of
/// the rewards, s_c of the violations of constraint c.
inline Result combined(const Constrained& c, const Settings& e, const Data& d, Real first,
                       Real others) {
  if (e.combine == Combine::NormalizeThenSum) return as_rewards(c, e, d, first, others, false);
  Settings before = e;
  before.renorm = Renorm::None;
  Result s = advantages(before, d);
  std::vector<Real> sum(at(d.rows)), magnitude(at(d.rows));
  std::vector<std::vector<bool>> present(1);  // per term, then per row: the row has a value
  Real error = first * s.sensitivity;
  for (int i = 0; i < d.rows; ++i) {
    sum[at(i)] = first * s.sums[at(i)];
    magnitude[at(i)] = std::fabs(sum[at(i)]);
    present[0].push_back(counts(e, d, i));
  }
  for (const Constraint& k : c.constraints) {
    const std::vector<double> v = violations(e, d, k);
    s = advantages(of_violations(before), with_rewards(d, {v}, false));
    error += others * k.lambda * s.sensitivity;
    present.emplace_back();
    for (int i = 0; i < d.rows; ++i) {
      sum[at(i)] -= others * k.lambda * s.sums[at(i)];
      magnitude[at(i)] += std::fabs(others * k.lambda * s.sums[at(i)]);
      present.back().push_back(!(e.entry == Entry::Skip && std::isnan(v[at(i)])));
    }
  }
  const auto used = [&](int i) { return d.valid.empty() || d.valid[at(i)] != 0; };
  std::vector<double> column(at(d.rows), std::nan(""));
  for (const auto& group : d.groups()) {
    Real low = std::numeric_limits<Real>::infinity(), high = -low, largest = 0;
    bool raw = false, unknown = false;
    for (const std::vector<bool>& of_term : present) {
      int n = 0;
      for (const int i : group.second) n += used(i) && of_term[at(i)];
      raw = raw || (n == 1 && e.singleton == Singleton::Raw);
    }
    for (const int i : group.second) {
      bool any = e.row == Row::Keep;
      for (const std::vector<bool>& of_term : present) any = any || of_term[at(i)];
      if (any) column[at(i)] = static_cast<double>(sum[at(i)]);
      if (any && std::isnan(sum[at(i)])) column[at(i)] = std::numeric_limits<double>::infinity();
      if (!any || !used(i)) continue;
      low = std::fmin(low, sum[at(i)]), high = std::fmax(high, sum[at(i)]);
      largest = std::fmax(largest, magnitude[at(i)]);
      unknown = unknown || std::isnan(sum[at(i)]);
    }
    std::vector<int> counted;
    for (const int i : group.second) {
      if (used(i) && !std::isnan(column[at(i)])) counted.push_back(i);
    }
    if (e.singleton == Singleton::Exclude && detail::compares(e.baseline) && counted.size() == 1)
      column[at(counted[0])] = std::nan("");
    const bool equal =
        !unknown && high - low <= rounding(static_cast<int>(present.size()), largest);
    for (const int i : group.second) {
      if (equal && !raw && sums_to_zero(e) && used(i) && !std::isnan(column[at(i)]))
        column[at(i)] = 0;
    }
  }
  // The columns are centered and scaled already: only the renormalization is left.
  Settings last = of_violations(e);
  last.baseline = Baseline::None;
  last.scale = Scale::None;
  last.entry = Entry::Skip, last.row = Row::Exclude;
  Result result = advantages(last, with_rewards(d, {column}, false));
  for (Real& a : result.advantages) a = std::isinf(a) ? nan : a;
  result.sensitivity *= 1 + error;
  return result;
}

/// (first A_R - sum_c lambda_c A_c) / divisor, where A_R are the advantages of the rewards and A_c
/// those of the violations of constraint c under the settings `other`.
inline Result mixed(const Constrained& c, const Settings& e, const Data& d, const Settings& other,
                    Real first, Real divisor) {
  Result a = advantages(e, d);
  for (Real& x : a.advantages) x *= first;
  for (const Constraint& k : c.constraints) {
    const Result v =
        advantages(of_violations(other), with_rewards(d, {violations(e, d, k)}, false));
    const Real times = k.lambda;
    Real largest = 1;
    for (int i = 0; i < d.rows; ++i) {
      a.advantages[at(i)] -= times * v.advantages[at(i)];
      if (!std::isnan(v.advantages[at(i)]))
        largest = std::fmax(largest, std::fabs(v.advantages[at(i)]));
    }
    a.sensitivity += times * (v.sensitivity + largest);
  }
  for (Real& x : a.advantages) x /= divisor;
  a.sensitivity = a.sensitivity / divisor + 1;
  return a;
}

}  // namespace detail

inline Result advantages(Constrained c, const Data& d) {
  const Settings e = primary(c, d);
  std::vector<Constraint> at_work;
  Real lambdas = 0;
  for (const Constraint& k : c.constraints) {
    if (k.lambda > 0) at_work.push_back(k), lambdas += k.lambda;
  }
  c.constraints = at_work;
  if (at_work.empty()) return advantages(e, d);
  const Real first = c.norm == LambdaNorm::Diff ? std::fmax(1 - lambdas, 0) : 1;
  const Real divisor = c.norm == LambdaNorm::Sum ? 1 + lambdas : 1;
  switch (c.placement) {
    case Placement::Composite:
      return detail::composite(c, e, d);
    case Placement::NormalizeThenCombine:
      return detail::combined(c, e, d, first / divisor, 1 / divisor);
    case Placement::AdvantageMix:
      return detail::mixed(c, e, d, e, first, divisor);
    default: {
      Settings centered = e;
      centered.baseline = Baseline::Mean;
      centered.scale = Scale::None;
      centered.renorm = Renorm::None;
      return detail::mixed(c, e, d, centered, first, divisor);
    }
  }
}

}  // namespace naive
