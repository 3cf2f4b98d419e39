// The parts that statistics are made of, compiled with -ffast-math and with parts of it: NaN is
// found by its bits, compensated sums keep their compensation, and values are equal if their max is
// their min. Expected values are exact and compared by their bits.
#include <gdpo/advantages.hpp>

#include "support/exact.hpp"

using exact::bits, exact::expect;

int main() {
  const double no = exact::nan(), infinite = exact::infinity();
  expect("is_nan",
         gdpo::math::is_nan(no) && !gdpo::math::is_nan(infinite) && !gdpo::math::is_nan(1.0));
  expect("is_inf",
         gdpo::math::is_inf(infinite) && !gdpo::math::is_inf(no) && !gdpo::math::is_inf(1.0));

  const auto plain = [](const auto& x, const auto&) { return std::array{x}; };
  const std::vector<double> cancel{1, 1e100, 1, -1e100}, other_order{1e100, 1, -1e100, 1};
  expect("compensated sum",
         bits(gdpo::sum_rows<1>(gdpo::AnyOrder{}, cancel.data(), nullptr, 4, plain)[0]) == bits(2));
  expect("compensated sum, other order",
         bits(gdpo::sum_rows<1>(gdpo::AnyOrder{}, other_order.data(), nullptr, 4, plain)[0]) ==
             bits(2));

  std::vector<double> x(23, 0.1);
  const gdpo::Moments equal = gdpo::moments_of(gdpo::InRowOrder{}, x.data(), nullptr, 23);
  expect("equal moments",
         gdpo::degenerate(equal) && bits(equal.mean) == bits(0.1) && bits(equal.m2) == 0);
  for (const std::size_t place : {0u, 9u, 22u}) {
    std::vector<double> y = x;
    y[place] = no;
    const gdpo::Moments m = gdpo::moments_of(gdpo::InRowOrder{}, y.data(), nullptr, 23);
    expect("moments with NaN",
           exact::is_nan(m.mean) && exact::is_nan(m.m2) && !gdpo::degenerate(m));
    expect("merged with NaN",
           exact::is_nan(gdpo::merge(equal, m).mean) && exact::is_nan(gdpo::merge(m, equal).m2));
    std::vector<double> weights(23, 1.0);
    weights[place] = 0;
    const gdpo::Moments without =
        gdpo::moments_of(gdpo::InRowOrder{}, y.data(), weights.data(), 23);
    expect("NaN of weight 0",
           gdpo::degenerate(without) && without.n == 22 && bits(without.m2) == 0);
  }

  // Poison where nothing is read: in a reward of weight 0 and in an unused row.
  const std::vector<double> rewards{1, no, 0, infinite, 0.5, no, no, no};
  const std::vector<unsigned char> valid{1, 1, 1, 0};
  gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 2), gdpo::groups_of(4)};
  batch.valid = gdpo::view(valid);
  gdpo::Grpo e;
  e.weights = {1, 0};
  gdpo::GroupReport report;
  const std::vector<double> a = gdpo::advantages(gdpo::seq, batch, e, &report);
  expect("poison", bits(a[0]) == bits(1) && bits(a[1]) == bits(-1) && bits(a[2]) == 0);
  expect("counters",
         report.excluded_rewards == 0 && report.infinite_rewards == 0 && report.unused_rows == 1);
  expect("report", bits(report.reward_mean) == bits(0.5) && bits(report.reward_std) == bits(0.5));

  e.weights = {};
  batch.valid = {};
  gdpo::advantages(gdpo::seq, batch, e, &report);
  expect("counted",
         report.excluded_rewards == 4 && report.infinite_rewards == 1 && report.excluded_rows == 1);
  return exact::failures == 0 ? 0 : 1;
}
