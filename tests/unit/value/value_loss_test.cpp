// labels: lanes, sanitizers
// ValueLoss: numbers worked out by hand, edges of the clip and of the data, metrics and results.
#include <gdpo/tokens/count.hpp>
#include <map>

#include "support/catch.hpp"
#include "support/value_cases.hpp"

namespace value_loss_test {

namespace {

using namespace value_cases;
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

/// An executor that runs its calls one after the other.
struct Inline {
  template <class F>
  void for_each(index_t calls, const F& f) const {
    for (index_t i = 0; i < calls; ++i) f(i);
  }
  int concurrency() const { return 2; }
};

/// One row of tokens.
Data row(std::vector<double> values, std::vector<double> old_values, std::vector<double> returns) {
  Data d;
  d.rows = 1, d.width = static_cast<int>(values.size());
  d.values = std::move(values), d.old_values = std::move(old_values);
  d.returns = std::move(returns);
  return d;
}
/// The loss of one token and its gradient.
struct OneToken {
  double loss, slope, clipped;
};
OneToken one_token(double clip, double value, double old_value, double target, bool half = true,
                   double delta = inf) {
  gdpo::ValueLoss<> loss;
  loss.aggregate = gdpo::aggregate::token_sum();
  loss.clip = clip, loss.half = half, loss.delta = delta;
  const Arrays<double> arrays(row({value}, {old_value}, {target}));
  const auto o = run<double>(gdpo::seq, loss, arrays);
  CHECK(difference(run<double>(gdpo::simd, loss, arrays), o) == "");
  return {o.result.loss, o.gradient[0], o.result.metrics.clip_fraction.sum};
}

}  // namespace

TEST_CASE("value loss: tokens by hand", "[value]") {
  struct Case {
    double clip, value, old_value, target, loss, slope, clipped;
  };
  // All numbers are multiples of 1/8, so every step is exact.
  const Case cases[] = {
      {inf, 2, 0, 1, 0.5, 1, 0},             // (2 - 1)^2 / 2
      {0.5, 2, 0, 1, 0.5, 1, 0},             // clipped to 0.5: 0.25 is the smaller square
      {0.5, 2, 0, 3, 3.125, 0, 1},           // clipped to 0.5: (0.5 - 3)^2 = 6.25 > 1
      {0.5, -2, 0, -3, 3.125, 0, 1},         // the same from below
      {0.5, 0.25, 0, 3, 3.78125, -2.75, 0},  // inside: one square
      {0.5, 0.5, 0, 3, 3.125, -2.5, 0},      // the upper end belongs to the interval
      {0.5, -0.5, 0, 3, 6.125, -3.5, 0},     // and so does the lower one
      {0.5, 1.5, 0, 1, 0.125, 0.5, 0},       // a tie outside: 0.5^2 on both sides
      {0, 2, 1, 3, 2, 0, 1},                 // clip 0: old value against the return
      {0, 1, 1, 3, 2, -2, 0},                // a value that has not moved
      {0, 2, 1, 0, 2, 2, 0},                 // moved away from the return
      {0.5, 1, 0, 1, 0.125, 0, 1},           // v == R, but the clipped value is not there
      {0.5, 1, 1, 1, 0, 0, 0},               // exact
  };
  for (const Case& c : cases) {
    INFO("clip " << c.clip << ", v " << c.value << ", old " << c.old_value << ", R " << c.target);
    const OneToken half = one_token(c.clip, c.value, c.old_value, c.target);
    CHECK(half.loss == c.loss);
    CHECK(half.slope == c.slope);
    CHECK(half.clipped == c.clipped);
    const OneToken whole = one_token(c.clip, c.value, c.old_value, c.target, false);
    CHECK(whole.loss == 2 * c.loss);
    CHECK(whole.slope == 2 * c.slope);
  }
  CHECK_FALSE(std::signbit(one_token(0.5, 1, 1, 1).slope));
}

TEST_CASE("value loss: the tangent from delta on, by hand", "[value]") {
  struct Case {
    double clip, value, old_value, target, loss, slope, clipped;
  };
  // delta = 1. All numbers are multiples of 1/8, so every step is exact.
  const Case cases[] = {
      {inf, 1.5, 0, 1, 0.125, 0.5, 0},  // a small error: the square
      {inf, 2, 0, 1, 0.5, 1, 0},        // an error of delta: both are the same
      {inf, 4, 0, 1, 2.5, 1, 0},        // 3 - 1/2
      {inf, -4, 0, -1, 2.5, -1, 0},     // the same from below
      {0.5, 2, 0, 3, 2, 0, 1},          // clipped to 0.5: 2.5 - 1/2 against 1/2
      {0.5, 4, 0, 1, 2.5, 1, 0},        // clipped to 0.5: the smaller one
      {0.5, -0.5, 0, 3, 3, -1, 0},      // inside of the clip: one error, 3.5 - 1/2
      {inf, inf, 0, 1, inf, 1, 0},      // no NaN
  };
  for (const Case& c : cases) {
    INFO("clip " << c.clip << ", v " << c.value << ", old " << c.old_value << ", R " << c.target);
    const OneToken half = one_token(c.clip, c.value, c.old_value, c.target, true, 1);
    CHECK(half.loss == c.loss);
    CHECK(half.slope == c.slope);
    CHECK(half.clipped == c.clipped);
    const OneToken whole = one_token(c.clip, c.value, c.old_value, c.target, false, 1);
    CHECK(whole.loss == 2 * c.loss);
    CHECK(whole.slope == 2 * c.slope);
  }
  CHECK(std::isnan(one_token(inf, not_a_number, 0, 1, true, 1).loss));
  CHECK(std::isnan(one_token(inf, not_a_number, 0, 1, true, 1).slope));
  CHECK(std::isnan(one_token(0.5, 1, not_a_number, 1, true, 1).slope));
}

TEST_CASE("value loss: a delta beyond all errors changes no bit", "[value]") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Arrays<float> arrays(random_values(random, 1 + random.below(5), 1 + random.below(40)));
    gdpo::ValueLoss<> square;
    square.clip = random.pick({0.2, inf});
    auto huber = square;
    huber.delta = 100;
    CHECK(difference(run<float>(gdpo::simd, square, arrays),
                     run<float>(gdpo::simd, huber, arrays)) == "");
  }
}

