// labels: lanes
// Every loss of the product of axes compared with the formulas of reference/naive_loss.hpp, and
// gradients compared with central differences.
#include "support/catch.hpp"
#include "support/loss_product.hpp"
#include "support/tally.hpp"

namespace product_test {

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
  naive_loss::for_each_segment(s, data, count(data), [&](int, const auto&, const RowWeight& W) {
    weight = std::fmax(weight, W.largest());
  });
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

/// Compares every type of level `index` with the oracle, on random batches and settings.
void check_level(int index) {
  std::uint64_t seed = static_cast<std::uint64_t>(index) * 10000;
  Tally tally;
  for (int round = 0; round < 40; ++round) {
    loss_product::for_each_type(index, [&](naive_loss::Settings s) {
      Random random(++seed);
      loss_product::random_settings(random, s);
      naive_loss::Data data = loss_product::random_tokens(
          random, random.pick({1, 3, 6}), random.pick({1, 5, 12}), random.pick({1e-3, 0.1, 0.7}));
      loss_product::fit(s, data);
      loss_product::add_level_log_weights(random, s, data);
      naive_loss::Counts counts = naive_loss::count(data);
      counts.given = random.pick({1.0, 64.0});
      const double divisors[] = {counts.tokens, counts.rows, counts.non_empty_rows, counts.given};
      // Batches without tokens have tests of their own (extremes_test.cpp).
      if (tally.leaves_out(divisors[static_cast<int>(s.over)] == 0)) return;
      const gdpo::Normalizer normalizer = loss_product::normalizer_of(counts);
      const std::string mismatch =
          loss_product::mismatch(s, data, naive_loss::loss(s, data, counts),
                                 loss_product::run(s, data, &normalizer), tolerance::unit);
      if (mismatch.empty()) return;
      INFO("seed " << seed << ": " << loss_product::describe(s));
      CHECK(mismatch == "");
    });
  }
  CHECK(tally.share_left_out() < 0.1);
}

}  // namespace

TEST_CASE("level Token: loss, gradient and metrics are those of the formulas", "[loss][product]") {
  check_level(0);
}
TEST_CASE(
    "level Token with clamped log ratios: loss, gradient and metrics are those of the formulas",
    "[loss][product]") {
  check_level(1);
}
TEST_CASE("level Sequence: loss, gradient and metrics are those of the formulas",
          "[loss][product]") {
  check_level(2);
}
TEST_CASE("level SequenceToken: loss, gradient and metrics are those of the formulas",
          "[loss][product]") {
  check_level(3);
}

