// Every loss of the product of axes compared with the formulas of reference/naive_loss.hpp, and
// gradients compared with central differences. The compositions of each level are compiled in the
// file of the level (loss_token_test.cpp and others).
#include "support/loss_product.hpp"

#include "support/catch.hpp"
#include "support/tally.hpp"

namespace loss_product {

Outcome run(const Settings& s, const Data& data, const gdpo::Normaliser* normaliser) {
  switch (level_index(s)) {
    case 0:
      return run_token(s, data, normaliser);
    case 1:
      return run_clamped(s, data, normaliser);
    case 2:
      return run_sequence(s, data, normaliser);
    default:
      return run_sequence_token(s, data, normaliser);
  }
}

std::string mismatch(const Settings& s, const Data& data, const naive_loss::Result& expected,
                     const Outcome& got, double unit) {
  std::string text;
  const auto near = [&](const char* name, double x, naive_loss::real y,
                        naive_loss::real tolerance) {
    if (std::fabs(static_cast<naive_loss::real>(x) - y) <= tolerance) return;
    char line[160];
    std::snprintf(line, sizeof line, "%s: %.17g, expected %.17Lg within %.3Lg\n", name, x, y,
                  tolerance);
    text += line;
  };
  // Ratios are of order 1 to e^2 and estimates of order 1; both come from a few dozen roundings.
  const double rounding = 256 * unit;
  const naive_loss::real sum = rounding * expected.sums.magnitude + 1e-300L;
  near("loss", got.result.loss, expected.loss, sum);
  near("policy_loss", got.result.policy_loss, expected.policy_loss, sum);
  near("kl_loss", got.result.kl_loss, expected.kl_loss, sum);

  // The size of what adds up to the gradient and may cancel: surrogate and KL terms, and the tokens
  // of a segment.
  Settings surrogate_only = s;
  surrogate_only.kl.clear();
  const gdpo::Normaliser& n = got.result.normaliser;
  const naive_loss::Result part =
      naive_loss::loss(surrogate_only, data, {n.tokens, n.rows, n.non_empty_rows, n.given});
  naive_loss::real largest = expected.sums.magnitude / (expected.sums.tokens + 1);
  for (std::size_t k = 0; k < expected.gradient.size(); ++k) {
    largest = std::fmax(
        largest, std::fabs(part.gradient[k]) + std::fabs(expected.gradient[k] - part.gradient[k]));
  }
  for (std::size_t k = 0; k < expected.gradient.size() && text.empty(); ++k) {
    const std::string at = "gradient[" + std::to_string(k) + "]";
    near(at.c_str(), got.gradient[k], expected.gradient[k], rounding * largest);
  }

  const gdpo::LossMetrics& m = got.result.metrics;
  const naive_loss::Sums& e = expected.sums;
  const auto count = [&](const char* name, const gdpo::Metric& metric, int hits) {
    if (metric.sum != hits || metric.count != e.tokens)
      text += std::string(name) + ": " + std::to_string(metric.sum) + " of " +
              std::to_string(metric.count) + ", expected " + std::to_string(hits) + " of " +
              std::to_string(e.tokens) + "\n";
  };
  count("clip_fraction", m.clip_fraction, e.low + e.high);
  count("clip_fraction_low", m.clip_fraction_low, e.low);
  count("clip_fraction_high", m.clip_fraction_high, e.high);
  count("clip_fraction_any", m.clip_fraction_any, e.outside);
  count("dual_clip_fraction", m.dual_clip_fraction, e.dual);
  count("log_ratio_bounded", m.log_ratio_bounded, e.bounded);
  if (!s.kl.empty()) count("kl_bounded", m.kl_bounded, e.kl_bounded);
  const naive_loss::real total = rounding * 8 * (e.tokens + 1);  // quantities of order 1
  near("surrogate", m.surrogate.sum, e.surrogate, total);
  near("token loss", m.loss.sum, e.token_loss, total);
  if (!s.kl.empty()) near("kl", m.kl.sum, e.first_kl, total);
  near("approx_kl_k1", m.approx_kl_k1.sum, e.k1, total);
  near("approx_kl_k3", m.approx_kl_k3.sum, e.k3, total);
  near("ratio", m.ratio.sum, e.ratio, total);
  if (m.rows != data.rows) text += "rows\n";
  return text;
}

}  // namespace loss_product