TEST_CASE("value loss: aggregates by hand", "[value]") {
  // Token losses 0.5, 2, 4.5 in row 0 and 8 in row 1; row 2 is empty.
  Data d;
  d.rows = 3, d.width = 3;
  d.values = {1, 2, 3, 4, 9, 9, 9, 9, 9}, d.returns.assign(9, 0), d.old_values = d.values;
  d.mask = {1, 1, 1, 1, 0, 0, 0, 0, 0};
  const Arrays<double> arrays(d);
  const auto with = [&](const gdpo::Aggregate& aggregate) {
    gdpo::ValueLoss<> loss;
    loss.aggregate = aggregate;
    const auto o = run<double>(gdpo::simd, loss, arrays);
    return std::vector<double>{o.result.loss, o.gradient[0], o.gradient[3]};
  };
  using List = std::vector<double>;
  CHECK(with(gdpo::aggregate::token_mean()) == List{15.0 / 4, 0.25, 1});
  CHECK(with(gdpo::aggregate::token_sum()) == List{15, 1, 4});
  CHECK(with(gdpo::aggregate::token_sum(-2)) == List{-30, -2, -8});
  const auto mean = gdpo::aggregate::seq_mean_token_mean(gdpo::Over::NonEmptyRows);
  CHECK(with(mean)[0] == Approx((7.0 / 3 + 8) / 2).epsilon(1e-15));
  CHECK(with(gdpo::aggregate::seq_mean_token_sum())[0] == Approx(5).epsilon(1e-15));
  auto norm = gdpo::aggregate::seq_mean_token_sum_norm();
  norm.padded_width = true;
  CHECK(with(norm)[0] == Approx(15.0 / 9).epsilon(1e-15));

  // Weights of rows; one of 0 takes its row out, whatever stands there.
  Data weighed = d;
  weighed.row_weights = {2, 0, 1};
  weighed.values[3] = not_a_number;
  const auto o = run<double>(gdpo::simd, gdpo::ValueLoss<>{}, Arrays<double>(weighed));
  CHECK(o.result.loss == 2 * 7.0 / 4);
  CHECK(o.gradient[0] == 0.5);
  CHECK(o.gradient[3] == 0);
  CHECK(o.result.metrics.non_finite.values.count == 1);
}

TEST_CASE("value loss: exact zeros", "[value]") {
  Random random(1);
  Data d = random_values(random, 4, 37, 1);
  d.values = d.old_values = d.returns;
  for (const double clip : {0.0, 0.2, inf}) {
    gdpo::ValueLoss<> loss;
    loss.clip = clip;
    const auto o = run<float>(gdpo::simd, loss, Arrays<float>(d));
    CHECK(o.result.loss == 0);
    for (const float g : o.gradient) CHECK((g == 0 && !std::signbit(g)));
    const gdpo::ValueMetrics& m = o.result.metrics;
    CHECK(m.clip_fraction.sum == 0);
    CHECK(m.clip_fraction.max == 0);
    CHECK(m.error.min == 0);
    CHECK(m.residuals.m2 == 0);
    CHECK(m.explained_variance() == 1);
  }
}

