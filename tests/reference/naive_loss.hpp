// The oracle of the policy loss: its formulas in long double with plain loops, without any code of
// the library. The value is written once, on a number type that knows what is detached, and the
// derivatives come from that value, so that none is worked out by hand:
//   Dual    a value and its derivative by one log-prob; detach() drops the derivative.
//   Moved   a value at two points: at the log-probs as given, and after one of them has moved;
//           detach() keeps the first. Its differences are those of the frozen form of the loss, in
//           which everything detached stays what it was.
// It is simple and slow: each derivative by a token evaluates the whole segment again.
#pragma once
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace naive_loss {

using real = long double;
constexpr double off = std::numeric_limits<double>::infinity();

// ---- numbers ----

struct Dual {
  real v = 0, d = 0;
  Dual() = default;
  Dual(real value, real derivative = 0) : v(value), d(derivative) {}
};
inline Dual operator+(Dual a, Dual b) { return {a.v + b.v, a.d + b.d}; }
inline Dual operator-(Dual a, Dual b) { return {a.v - b.v, a.d - b.d}; }
inline Dual operator*(Dual a, Dual b) { return {a.v * b.v, a.d * b.v + a.v * b.d}; }
inline Dual detach(Dual x) { return {x.v}; }
inline Dual exp(Dual x) { return {std::exp(x.v), x.d * std::exp(x.v)}; }
inline Dual log(Dual x) { return {std::log(x.v), x.d / x.v}; }
/// Clamps to the closed interval [lo, hi]: at lo and at hi themselves the derivative passes.
inline Dual clamp(Dual x, real lo, real hi) {
  return x.v < lo ? Dual(lo) : x.v > hi ? Dual(hi) : x;
}
/// The larger of the two. At a tie the value and the derivative are those of `a`.
inline Dual max_first(Dual a, Dual b) { return b.v > a.v ? b : a; }
inline Dual abs(Dual x) { return x.v < 0 ? Dual(-x.v, -x.d) : x.v > 0 ? x : Dual(0); }
inline real number(Dual x) { return x.v; }

/// The smallest distance to a point where a derivative jumps, over everything that was evaluated
/// since the last reset.
inline real& nearest_kink() {
  static real distance = 0;
  return distance;
}
inline void kink(real distance) {
  if (std::fabs(distance) < nearest_kink()) nearest_kink() = std::fabs(distance);
}

struct Moved {
  real at = 0, now = 0;
  Moved() = default;
  Moved(real constant) : at(constant), now(constant) {}
  Moved(real before, real after) : at(before), now(after) {}
};
inline Moved operator+(Moved a, Moved b) { return {a.at + b.at, a.now + b.now}; }
inline Moved operator-(Moved a, Moved b) { return {a.at - b.at, a.now - b.now}; }
inline Moved operator*(Moved a, Moved b) { return {a.at * b.at, a.now * b.now}; }
inline Moved detach(Moved x) { return {x.at, x.at}; }
inline Moved exp(Moved x) { return {std::exp(x.at), std::exp(x.now)}; }
inline Moved log(Moved x) { return {std::log(x.at), std::log(x.now)}; }
inline real clamp(real x, real lo, real hi) { return x < lo ? lo : x > hi ? hi : x; }
inline Moved clamp(Moved x, real lo, real hi) {
  kink(x.at - lo), kink(x.at - hi);
  return {clamp(x.at, lo, hi), clamp(x.now, lo, hi)};
}
inline Moved max_first(Moved a, Moved b) {
  if (a.at != b.at || a.now != b.now) kink(a.at - b.at);
  return {b.at > a.at ? b.at : a.at, b.now > a.now ? b.now : a.now};
}
inline Moved abs(Moved x) {
  kink(x.at);
  return {std::fabs(x.at), std::fabs(x.now)};
}
inline real number(Moved x) { return x.at; }

/// 1 / (1 + e^-x).
inline real sigmoid(real x) { return 1 / (1 + std::exp(-x)); }
inline Dual sigmoid(Dual x) { return {sigmoid(x.v), x.d * sigmoid(x.v) * sigmoid(-x.v)}; }
inline Moved sigmoid(Moved x) { return {sigmoid(x.at), sigmoid(x.now)}; }

/// e^x - 1 - x without cancellation: by its series where |x| <= 1/4.
inline real exp_less_line(real x) {
  if (std::fabs(x) > 0.25L) return std::expm1(x) - x;
  real term = 1, sum = 0;
  for (int k = 1; k <= 24; ++k) {
    term *= x / static_cast<real>(k);
    if (k >= 2) sum += term;
  }
  return sum;
}
inline Dual exp_less_line(Dual x) { return {exp_less_line(x.v), x.d * std::expm1(x.v)}; }
inline Moved exp_less_line(Moved x) { return {exp_less_line(x.at), exp_less_line(x.now)}; }

// ---- surrogates and factors ----

/// A token's log-prob as the number type N, and its other inputs as plain numbers.
template <class N>
struct Token {
  N logp;
  bool has_old;
  real old, ref, rollout, teacher, advantage, row_advantage, weight, kl_weight, tag,
      level_log_weight;
};

/// Which clip metrics count a token.
struct Clips {
  bool low = false, high = false, outside = false, dual = false;
};

// Each has the name that it has in the library, the names that its settings have there, its value
// at a token, and the tokens that it clips, from the ratio r and the advantage a.

struct Ratio {
  static constexpr const char* name = "Ratio";
  double low = 0.2, high = 0.2, delta = off, dual = off;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("low", s.low), f("high", s.high), f("delta", s.delta), f("dual", s.dual);
  }
  template <class N>
  N operator()(const Token<N>& t, const N& ratio) const {
    const real a = t.advantage;
    const N plain = N(-a) * clamp(ratio, -off, delta);
    const N clipped = N(-a) * clamp(ratio, 1 - static_cast<real>(low), 1 + static_cast<real>(high));
    const N value = max_first(plain, clipped);
    return a < 0 ? clamp(value, -off, -a * dual) : value;
  }
  Clips clips(real r, real a) const {
    const real lo = 1 - static_cast<real>(low), hi = 1 + static_cast<real>(high),
               capped = clamp(r, -off, delta);
    return {capped < lo && a<0, capped> hi && a > 0, r < lo || r > hi,
            a < 0 && std::fmax(-a * capped, -a * clamp(r, lo, hi)) > -a * dual};
  }
};
struct Reinforce {
  static constexpr const char* name = "Reinforce";
  template <class Self, class F>
  static void settings(Self&, const F&) {}
  template <class N>
  N operator()(const Token<N>& t, const N&) const {
    return N(-t.advantage) * t.logp;
  }
  Clips clips(real, real) const { return {}; }
};
struct Soft {
  static constexpr const char* name = "Soft";
  double tau_pos = 1, tau_neg = 1.05;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("tau_pos", s.tau_pos), f("tau_neg", s.tau_neg);
  }
  template <class N>
  N operator()(const Token<N>& t, const N& ratio) const {
    const real tau = static_cast<real>(t.advantage > 0 ? tau_pos : tau_neg);
    return N(-t.advantage) * N(4 / tau) * sigmoid(N(tau) * (ratio - N(1)));
  }
  Clips clips(real, real) const { return {}; }
};
struct Clipped {
  static constexpr const char* name = "Clipped";
  double low = 0.2, high = 0.2;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("low", s.low), f("high", s.high);
  }
  template <class N>
  N operator()(const Token<N>& t, const N& ratio) const {
    return N(-t.advantage) * clamp(ratio, 1 - static_cast<real>(low), 1 + static_cast<real>(high));
  }
  Clips clips(real r, real a) const {
    const bool below = r<1 - static_cast<real>(low), above = r> 1 + static_cast<real>(high);
    return {below && a < 0, above && a > 0, below || above};
  }
};
struct PositiveReinforce {
  static constexpr const char* name = "PositiveReinforce";
  double low = 0.2, dual = off;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("low", s.low), f("dual", s.dual);
  }
  Ratio clip() const { return {low, off, off, dual}; }
  template <class N>
  N operator()(const Token<N>& t, const N& ratio) const {
    return t.advantage > 0 ? Reinforce{}(t, ratio) : clip()(t, ratio);
  }
  Clips clips(real r, real a) const { return clip().clips(r, a); }
};
/// No surrogate.
struct None {
  static constexpr const char* name = "None";
  template <class Self, class F>
  static void settings(Self&, const F&) {}
  template <class N>
  N operator()(const Token<N>&, const N&) const {
    return N(0);
  }
  Clips clips(real, real) const { return {}; }
};
struct LogRatio {
  static constexpr const char* name = "LogRatio";
  double epsilon = 0.3;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("epsilon", s.epsilon);
  }
  real most() const { return 1 + static_cast<real>(epsilon); }
  template <class N>
  N operator()(const Token<N>& t, const N& ratio) const {
    const real r = number(ratio);
    kink(r - most()), kink(r - 1 / most());
    return r < 1 / most() || r > most() || t.advantage == 0 ? N(0) : N(-t.advantage) * log(ratio);
  }
  Clips clips(real r, real a) const {
    const bool below = r<1 / most(), above = r> most();
    return {below && a < 0, above && a > 0, below || above};
  }
};
struct Likelihood {
  static constexpr const char* name = "Likelihood";
  double floor = 0;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("floor", s.floor);
  }
  template <class N>
  N operator()(const Token<N>& t, const N&) const {
    return floor > 0 ? clamp(N(0) - t.logp, floor, off) : N(0) - t.logp;
  }
  Clips clips(real, real) const { return {}; }
};
using Surrogate =
    std::variant<Ratio, Reinforce, Soft, Clipped, PositiveReinforce, None, LogRatio, Likelihood>;