namespace {

using namespace naive_loss;
using loss_product::describe;

/// Compares gradients with central differences of the frozen form, in which what is detached stays
/// constant. The frozen form shares no formula with the library. Points near a kink, where the
/// derivative jumps, are left out. "" where all agree. For h = 2^-14 a difference has an error of
///     h^2 |f'''| / 6 < 1e-9 |f'''|, where f''' is a few times W,
/// and one of 2^-64 / h < 1e-15 from the rounding of long double.
std::string differs_from_differences(const Settings& s, const Data& data,
                                     const loss_product::Outcome& got, int& compared) {
  const real h = 0x1p-14L;
  const std::vector<real> expected = naive_loss::differences(s, data, count(data), h, 4 * h);
  real largest = 0, weight = 0;
  for (const real g : expected)
    largest = std::isnan(g) ? largest : std::fmax(largest, std::fabs(g));
  naive_loss::for_each_segment(s, data, count(data),
                               [&](int, const auto&, real W) { weight = std::fmax(weight, W); });
  for (std::size_t k = 0; k < expected.size(); ++k) {
    if (std::isnan(expected[k])) continue;
    ++compared;
    if (std::fabs(static_cast<real>(got.gradient[k]) - expected[k]) <=
        1e-7L * largest + 1e-8L * weight)
      continue;
    char line[160];
    std::snprintf(line, sizeof line, "gradient[%zu]: %.12g, difference quotient %.12Lg", k,
                  got.gradient[k], expected[k]);
    return line;
  }
  return "";
}

}  // namespace

void loss_product::check_level(int index) {
  std::uint64_t seed = static_cast<std::uint64_t>(index) * 10000;
  Tally tally;
  for (int round = 0; round < 40; ++round) {
    loss_product::for_each_type(index, [&](naive_loss::Settings s) {
      Random random(++seed);
      loss_product::random_settings(random, s);
      const naive_loss::Data data = loss_product::random_tokens(
          random, random.pick({1, 3, 6}), random.pick({1, 5, 12}), random.pick({1e-3, 0.1, 0.7}));
      loss_product::fit(s, data);
      naive_loss::Counts counts = naive_loss::count(data);
      counts.given = random.pick({1.0, 64.0});
      const double divisors[] = {counts.tokens, counts.rows, counts.non_empty_rows, counts.given};
      // Batches without tokens have tests of their own (loss_extremes_test.cpp).
      if (tally.leaves_out(divisors[static_cast<int>(s.over)] == 0)) return;
      const gdpo::Normaliser normaliser = loss_product::normaliser_of(counts);
      const std::string mismatch =
          loss_product::mismatch(s, data, naive_loss::loss(s, data, counts),
                                 loss_product::run(s, data, &normaliser), tolerance::unit);
      if (mismatch.empty()) return;
      INFO("seed " << seed << ": " << loss_product::describe(s));
      CHECK(mismatch == "");
    });
  }
  CHECK(tally.share_left_out() < 0.1);
}

TEST_CASE("gradients are the central differences of what each rule differentiates",
          "[loss][gradient]") {
  std::uint64_t seed = 1000;
  int compared = 0, kinks = 0;
  for (int round = 0; round < 3; ++round) {
    loss_product::for_each_type(-1, [&](Settings s) {
      Random random(++seed);
      loss_product::random_settings(random, s);
      Data data = loss_product::random_tokens(random, 3, 6, random.pick({0.1, 0.5}));
      loss_product::fit(s, data);
      if (s.over == Over::Given) s.over = Over::Rows;
      s.aggregate = random.pick({Aggregate::SeqMeanTokenMean, Aggregate::TokenMean});
      if (count(data).tokens == 0) return;
      int here = 0;
      const std::string difference =
          differs_from_differences(s, data, loss_product::run(s, data), here);
      compared += here;
      kinks += static_cast<int>(data.logp.size()) - here;
      if (difference.empty()) return;
      INFO("seed " << seed << ": " << describe(s));
      CHECK(difference == "");
    });
  }
  INFO(compared << " compared, " << kinks << " near a kink");
  CHECK(kinks * 3 < compared);
}

