// The policy loss, compiled with -ffast-math. Loss, gradient and metrics are those of the formulas;
// poison where the mask is 0 changes no bit; NaN at a token that counts shows in the loss and in
// that token's gradient, and is counted; ratios saturate; pre-passes find NaN.
#include <algorithm>
#include <cmath>
#include <gdpo/runtime.hpp>

#include "support/exact.hpp"

using exact::bits, exact::expect;

namespace {

constexpr int rows = 4, width = 9;

/// Whether x is a number is decided by its bits, because under -ffast-math a comparison with NaN
/// may give anything.
bool finite(double x) { return (bits(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u; }
bool near_to(double got, long double expected, long double tolerance) {
  const long double distance = got > expected ? got - expected : expected - got;
  return finite(got) && distance <= tolerance;
}

/// The numbers of a fixed sequence, between 0 and 1.
struct Sequence {
  std::uint64_t state = 42;
  double operator()() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state >> 40) * 0x1p-24;
  }
};

/// A batch with every array; row 2 has no tokens.
template <class S>
struct Batch {
  std::vector<S> logp, old, ref, teacher, rollout, weights, kl_weights, entropies, advantages,
      row_weights;
  std::vector<unsigned char> mask;
  std::vector<S> gradient = std::vector<S>(rows * width, S(7));