/// What a factor may read; all of it is detached.
struct FactorArgs {
  real log_ratio, advantage, row_advantage, tag, logp;
};

struct NoFactor {
  static constexpr const char* name = "";
  template <class Self, class F>
  static void settings(Self&, const F&) {}
  real operator()(const FactorArgs&) const { return 1; }
  Clips clips(real, real, const Clips& of_surrogate) const { return of_surrogate; }
};
/// It counts the clips in place of the surrogate.
struct ClippedRatio {
  static constexpr const char* name = "ClippedRatio";
  double min_ratio = 0, max_ratio = off;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("min_ratio", s.min_ratio), f("max_ratio", s.max_ratio);
  }
  real operator()(const FactorArgs& a) const {
    return clamp(std::exp(a.log_ratio), min_ratio, max_ratio);
  }
  Clips clips(real r, real a, const Clips& of_surrogate) const {
    return {r < min_ratio && a<0, r> max_ratio && a > 0, r < min_ratio || r > max_ratio,
            of_surrogate.dual};
  }
};
struct SignedRatio {
  static constexpr const char* name = "SignedRatio";
  double positive_min = 1, positive_max = 1, negative_min = 0, negative_max = 1, threshold = 0;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("positive_min", s.positive_min), f("positive_max", s.positive_max);
    f("negative_min", s.negative_min), f("negative_max", s.negative_max);
    f("threshold", s.threshold);
  }
  ClippedRatio of_sign(real advantage) const {
    return advantage > static_cast<real>(threshold) ? ClippedRatio{positive_min, positive_max}
                                                    : ClippedRatio{negative_min, negative_max};
  }
  real operator()(const FactorArgs& a) const { return of_sign(a.advantage)(a); }
  Clips clips(real r, real a, const Clips& of_surrogate) const {
    const ClippedRatio bounds = of_sign(a);
    if (bounds.min_ratio == bounds.max_ratio) return {false, false, false, of_surrogate.dual};
    return bounds.clips(r, a, of_surrogate);
  }
};
/// It counts no clips.
struct Gamma {
  static constexpr const char* name = "Gamma";
  double k_pos = 2, lambda_pos = 3, k_neg = 3, lambda_neg = 2;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("k_pos", s.k_pos), f("lambda_pos", s.lambda_pos);
    f("k_neg", s.k_neg), f("lambda_neg", s.lambda_neg);
  }
  real operator()(const FactorArgs& a) const {
    const real k = static_cast<real>(a.advantage < 0 ? k_neg : k_pos),
               lambda = static_cast<real>(a.advantage < 0 ? lambda_neg : lambda_pos);
    return std::exp(lambda + k * a.log_ratio - lambda * std::exp(a.log_ratio));
  }
  Clips clips(real, real, const Clips& of_surrogate) const { return of_surrogate; }
};
/// It counts no clips.
struct SoftGate {
  static constexpr const char* name = "SoftGate";
  double tau_pos = 1, tau_neg = 1.05;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("tau_pos", s.tau_pos), f("tau_neg", s.tau_neg);
  }
  real operator()(const FactorArgs& a) const {
    const real tau = static_cast<real>(a.advantage > 0 ? tau_pos : tau_neg);
    return 4 / tau * sigmoid(tau * (std::exp(a.log_ratio) - 1));
  }
  Clips clips(real, real, const Clips& of_surrogate) const { return of_surrogate; }
};
/// It counts the tokens that it drops.
struct Ring {
  static constexpr const char* name = "Ring";
  double low = off, high = off, low_prime = off, high_prime = off, min_ratio = 1, max_ratio = 1,
         temp = off;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("low", s.low), f("high", s.high);
    f("low_prime", s.low_prime), f("high_prime", s.high_prime);
    f("min_ratio", s.min_ratio), f("max_ratio", s.max_ratio), f("temp", s.temp);
  }
  bool stays(real r, real a) const {
    const real one = 1;
    return (r >= one - static_cast<real>(low) && r <= one + static_cast<real>(high)) ||
           (a >= 0 && r <= one - static_cast<real>(low_prime)) ||
           (a <= 0 && r >= one + static_cast<real>(high_prime));
  }
  real operator()(const FactorArgs& a) const {
    const real r = std::exp(a.log_ratio);
    if (!stays(r, a.advantage)) return 0;
    return clamp(r, min_ratio, max_ratio) *
           (temp == off ? 1 : std::exp(a.advantage / static_cast<real>(temp)));
  }
  Clips clips(real r, real a, const Clips& of_surrogate) const {
    const bool gone = !stays(r, a);
    return {gone && r < 1 - static_cast<real>(low) && a < 0,
            gone && r > 1 + static_cast<real>(high) && a > 0, gone, of_surrogate.dual};
  }
};
/// It counts no clips.
struct Probability {
  static constexpr const char* name = "Probability";
  double decay = 0;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("decay", s.decay);
  }
  real operator()(const FactorArgs& a) const {
    const real p = std::exp(a.logp);
    return p * (1 - static_cast<real>(decay) * p);
  }
  Clips clips(real, real, const Clips& of_surrogate) const { return of_surrogate; }
};
using Factor =
    std::variant<NoFactor, ClippedRatio, SignedRatio, Gamma, SoftGate, Ring, Probability>;