TEST_CASE("value loss: metrics by hand", "[value]") {
  Data d;
  d.rows = 3, d.width = 2;
  d.values = {1, 2, 3, 100, 100, 100};
  d.old_values = {1, 0, 3, 100, 100, 100};
  d.returns = {0, 4, 1, 100, 100, 100};
  d.mask = {1, 1, 1, 0, 0, 0};
  gdpo::ValueLoss<> loss;
  loss.clip = 1;
  const gdpo::ValueMetrics m = run<float>(gdpo::simd, loss, Arrays<float>(d)).result.metrics;
  // Squares 1, max(4, (1 - 4)^2), 4.
  CHECK(m.loss.sum == 0.5 * (1 + 9 + 4));
  CHECK(m.loss.min == 0.5);
  CHECK(m.loss.max == 4.5);
  CHECK(m.loss.row_sum == 2.5 + 2 + 0);
  CHECK(m.loss.row_min == 0);
  CHECK(m.loss.row_max == 2.5);
  CHECK(m.loss.rows == 3);
  CHECK(m.value.mean() == 2);
  CHECK(m.value.min == 1);
  CHECK(m.value.max == 3);
  CHECK(m.error.sum == 1 - 2 + 2);
  CHECK(m.error.min == -2);
  CHECK(m.error.max == 2);
  CHECK(m.clip_fraction.sum == 1);
  CHECK(m.clip_fraction.count == 3);
  CHECK(m.clip_fraction.min == 0);
  CHECK(m.clip_fraction.max == 1);
  CHECK(m.clip_fraction.row_sum == 0.5);
  CHECK(m.rows == 3);
  CHECK(m.empty_rows == 1);
  CHECK(m.returns.n == 3);
  CHECK(m.returns.mean == Approx(5.0 / 3).epsilon(1e-15));
  CHECK(m.returns.m2 == Approx(17 - 25.0 / 3).epsilon(1e-14));
  CHECK(m.returns.min == 0);
  CHECK(m.returns.max == 4);
  // Residuals R - v: -1, 2, -2 with mean -1/3, so m2 = 9 - 1/3.
  CHECK(m.residuals.m2 == Approx(9 - 1.0 / 3).epsilon(1e-14));
  const double explained = 1 - (26.0 / 3) / (26.0 / 3);
  CHECK(m.explained_variance() == Approx(explained).margin(1e-14));
  // Of samples: variance 13/3, with an eps of 1 in the denominator.
  CHECK(m.explained_variance(1.0) == Approx(1 - (13.0 / 3) / (16.0 / 3)).epsilon(1e-14));

  const std::map<std::string, double> keys = m.to_map("critic/");
  CHECK(keys.size() == 4);
  CHECK(keys.at("critic/vf_loss") == m.loss.mean());
  CHECK(keys.at("critic/vf_clipfrac") == m.clip_fraction.mean());
  CHECK(keys.at("critic/vpred_mean") == 2);
  CHECK(keys.at("critic/vf_explained_var") == m.explained_variance());
}

TEST_CASE("value loss: explained variance, by hand and where it is unknown", "[value]") {
  const auto metrics_of = [](const Data& d) {
    return run<double>(gdpo::simd, gdpo::ValueLoss<>{}, Arrays<double>(d)).result.metrics;
  };
  const auto of = [&](const std::vector<double>& values, const std::vector<double>& returns) {
    return metrics_of(row(values, values, returns)).explained_variance();
  };
  CHECK(of({1, 2, 3, 4}, {1, 2, 3, 4}) == 1);
  CHECK(of({11, 12, 13, 14}, {1, 2, 3, 4}) == 1);  // a mean error does not lower it
  CHECK(of({7, 7, 7, 7}, {1, 2, 3, 4}) == 0);
  CHECK(of({4, 3, 2, 1}, {1, 2, 3, 4}) == -3);        // residuals -3, -1, 1, 3: 20 over 5
  CHECK(of({0.5, 1, 1.5, 2}, {1, 2, 3, 4}) == 0.75);  // half the spread is left, a quarter of it^2
  CHECK(std::isnan(of({1, 2, 3}, {5, 5, 5})));        // returns without variance
  CHECK(std::isnan(of({1}, {2})));
  CHECK(std::isnan(of({}, {})));
  CHECK(std::isnan(of({1, not_a_number, 3}, {1, 2, 3})));
  CHECK(std::isnan(of({1, 2, 3}, {1, inf, 3})));
  CHECK(std::isnan(gdpo::ValueMetrics{}.explained_variance()));
  // With eps the denominator is there.
  CHECK(metrics_of(row({1, 2, 3}, {}, {5, 5, 5})).explained_variance(0.5) == 1 - 1 / 0.5);
  // What is unknown has no key, and without tokens nothing was measured.
  CHECK(metrics_of(row({1, 2, 3}, {}, {5, 5, 5})).to_map().count("vf_explained_var") == 0);
  CHECK(metrics_of(row({1, 2, 3}, {}, {5, 5, 5})).to_map().size() == 3);
  CHECK(gdpo::ValueMetrics{}.to_map().empty());
}

