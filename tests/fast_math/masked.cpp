// Masked reductions, compiled with -ffast-math: masks select and never multiply, NaN that counts
// shows, and equal values are whitened to exactly 0. Expected values are exact and compared by
// their bits.
#include <gdpo/advantages.hpp>
#include <gdpo/value.hpp>

#include "support/exact.hpp"

using exact::bits, exact::expect, exact::same;

int main() {
  const double no = exact::nan(), infinite = exact::infinity();
  std::vector<double> x{1, no, 3, infinite, no, 8, 1e308, -infinite};
  const std::vector<double> mask{1, 0, 1, 0, 0, 1, 0, 0};
  const auto values = gdpo::view(x.data(), 2, 4);
  const auto counted = gdpo::view(mask.data(), 2, 4);
  expect("mean", bits(gdpo::masked_mean(values, counted)) == bits(4));
  same("row means", gdpo::masked_row_means(values, counted), {2, 8});
  const gdpo::Moments m = gdpo::masked_moments(values, counted);
  expect("moments",
         m.n == 3 && bits(m.mean) == bits(4) && bits(m.m2) == bits(26) && bits(m.max) == bits(8));

  std::vector<double> out(8, 42.0);
  const auto target = gdpo::view(out.data(), 2, 4);
  gdpo::whiten_into(values, counted, gdpo::renorm::token_weighted_batch(1, 0, gdpo::EpsAt::None),
                    target);
  same("whitened", out, {-3, 0, -1, 0, 0, 4, 0, 0});
  gdpo::token_advantages_into(gdpo::view(x.data(), 2), counted, values, values,
                              gdpo::penalty::Token<>{0}, target);
  expect("a NaN advantage shows where tokens count and only there",
         bits(out[1]) == 0 && exact::is_nan(out[5]));

  x[2] = no;
  expect("mean of NaN", exact::is_nan(gdpo::masked_mean(values, counted)));
  expect("moments of NaN", exact::is_nan(gdpo::masked_moments(values, counted).m2));
  gdpo::whiten_into(values, counted, gdpo::renorm::token_weighted_batch(), target);
  for (std::size_t i = 0; i < 8; ++i) {
    expect("whitened NaN", mask[i] > 0 ? exact::is_nan(out[i]) : bits(out[i]) == 0);
  }

  std::vector<double> equal(8, 0.1);
  equal[1] = no;
  gdpo::whiten_into(gdpo::view(equal.data(), 2, 4), counted, gdpo::renorm::token_weighted_batch(),
                    target);
  same("equal values", out, std::vector<double>(8, 0.0));
  return exact::failures == 0 ? 0 : 1;
}