// ---- settings ----

enum class Level { Token, Sequence, SequenceToken };
enum class Map { None, Clamp, TrustRegion };
enum class Statistic { Mean, Sum };
enum class Estimator { K1, Abs, K2, K3, ForwardK1 };
enum class Rule {
  Direct,
  StraightThroughK2,
  ScoreFunction,
  ImportanceWeighted,
  ImportanceWeightedK2,
  ClippedImportanceWeighted
};
constexpr int estimators = 5, rules = 6;
enum class KlFactor { None, TeacherGate };
enum class Against { Ref, Old, Teacher, Rollout, Data };
enum class Aggregate {
  SeqMeanTokenMean,
  TokenMean,
  SeqMeanTokenSum,
  SeqMeanTokenSumNorm,
  TokenSum,
  GroupMean
};
enum class Over { Tokens, Rows, NonEmptyRows, Given };

struct Bounds {
  double lo = -off, hi = off;
};
/// What sums over tokens are divided by.
struct Division {
  Aggregate aggregate = Aggregate::SeqMeanTokenMean;
  Over over = Over::Rows;
  double count_eps = 0, scale = 1, row_count_eps = 0, constant = 100;
  bool padded_width = false;  // where constant is 0: the padded width in its place
};
struct Kl {
  Estimator estimator = Estimator::K3;
  Rule rule = Rule::Direct;
  double beta = 0.04;
  Against against = Against::Ref;
  Bounds input, output;
  double max_weight = 10;
  KlFactor factor = KlFactor::None;
  double gate_beta = 5;
  bool has_own = false;  // an aggregate of the term itself
  Division own;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("max_weight", s.max_weight), f("factor", s.factor), f("gate_beta", s.gate_beta);
    f("aggregate.mode", s.own.aggregate), f("aggregate.over", s.own.over);
    f("aggregate.count_eps", s.own.count_eps), f("aggregate.scale", s.own.scale);
    f("aggregate.row_count_eps", s.own.row_count_eps), f("aggregate.constant", s.own.constant);
    f("aggregate.padded_width", s.own.padded_width);
    f("estimator", s.estimator), f("gradient", s.rule), f("beta", s.beta), f("against", s.against);
    f("input.lo", s.input.lo), f("input.hi", s.input.hi);
    f("output.lo", s.output.lo), f("output.hi", s.output.hi);
  }
};
/// The bonus for the entropy of the policy: what it is averaged over.
enum class EntropyMean { Loss, Tokens };
struct Entropy {
  double coef = 0;
  EntropyMean mean = EntropyMean::Loss;
  template <class Self, class F>
  static void settings(Self& s, const F& f) {
    f("coef", s.coef), f("mean", s.mean);
  }
};
struct Settings : Division {
  Level level = Level::Token;
  Map map = Map::None;
  Bounds map_bounds{-20, 20};            // of Map::Clamp
  double map_low = 0.4, map_high = 0.4;  // of Map::TrustRegion
  Statistic statistic = Statistic::Mean;
  double statistic_count_eps = 0;
  Bounds level_bounds;
  Surrogate surrogate;
  Factor detached;  // a factor of the library
  std::vector<Kl> kl;
  Entropy entropy;
  std::function<real(const FactorArgs&)> factor;  // one of a test's own
};
/// Calls f(name, member) for the settings of the level, named as in the library.
template <class S, class F>
void level_settings(S& s, const F& f) {
  f("map.lo", s.map_bounds.lo), f("map.hi", s.map_bounds.hi);
  f("map.low", s.map_low), f("map.high", s.map_high);
  f("statistic.kind", s.statistic), f("statistic.count_eps", s.statistic_count_eps);
  f("bounds.lo", s.level_bounds.lo), f("bounds.hi", s.level_bounds.hi);
}
/// The same for the aggregate.
template <class S, class F>
void aggregate_settings(S& s, const F& f) {
  f("mode", s.aggregate), f("over", s.over), f("count_eps", s.count_eps), f("scale", s.scale);
  f("row_count_eps", s.row_count_eps), f("constant", s.constant);
  f("padded_width", s.padded_width);
}

/// Arrays of rows x width, row by row; an empty array is absent.
struct Data {
  int rows = 0, width = 0;
  std::vector<double> logp, old_logp, ref_logp, rollout_logp, teacher_logp, token_advantages,
      weights, kl_weights, entropy_weights, level_log_weights, tags, entropies;
  std::vector<int> mask;
  std::vector<long long> segments;
  std::vector<double> advantages, row_weights, group_tokens, truncated;  // one per row

  std::size_t at(int row, int t) const { return static_cast<std::size_t>(row * width + t); }
  bool valid(int row, int t) const { return mask.empty() || mask[at(row, t)] != 0; }
};

struct Counts {
  double tokens = 0, rows = 0, non_empty_rows = 0, given = 0;
};
inline Counts count(const Data& data) {
  Counts n;
  n.rows = data.rows;
  for (int i = 0; i < data.rows; ++i) {
    int tokens = 0;
    for (int t = 0; t < data.width; ++t) tokens += data.valid(i, t);
    n.tokens += tokens;
    n.non_empty_rows += tokens > 0;
  }
  return n;
}