TEST_CASE("the oracle's derivatives are the central differences of its values",
          "[loss][gradient][oracle]") {
  // This includes what the product leaves out: trust regions, sums, two KL terms, factors.
  int compared = 0, kinks = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Settings s;
    s.level = static_cast<Level>(random.below(3));
    s.map = static_cast<Map>(random.below(3));
    s.statistic = static_cast<Statistic>(random.below(2));
    s.surrogate = static_cast<Surrogate>(random.below(2));
    s.kl.resize(static_cast<std::size_t>(random.below(3)));
    for (naive_loss::Kl& k : s.kl)
      k.estimator = static_cast<Estimator>(random.below(4)),
      k.rule = static_cast<Rule>(random.below(4));
    loss_product::random_settings(random, s);
    if (s.over == Over::Given) s.over = Over::Rows;
    if (random.chance(0.3))
      s.factor = [](const FactorArgs& a) {
        return std::exp(a.log_ratio / 2) * (1 + a.advantage * a.advantage);
      };
    const Data data = loss_product::random_tokens(random, 2, 5, 0.3);
    loss_product::fit(s, data);
    if (count(data).tokens == 0) continue;
    const Result analytic = naive_loss::loss(s, data);
    loss_product::Outcome as_if;
    for (const real g : analytic.gradient) as_if.gradient.push_back(static_cast<double>(g));
    int here = 0;
    CHECK(differs_from_differences(s, data, as_if, here) == "");
    compared += here;
    kinks += static_cast<int>(data.logp.size()) - here;
  }
  INFO(compared << " compared, " << kinks << " near a kink");
  CHECK(kinks * 3 < compared);
}

TEST_CASE("where nothing is detached the gradient is the central difference of the loss itself",
          "[loss][gradient]") {
  // The library's gradient is compared with differences of the library's loss, in double. Their
  // truncation is h^2 / 6 |f'''|, their rounding 2^-53 |f| / h, about 1e-11 |f|.
  constexpr double h = 1e-5;
  std::uint64_t seed = 3000;
  int compared = 0;
  for (int round = 0; round < 4; ++round) {
    loss_product::for_each_type(-1, [&](Settings s) {
      const bool detached = s.level == Level::SequenceToken ||
                            (!s.kl.empty() && (s.kl[0].rule == Rule::ScoreFunction ||
                                               s.kl[0].rule == Rule::StraightThroughK2));
      if (detached) return;
      Random random(++seed);
      loss_product::random_settings(random, s);
      s.over = Over::Rows, s.aggregate = Aggregate::SeqMeanTokenMean;
      Data data = loss_product::random_tokens(random, 2, 4, 0.3);
      loss_product::fit(s, data);
      // Without old_logp the ratio stays 1 whatever logp is, so the loss has another derivative.
      if (data.old_logp.empty() || count(data).tokens == 0) return;
      INFO("seed " << seed << ": " << describe(s));
      const std::vector<real> smooth = naive_loss::differences(s, data, count(data), h, 4 * h);
      const loss_product::Outcome at = loss_product::run(s, data);
      double largest = 0;
      for (const double g : at.gradient) largest = std::fmax(largest, std::fabs(g));
      for (std::size_t k = 0; k < data.logp.size(); ++k) {
        if (std::isnan(smooth[k])) continue;
        const double x = data.logp[k];
        data.logp[k] = x + h;
        const double above = loss_product::run(s, data).result.loss;
        data.logp[k] = x - h;
        const double below = loss_product::run(s, data).result.loss;
        data.logp[k] = x;
        ++compared;
        if (std::fabs((above - below) / (2 * h) - at.gradient[k]) >
            1e-8 * (largest + std::fabs(above)))
          CHECK((above - below) / (2 * h) == Approx(at.gradient[k]));
      }
    });
  }
  CHECK(compared > 300);
}

TEST_CASE("the compiled part of the product makes every two options of different axes meet",
          "[loss][product]") {
  constexpr int surrogates = static_cast<int>(std::tuple_size_v<loss_product::Surrogates>);
  for (int level = 0; level < 4; ++level) {
    for (int other = 0; other < 4; ++other) {
      bool level_estimator = false, level_rule = false, estimator_rule = false;
      for (int k = 0; k < 4; ++k) {
        for (int surrogate = 0; surrogate < surrogates; ++surrogate) {
          level_estimator |= loss_product::is_compiled(level, surrogate, other, k);
          level_rule |= loss_product::is_compiled(level, surrogate, k, other);
          estimator_rule |= loss_product::is_compiled(k, surrogate, level, other);
        }
      }
      CHECK((level_estimator && level_rule && estimator_rule));
    }
    for (int surrogate = 0; surrogate < surrogates; ++surrogate) {
      bool with_level = false, with_estimator = false, with_rule = false;
      for (int a = 0; a < 4; ++a) {
        for (int b = 0; b < 4; ++b) {
          with_level |= loss_product::is_compiled(level, surrogate, a, b);
          with_estimator |= loss_product::is_compiled(a, surrogate, level, b);
          with_rule |= loss_product::is_compiled(a, surrogate, b, level);
        }
      }
      CHECK((with_level && with_estimator && with_rule));
    }
  }
}
