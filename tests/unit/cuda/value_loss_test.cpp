// labels: sanitizers
// ValueLoss on a device against the host: gradients, counts and ranges have its bits, sums are
// those of the same terms in another order.
#include <gdpo/cuda/value/device_value_loss.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/message.hpp"
#include "support/value_cases.hpp"

namespace value_loss_test {

namespace {

using namespace value_cases;

/// The arrays of a batch on the device, padded or packed; `step` numbers from a token to the next.
template <class S>
class OnTheDevice {
 public:
  OnTheDevice(const Arrays<S>& of, index_t step) : of_(of), step_(step) {
    values_ = spread(of.values), old_values_ = spread(of.old_values);
    returns_ = spread(of.returns), mask_ = spread(of.mask);
    row_weights_ = OnDevice<double>(of.row_weights), offsets_ = OnDevice<index_t>(of.offsets);
    group_tokens_ = OnDevice<double>(of.group_tokens);
  }
  gdpo::ValueBatch<S> batch() {
    gdpo::ValueBatch<S> b;
    bind(b.values, values_, of_.values.size());
    bind(b.old_values, old_values_, of_.old_values.size());
    bind(b.returns, returns_, of_.returns.size()), bind(b.mask, mask_, of_.mask.size());
    if (!of_.row_weights.empty()) b.row_weights = view(row_weights_.data(), of_.rows);
    if (!of_.group_tokens.empty()) b.group_tokens = view(group_tokens_.data(), of_.rows);
    if (!of_.offsets.empty())
      b.offsets = view(offsets_.data(), static_cast<index_t>(of_.offsets.size()));
    return b;
  }
  template <class T>
  void bind(T& to, OnDevice<S>& from, std::size_t n) {
    if (n > 0 || of_.values.empty()) to = shaped(from.data());
  }
  void bind(gdpo::TokenView<unsigned char>& to, OnDevice<unsigned char>& from, std::size_t n) {
    if (n > 0) to = shaped_view<gdpo::TokenView<unsigned char>>(from.data());
  }
  gdpo::TokenOut<S> out(OnDevice<S>& gradient) {
    return shaped_view<gdpo::TokenOut<S>>(gradient.data());
  }
  /// x, `step` numbers apart.
  template <class T>
  std::vector<T> spread_numbers(const std::vector<T>& x) const {
    std::vector<T> all(x.size() * static_cast<std::size_t>(step_), T(77));
    for (std::size_t k = 0; k < x.size(); ++k) all[k * static_cast<std::size_t>(step_)] = x[k];
    return all;
  }