// ---- formulas ----

template <class N>
N token_log_ratio(const Token<N>& t) {
  return t.has_old ? t.logp - N(t.old) : t.logp - detach(t.logp);
}
template <class N>
N mapped(const Settings& s, const Token<N>& t) {
  const N x = token_log_ratio(t);
  if (s.map == Map::None) return x;
  if (s.map == Map::Clamp) return clamp(x, s.map_bounds.lo, s.map_bounds.hi);
  if (t.advantage == 0) return N(0);
  const N bounded = clamp(x, -s.map_low, s.map_high);
  return t.advantage > 0 ? N(0) - max_first(N(0) - x, N(0) - bounded) : max_first(x, bounded);
}

template <class N>
N surrogate(const Settings& s, const Token<N>& t, const N& ratio) {
  return std::visit([&](const auto& chosen) { return chosen(t, ratio); }, s.surrogate);
}

template <class N>
N kl(const Kl& s, const Token<N>& t, const N& ratio) {
  const N other = s.against == Against::Ref       ? N(t.ref)
                  : s.against == Against::Teacher ? N(t.teacher)
                  : s.against == Against::Rollout ? N(t.rollout)
                  : s.against == Against::Data    ? N(0)
                  : t.has_old                     ? N(t.old)
                                                  : detach(t.logp);
  const N d = t.logp - other, x = clamp(other - t.logp, s.input.lo, s.input.hi), e = N(0) - x;
  const N estimate = s.estimator == Estimator::K1          ? e
                     : s.estimator == Estimator::Abs       ? abs(e)
                     : s.estimator == Estimator::K2        ? N(0.5L) * e * e
                     : s.estimator == Estimator::ForwardK1 ? x
                                                           : exp_less_line(x);
  const N value = clamp(estimate, s.output.lo, s.output.hi);
  if (s.rule == Rule::ScoreFunction)
    return clamp(estimate * exp(t.logp - detach(t.logp)), s.output.lo, s.output.hi);
  if (s.rule == Rule::ImportanceWeighted) return ratio * value;
  if (s.rule == Rule::ClippedImportanceWeighted) return clamp(ratio, -off, s.max_weight) * value;
  const N k2 = N(0.5L) * d * d;
  if (s.rule == Rule::StraightThroughK2) return detach(value) + (k2 - detach(k2));
  if (s.rule == Rule::ImportanceWeightedK2) {
    const real w = std::exp(number(token_log_ratio(t)));
    return detach(value) +
           N(w > s.max_weight ? static_cast<real>(s.max_weight) : w) * (k2 - detach(k2));
  }
  return value;
}

/// The detached factor of a term itself.
template <class N>
real kl_factor(const Kl& s, const Token<N>& t) {
  if (s.factor == KlFactor::None) return 1;
  return 1 / (1 + std::exp(-s.gate_beta * (t.teacher - number(t.logp))));
}

/// The weights of a row: that of the loss's aggregate, and those of the KL terms.
struct RowWeight {
  real of_loss = 0;
  std::vector<real> of_kl;
  bool own = false;  // some KL term has an aggregate of its own
  /// The one that metrics of the loss are relative to: the first that is not 0.
  real unit() const {
    for (const real w : of_kl)
      if (of_loss == 0 && w != 0) return w;
    return of_loss;
  }
  real largest() const {
    real most = std::fabs(of_loss);
    for (const real w : of_kl) most = std::fmax(most, std::fabs(w));
    return most;
  }
};

/// Sums over the valid tokens of a segment, of a row or of the batch.
struct Sums {
  real policy = 0, kl = 0;  // times the row's weight; kl also times beta
  real magnitude = 0;       // sum of the absolute values of the terms of policy and kl
  real largest = 1;         // 1, or the largest surrogate or KL term of a token, over W
  real surrogate = 0, first_kl = 0, token_loss = 0, k1 = 0, k3 = 0, ratio = 0;
  int tokens = 0, low = 0, high = 0, outside = 0, dual = 0, bounded = 0, kl_bounded = 0;

  /// By the names of the metrics: the sums of the numbers, and how many tokens the shares count.
  std::map<std::string, real> metrics() const {
    return {{"surrogate", surrogate},      {"kl", first_kl},
            {"loss", token_loss},          {"approx_kl_k1", k1},
            {"approx_kl_k3", k3},          {"ratio", ratio},
            {"clip_fraction", low + high}, {"clip_fraction_low", low},
            {"clip_fraction_high", high},  {"clip_fraction_any", outside},
            {"dual_clip_fraction", dual},  {"log_ratio_bounded", bounded},
            {"kl_bounded", kl_bounded}};
  }
};

inline bool is_outside(const Bounds& bounds, real x) { return x < bounds.lo || x > bounds.hi; }