TEST_CASE("value loss: inputs that are not finite flow into the loss and are counted", "[value]") {
  Random random(2);
  const Data good = random_values(random, 3, 50, 1);
  gdpo::ValueLoss<> loss;
  loss.clip = 0.2;
  const auto with = [&](std::vector<double> Data::*input, double x) {
    Data d = good;
    (d.*input)[d.at(1, 7)] = (d.*input)[d.at(2, 49)] = x;
    const auto o = run<float>(gdpo::simd, loss, Arrays<float>(d));
    CHECK(difference(run<float>(gdpo::seq, loss, Arrays<float>(d)), o) == "");
    CHECK(difference(o.result,
                     run<float>(gdpo::parallel(Inline{}), loss, Arrays<float>(d)).result) == "");
    const gdpo::ValueNonFinite& n = o.result.metrics.non_finite;
    const gdpo::NonFinite& counter = input == &Data::values       ? n.values
                                     : input == &Data::old_values ? n.old_values
                                                                  : n.returns;
    CHECK(counter.count == 2);
    CHECK(counter.row == 1);
    CHECK(counter.token == 7);
    CHECK(n.values.count + n.old_values.count + n.returns.count == 2);
    for (std::size_t k = 0; k < o.gradient.size(); ++k) {
      if (k != d.at(1, 7) && k != d.at(2, 49)) CHECK(std::isfinite(o.gradient[k]));
    }
    return std::pair<double, float>{o.result.loss, o.gradient[d.at(1, 7)]};
  };
  for (const auto input : {&Data::values, &Data::old_values, &Data::returns}) {
    const auto [total, slope] = with(input, not_a_number);
    CHECK(std::isnan(total));
    CHECK(std::isnan(slope));
  }
  CHECK(with(&Data::values, inf) == std::pair<double, float>{inf, HUGE_VALF});
  // An infinite return is missed by either square, the value stays on the first one.
  CHECK(with(&Data::returns, inf) == std::pair<double, float>{inf, -HUGE_VALF});
  // An infinite old value: the clipped square is infinite, and its branch has no gradient.
  CHECK(with(&Data::old_values, -inf) == std::pair<double, float>{inf, 0.0F});

  // Two infinities that cancel are NaN; weights of rows that are not finite count as 0.
  Data d = good;
  d.values[0] = d.returns[0] = inf, d.row_weights = {1, not_a_number, 1};
  const auto o = run<float>(gdpo::simd, loss, Arrays<float>(d));
  CHECK(std::isnan(o.gradient[0]));
  CHECK(o.gradient[d.at(1, 0)] == 0);
  CHECK(o.result.metrics.non_finite.weights.count == 1);
  CHECK(o.result.metrics.non_finite.weights.row == 1);
  CHECK(o.result.metrics.non_finite.weights.token == -1);
}

TEST_CASE("value loss: numbers that overflow the squares", "[value]") {
  // (1e20)^2 is beyond float: the loss is infinite, the gradient is not.
  const auto o = run<float>(gdpo::simd, gdpo::ValueLoss<>{},
                            Arrays<float>(row({1e20, 0}, {0, 0}, {-1e20, 0})));
  CHECK(o.result.loss == inf);
  CHECK(o.gradient[0] == static_cast<float>(2e20) / 2);
  CHECK(o.result.metrics.non_finite.values.count == 0);
}

TEST_CASE("value loss: batches without tokens or rows", "[value]") {
  Data d;
  d.rows = 2, d.width = 3;
  d.values.assign(6, 1), d.old_values = d.returns = d.values, d.mask.assign(6, 0);
  const auto o = run<float>(gdpo::simd, gdpo::ValueLoss<>{}, Arrays<float>(d));
  CHECK(o.result.loss == 0);
  for (const float g : o.gradient) CHECK(g == 0);
  CHECK(o.result.metrics.rows == 2);
  CHECK(o.result.metrics.empty_rows == 2);
  CHECK(o.result.metrics.loss.count == 0);
  CHECK(o.result.metrics.returns.n == 0);
  const auto none = run<float>(gdpo::simd, gdpo::ValueLoss<>{}, Arrays<float>(Data{}));
  CHECK(none.result.loss == 0);
  CHECK(none.result.metrics.rows == 0);
}

