// labels: lanes
// The laws of ValueLoss on random batches: the oracle, finite differences, cuts, layouts, masks,
// executions, and what a change of all values and returns does.
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/value_cases.hpp"

namespace value_loss_laws_test {

namespace {

using namespace value_cases;

/// Bounds of the errors against the oracle: `sum` of the sum of the absolute terms, `each` of a
/// gradient. double: some 40 roundings of sums of at most 400 terms. float: ValueLoss promises 1e-6
/// of the sum; a gradient is off by the rounding of v - R (numbers below 4) and of two products.
template <class S>
struct Tolerance {
  static constexpr double sum = 1e-14, each = 1e-14;
};
template <>
struct Tolerance<float> {
  static constexpr double sum = 1e-6, each = 1e-6;
};

template <class S>
void check_oracle(Random& random) {
  const double sum = Tolerance<S>::sum, each = Tolerance<S>::each;
  Data d =
      random_values(random, 1 + random.below(6), 1 + random.below(70), random.pick({0.7, 1.0}));
  if (random.chance(0.4)) {
    for (int i = 0; i < d.rows; ++i) d.row_weights.push_back(0.5 * random.below(4));
  }
  const naive_value::Settings s = random_settings(random);
  const naive_value::Counts counts = naive_value::count(d);
  if (counts.tokens == 0) return;
  const naive_value::Result expected = naive_value::loss(d, s, counts);
  const Arrays<S> arrays(d);
  with_loss(s, [&](const auto& loss) {
    const Outcome<S> got = run<S>(gdpo::simd, loss, arrays);
    const gdpo::ValueMetrics& m = got.result.metrics;
    CHECK(std::fabs(got.result.loss - static_cast<double>(expected.loss)) <=
          sum * static_cast<double>(expected.terms));
    double undecided = 0;
    for (int i = 0; i < d.rows; ++i) {
      for (int t = 0; t < d.width; ++t) {
        const std::size_t k = d.at(i, t);
        if (expected.distance[k] < 1e-5L) {  // a rounding decides the branch
          undecided += d.valid(i, t);
          continue;
        }
        const double weight = static_cast<double>(expected.gradient[k]);
        CHECK(std::fabs(static_cast<double>(got.gradient[k]) - weight) <=
              each * (1 + std::fabs(weight)));
        if (!d.valid(i, t)) CHECK(got.gradient[k] == S(0));
      }
    }
    const double n = static_cast<double>(counts.tokens);
    const auto check_metric = [&](const gdpo::Metric& metric, const auto& of) {
      double total = 0, absolute = 0, low = HUGE_VAL, high = -HUGE_VAL;
      for (const naive_value::Number x : of) {
        total += static_cast<double>(x), absolute += std::fabs(static_cast<double>(x));
        low = std::min(low, static_cast<double>(x)), high = std::max(high, static_cast<double>(x));
      }
      CHECK(metric.count == n);
      CHECK(std::fabs(metric.sum - total) <= sum * absolute + 1e-15);
      CHECK(std::fabs(metric.min - low) <= each * 10);
      CHECK(std::fabs(metric.max - high) <= each * 10);
      CHECK(metric.rows == d.rows);
      CHECK(metric.row_min <= metric.row_max);
    };
    check_metric(m.loss, expected.token_losses);
    check_metric(m.value, expected.values), check_metric(m.error, expected.errors);
    CHECK(std::fabs(m.clip_fraction.sum - static_cast<double>(expected.clipped)) <= undecided);
    const auto check_moments = [&](const gdpo::Moments& got_moments,
                                   const naive_value::Spread& of) {
      // The numbers are floats of size 1 to 4, so their differences in double are exact.
      CHECK(static_cast<naive_value::Number>(got_moments.n) == of.n);
      CHECK(std::fabs(got_moments.mean - static_cast<double>(of.mean)) <= 1e-14);
      CHECK(std::fabs(got_moments.m2 - static_cast<double>(of.m2)) <=
            1e-13 * (1e-12 + static_cast<double>(of.m2)));
      CHECK(got_moments.min == static_cast<double>(of.min));
      CHECK(got_moments.max == static_cast<double>(of.max));
    };
    check_moments(m.returns, expected.returns), check_moments(m.residuals, expected.residuals);
    if (counts.tokens > 1 && expected.returns.m2 > 0) {
      const double explained = static_cast<double>(1 - expected.residuals.m2 / expected.returns.m2);
      CHECK(std::fabs(m.explained_variance() - explained) <= 1e-12 * (1 + std::fabs(explained)));
    }
    double empty = 0;
    for (int i = 0; i < d.rows; ++i) empty += d.tokens(i) == 0;
    CHECK(static_cast<double>(m.empty_rows) == empty);
    CHECK(m.rows == d.rows);
  });
}

}  // namespace

TEST_CASE("value loss: the oracle", "[value]") {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    check_oracle<double>(random);
    check_oracle<float>(random);
  }
}