/// The loss of one segment (at level Token: of one token), times the weights of its row. It adds
/// the segment's metrics to `sums` unless that is null.
template <class N>
N segment_loss(const Settings& s, const std::vector<Token<N>>& tokens, const RowWeight& row,
               Sums* sums = nullptr) {
  const real W = row.of_loss, unit = row.unit();
  const real n = static_cast<real>(tokens.size());
  N of_segment(0);
  real raw = 0, log_weights = 0;  // detached; they join the log ratio behind the bounds
  const auto weighed = [&](const N& log_ratio) {
    return log_weights == 0
               ? log_ratio
               : clamp(log_ratio + N(log_weights), s.level_bounds.lo, s.level_bounds.hi);
  };
  if (s.level != Level::Token) {
    N sum(0);
    for (const Token<N>& t : tokens) sum = sum + mapped(s, t);
    const N statistic =
        s.statistic == Statistic::Sum ? sum : sum * N(1 / (n + s.statistic_count_eps));
    raw = number(statistic);
    for (const Token<N>& t : tokens) log_weights += t.level_log_weight;
    of_segment = weighed(clamp(statistic, s.level_bounds.lo, s.level_bounds.hi));
  }
  N total(0);
  for (const Token<N>& t : tokens) {
    const N own = mapped(s, t);
    const N log_ratio =
        s.level == Level::Token ? own
        : s.level == Level::Sequence
            ? of_segment
            : weighed(clamp(N(raw) + (own - detach(own)), s.level_bounds.lo, s.level_bounds.hi));
    const N ratio = exp(log_ratio);
    real w = t.weight;
    const FactorArgs args{number(log_ratio), t.advantage, t.row_advantage, t.tag, number(t.logp)};
    if (s.factor) w *= s.factor(args);
    w *= std::visit([&](const auto& chosen) { return chosen(args); }, s.detached);
    if (!std::isfinite(w)) w = 0;
    const real wk = std::isfinite(t.kl_weight) ? t.kl_weight : 0;
    N surrogate_term(0), kl_terms(0);  // the latter times the weights of the row
    real kl_of_token = 0;
    if (w != 0) surrogate_term = N(w) * surrogate(s, t, ratio);
    total = total + N(W) * surrogate_term;
    bool first = true;
    real first_kl = 0;
    for (std::size_t at = 0; at < s.kl.size(); ++at) {
      const Kl& k = s.kl[at];
      if (k.beta == 0) continue;
      const N term = kl(k, t, ratio);
      const real weight = wk * kl_factor(k, t), Wk = row.of_kl[at];
      if (weight != 0 && std::isfinite(weight)) {
        const N of_token = N(k.beta) * (N(weight) * term);
        if (Wk != 0) kl_terms = kl_terms + N(Wk) * of_token;
        kl_of_token += number(of_token) * (row.own && unit != 0 ? Wk / unit : 1);
      }
      if (first) first_kl = number(term);  // without beta and the token's weight
      if (first && sums) {
        const real other = k.against == Against::Ref       ? t.ref
                           : k.against == Against::Teacher ? t.teacher
                           : k.against == Against::Rollout ? t.rollout
                           : k.against == Against::Data    ? 0
                           : t.has_old                     ? t.old
                                                           : number(t.logp);
        const real x = other - number(t.logp), e = -clamp(x, k.input.lo, k.input.hi);
        const real value = k.estimator == Estimator::K1          ? e
                           : k.estimator == Estimator::Abs       ? std::fabs(e)
                           : k.estimator == Estimator::K2        ? e * e / 2
                           : k.estimator == Estimator::ForwardK1 ? -e
                                                                 : exp_less_line(-e);
        sums->kl_bounded +=
            x < k.input.lo || x > k.input.hi || value < k.output.lo || value > k.output.hi;
      }
      first = false;
    }
    total = total + kl_terms;
    if (!sums) continue;
    sums->policy += W * number(surrogate_term);
    sums->kl += number(kl_terms);
    sums->magnitude +=
        std::fabs(W) * std::fabs(number(surrogate_term)) + std::fabs(number(kl_terms));
    sums->largest = std::fmax(sums->largest,
                              std::fmax(std::fabs(number(surrogate_term)), std::fabs(kl_of_token)));
    sums->surrogate += number(surrogate_term);
    sums->first_kl += first_kl;
    sums->token_loss += (row.own && W == 0 && unit != 0 ? 0 : number(surrogate_term)) + kl_of_token;
    sums->k1 -= number(own);
    sums->k3 += exp_less_line(number(own));
    sums->ratio += number(ratio);
    ++sums->tokens;
    const real x = number(token_log_ratio(t)), a = t.advantage, r = number(ratio);
    const bool mapped_away = s.map == Map::Clamp
                                 ? x < s.map_bounds.lo || x > s.map_bounds.hi
                                 : s.map == Map::TrustRegion && (a == 0 || x != number(own));
    sums->bounded += mapped_away ||
                     (s.level != Level::Token &&
                      (is_outside(s.level_bounds, raw) ||
                       is_outside(s.level_bounds,
                                  clamp(raw, s.level_bounds.lo, s.level_bounds.hi) + log_weights)));
    // Counted also where the token's weight is 0.
    const Clips clips =
        std::visit([&](const auto& chosen,
                       const auto& detached) { return detached.clips(r, a, chosen.clips(r, a)); },
                   s.surrogate, s.detached);
    sums->low += clips.low, sums->high += clips.high;
    sums->outside += clips.outside, sums->dual += clips.dual;
  }
  return total;
}

inline real row_weight(const Division& s, const Data& data, const Counts& n, int row, int tokens) {
  const double counts[] = {n.tokens, n.rows, n.non_empty_rows, n.given};
  const real count = static_cast<real>(counts[static_cast<int>(s.over)]) + s.count_eps,
             given = data.row_weights.empty()
                         ? 1
                         : static_cast<real>(data.row_weights[static_cast<std::size_t>(row)]);
  if (tokens == 0) return 0;
  switch (s.aggregate) {
    case Aggregate::TokenMean:
    case Aggregate::SeqMeanTokenSum:
      return given * s.scale / count;
    case Aggregate::SeqMeanTokenMean:
      return given * s.scale / count / (tokens + static_cast<real>(s.row_count_eps));
    case Aggregate::GroupMean:
      return given * s.scale / count /
             (static_cast<real>(data.group_tokens[static_cast<std::size_t>(row)]) +
              static_cast<real>(s.row_count_eps));
    case Aggregate::SeqMeanTokenSumNorm:
      return given * s.scale / count /
             (s.padded_width && s.constant == 0 ? static_cast<real>(data.width)
                                                : static_cast<real>(s.constant));
    default:
      return given * s.scale;
  }
}

/// The weights of a row in a loss; 0 in place of one that is not finite.
inline RowWeight weights_of(const Settings& s, const Data& data, const Counts& n, int row,
                            int tokens) {
  const auto finite = [](real w) { return std::isfinite(w) ? w : 0; };
  RowWeight weight;
  weight.of_loss = finite(row_weight(s, data, n, row, tokens));
  for (const Kl& k : s.kl) {
    weight.own = weight.own || k.has_own;
    weight.of_kl.push_back(!k.has_own    ? weight.of_loss
                           : k.beta != 0 ? finite(row_weight(k.own, data, n, row, tokens))
                                         : 0);
  }
  return weight;
}

/// The positions of the tokens of each segment of a row: runs of equal ids among the valid tokens.
/// At level Token each token is a segment.
inline std::vector<std::vector<int>> segments(const Settings& s, const Data& data, int row) {
  std::vector<std::vector<int>> all;
  long long last = 0;
  for (int t = 0; t < data.width; ++t) {
    if (!data.valid(row, t)) continue;
    const long long id = data.segments.empty() ? 0 : data.segments[data.at(row, t)];
    if (all.empty() || id != last || s.level == Level::Token) all.push_back({});
    all.back().push_back(t);
    last = id;
  }
  return all;
}

