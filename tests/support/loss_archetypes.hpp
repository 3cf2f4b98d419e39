// Loss policies that the library does not ship, one for each thing that a policy may be or see.
// They compile and give the right numbers, which shows that the contracts are wide enough. Each is
// as small as possible.
#pragma once
#include <algorithm>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <random>
#include <vector>

namespace archetype {

namespace math = gdpo::math;
using gdpo::Mapped;
using gdpo::Term;
using gdpo::Token;

/// A detached factor, clip(ratio). With surrogate::Reinforce it makes CISPO (arXiv 2506.13585).
struct ClippedRatio {
  double min = -math::infinity, max = math::infinity;
  template <class V>
  V operator()(const Token<V>& t) const {
    return (math::max)((math::min)(t.ratio, math::constant<V>(max)), math::constant<V>(min));
  }
};

/// A map that reads the advantage: sign(A) min(sign(A) x, sign(A) clip(x, -low, high)). Where A is
/// 0 the ratio is 1, without gradient. With Ratio{inf, inf} on level::Sequence it makes GMPO (arXiv
/// 2507.20673).
struct TrustRegion {
  double low = 0.4, high = 0.4;
  template <class V>
  Mapped<V> operator()(const Token<V>& t) const {
    using math::both, math::constant, math::either, math::select;
    const V zero = constant<V>(0.0), x = t.token_log_ratio, lo = constant<V>(-low),
            hi = constant<V>(high);
    const auto above = both(t.advantage > zero, x > hi), below = both(t.advantage < zero, x < lo);
    const auto none = either(both(t.advantage >= zero, t.advantage <= zero), either(above, below));
    const V bounded = select(above, hi, select(below, lo, x));
    return {select(both(t.advantage >= zero, t.advantage <= zero), zero, bounded),
            select(none, zero, constant<V>(1.0))};
  }
};

/// A factor of the sequence's log ratio and of the sign of A. With Reinforce on
/// level::Sequence<Clamp, Sum> it makes VESPO.
struct Gamma {
  double k_pos = 2, lambda_pos = 3, k_neg = 3, lambda_neg = 2;
  template <class V>
  V operator()(const Token<V>& t) const {
    using math::constant, math::mul, math::select;
    const auto negative = t.advantage < constant<V>(0.0);
    const V k = select(negative, constant<V>(k_neg), constant<V>(k_pos)),
            lambda = select(negative, constant<V>(lambda_neg), constant<V>(lambda_pos));
    return math::exp_parts(lambda + mul(k, t.log_ratio) - mul(lambda, t.ratio)).exp;
  }
};

/// A surrogate: -4 A q / tau with q = sigmoid(tau (r - 1)), as in SAPO (arXiv 2511.20347). The
/// derivative of q by log r is tau q (1 - q) r, so that of the surrogate is -4 A q (1 - q) r.
struct Soft {
  double pos = 1, neg = 1.05;
  template <class V>
  Term<V> operator()(const Token<V>& t) const {
    using math::constant, math::mul, math::select;
    const V one = constant<V>(1.0),
            tau = select(t.advantage > constant<V>(0.0), constant<V>(pos), constant<V>(neg));
    const V q = one / (one + math::exp_parts(mul(tau, one - t.ratio)).exp),
            a = mul(constant<V>(-4.0), t.advantage);
    return {mul(a, q) / tau, mul(mul(a, q), mul(one - q, t.ratio)), constant<V>(0.0)};
  }
};

/// A KL policy: d = logp - teacher, times a detached gate sigmoid(-slope d), as in SDAR.
struct GatedTeacher {
  double beta = 1, slope = 5;
  gdpo::Against against = gdpo::Against::Teacher;
  template <class V>
  Term<V> operator()(const Token<V>& t) const {
    using math::constant, math::mul;
    const V d = t.logp - t.teacher_logp, one = constant<V>(1.0);
    const V gate = one / (one + math::exp_parts(mul(constant<V>(slope), d)).exp);
    return {mul(gate, d), constant<V>(0.0), gate};
  }
};

/// A factor that reads the token's tag, and says so.
struct ByTag {
  static constexpr bool reads_tag = true;
  template <class V>
  V operator()(const Token<V>& t) const {
    return t.tag;
  }
};
/// A factor that reads the row's mean advantage, and the reference and the sampling policy.
struct OfTheRow {
  static constexpr bool reads_row_advantage = true, reads_ref = true, reads_rollout = true;
  template <class V>
  V operator()(const Token<V>& t) const {
    return math::mul(t.row_advantage, math::exp_parts(t.ref_logp - t.rollout_logp).exp);
  }
};
/// A map that reads the token's tag: tokens with tag 0 take no part in the ratio.
struct WithoutTagZero {
  static constexpr bool reads_tag = true;
  template <class V>
  Mapped<V> operator()(const Token<V>& t) const {
    const V zero = math::constant<V>(0.0);
    const auto out = math::both(t.tag >= zero, t.tag <= zero);
    return {math::select(out, zero, t.token_log_ratio),
            math::select(out, zero, math::constant<V>(1.0))};
  }
};

/// A statistic: the sum divided by the square root of the number of tokens.
struct SumOverRoot {
  double operator()(const gdpo::RowSum& s) const { return s.n > 0 ? s.sum / std::sqrt(s.n) : 0.0; }
  double share(double n) const { return n > 0 ? 1 / std::sqrt(n) : 0.0; }
};

/// An aggregate: the weight of a token is 1 / (rows sqrt(n_i)) in a row of n_i tokens.
struct RootOfLength {
  double operator()(const gdpo::AggregateArgs& a) const {
    return 1 / (a.normalizer.rows * std::sqrt(static_cast<double>(a.row.tokens)));
  }
};

/// A pre-pass over the whole batch, Clip-Cov (arXiv 2505.22617): among the tokens that the
/// surrogate does not clip and whose covariance (A - mean A)(logp - mean logp) lies between min and
/// max, a random `fraction` of the batch's tokens is dropped.
struct ClipCov {
  double min = 1, max = 5, fraction = 2e-4;
  std::uint64_t seed = 0;
  gdpo::surrogate::Ratio surrogate{};
  gdpo::Reach reach = gdpo::Reach::Surrogate;