  Batch() {
    Sequence next;
    const auto shift = [&](S x, double spread) {
      return static_cast<S>(static_cast<double>(x) + spread * (next() - 0.5));
    };
    for (int k = 0; k < rows * width; ++k) {
      logp.push_back(static_cast<S>(-3 * next()));
      old.push_back(shift(logp.back(), 0.9));
      ref.push_back(shift(logp.back(), 0.9));
      teacher.push_back(shift(logp.back(), 0.9));
      rollout.push_back(shift(logp.back(), 0.9));
      weights.push_back(static_cast<S>(0.5 + next()));
      kl_weights.push_back(static_cast<S>(0.5 + next()));
      entropies.push_back(static_cast<S>(next()));
      mask.push_back(next() < 0.8 && k / width != 2);
    }
    for (int i = 0; i < rows; ++i) {
      advantages.push_back(static_cast<S>(i % 2 ? -0.5 - next() : 0.5 + next()));
      row_weights.push_back(static_cast<S>(0.5 + next()));
    }
    mask[4] = 1;
  }
  gdpo::TokenBatch<S> batch() const {
    gdpo::TokenBatch<S> b;
    const auto set = [](auto& to, const auto& from) { to = gdpo::view(from.data(), rows, width); };
    set(b.logp, logp), set(b.old_logp, old), set(b.ref_logp, ref), set(b.teacher_logp, teacher);
    set(b.rollout_logp, rollout), set(b.weights, weights), set(b.kl_weights, kl_weights);
    set(b.entropies, entropies), set(b.mask, mask);
    b.advantages = gdpo::view(advantages), b.row_weights = gdpo::view(row_weights);
    return b;
  }
  template <class Loss>
  gdpo::LossResult run(const Loss& loss) {
    const gdpo::TokenBatch<S> b = batch();
    return loss(b, gdpo::count(b), gdpo::view(gradient.data(), rows, width));
  }
};

/// The formulas for clipped ratios with a K3 term and no other bounds. All numbers are finite, so
/// the flags do not affect them.
struct Reference {
  long double loss = 0, magnitude = 0, kl = 0, k1 = 0, ratio = 0, entropy = 0;
  int tokens = 0, low = 0, high = 0;
  std::vector<long double> gradient = std::vector<long double>(rows * width, 0);
};
template <class S>
Reference reference(const Batch<S>& b, bool of_sequence, long double low, long double high,
                    long double beta) {
  Reference r;
  for (int i = 0; i < rows; ++i) {
    std::vector<std::size_t> valid;
    for (int t = 0; t < width; ++t) {
      if (b.mask[static_cast<std::size_t>(i * width + t)])
        valid.push_back(static_cast<std::size_t>(i * width + t));
    }
    const auto n = static_cast<long double>(valid.size());
    const auto row = static_cast<std::size_t>(i);
    const long double a = b.advantages[row];
    long double mean = 0, weights = 0, shared = 0;
    for (const std::size_t k : valid) {
      mean += (static_cast<long double>(b.logp[k]) - b.old[k]) / n;
      weights += b.weights[k];
    }
    for (const std::size_t k : valid) {
      const long double own = static_cast<long double>(b.logp[k]) - b.old[k],
                        x = of_sequence ? mean : own;
      const long double ratio = std::exp(x), clipped = ratio < 1 - low    ? 1 - low
                                                       : ratio > 1 + high ? 1 + high
                                                                          : ratio;
      const bool held = -a * clipped > -a * ratio;
      const long double w = b.row_weights[row] / (n * rows);
      const long double d = static_cast<long double>(b.logp[k]) - b.ref[k],
                        kl = std::exp(-d) - 1 + d;
      const long double surrogate = b.weights[k] * -a * (held ? clipped : ratio),
                        term = beta * b.kl_weights[k] * kl;
      r.loss += w * (surrogate + term);
      r.magnitude += w * ((surrogate < 0 ? -surrogate : surrogate) + term);
      const long double slope = held ? 0 : -a * ratio;
      r.gradient[k] = w * beta * b.kl_weights[k] * (1 - std::exp(-d));
      if (!of_sequence) r.gradient[k] += w * b.weights[k] * slope;
      shared = w * slope * weights / n;
      r.low += ratio < 1 - low && a<0, r.high += ratio> 1 + high && a > 0;
      r.kl += kl, r.k1 -= own, r.ratio += ratio, r.entropy += b.entropies[k];
      ++r.tokens;
    }
    for (const std::size_t k : valid) r.gradient[k] += of_sequence ? shared : 0;
  }
  return r;
}

template <class S, class Loss>
void formulas(const char* what, const Loss& loss, bool of_sequence) {
  Batch<S> b;
  const gdpo::LossResult got = b.run(loss);
  const Reference r =
      reference(b, of_sequence, loss.surrogate.low, loss.surrogate.high, loss.kl.beta);
  // In double, some dozen roundings of 2^-53; in float, exp to 2 ulp and a dozen roundings of
  // 2^-24. Gradients are below 1.
  const long double unit = std::is_same_v<S, float> ? 0x1p-19L : 0x1p-46L;
  expect(what, near_to(got.loss, r.loss, unit * r.magnitude));
  for (std::size_t k = 0; k < r.gradient.size(); ++k) {
    if (b.mask[k]) {
      expect(what, near_to(static_cast<double>(b.gradient[k]), r.gradient[k], unit));
    } else {
      expect("a masked gradient is exactly 0", bits(static_cast<double>(b.gradient[k])) == 0);
    }
  }
  const gdpo::LossMetrics& m = got.metrics;
  const long double n = r.tokens;
  expect("clip fractions", near_to(m.clip_fraction_low.sum, r.low, 0) &&
                               near_to(m.clip_fraction_high.sum, r.high, 0));
  expect("both are tested", of_sequence || (r.low > 0 && r.high > 0));
  expect("kl", near_to(m.kl.mean(), r.kl / n, unit));
  expect("approx_kl_k1", near_to(m.approx_kl_k1.mean(), r.k1 / n, unit));
  expect("ratio", near_to(m.ratio.mean(), r.ratio / n, 4 * unit));
  expect("entropy", near_to(m.entropy.mean(), r.entropy / n, unit));
  expect("lengths",
         near_to(m.completion_length.row_sum, n, 0) && m.empty_rows == 1 && m.rows == rows);
  expect("nothing was unusual", m.non_finite.logp.count + m.non_finite.old_logp.count +
                                        m.non_finite.ref_logp.count + m.non_finite.weights.count ==
                                    0);
}

/// Whether two results and their gradients have the same bits.
template <class S>
bool unchanged(const gdpo::LossResult& a, const gdpo::LossResult& b, const std::vector<S>& x,
               const std::vector<S>& y) {
  bool same = bits(a.loss) == bits(b.loss) && bits(a.kl_loss) == bits(b.kl_loss);
  for (const auto& metric : gdpo::detail::metric::list) {
    const gdpo::Metric &p = a.metrics.*metric.member, &q = b.metrics.*metric.member;
    same = same && bits(p.sum) == bits(q.sum) && bits(p.min) == bits(q.min) &&
           bits(p.max) == bits(q.max) && bits(p.row_sum) == bits(q.row_sum);
  }
  for (int k = 0; k < gdpo::detail::counted_inputs; ++k) {
    const auto counter = gdpo::detail::input_counter(k);
    same = same && (a.metrics.non_finite.*counter).count == (b.metrics.non_finite.*counter).count;
  }
  for (std::size_t k = 0; k < x.size(); ++k)
    same = same && bits(static_cast<double>(x[k])) == bits(static_cast<double>(y[k]));
  return same && bits(a.metrics.advantage.m2) == bits(b.metrics.advantage.m2);
}

/// NaN, infinities and 1e38 where the mask is 0, and in the row without tokens, change no bit.
template <class S, class Loss>
void poison(const char* what, const Loss& loss) {
  Batch<S> clean;
  const gdpo::LossResult expected = clean.run(loss);
  for (const double bad : {exact::nan(), exact::infinity(), -exact::infinity(), 1e38}) {
    Batch<S> b;
    for (auto* v : {&b.logp, &b.old, &b.ref, &b.teacher, &b.rollout, &b.weights, &b.kl_weights,
                    &b.entropies}) {
      for (std::size_t k = 0; k < v->size(); ++k) {
        if (!b.mask[k]) (*v)[k] = static_cast<S>(bad);
      }
    }
    b.advantages[2] = b.row_weights[2] = static_cast<S>(bad);  // row 2 has no tokens
    expect(what, unchanged(b.run(loss), expected, b.gradient, clean.gradient));
  }
}

constexpr std::size_t token = 4;  // a valid token, in row 0

/// With NaN at one valid token the loss is NaN, and so is the gradient of that token (with `whole`,
/// of all tokens of its row), and of no other.
template <class S, class Loss>
void nan_shows(const char* what, const Loss& loss, std::vector<S> Batch<S>::*array,
               gdpo::NonFinite gdpo::NonFiniteInputs::*counter, bool whole) {
  Batch<S> b;
  (b.*array)[token] = static_cast<S>(exact::nan());
  const gdpo::LossResult r = b.run(loss);
  expect(what, exact::is_nan(r.loss));
  for (std::size_t k = 0; k < b.mask.size(); ++k) {
    const auto g = static_cast<double>(b.gradient[k]);
    const bool affected = k == token || (whole && k < width && b.mask[k]);
    expect(what, affected ? exact::is_nan(g) : finite(g));
  }
  if (!counter) return;
  const gdpo::NonFinite& n = r.metrics.non_finite.*counter;
  expect(what, n.count == 1 && n.row == 0 && n.token == static_cast<gdpo::index_t>(token));
}

template <class S>
void nan() {
  using Metrics = gdpo::NonFiniteInputs;
  const auto grpo = gdpo::grpo_loss;
  nan_shows<S>("NaN in logp", grpo, &Batch<S>::logp, &Metrics::logp, false);
  nan_shows<S>("NaN in old_logp", grpo, &Batch<S>::old, &Metrics::old_logp, false);
  nan_shows<S>("NaN in ref_logp", grpo, &Batch<S>::ref, &Metrics::ref_logp, false);
  nan_shows<S>("NaN in logp, clamped", gdpo::verl::vanilla_loss, &Batch<S>::logp, &Metrics::logp,
               false);
  nan_shows<S>("NaN in ref_logp, clamped", gdpo::ms_swift::grpo_loss, &Batch<S>::ref,
               &Metrics::ref_logp, false);
  nan_shows<S>("NaN in logp, sequence", gdpo::gspo_loss, &Batch<S>::logp, &Metrics::logp, true);
  nan_shows<S>("NaN in old_logp, sequence", gdpo::gspo_loss, &Batch<S>::old, &Metrics::old_logp,
               true);
  nan_shows<S>("NaN in old_logp, straight through", gdpo::verl::gspo_loss, &Batch<S>::old,
               &Metrics::old_logp, true);
  auto other = gdpo::with_kl(
      grpo, gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>{0.5, gdpo::Against::Teacher});
  nan_shows<S>("NaN in teacher_logp", other, &Batch<S>::teacher, &Metrics::teacher_logp, false);
  other.kl.against = gdpo::Against::Rollout, other.kl.input = {-20, 20},
  other.kl.output = {-10, 10};
  nan_shows<S>("NaN in rollout_logp, clamped", other, &Batch<S>::rollout, &Metrics::rollout_logp,
               false);

  Batch<S> b;
  b.advantages[0] = static_cast<S>(exact::nan());
  gdpo::LossResult r = b.run(grpo);
  expect("a NaN advantage",
         exact::is_nan(r.loss) && exact::is_nan(static_cast<double>(b.gradient[token])));
  expect("a NaN advantage is counted",
         r.metrics.non_finite.advantages.count > 0 && r.metrics.non_finite.advantages.row == 0);

  // A weight that is not finite counts as 0, and is counted.
  for (const double bad : {exact::nan(), exact::infinity()}) {
    Batch<S> zero, odd, row;
    zero.weights[token] = S(0);
    odd.weights[token] = static_cast<S>(bad);
    const gdpo::LossResult dropped = zero.run(grpo), counted = odd.run(grpo);
    expect("a weight that is not finite drops its token", bits(dropped.loss) == bits(counted.loss));
    expect("and is counted", counted.metrics.non_finite.weights.count == 1 &&
                                 counted.metrics.non_finite.weights.token == token);
    row.row_weights[0] = static_cast<S>(bad);
    r = row.run(grpo);
    expect("a row weight that is not finite drops its row",
           finite(r.loss) && r.metrics.non_finite.weights.count == 1);
    expect("and its gradient", bits(static_cast<double>(row.gradient[token])) == 0);
  }
  // A weight of 0 drops a NaN.
  Batch<S> hidden;
  hidden.weights[token] = hidden.kl_weights[token] = S(0);
  hidden.logp[token] = static_cast<S>(exact::nan());
  r = hidden.run(grpo);
  expect("a weight 0 drops NaN",
         finite(r.loss) && bits(static_cast<double>(hidden.gradient[token])) == 0);
  expect("and it is counted", r.metrics.non_finite.logp.count == 1);
}

/// With log ratios of +-1e4, the loss on the clipped side is exactly the bound, without gradient;
/// on the other side it is saturated, not infinite.
template <class S>
void extremes() {
  for (const int sign : {1, -1}) {
    Batch<S> b;
    std::fill(b.mask.begin(), b.mask.end(), static_cast<unsigned char>(0));
    std::fill(b.weights.begin(), b.weights.end(), S(1));
    std::fill(b.row_weights.begin(), b.row_weights.end(), S(1));
    b.mask[token] = 1;
    b.logp[token] = S(-1), b.old[token] = static_cast<S>(-1 - 1e4 * sign);
    b.advantages[0] = static_cast<S>(2 * sign);  // the sign for which the clip decides
    gdpo::LossResult r = b.run(gdpo::dapo_loss);
    const double bound = sign > 0 ? -2 * 1.28 : 2 * 0.8;
    expect("clipped at 1e4",
           near_to(r.loss, bound, 0x1p-20) && bits(static_cast<double>(b.gradient[token])) == 0);
    expect("and seen", near_to(r.metrics.clip_fraction.mean(), 1, 0));
    b.advantages[0] = static_cast<S>(-2 * sign);
    r = b.run(gdpo::dapo_loss);
    expect("saturated at 1e4", finite(r.loss) && finite(static_cast<double>(b.gradient[token])));
    b.ref[token] = static_cast<S>(-1 - 1e4 * sign);
    r = b.run(gdpo::grpo_loss);
    expect("k3 at 1e4", finite(r.loss) && finite(static_cast<double>(b.gradient[token])));
    r = b.run(gdpo::gspo_loss);
    expect("a sequence at 1e4", finite(r.loss) && finite(static_cast<double>(b.gradient[token])));
  }
}

/// A batch without valid tokens.
void empty() {
  Batch<float> b;
  std::fill(b.mask.begin(), b.mask.end(), static_cast<unsigned char>(0));
  std::fill(b.logp.begin(), b.logp.end(), static_cast<float>(exact::nan()));
  const gdpo::LossResult r = b.run(gdpo::grpo_loss);
  expect("an empty batch",
         bits(r.loss) == 0 && bits(r.policy_loss) == 0 && bits(r.metrics.loss.mean()) == 0);
  for (const float g : b.gradient)
    expect("gradient of an empty batch", bits(static_cast<double>(g)) == 0);
}

/// What pre-passes decide where a number is not finite.
void prepasses() {
  namespace prepass = gdpo::prepass;
  const double no = exact::nan(), inf = exact::infinity();
  const std::vector<double> logp(6, -1.0), rollout{no, -1, -inf, inf, -1, -1},
      entropies{no, 1, 2, 3, no, 0.5};
  const std::vector<double> advantages{1, -1};
  gdpo::TokenBatch<double> batch;
  batch.logp = gdpo::view(logp.data(), 2, 3), batch.rollout_logp = gdpo::view(rollout.data(), 2, 3);
  batch.entropies = gdpo::view(entropies.data(), 2, 3), batch.advantages = gdpo::view(advantages);
  gdpo::PrepassMemory<double> memory;
  const auto weights = [&](const char* what, const auto& pass,
                           const std::vector<double>& expected) {
    const auto prepared = gdpo::prepare(batch, memory, pass);
    exact::same(what, memory.weights, expected);
    return prepared.entropy_threshold;
  };
  prepass::Gate gate;
  weights("a gate without bounds is open", gate, {1, 1, 1, 1, 1, 1});
  gate.min = 0.5, gate.max = 2;
  weights("a gate", gate, {0, 1, 0, 0, 1, 1});
  gate.estimator = prepass::Estimator::K3;
  weights("a gate on K3", gate, {0, 0, 0, 0, 0, 0});
  gate.min = -0.1, gate.max = 0.1;
  gate.estimator = prepass::Estimator::ProbabilityGain;
  weights("a gate on p - q", gate, {0, 1, 0, 0, 1, 1});
  gate.estimator = prepass::Estimator::BinaryKl;
  weights("a gate on the binary KL", gate, {0, 1, 0, 0, 1, 1});
  gate.estimator = prepass::Estimator::RatioDeviation;
  gate.min = -1, gate.max = 2;
  gate.statistic = prepass::Statistic::SequenceMax;
  weights("the largest, with NaN", gate, {0, 0, 0, 1, 1, 1});
  gate = {};
  gate.max = 2, gate.min = 0.5;
  gate.when = prepass::When::Outward;
  weights("outward", gate, {0, 1, 0, 0, 1, 1});
  prepass::Importance importance;
  weights("importance", importance, {0, 1, 0, 0, 1, 1});
  importance.clip = {0.5, 2};
  weights("clipped importance", importance, {0, 1, 2, 0.5, 1, 1});
  importance.statistic = prepass::Statistic::SequenceMean;
  weights("importance of a row with NaN", importance, {0, 0, 0, 0.5, 0.5, 0.5});
  const std::vector<double> one{-1, no, -1, -1, -1, -1};
  batch.rollout_logp = gdpo::view(one.data(), 2, 3);
  gate = {};
  gate.max = 2;
  for (const auto statistic : {prepass::Statistic::SequenceMean, prepass::Statistic::SequenceMax}) {
    gate.statistic = statistic;
    weights("one NaN in a row", gate, {0, 0, 0, 1, 1, 1});
  }
  prepass::TopEntropy top;
  top.quantile = 0.5;
  expect("quantile",
         bits(weights("NaN entropies are dropped", top, {0, 0, 1, 1, 0, 0})) == bits(1.5));
  const std::vector<double> nothing(6, no);
  batch.entropies = gdpo::view(nothing.data(), 2, 3);
  expect("no quantile", bits(weights("only NaN entropies", top, {0, 0, 0, 0, 0, 0})) == bits(inf));
}

}  // namespace

int main() {
  auto gspo = gdpo::gspo_loss;
  gspo.surrogate = {0.2, 0.2}, gspo.kl.beta = 0.04;
  formulas<float>("token, float", gdpo::grpo_loss, false);
  formulas<double>("token, double", gdpo::grpo_loss, false);
  formulas<float>("sequence, float", gspo, true);
  formulas<double>("sequence, double", gspo, true);
  poison<float>("poison, float", gdpo::grpo_loss);
  poison<double>("poison, double", gdpo::grpo_loss);
  poison<float>("poison, sequence", gspo);
  poison<double>("poison, straight through", gdpo::verl::gspo_loss);
  nan<float>();
  nan<double>();
  extremes<float>();
  extremes<double>();
  empty();
  prepasses();
  return exact::failures == 0 ? 0 : 1;
}