template <class N>
std::vector<Token<N>> tokens_of(const Data& data, int row, const std::vector<int>& positions) {
  const auto pick = [](const std::vector<double>& values, std::size_t k, double absent) {
    return static_cast<real>(values.empty() ? absent : values[k]);
  };
  const auto advantage = [&](int t) {
    return data.token_advantages.empty()
               ? static_cast<real>(data.advantages[static_cast<std::size_t>(row)])
               : static_cast<real>(data.token_advantages[data.at(row, t)]);
  };
  real row_advantage = 0;
  int n = 0;
  for (int t = 0; t < data.width; ++t) {
    if (data.valid(row, t)) row_advantage += advantage(t), ++n;
  }
  std::vector<Token<N>> tokens;
  for (const int t : positions) {
    const std::size_t k = data.at(row, t);
    tokens.push_back(
        {N(static_cast<real>(data.logp[k])), !data.old_logp.empty(), pick(data.old_logp, k, 0),
         pick(data.ref_logp, k, 0), pick(data.rollout_logp, k, 0), pick(data.teacher_logp, k, 0),
         advantage(t), row_advantage / static_cast<real>(n), pick(data.weights, k, 1),
         pick(data.kl_weights, k, 1), pick(data.tags, k, 0), pick(data.level_log_weights, k, 0)});
  }
  return tokens;
}

struct Result {
  real loss = 0, policy_loss = 0, kl_loss = 0, entropy_loss = 0;
  Sums sums;
  std::vector<real> gradient, entropy_gradient;  // by the log-probs, by the entropies
};

template <class Visit>
void for_each_segment(const Settings& s, const Data& data, const Counts& n, const Visit& visit) {
  for (int i = 0; i < data.rows; ++i) {
    const std::vector<std::vector<int>> all = segments(s, data, i);
    int tokens = 0;
    for (const auto& segment : all) tokens += static_cast<int>(segment.size());
    const RowWeight W = weights_of(s, data, n, i, tokens);
    for (const auto& segment : all) visit(i, segment, W);
  }
}

/// Adds the bonus for the entropy, and its gradient by the entropies.
inline void add_entropy(const Settings& s, const Data& data, const Counts& n, Result& r) {
  r.entropy_gradient.assign(data.logp.size(), 0);
  Division mean = s;
  if (s.entropy.mean == EntropyMean::Tokens)
    mean = {Aggregate::TokenMean, Over::Tokens, 0, 1, 0, 1, false};
  for (int i = 0; i < data.rows && s.entropy.coef != 0; ++i) {
    int tokens = 0;
    for (int t = 0; t < data.width; ++t) tokens += data.valid(i, t);
    const real W = row_weight(mean, data, n, i, tokens);
    for (int t = 0; t < data.width && std::isfinite(W) && W != 0; ++t) {
      if (!data.valid(i, t)) continue;
      const std::size_t k = data.at(i, t);
      const real v = data.entropy_weights.empty() ? 1 : static_cast<real>(data.entropy_weights[k]);
      if (v == 0 || !std::isfinite(v)) continue;
      r.entropy_gradient[k] = -s.entropy.coef * W * v;
      const real term = r.entropy_gradient[k] * static_cast<real>(data.entropies[k]);
      r.entropy_loss += term, r.sums.magnitude += std::fabs(term);
    }
  }
}

inline Result loss(const Settings& s, const Data& data, const Counts& n) {
  Result r;
  r.gradient.assign(data.logp.size(), 0);
  for_each_segment(s, data, n, [&](int row, const std::vector<int>& segment, const RowWeight& W) {
    std::vector<Token<Dual>> tokens = tokens_of<Dual>(data, row, segment);
    segment_loss(s, tokens, W, &r.sums);
    for (std::size_t k = 0; k < segment.size() && W.largest() != 0; ++k) {
      tokens[k].logp.d = 1;
      r.gradient[data.at(row, segment[k])] = segment_loss(s, tokens, W).d;
      tokens[k].logp.d = 0;
    }
  });
  r.policy_loss = r.sums.policy;
  r.kl_loss = r.sums.kl;
  add_entropy(s, data, n, r);
  r.loss = r.policy_loss + r.kl_loss + r.entropy_loss;
  return r;
}
inline Result loss(const Settings& s, const Data& data) { return loss(s, data, count(data)); }

/// The gradient by central differences of the frozen form with step h. NaN where the evaluation
/// came within `margin` of a kink, because there a difference is no derivative.
inline std::vector<real> differences(const Settings& s, const Data& data, const Counts& n, real h,
                                     real margin) {
  std::vector<real> gradient(data.logp.size(), 0);
  for_each_segment(s, data, n, [&](int row, const std::vector<int>& segment, const RowWeight& W) {
    std::vector<Token<Moved>> tokens = tokens_of<Moved>(data, row, segment);
    for (std::size_t k = 0; k < segment.size(); ++k) {
      Moved& x = tokens[k].logp;
      nearest_kink() = margin * 2;
      x.now = x.at + h;
      const real above = segment_loss(s, tokens, W).now;
      x.now = x.at - h;
      const real below = segment_loss(s, tokens, W).now;
      x.now = x.at;
      gradient[data.at(row, segment[k])] = nearest_kink() < margin
                                               ? std::numeric_limits<real>::quiet_NaN()
                                               : (above - below) / (2 * h);
    }
  });
  return gradient;
}

// ---- the losses that have names ----

/// The settings of a loss by name, from the paper or the code of the trainer. Those of a trainer
/// with recorded results may be left to the records (tests/golden).
struct Named {
  const char* name;
  Settings settings;
};

/// A loss of tokens with one KL term.
inline Settings settings_of(const Surrogate& surrogate, double beta, Aggregate aggregate,
                            Over over = Over::Rows) {
  Settings s;
  s.surrogate = surrogate, s.aggregate = aggregate, s.over = over, s.constant = 0;
  s.kl.resize(1);
  s.kl[0].beta = beta;
  return s;
}
/// The same of sequences, with a gradient for each token where `level` says so.
inline Settings at_level(Level level, Settings s) {
  s.level = level;
  return s;
}
/// CISPO: REINFORCE times the detached ratio between bounds.
inline Settings cispo(double min_ratio, double max_ratio, double beta, Aggregate aggregate,
                      Over over) {
  Settings s = settings_of(Reinforce{}, beta, aggregate, over);
  s.detached = ClippedRatio{min_ratio, max_ratio};
  return s;
}
/// The same with bounds of the KL term's log ratio and value.
inline Settings bounded_kl(Settings s, Bounds input, Bounds output) {
  s.kl[0].input = input, s.kl[0].output = output;
  return s;
}
/// The same with a clamp of each token's log ratio.
inline Settings clamped(Settings s) {
  s.map = Map::Clamp;  // -20 to 20
  return s;
}