 private:
  template <class T>
  OnDevice<T> spread(const std::vector<T>& x) const {
    return OnDevice<T>(spread_numbers(x));
  }
  gdpo::TokenView<S> shaped(S* data) const { return shaped_view<gdpo::TokenView<S>>(data); }
  template <class To, class T>
  To shaped_view(T* data) const {
    if (of_.offsets.empty()) {
      const index_t rows = of_.rows, width = of_.width;
      return gdpo::View<T, 2>{data, {rows, width}, {width * step_, step_}};
    }
    return gdpo::View<T, 1>{data, {static_cast<index_t>(of_.values.size())}, {step_}};
  }
  const Arrays<S>& of_;
  index_t step_;
  OnDevice<S> values_, old_values_, returns_;
  OnDevice<unsigned char> mask_;
  OnDevice<double> row_weights_, group_tokens_;
  OnDevice<index_t> offsets_;
};

/// Expects a and b to be equal as far as two orders of summation are; `size` is the sum of the
/// absolute terms, 1e-6 of which is the promise.
void check_sum(double a, double b, double size) {
  if (std::isnan(a) || std::isnan(b)) {
    CHECK((std::isnan(a) && std::isnan(b)));
  } else if (std::isinf(a) || std::isinf(b)) {
    CHECK(a == b);
  } else {
    CHECK(std::fabs(a - b) <= 1e-6 * size + 1e-300);
  }
}
void check_metric(const gdpo::Metric& got, const gdpo::Metric& host, double size) {
  check_sum(got.sum, host.sum, size), check_sum(got.row_sum, host.row_sum, size);
  CHECK(got.count == host.count);
  CHECK(got.rows == host.rows);
  CHECK(got.min == host.min);
  CHECK(got.max == host.max);
  check_sum(got.row_min, host.row_min, 1 + std::fabs(host.row_min));
  check_sum(got.row_max, host.row_max, 1 + std::fabs(host.row_max));
}
void check_moments(const gdpo::Moments& got, const gdpo::Moments& host) {
  CHECK(got.n == host.n);
  CHECK(got.weight == host.weight);
  CHECK(difference(std::vector<double>{got.min, got.max},
                   std::vector<double>{host.min, host.max}) == "");
  if (std::isfinite(host.m2)) {
    // Sums in double of the same numbers: some 1e3 roundings of 2^-53.
    CHECK(std::fabs(got.mean - host.mean) <= 1e-12 * (1 + std::fabs(host.mean)));
    CHECK(std::fabs(got.m2 - host.m2) <= 1e-12 * host.m2);
  } else {
    CHECK_FALSE(std::isfinite(got.m2));
  }
}

template <class S, class Loss>
void check(const Loss& loss, const Arrays<S>& arrays, index_t step = 1, unsigned seed = 1,
           const gdpo::cuda::Tuning& tuning = {}) {
  const Outcome<S> host = run<S>(gdpo::simd, loss, arrays);
  OnTheDevice<S> on(arrays, step);
  OnDevice<S> gradient(on.spread_numbers(std::vector<S>(arrays.values.size(), S(-77))));
  OnDevice<gdpo::ValueLossResult> result(std::vector<gdpo::ValueLossResult>(1));
  OnDevice<gdpo::Normalizer> counts(std::vector<gdpo::Normalizer>(1));
  const gdpo::ValueBatch<S> batch = on.batch();
  CHECK(gdpo::cuda::scratch_bytes(batch) <= gdpo::cuda::scratch_bytes(loss, batch));
  TestScratch scratch(gdpo::cuda::scratch_bytes(loss, batch));
  const TestDevice device = test_device(seed, tuning);
  gdpo::cuda::count_into(device, batch, counts.data(), scratch());
  const gdpo::Normalizer counted = counts.host()[0], expected = gdpo::count(arrays.batch());
  CHECK(counted.tokens == expected.tokens);
  CHECK(counted.rows == expected.rows);
  CHECK(counted.non_empty_rows == expected.non_empty_rows);
  // Scratch of exactly the bytes that are asked for, filled anew.
  TestScratch fresh(gdpo::cuda::scratch_bytes(loss, batch));
  const gdpo::Normalizer* const on_device = counts.data();
  loss(device, batch, on_device, on.out(gradient), result.data(), fresh());

  const std::vector<S> slopes = gradient.host();
  CHECK(difference(slopes, on.spread_numbers(host.gradient)) == "");
  const gdpo::ValueLossResult got = result.host()[0];
  const gdpo::ValueMetrics &a = got.metrics, &b = host.result.metrics;
  const double tokens = b.value.count;
  check_sum(got.loss, host.result.loss, std::fabs(host.result.loss));
  CHECK(got.normalizer.tokens == expected.tokens);
  check_metric(a.loss, b.loss, b.loss.sum), check_metric(a.value, b.value, 4 * tokens);
  check_metric(a.error, b.error, 4 * tokens),
      check_metric(a.clip_fraction, b.clip_fraction, 1e-6 * b.clip_fraction.rows);
  check_moments(a.returns, b.returns), check_moments(a.residuals, b.residuals);
  CHECK(a.rows == b.rows);
  CHECK(a.empty_rows == b.empty_rows);
  const auto counter = [](const gdpo::NonFinite& x, const gdpo::NonFinite& y) {
    CHECK(x.count == y.count);
    CHECK(x.row == y.row);
    CHECK(x.token == y.token);
  };
  counter(a.non_finite.values, b.non_finite.values);
  counter(a.non_finite.old_values, b.non_finite.old_values);
  counter(a.non_finite.returns, b.non_finite.returns);
  counter(a.non_finite.weights, b.non_finite.weights);

  // Without a gradient, with counts that the host knows: the same bits.
  OnDevice<gdpo::ValueLossResult> again(std::vector<gdpo::ValueLossResult>(1));
  loss(test_device(seed + 1, tuning), batch, expected, gdpo::TokenOut<S>{}, again.data(), fresh());
  CHECK(difference(again.host()[0], got) == "");
}

gdpo::ValueLoss<> clipped(double clip) {
  gdpo::ValueLoss<> loss;
  loss.clip = clip;
  return loss;
}

}  // namespace

TEST_CASE("cuda value loss: padded and packed rows", "[cuda][value][sanitize]") {
  for (unsigned seed = 0; seed < 12; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data d =
        random_values(random, 1 + random.below(5), 1 + random.below(300), random.pick({0.7, 1.0}));
    if (random.chance(0.5)) {
      for (int i = 0; i < d.rows; ++i) d.row_weights.push_back(0.5 * random.below(3));
    }
    std::vector<int> lengths;
    for (int i = 0; i < d.rows; ++i) lengths.push_back(random.below(d.width + 1));
    lengths[0] = d.width;
    if (!d.mask.empty()) d.mask[0] = 1;  // some token counts
    gdpo::ValueLoss<> of_tokens;
    gdpo::ValueLoss<> of_rows;
    of_rows.aggregate = gdpo::aggregate::seq_mean_token_mean();
    of_tokens.half = of_rows.half = random.chance(0.5);
    of_tokens.clip = of_rows.clip = random.pick({0.0, 0.2, gdpo::math::infinity});
    of_tokens.delta = of_rows.delta = random.pick({0.1, 0.5, gdpo::math::infinity});
    if (random.chance(0.4)) {  // groups of any size
      of_rows.aggregate = gdpo::aggregate::group_mean(gdpo::Over::Rows);
      for (int i = 0; i < d.rows; ++i) d.group_tokens.push_back(d.width + i);
    }
    check(of_rows, Arrays<float>(d), 1, seed);
    check(of_tokens, Arrays<double>(d), 1, seed);
    check(of_rows, Arrays<float>(d), 3, seed);
    check(of_tokens, Arrays<float>(d, lengths), random.pick({1, 2}), seed);
  }
}

TEST_CASE("cuda value loss: many rows, each of a warp or of a block", "[cuda][value]") {
  Random random(3);
  const Arrays<float> arrays(random_values(random, 4 * 1024 + 40, 5));
  gdpo::cuda::Tuning by_block;
  by_block.warp_row = 0;
  check(clipped(0.2), arrays);
  check(clipped(0.2), arrays, 1, 5, by_block);
}

TEST_CASE("cuda value loss: inputs that are not finite", "[cuda][value]") {
  for (unsigned seed = 0; seed < 8; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data d = random_values(random, 6, 140);
    d.row_weights.assign(6, 1.0), d.row_weights[2] = random.pick({0.0, HUGE_VAL, std::nan("")});
    const bool infinite = random.chance(0.5);
    for (const auto input : {&Data::values, &Data::old_values, &Data::returns}) {
      for (double& x : d.*input) {
        if (random.chance(0.01)) x = infinite ? HUGE_VAL : std::nan("");
      }
    }
    // Two of one thread: the place is that of the first.
    for (const int t : {9, 10}) d.returns[d.at(4, t)] = std::nan(""), d.mask[d.at(4, t)] = 1;
    if (seed % 2 == 0) {
      for (int k = 0; k < 4 * 140; ++k) d.mask[static_cast<std::size_t>(k)] = 0;
    }
    check(clipped(0.2), Arrays<float>(d), 1, seed);
    check(clipped(gdpo::math::infinity), Arrays<float>(d), 2, seed);
  }
}

TEST_CASE("cuda value loss: means that are far from 0", "[cuda][value]") {
  Random random(9);
  Data d = random_values(random, 3, 1500, 1);
  for (std::size_t k = 0; k < d.values.size(); ++k) {
    d.returns[k] = 0x1p127 + (k % 500 == 7 ? 0x1p104 : 0.0);  // sums of floats overflow
    d.values[k] = d.old_values[k] = 0x1p127;
  }
  const Arrays<float> arrays(d);
  OnTheDevice<float> on(arrays, 1);
  OnDevice<gdpo::ValueLossResult> result(std::vector<gdpo::ValueLossResult>(1));
  const gdpo::ValueBatch<float> batch = on.batch();
  const gdpo::ValueLoss<> loss;
  TestScratch scratch(gdpo::cuda::scratch_bytes(loss, batch));
  loss(test_device(1), batch, gdpo::count(arrays.batch()), gdpo::TokenOut<float>{}, result.data(),
       scratch());
  const auto host = run<float>(gdpo::simd, loss, arrays);
  check_moments(result.host()[0].metrics.returns, host.result.metrics.returns);
  check_moments(result.host()[0].metrics.residuals, host.result.metrics.residuals);
}

TEST_CASE("cuda value loss: smaller sets of metrics", "[cuda][value]") {
  Random random(4);
  const Arrays<float> arrays(random_values(random, 5, 90));
  OnTheDevice<float> on(arrays, 1);
  const gdpo::ValueBatch<float> batch = on.batch();
  const auto counts = gdpo::count(arrays.batch());
  const auto of = [&](const auto& loss) {
    OnDevice<gdpo::ValueLossResult> result(std::vector<gdpo::ValueLossResult>(1));
    TestScratch scratch(gdpo::cuda::scratch_bytes(loss, batch));
    loss(test_device(2), batch, counts, gdpo::TokenOut<float>{}, result.data(), scratch());
    return result.host()[0];
  };
  const auto all = of(clipped(0.2));
  const auto means = of(gdpo::with_metrics<gdpo::metrics::Means>(clipped(0.2)));
  const auto none = of(gdpo::with_metrics<gdpo::metrics::None>(clipped(0.2)));
  CHECK(means.loss == all.loss);
  CHECK(none.loss == all.loss);
  CHECK(means.metrics.loss.sum == all.metrics.loss.sum);
  CHECK(means.metrics.residuals.m2 == all.metrics.residuals.m2);
  CHECK(means.metrics.loss.max < means.metrics.loss.min);
  CHECK(none.metrics.loss.count == 0);
  CHECK(none.metrics.returns.n == 0);
  CHECK(none.metrics.rows == 5);
}

TEST_CASE("cuda value loss: batches without tokens or rows", "[cuda][value]") {
  Data d;
  d.rows = 2, d.width = 3;
  d.values.assign(6, std::nan("")), d.old_values = d.returns = d.values, d.mask.assign(6, 0);
  check(clipped(0.2), Arrays<float>(d));
  check(clipped(0.2), Arrays<float>(Data{}));
}

TEST_CASE("cuda value loss: no result or scratch", "[cuda][value]") {
  float numbers[12] = {};
  gdpo::ValueBatch<float> b;
  b.values = b.returns = view(numbers, 3, 4);
  gdpo::ValueLossResult result;
  const auto message = [&](std::size_t bytes, gdpo::ValueLossResult* into) {
    return message_of([&] {
      TestScratch scratch(bytes);
      gdpo::ValueLoss<>{}(test_device(), b, gdpo::count(b), gdpo::TokenOut<float>{}, into,
                          scratch());
    });
  };
  CHECK(message(100000, nullptr).find("gdpo::ValueLoss: result: given no memory") == 0);
  CHECK(message(8, &result).find("gdpo::ValueLoss: scratch: given") == 0);
}

}  // namespace value_loss_test