TEST_CASE("value loss: the gradient is the difference quotient of the loss", "[value]") {
  // Central differences of a piecewise parabola are exact away from its kinks; what is left is the
  // rounding of the loss, 2^-53 of its size over the step.
  const double step = 1e-4, tolerance = 1e-9;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Data d = random_values(random, 3, 9);
    const naive_value::Settings s = random_settings(random);
    with_loss(s, [&](const auto& loss) {
      const gdpo::Normalizer counts = gdpo::count(Arrays<double>(d).batch());
      const Outcome<double> at = run<double>(gdpo::seq, loss, Arrays<double>(d), counts);
      for (std::size_t k = 0; k < d.values.size(); ++k) {
        const double v = d.values[k], old = d.old_values[k], target = d.returns[k];
        const double held = std::min(std::max(v, old - s.clip), old + s.clip);
        const bool near_kink =
            s.clips &&
            (std::fabs(std::fabs(v - old) - s.clip) < 3 * step ||
             (held != v && std::fabs(std::fabs(held - target) - std::fabs(v - target)) < 3 * step));
        if (near_kink) continue;
        Data up = d, down = d;
        up.values[k] += step, down.values[k] -= step;
        const double quotient =
            (run<double>(gdpo::seq, loss, Arrays<double>(up), counts).result.loss -
             run<double>(gdpo::seq, loss, Arrays<double>(down), counts).result.loss) /
            (2 * step);
        CHECK(std::fabs(quotient - at.gradient[k]) <= tolerance * (1 + std::fabs(at.result.loss)));
      }
    });
  }
}

namespace {

/// Rows first .. last - 1 of a Data.
Data rows_of(const Data& d, int first, int last) {
  Data part;
  part.rows = last - first, part.width = d.width;
  const auto cut = [&](const auto& from, auto& to) {
    if (from.empty()) return;
    to.assign(from.begin() + first * d.width, from.begin() + last * d.width);
  };
  cut(d.values, part.values), cut(d.old_values, part.old_values);
  cut(d.returns, part.returns), cut(d.mask, part.mask);
  return part;
}

}  // namespace

TEST_CASE("value loss: micro-batches add up to the batch", "[value]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Data d = random_values(random, 6, 40);
    const int cut = 1 + random.below(5);
    const Arrays<float> whole(d), one(rows_of(d, 0, cut)), two(rows_of(d, cut, 6));
    with_loss(random_settings(random), [&](const auto& loss) {
      const Outcome<float> all = run<float>(gdpo::simd, loss, whole);
      gdpo::Normalizer counts = gdpo::count(one.batch());
      counts += gdpo::count(two.batch());
      const Outcome<float> a = run<float>(gdpo::simd, loss, one, counts),
                           b = run<float>(gdpo::simd, loss, two, counts);
      std::vector<float> joined = a.gradient;
      joined.insert(joined.end(), b.gradient.begin(), b.gradient.end());
      CHECK(difference(joined, all.gradient) == "");
      const gdpo::ValueLossResult sum = merge(a.result, b.result);
      // The same terms, added in another order: a few roundings of double.
      CHECK(std::fabs(sum.loss - all.result.loss) <= 1e-14 * all.result.loss);
      const std::vector<double> got = numbers(sum), expected = numbers(all.result);
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (std::fabs(expected[i]) < 1e-12 && std::fabs(got[i]) < 1e-12) continue;  // mean_low
        if (std::isinf(expected[i]) && got[i] == expected[i]) continue;
        CHECK(std::fabs(got[i] - expected[i]) <= 1e-12 * std::fabs(expected[i]) + 1e-13);
      }
      CHECK(sum.metrics.loss.min == all.result.metrics.loss.min);
      CHECK(sum.metrics.returns.max == all.result.metrics.returns.max);
      // A result without rows changes nothing, on either side.
      CHECK(difference(merge(all.result, gdpo::ValueLossResult{}), all.result) == "");
      CHECK(difference(merge(gdpo::ValueLossResult{}, all.result), all.result) == "");
    });
  }
}

