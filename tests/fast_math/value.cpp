// Returns, GAE and the value loss, compiled with -ffast-math. Numbers are those worked out by hand;
// poison where the mask is 0 changes no bit; a NaN shows in the tokens before it, in the loss and
// in its gradient, and is counted; NaN is refused as a setting.
#include <gdpo/value.hpp>

#include "support/exact.hpp"

using exact::bits, exact::expect, exact::is_nan, exact::refused, exact::same;

namespace {

using Vector = std::vector<double>;

/// Copies of one row of six tokens, enough of them that simd fills its lanes.
constexpr int rows = 32, width = 6;
const std::vector<unsigned char> mask{1, 1, 0, 1, 1, 0};
Vector rows_of(const Vector& row) {
  Vector all;
  for (int i = 0; i < rows; ++i) all.insert(all.end(), row.begin(), row.end());
  return all;
}
template <class T>
auto view_of(const std::vector<T>& x) {
  return gdpo::view(x.data(), rows, width);
}
std::vector<unsigned char> masks() {
  std::vector<unsigned char> all;
  for (int i = 0; i < rows; ++i) all.insert(all.end(), mask.begin(), mask.end());
  return all;
}

struct Returns {
  Vector advantages = Vector(rows * width, 7), returns = Vector(rows * width, 7);
};
template <class Exec, class Policy>
Returns run(const Exec& exec, const Policy& policy, Vector rewards, Vector values) {
  Returns r;
  const std::vector<unsigned char> m = masks();
  const Vector rest(rows, 4);
  gdpo::ReturnBatch<double> batch;
  batch.rewards = view_of(rewards), batch.values = view_of(values), batch.mask = view_of(m);
  batch.bootstrap = gdpo::view(rest);
  gdpo::ReturnsWorkspace<double> memory;
  gdpo::advantages_and_returns_into(exec, batch, gdpo::TokenAdvantage<Policy>{policy},
                                    gdpo::view(r.advantages.data(), rows, width),
                                    gdpo::view(r.returns.data(), rows, width), memory);
  return r;
}

template <class Exec>
void returns(const Exec& exec, double hidden) {
  const Vector rewards = rows_of({1, 2, hidden, 0, 8, hidden}),
               values = rows_of({2, 4, hidden, -2, 6, hidden});
  // With gamma 1/2 from the end: 8 + 2 = 10, 0 + 5, 2 + 2.5, 1 + 2.25.
  const Returns to_go = run(exec, gdpo::returns::RewardToGo{0.5}, rewards, values);
  same("reward to go", to_go.advantages, rows_of({3.25, 4.5, 0, 5, 10, 0}));
  same("its returns", to_go.returns, to_go.advantages);
  // Errors of one step: 8 + 2 - 6 = 4, 0 + 3 + 2 = 5, 2 - 1 - 4 = -3, 1 + 2 - 2 = 1.
  const Returns gae = run(exec, gdpo::returns::Gae{0.5, 0.5}, rewards, values);
  same("gae", gae.advantages, rows_of({0.625, -1.5, 0, 6, 4, 0}));
  same("its returns", gae.returns, rows_of({2.625, 2.5, 0, 4, 10, 0}));
  const Returns decoupled = run(exec, gdpo::returns::Gae{0.5, 0.5, 1}, rewards, values);
  same("the advantages of two scans", decoupled.advantages, gae.advantages);
  same("the returns of two scans", decoupled.returns, to_go.returns);
}

template <class Exec>
void unknown_rewards(const Exec& exec, double bad) {
  const Vector rewards = rows_of({1, bad, 0, 0, 8, 0}), values(rows * width, 1);
  const Returns gae = run(exec, gdpo::returns::Gae{0.5, 0.5}, rewards, values);
  for (std::size_t k = 0; k < rewards.size(); ++k) {
    const bool before = k % width < 2;
    const bool finite = (bits(gae.returns[k]) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
    expect("what is not finite shows in its token and those before, and nowhere else",
           finite != before);
    expect("a masked position is 0", mask[k % width] || bits(gae.advantages[k]) == 0);
  }
}

struct Learned {
  gdpo::ValueLossResult result;
  Vector gradient = Vector(rows * width, 7);
};
template <class Exec>
Learned learn(const Exec& exec, const gdpo::ValueLoss<>& loss, const Vector& values,
              double hidden) {
  Learned l;
  const std::vector<unsigned char> m = masks();
  const Vector old = rows_of({1, 1, hidden, 1, 1, hidden}),
               target = rows_of({4, 0, hidden, 2, 1, hidden});
  gdpo::ValueBatch<double> batch;
  batch.values = view_of(values), batch.old_values = view_of(old), batch.returns = view_of(target);
  batch.mask = view_of(m);
  gdpo::ValueWorkspace<double> memory;
  l.result =
      loss(exec, batch, gdpo::count(batch), gdpo::view(l.gradient.data(), rows, width), memory);
  return l;
}

template <class Exec>
void losses(const Exec& exec, double hidden) {
  const Vector values = rows_of({2, 3, hidden, 2, 0, hidden});
  // v - R is -2, 3, 0, -1. Within 1/2 of 1 the values are 1.5, 1.5, 1.5, 0.5: v - R would be -2.5
  // (larger: clipped), 1.5, -0.5 (clipped), -0.5. The sum of squares is 6.25 + 9 + 0.25 + 1.
  const Learned clipped = learn(exec, {0.5}, values, hidden);
  same("a clipped loss", {clipped.result.loss}, {16.5 / 8});
  const double one = 1.0 / (4 * rows);
  same("its gradient", clipped.gradient, rows_of({0, 3 * one, 0, 0, -one, 0}));
  same("clip fraction", {clipped.result.metrics.clip_fraction.mean()}, {0.5});
  const Learned free = learn(exec, {}, values, hidden);
  same("a loss without clip", {free.result.loss}, {14.0 / 8});
  same("its gradient", free.gradient, rows_of({-2 * one, 3 * one, 0, 0, -one, 0}));
  const double explained = free.result.metrics.explained_variance();
  // Residuals 2, -3, 0, 1 have the sum of squares 14; the returns 4, 0, 2, 1 have 35 / 4.
  expect("explained variance", explained > -0.6000001 && explained < -0.5999999);
  expect("nothing was unusual", free.result.metrics.non_finite.values.count == 0);
}

template <class Exec>
void unknown_values(const Exec& exec, double bad) {
  const Vector values = rows_of({2, bad, 0, 2, 0, 0});
  const Learned l = learn(exec, {0.5}, values, 0);
  expect("values that are not finite are counted",
         l.result.metrics.non_finite.values.count == rows);
  expect("the loss is not finite",
         (bits(l.result.loss) & 0x7ff0000000000000u) == 0x7ff0000000000000u);
  expect("the explained variance is unknown", is_nan(l.result.metrics.explained_variance()));
  for (std::size_t k = 0; k < values.size(); ++k) {
    const bool is_bad = k % width == 1;
    const bool finite = (bits(l.gradient[k]) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
    expect("the gradient is not finite there alone", finite != is_bad);
  }
}

void settings() {
  const Vector x(rows * width, 1);
  for (const double bad : {exact::nan(), exact::infinity(), -exact::infinity()}) {
    expect("gamma", refused([&] { run(gdpo::seq, gdpo::returns::RewardToGo{bad}, x, x); }));
    expect("lambda", refused([&] { run(gdpo::seq, gdpo::returns::Gae{1, bad}, x, x); }));
  }
  expect("clip", refused([&] { learn(gdpo::seq, {exact::nan()}, x, 0); }));
}

template <class Exec>
void all(const Exec& exec) {
  const double nan = exact::nan(), infinity = exact::infinity();
  for (const double hidden : {0.0, nan, infinity, -infinity, 1e300}) {
    returns(exec, hidden);
    losses(exec, hidden);
  }
  for (const double bad : {nan, infinity, -infinity}) unknown_rewards(exec, bad);
  for (const double bad : {nan, infinity, -infinity}) unknown_values(exec, bad);
}

}  // namespace

int main() {
  all(gdpo::seq);
  all(gdpo::simd);
  settings();
  return exact::failures == 0 ? 0 : 1;
}