TEST_CASE("value loss: count is that of a TokenBatch with the same mask", "[value]") {
  Random random(4);
  const Arrays<float> arrays(random_values(random, 7, 13));
  gdpo::TokenBatch<float> tokens;
  tokens.mask = arrays.batch().mask;
  const auto same = [](const gdpo::Normalizer& a, const gdpo::Normalizer& b) {
    return a.tokens == b.tokens && a.rows == b.rows && a.non_empty_rows == b.non_empty_rows;
  };
  CHECK(same(gdpo::count(arrays.batch()), gdpo::count(tokens)));
  gdpo::ValueBatch<float> mask_alone;
  mask_alone.mask = tokens.mask;
  CHECK(same(gdpo::count(mask_alone), gdpo::count(tokens)));
  const std::vector<index_t> offsets{0, 3, 3, 9};
  gdpo::ValueBatch<float> packed;
  packed.offsets = view(offsets);
  CHECK(gdpo::count(packed).tokens == 9);
  CHECK(gdpo::count(packed).non_empty_rows == 2);
}

TEST_CASE("value loss: other storage and strides give the same bits", "[value]") {
  Random random(6);
  const Arrays<float> dense(random_values(random, 4, 21));
  gdpo::ValueLoss<> loss;
  loss.clip = 0.2;
  const auto expected = run<float>(gdpo::simd, loss, dense);
  // Returns as double in a batch of double, tokens two apart, a mask of floats, three axes.
  std::vector<float> values(168), gradient(168, -7.0F), mask(84);
  for (std::size_t k = 0; k < 84; ++k)
    values[2 * k] = dense.values[k], mask[k] = dense.mask[k] ? -0.5F : 0.0F;
  gdpo::ValueBatch<float> b;
  b.values = gdpo::View<const float, 3>{values.data(), {2, 2, 21}, {84, 42, 2}};
  b.old_values = view(dense.old_values.data(), 2, 2, 21);
  b.returns = view(dense.returns.data(), 2, 2, 21);
  b.mask = view(mask.data(), 2, 2, 21);
  const auto counts = gdpo::count(b);
  const auto got = loss(b, counts, gdpo::View<float, 3>{gradient.data(), {2, 2, 21}, {84, 42, 2}});
  CHECK(difference(got, expected.result) == "");
  for (std::size_t k = 0; k < 84; ++k) {
    CHECK(gradient[2 * k] == expected.gradient[k]);
    CHECK(gradient[2 * k + 1] == -7.0F);
  }
}

TEST_CASE("value loss: results of a step merge", "[value]") {
  gdpo::ValueLossResult a, b;
  a.loss = 1, a.metrics.rows = 2, a.normalizer.tokens = 10, a.normalizer.rows = 5;
  b.loss = 2, b.metrics.rows = 3, b.normalizer = a.normalizer;
  a.metrics.non_finite.values = {2, 1, 4}, b.metrics.non_finite.values = {3, 0, 0};
  a.metrics.empty_rows = 1, b.metrics.empty_rows = 1;
  const gdpo::ValueLossResult sum = merge(a, b);
  CHECK(sum.loss == 3);
  CHECK(sum.metrics.rows == 5);
  CHECK(sum.metrics.empty_rows == 2);
  CHECK(sum.metrics.non_finite.values.count == 5);
  CHECK(sum.metrics.non_finite.values.row == 1);
  CHECK(sum.normalizer.tokens == 10);
  // A side without rows has no counts.
  CHECK(merge(gdpo::ValueLossResult{}, b).normalizer.tokens == 10);
  CHECK(merge(b, gdpo::ValueLossResult{}).normalizer.tokens == 10);
}

TEST_CASE("value loss: settings are kept by with_metrics", "[value]") {
  gdpo::ValueLoss<> loss;
  loss.clip = 0.3, loss.half = false, loss.delta = 4, loss.aggregate.scale = 2;
  const auto means = gdpo::with_metrics<gdpo::metrics::Means>(loss);
  CHECK(means.clip == 0.3);
  CHECK_FALSE(means.half);
  CHECK(means.delta == 4);
  CHECK(means.aggregate.scale == 2);
  CHECK_FALSE(decltype(means)::metrics.everything);
}

}  // namespace value_loss_test