TEST_CASE("value loss: every execution gives the same bits", "[value]") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    // 300 rows form 100 units of 3 rows; each worker needs 8192 numbers. Rows of 1100 tokens have
    // two blocks and a rest.
    Data d = seed % 2 == 0 ? random_values(random, 300, 131) : random_values(random, 60, 1100, 1);
    if (seed > 3) {
      for (double& x : d.values) {
        if (random.chance(0.001)) x = random.pick({std::nan(""), HUGE_VAL, -0.0});
      }
      for (double& x : d.old_values) {
        if (random.chance(0.001)) x = random.pick({std::nan(""), -HUGE_VAL});
      }
    }
    with_loss(random_settings(random), [&](const auto& loss) {
      const Arrays<float> f(d);
      const Arrays<double> g(d);
      const auto of_float = run<float>(gdpo::seq, loss, f);
      const auto of_double = run<double>(gdpo::seq, loss, g);
      executors::for_each_target([&](const auto& exec, const std::string& name) {
        INFO(name);
        CHECK(difference(run<float>(exec, loss, f), of_float) == "");
        CHECK(difference(run<double>(exec, loss, g), of_double) == "");
      });
    });
  }
}

TEST_CASE("value loss: the metrics that are measured change no bit of the loss", "[value]") {
  Random random(3);
  const Arrays<float> arrays(random_values(random, 9, 77));
  gdpo::ValueLoss<> all;
  all.clip = 0.2;
  const auto with_all = run<float>(gdpo::simd, all, arrays);
  const auto means = run<float>(gdpo::simd, gdpo::with_metrics<gdpo::metrics::Means>(all), arrays);
  const auto none = run<float>(gdpo::simd, gdpo::with_metrics<gdpo::metrics::None>(all), arrays);
  for (const auto* of : {&means, &none}) {
    CHECK(of->result.loss == with_all.result.loss);
    CHECK(difference(of->gradient, with_all.gradient) == "");
    CHECK(of->result.metrics.rows == 9);
  }
  CHECK(means.result.metrics.loss.sum == with_all.result.metrics.loss.sum);
  CHECK(means.result.metrics.residuals.m2 == with_all.result.metrics.residuals.m2);
  CHECK(means.result.metrics.loss.max < means.result.metrics.loss.min);  // no range
  CHECK(none.result.metrics.loss.count == 0);
  CHECK(none.result.metrics.returns.n == 0);
  CHECK(none.result.metrics.to_map().empty());
  // Without a gradient nothing else changes.
  CHECK(difference(all(arrays.batch(), gdpo::count(arrays.batch())), with_all.result) == "");
}