TEST_CASE("the loss types of names: every surrogate and factor at every level with every KL term",
          "[loss][product]") {
  std::uint64_t seed = 50000;
  int clipped = 0;
  for (int round = 0; round < 4; ++round) {
    for (int level = 0; level < 4; ++level) {
      for (int policy = 0; policy < loss_product::surrogates * loss_product::factors; ++policy) {
        for (int kl = -1; kl < estimators * rules; ++kl) {
          Settings s;
          s.level = level < 2 ? Level::Token : level == 2 ? Level::Sequence : Level::SequenceToken;
          s.map = level == 1 ? Map::Clamp : Map::None;
          s.surrogate = loss_product::surrogate_at(policy % loss_product::surrogates);
          s.detached = loss_product::factor_at(policy / loss_product::surrogates);
          if (kl >= 0) {
            s.kl.resize(1);
            s.kl[0].estimator = static_cast<Estimator>(kl / rules);
            s.kl[0].rule = static_cast<Rule>(kl % rules);
          }
          Random random(++seed);
          if (kl >= 0 && random.chance(0.3)) s.kl[0].factor = KlFactor::TeacherGate;
          loss_product::random_settings(random, s);
          naive_loss::Data data =
              loss_product::random_tokens(random, 4, 9, random.pick({0.1, 0.7}));
          loss_product::fit(s, data);
          loss_product::add_level_log_weights(random, s, data);
          naive_loss::Counts counts = naive_loss::count(data);
          counts.given = 64;
          if (counts.tokens == 0) continue;
          INFO("seed " << seed << ": " << describe(s));
          const gdpo::Normalizer normalizer = loss_product::normalizer_of(counts);
          const naive_loss::Result expected = naive_loss::loss(s, data, counts);
          if (s.detached.index() != 0) clipped += expected.sums.low + expected.sums.high;
          CHECK(loss_product::mismatch(s, data, expected,
                                       loss_product::run_any(s, data, &normalizer),
                                       tolerance::unit) == "");
        }
      }
    }
  }
  CHECK(clipped > 100);  // those of detached ratios are counted
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
      loss_product::add_level_log_weights(random, s, data);
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
    s.surrogate = loss_product::surrogate_at(random.below(loss_product::surrogates));
    s.detached = loss_product::factor_at(random.below(loss_product::factors));
    s.kl.resize(static_cast<std::size_t>(random.below(3)));
    for (naive_loss::Kl& k : s.kl)
      k.estimator = static_cast<Estimator>(random.below(estimators)),
      k.rule = static_cast<Rule>(random.below(rules)),
      k.factor = static_cast<KlFactor>(random.below(2)), k.has_own = random.chance(0.3);
    loss_product::random_settings(random, s);
    if (s.over == Over::Given) s.over = Over::Rows;
    for (naive_loss::Kl& k : s.kl)
      if (k.own.over == Over::Given) k.own.over = Over::Rows;
    if (random.chance(0.3))
      s.factor = [](const FactorArgs& a) {
        return std::exp(a.log_ratio / 2) * (1 + a.advantage * a.advantage);
      };
    Data data = loss_product::random_tokens(random, 2, 5, 0.3);
    loss_product::fit(s, data);
    loss_product::add_level_log_weights(random, s, data);
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
  // truncation is h^2 / 6 |f'''|, their rounding 2^-53 |f| / h, about 1e-11 |f|. A KL term of
  // 1e-13, whose log-probs are of order 10, is rounded as they are: its differences by 1e-13.
  constexpr double h = 1e-5;
  std::uint64_t seed = 3000;
  int compared = 0;
  for (int round = 0; round < 4; ++round) {
    loss_product::for_each_type(-1, [&](Settings s) {
      const bool detached = s.level == Level::SequenceToken ||
                            (!s.kl.empty() && (s.kl[0].rule == Rule::ScoreFunction ||
                                               s.kl[0].rule == Rule::StraightThroughK2 ||
                                               s.kl[0].rule == Rule::ImportanceWeightedK2));
      if (detached) return;
      Random random(++seed);
      loss_product::random_settings(random, s);
      s.over = Over::Rows, s.aggregate = Aggregate::SeqMeanTokenMean;
      Data data = loss_product::random_tokens(random, 2, 4, 0.3);
      loss_product::fit(s, data);
      loss_product::add_level_log_weights(random, s, data);
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
            1e-8 * (largest + std::fabs(above)) + 1e-12)
          CHECK((above - below) / (2 * h) == Approx(at.gradient[k]));
      }
    });
  }
  CHECK(compared > 300);
}

TEST_CASE("the compiled part of the product makes every two options of different axes meet",
          "[loss][product]") {
  // Each pair of axes by the axes that are left.
  const int options[] = {4, loss_product::surrogates, estimators, rules};
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) {
      const int c = a != 0 ? 0 : b != 1 ? 1 : 2, d = 6 - a - b - c;
      for (int of_a = 0; of_a < options[a]; ++of_a) {
        for (int of_b = 0; of_b < options[b]; ++of_b) {
          bool meet = false;
          for (int of_c = 0; of_c < options[c]; ++of_c) {
            for (int of_d = 0; of_d < options[d]; ++of_d) {
              int at[4] = {};
              at[a] = of_a, at[b] = of_b, at[c] = of_c, at[d] = of_d;
              meet = meet || loss_product::is_compiled(at[0], at[1], at[2], at[3]);
            }
          }
          INFO("axes " << a << " and " << b << ", options " << of_a << " and " << of_b);
          CHECK(meet);
        }
      }
    }
  }
}

}  // namespace product_test