inline std::vector<Named> named() {
  using A = Aggregate;
  constexpr auto tokens = Over::Tokens, given = Over::Given;
  const Bounds ends{-20, 20}, cut{-10, 10}, none;
  const Ratio clip, dapo{0.2, 0.28}, narrow{3e-4, 4e-4}, dual{0.2, 0.2, off, 3};
  const auto sequence = [](const Settings& s) { return at_level(Level::Sequence, s); };
  const auto swift = [&](A aggregate, Over over) {
    return bounded_kl(settings_of(clip, 0.04, aggregate, over), ends, cut);
  };
  Settings gspo = bounded_kl(
      at_level(Level::SequenceToken, settings_of(clip, 0, A::TokenMean, tokens)), ends, cut);
  gspo.level_bounds = {-off, 10};
  Settings gspo_of_rows = gspo;
  gspo_of_rows.aggregate = A::SeqMeanTokenMean, gspo_of_rows.over = Over::NonEmptyRows;
  gspo_of_rows.row_count_eps = 1e-8;
  const auto unsloth = [&](A aggregate, Over over) {
    return bounded_kl(settings_of(clip, 0, aggregate, over), ends, cut);
  };
  const auto with_eps = [](Settings s) {
    s.count_eps = 1e-8;
    return s;
  };
  Settings skyrl_gspo = at_level(Level::SequenceToken, settings_of(clip, 0, A::TokenSum));
  skyrl_gspo.level_bounds = {-off, 10};
  Settings openrlhf_gspo =
      at_level(Level::Sequence, settings_of(clip, 0, A::SeqMeanTokenMean, Over::NonEmptyRows));
  openrlhf_gspo.row_count_eps = 1e-8;
  Settings trinity_gspo =
      at_level(Level::SequenceToken, settings_of(narrow, 0, A::SeqMeanTokenMean));
  trinity_gspo.row_count_eps = trinity_gspo.statistic_count_eps = 1e-8;
  Settings slime = cispo(0.8, 1.2, 0, A::SeqMeanTokenMean, given);
  slime.kl[0].estimator = Estimator::K1;
  const auto mean = A::SeqMeanTokenMean, norm = A::SeqMeanTokenSumNorm, token_mean = A::TokenMean;
  const auto with_kl = [](Settings s, Estimator estimator, Rule rule, Against against) {
    s.kl[0].estimator = estimator, s.kl[0].rule = rule, s.kl[0].against = against;
    return s;
  };
  const auto nemo_rl = [&](const Settings& s) {
    return with_kl(bounded_kl(s, ends, cut), Estimator::K3, Rule::ScoreFunction, Against::Ref);
  };
  const Ratio unclipped{1, off};
  const auto vespo = [&](double beta, Over over) {
    Settings loss = sequence(clamped(settings_of(Reinforce{}, beta, token_mean, over)));
    loss.statistic = Statistic::Sum;
    loss.level_bounds = {static_cast<double>(std::log(1e-8L)), 20};
    loss.detached = Gamma{};
    return loss;
  };
  const auto gmpo = [&](double eps) {
    Settings loss = sequence(settings_of(Ratio{off, off}, 0, mean));
    loss.map = Map::TrustRegion;
    loss.statistic_count_eps = loss.row_count_eps = eps;
    return loss;
  };
  Settings rloo = sequence(settings_of(clip, 0, mean)),
           topr = settings_of(Reinforce{}, 0, token_mean, tokens);
  rloo.statistic = Statistic::Sum;
  topr.detached = SignedRatio{};
  Settings verl_sapo =
      clamped(bounded_kl(settings_of(Soft{}, 0, mean, Over::NonEmptyRows), ends, cut));
  verl_sapo.row_count_eps = 1e-8;
  Settings sdar = with_kl(settings_of(None{}, 1, token_mean, tokens), Estimator::ForwardK1,
                          Rule::Direct, Against::Teacher);
  sdar.kl[0].factor = KlFactor::TeacherGate;
  const Settings distillation = with_kl(settings_of(None{}, 1, token_mean, tokens), Estimator::K1,
                                        Rule::StraightThroughK2, Against::Teacher);
  const Settings prime_rl = with_kl(settings_of(unclipped, 2e-3, token_mean, given), Estimator::K2,
                                    Rule::Direct, Against::Rollout);
  const auto times = [&](const Surrogate& surrogate, const Factor& factor) {
    Settings loss = with_eps(settings_of(surrogate, 0, token_mean, tokens));
    loss.detached = factor;
    return loss;
  };
  Settings opmd = times(Reinforce{}, NoFactor{});
  opmd.scale = 0.5;
  const Settings rec =
      with_kl(times(Reinforce{}, Ring{}), Estimator::K2, Rule::Direct, Against::Old);
  const Settings dppo = clamped(bounded_kl(cispo(0, 3, 0, token_mean, tokens), ends, cut));
  return {
      {"grpo", settings_of(clip, 0.04, mean)},
      {"dapo", settings_of(dapo, 0, token_mean, tokens)},
      {"dr_grpo", settings_of(clip, 0, norm)},
      {"gspo", sequence(settings_of(narrow, 0, mean))},
      {"gspo_token", at_level(Level::SequenceToken, settings_of(narrow, 0, mean))},
      {"cispo", cispo(0, 5, 0, token_mean, tokens)},
      {"sapo", settings_of(Soft{}, 0, mean)},
      {"vespo", vespo(0, tokens)},
      {"distillation", distillation},
      {"gmpo", gmpo(0)},
      {"topr", topr},
      {"up_grpo", settings_of(PositiveReinforce{0.2, 3}, 0, token_mean, tokens)},
      {"trl::grpo", settings_of(clip, 0, mean)},
      {"trl::bnpo", settings_of(clip, 0, token_mean, tokens)},
      {"trl::dr_grpo", settings_of(clip, 0, norm)},
      {"trl::dapo", settings_of(clip, 0, token_mean, given)},
      {"trl::cispo", cispo(0, 5, 0, token_mean, given)},
      {"trl::luspo", sequence(settings_of(clip, 0, A::SeqMeanTokenSum))},
      {"trl::sapo", settings_of(Soft{}, 0, mean)},
      {"trl::vespo", vespo(0, given)},
      {"trl::rloo", rloo},
      {"trl::gmpo", gmpo(0)},
      {"verl::vanilla", clamped(bounded_kl(settings_of(dual, 0, token_mean, tokens), ends, cut))},
      {"verl::gspo", gspo},
      {"verl::v0_9_0::gspo", gspo_of_rows},
      {"verl::cispo", clamped(bounded_kl(cispo(0.8, 1.2, 0, token_mean, tokens), ends, cut))},
      {"verl::clip_cov", bounded_kl(settings_of(clip, 0, token_mean, tokens), ends, cut)},
      {"verl::kl_cov", with_kl(settings_of(Ratio{off, off}, 0.1, token_mean, tokens),
                               Estimator::Abs, Rule::Direct, Against::Old)},
      {"verl::dppo_tv", dppo},
      {"verl::dppo_kl", dppo},
      {"verl::gpg", bounded_kl(settings_of(Reinforce{}, 0, token_mean, tokens), ends, cut)},
      {"verl::reinforce", bounded_kl(settings_of(Reinforce{}, 0, token_mean, tokens), ends, cut)},
      {"verl::sapo", verl_sapo},
      {"verl::geo_mean", bounded_kl(gmpo(1e-8), ends, cut)},
      {"verl::dro", with_kl(settings_of(Reinforce{}, 0.5, token_mean, tokens), Estimator::K2,
                            Rule::Direct, Against::Old)},
      {"nvlabs::trl_grpo", settings_of(clip, 0.04, mean)},
      {"nvlabs::trl_bnpo", settings_of(clip, 0.04, token_mean, tokens)},
      {"nvlabs::trl_dr_grpo", settings_of(clip, 0.04, norm)},
      {"nvlabs::verl", bounded_kl(settings_of(clip, 0, token_mean, tokens), none, cut)},
      {"ms_swift::grpo", swift(mean, Over::Rows)},
      {"ms_swift::bnpo", swift(token_mean, tokens)},
      {"ms_swift::dr_grpo", swift(norm, Over::Rows)},
      {"ms_swift::dapo", swift(token_mean, given)},
      {"ms_swift::cispo", bounded_kl(cispo(0, 5, 0.04, token_mean, given), ends, cut)},
      {"ms_swift::megatron_bnpo", swift(token_mean, given)},
      {"ms_swift::fipo", swift(token_mean, given)},
      {"ms_swift::sapo", bounded_kl(settings_of(Soft{}, 0.04, mean), ends, cut)},
      {"ms_swift::sdar", sdar},
      {"open_instruct::dapo",
       bounded_kl(settings_of(Ratio{0.2, 0.272}, 0.05, token_mean, given), {-40, 40}, none)},
      {"open_instruct::cispo",
       bounded_kl(cispo(0, 1.272, 0.05, token_mean, given), {-40, 40}, none)},
      {"nemo_rl::clipped_pg", nemo_rl(settings_of(clip, 0.01, token_mean, tokens))},
      {"nemo_rl::reinforce", nemo_rl(settings_of(Reinforce{}, 0.01, token_mean, tokens))},
      {"nemo_rl::cispo", nemo_rl(cispo(0.8, 1.2, 0.01, token_mean, tokens))},
      {"nemo_rl::positive_nll", with_eps(settings_of(Likelihood{}, 0, token_mean, tokens))},
      {"slime::policy_loss",
       with_kl(settings_of(clip, 0, mean, given), Estimator::K1, Rule::Direct, Against::Ref)},
      {"slime::cispo", slime},
      {"liger::grpo", settings_of(clip, 0.04, mean)},
      {"liger::bnpo", settings_of(clip, 0.04, token_mean, tokens)},
      {"liger::dr_grpo", settings_of(clip, 0.04, norm)},
      {"liger::dapo", settings_of(clip, 0.04, token_mean, tokens)},
      {"liger::cispo", cispo(0, 5, 0.04, token_mean, tokens)},
      {"liger::luspo", sequence(settings_of(clip, 0.04, A::SeqMeanTokenSum))},
      {"liger::sapo", settings_of(Soft{}, 0.04, mean)},
      {"liger::vespo", vespo(0.04, tokens)},
      {"unsloth_zoo::grpo", unsloth(mean, Over::Rows)},
      {"unsloth_zoo::bnpo", unsloth(token_mean, tokens)},
      {"unsloth_zoo::dr_grpo", unsloth(norm, Over::Rows)},
      {"unsloth_zoo::dapo", unsloth(token_mean, given)},
      {"unsloth_zoo::cispo", bounded_kl(cispo(0, 5, 0, token_mean, given), ends, cut)},
      {"unsloth_zoo::luspo", sequence(unsloth(A::SeqMeanTokenSum, Over::Rows))},
      {"unsloth_zoo::sapo", bounded_kl(settings_of(Soft{}, 0, mean), ends, cut)},
      {"unsloth_zoo::vespo", bounded_kl(vespo(0, given), ends, cut)},
      {"skyrl::regular", clamped(settings_of(clip, 0, A::TokenSum))},
      {"skyrl::gspo", skyrl_gspo},
      {"skyrl::cispo", clamped(cispo(1, 6, 0, A::TokenSum, Over::Rows))},
      {"skyrl::sapo", clamped(settings_of(Soft{}, 0, A::TokenSum))},
      {"skyrl::importance_sampling", settings_of(Ratio{off, off}, 0, A::TokenSum)},
      {"skyrl::clip_cov", settings_of(clip, 0, A::TokenSum)},
      {"skyrl::kl_cov", with_kl(settings_of(Ratio{off, off}, 1, A::TokenSum), Estimator::Abs,
                                Rule::Direct, Against::Old)},
      {"skyrl::rollout_is", clamped(cispo(0, off, 0, A::TokenSum, Over::Rows))},
      {"skyrl::dppo", clamped(settings_of(unclipped, 0, A::TokenSum))},
      {"skyrl::cross_entropy", settings_of(Likelihood{}, 0, A::TokenSum)},
      {"prime_rl::default", prime_rl},
      {"prime_rl::ipo", prime_rl},
      {"prime_rl::cross_entropy", settings_of(Likelihood{}, 0, token_mean, given)},
      {"prime_rl::ref_kl", prime_rl},
      {"trinity::ppo", clamped(with_eps(settings_of(dual, 0, token_mean, tokens)))},
      {"trinity::gspo", trinity_gspo},
      {"trinity::cispo", with_eps(cispo(0, 1.28, 0, token_mean, tokens))},
      {"trinity::sapo", times(Reinforce{}, SoftGate{})},
      {"trinity::topr", times(Reinforce{}, SignedRatio{})},
      {"trinity::importance_sampling",
       clamped(with_eps(settings_of(Ratio{off, off}, 0, token_mean, tokens)))},
      {"trinity::sppo", times(LogRatio{}, NoFactor{})},
      {"trinity::opmd", opmd},
      {"trinity::rec", rec},
      {"trinity::sft", times(Likelihood{}, NoFactor{})},
      {"trinity::sft_is", times(Likelihood{}, Probability{})},
      {"trinity::sft_phi", times(Likelihood{}, Probability{1})},
      {"torchrl::grpo", settings_of(clip, 0, token_mean, tokens)},
      {"torchrl::cispo", settings_of(Clipped{}, 0, token_mean, tokens)},
      {"areal::ppo", settings_of(clip, 0, token_mean, tokens)},
      {"areal::sapo", settings_of(Soft{}, 0, token_mean, tokens)},
      {"openrlhf::ppo", clamped(settings_of(clip, 0, token_mean, tokens))},
      {"openrlhf::gspo", openrlhf_gspo},
      {"textbook::grpo", settings_of(clip, 0.04, mean)},
  };
}

}  // namespace naive_loss