TEST_CASE("value loss: packed rows have the bits of padded ones", "[value]") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data d = random_values(random, 5, 90, random.pick({0.8, 1.0}));
    std::vector<int> lengths;
    for (int i = 0; i < 5; ++i) lengths.push_back(random.below(91));
    Data padded = d;
    padded.mask.resize(d.values.size(), 1);
    for (int i = 0; i < 5; ++i) {
      for (int t = lengths[static_cast<std::size_t>(i)]; t < 90; ++t) padded.mask[d.at(i, t)] = 0;
    }
    const Arrays<float> in_place(padded), packed(d, lengths);
    gdpo::ValueLoss<> loss;
    loss.clip = random.pick({0.2, gdpo::math::infinity});
    gdpo::Normalizer counts = gdpo::count(packed.batch());
    counts.tokens = std::max(counts.tokens, 1.0);
    const auto a = run<float>(gdpo::simd, loss, in_place, counts),
               b = run<float>(gdpo::simd, loss, packed, counts);
    CHECK(difference(a.result, b.result) == "");
    std::size_t at = 0;
    for (int i = 0; i < 5; ++i) {
      for (int t = 0; t < lengths[static_cast<std::size_t>(i)]; ++t)
        CHECK(b.gradient[at++] == a.gradient[d.at(i, t)]);
    }
  }
}

TEST_CASE("value loss: masked tokens change no bit", "[value]") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Data d = random_values(random, 4, 70);
    Data poisoned = d;
    const double poison = random.pick({std::nan(""), HUGE_VAL, -HUGE_VAL, 1e38, -1e38});
    for (std::size_t k = 0; k < d.values.size(); ++k) {
      if (d.mask[k]) continue;
      poisoned.values[k] = poisoned.returns[k] = poisoned.old_values[k] = poison;
    }
    with_loss(random_settings(random), [&](const auto& loss) {
      CHECK(difference(run<float>(gdpo::simd, loss, Arrays<float>(d)),
                       run<float>(gdpo::simd, loss, Arrays<float>(poisoned))) == "");
      CHECK(difference(run<double>(gdpo::seq, loss, Arrays<double>(d)),
                       run<double>(gdpo::seq, loss, Arrays<double>(poisoned))) == "");
    });
  }
}

TEST_CASE("value loss: a shift of all values and returns changes nothing, a factor scales it",
          "[value]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Data d = random_values(random, 4, 30);
    naive_value::Settings s = random_settings(random);
    s.clip = random.pick({0.125, 0.25, 0.5});
    Data shifted = d, scaled = d;
    const double shift = random.pick({-8.0, 16.0, 64.0}), factor = random.pick({-4.0, 0.5, 2.0});
    for (std::size_t k = 0; k < d.values.size(); ++k) {
      shifted.values[k] += shift, shifted.returns[k] += shift, shifted.old_values[k] += shift;
      scaled.values[k] *= factor, scaled.returns[k] *= factor, scaled.old_values[k] *= factor;
    }
    with_loss(s, [&](const auto& loss) {
      const auto plain = run<double>(gdpo::simd, loss, Arrays<double>(d));
      // The numbers are floats of size 2^-20 to 4, so sums with the shift are exact.
      const auto moved = run<double>(gdpo::simd, loss, Arrays<double>(shifted));
      CHECK(std::fabs(moved.result.loss - plain.result.loss) <= 1e-13 * plain.result.loss);
      for (std::size_t k = 0; k < d.values.size(); ++k)
        CHECK(std::fabs(moved.gradient[k] - plain.gradient[k]) <= 1e-12);
      CHECK(std::fabs(moved.result.metrics.explained_variance() -
                      plain.result.metrics.explained_variance()) <= 1e-11);
      // A power of two changes exponents alone.
      auto with_clip = loss;
      with_clip.clip = loss.clip * std::fabs(factor);
      with_clip.delta = loss.delta * std::fabs(factor);
      const auto larger = run<double>(gdpo::simd, with_clip, Arrays<double>(scaled));
      CHECK(larger.result.loss == factor * factor * plain.result.loss);
      for (std::size_t k = 0; k < d.values.size(); ++k)
        CHECK(larger.gradient[k] == factor * plain.gradient[k]);
      CHECK(larger.result.metrics.clip_fraction.sum == plain.result.metrics.clip_fraction.sum);
    });
  }
}