  template <class S>
  void operator()(const gdpo::PrepassArgs<S>& args) const {
    double n = 0, advantages = 0, logps = 0;
    for_each(args.rows, [&](gdpo::index_t, double a, double logp, double) {
      n += 1, advantages += a, logps += logp;
    });
    std::vector<gdpo::index_t> candidates;
    for_each(args.rows, [&](gdpo::index_t at, double a, double logp, double log_ratio) {
      const double covariance = (a - advantages / n) * (logp - logps / n);
      if (!(covariance > min && covariance < max)) return;
      Token<double> t{};
      t.advantage = a;
      t.ratio = math::exp_parts(log_ratio).exp;
      const Term<double> term = surrogate(t);
      if (!term.low && !term.high) candidates.push_back(at);
    });
    std::mt19937_64 engine(seed);
    std::shuffle(candidates.begin(), candidates.end(), engine);
    const auto most = static_cast<std::size_t>((std::max)(std::floor(fraction * n), 1.0));
    if (candidates.size() > most) candidates.resize(most);
    for (const gdpo::index_t at : candidates) args.weights[at] = 0;
  }

 private:
  template <class S, class Visit>
  static void for_each(const gdpo::PrepassRows<S>& rows, const Visit& visit) {
    for (gdpo::index_t i = 0; i < rows.size(); ++i) {
      const auto row = rows(i);
      for (gdpo::index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        const double logp = static_cast<double>(row.logp[t]);
        visit(rows.begin(i) + t, row.advantage_of(t), logp,
              row.old_logp ? logp - static_cast<double>(row.old_logp[t]) : 0.0);
      }
    }
  }
};

}  // namespace archetype