TEST_CASE("value loss: an infinite clip is none, a wide one changes no number", "[value]") {
  Random random(7);
  const Data d = random_values(random, 5, 61);
  const Arrays<float> arrays(d);
  Arrays<float> without = arrays;
  without.old_values.clear();
  gdpo::ValueLoss<> plain, wide;
  wide.clip = 100;
  const auto a = run<float>(gdpo::simd, plain, without), b = run<float>(gdpo::simd, wide, arrays);
  CHECK(difference(a, b) == "");
  // Beyond the largest float a clip is none, and reads nothing.
  wide.clip = 1e39;
  CHECK(difference(run<float>(gdpo::simd, wide, without), a) == "");
  Arrays<float> poisoned = arrays;
  for (float& x : poisoned.old_values) x = std::nanf("");
  CHECK(difference(run<float>(gdpo::simd, plain, poisoned), a) == "");
  // The clipped loss is at least the other one, token by token.
  wide.clip = 0.1;
  CHECK(run<float>(gdpo::simd, wide, arrays).result.loss > a.result.loss);
}

TEST_CASE("value loss: large means cost the moments no digit", "[value]") {
  // A few returns are one ulp of float above the others: far below the rounding of a float sum of
  // them, which may even overflow.
  for (const double offset : {0x1p23, -0x1p23, 0x1p127}) {
    Random random(11);
    Data d = random_values(random, 3, 1500);
    for (std::size_t k = 0; k < d.values.size(); ++k) {
      d.returns[k] = offset + (k % 500 == 7 ? std::fabs(offset) * 0x1p-23 : 0.0);
      d.values[k] = offset;
      d.mask[k] = d.mask[k] || k % 500 == 7;
    }
    const naive_value::Result expected = naive_value::loss(d, {}, naive_value::count(d));
    const double m2 = static_cast<double>(expected.returns.m2);
    for (const auto& r : {run<float>(gdpo::simd, gdpo::ValueLoss<>{}, Arrays<float>(d)).result,
                          run<double>(gdpo::simd, gdpo::ValueLoss<>{}, Arrays<double>(d)).result}) {
      CHECK(std::fabs(r.metrics.returns.m2 - m2) <= 1e-13 * m2);
      CHECK(std::fabs(r.metrics.residuals.m2 - m2) <= 1e-13 * m2);
      CHECK(std::fabs(r.metrics.explained_variance()) <= 1e-12);  // constant values explain nothing
    }
  }
}

TEST_CASE("value loss: equal returns have a spread of exactly 0", "[value]") {
  for (const int rows : {1, 5}) {
    for (const int width : {3, 77, 1001, 1500}) {
      Random random(12);
      Data d = random_values(random, rows, width, 1);
      const double target = static_cast<double>(0.1F);
      d.returns.assign(d.values.size(), target);
      for (const auto& r :
           {run<float>(gdpo::simd, gdpo::ValueLoss<>{}, Arrays<float>(d)).result,
            run<double>(gdpo::simd, gdpo::ValueLoss<>{}, Arrays<double>(d)).result}) {
        CHECK(r.metrics.returns.m2 == 0);
        CHECK(r.metrics.returns.mean == target);
        CHECK(r.metrics.returns.mean_low == 0);
        CHECK(std::isnan(r.metrics.explained_variance()));
      }
    }
  }
}

TEST_CASE("value loss: a second call allocates nothing", "[value]") {
  Random random(5);
  const Arrays<float> arrays(random_values(random, 200, 64));
  gdpo::ValueLoss<> loss;
  loss.clip = 0.2;
  gdpo::ValueWorkspace<float> workspace;
  std::vector<float> wide(200 * 64 * 2);
  const auto counts = gdpo::count(arrays.batch());
  const gdpo::View<float, 2> strided{wide.data(), {200, 64}, {128, 2}};
  const auto call = [&] {
    loss(gdpo::simd, arrays.batch(), counts, strided, workspace);
    loss(gdpo::parallel(executors::pool(2)), arrays.batch(), counts, strided, workspace);
  };
  call();
  const long before = counted::allocations;
  call();
  CHECK(counted::allocations == before);
}

}  // namespace value_loss_laws_test
