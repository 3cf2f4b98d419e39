// Clipping, averaging and reward shaping compiled with -ffast-math: NaN and infinities are found
// and kept, and numbers that are no bound are refused.
#include <gdpo/update/clip_grad_norm.hpp>
#include <gdpo/update/polyak.hpp>
#include <gdpo/update/shape_rewards.hpp>

#include "support/exact.hpp"

using exact::bits, exact::expect, exact::refused, exact::same;
using namespace gdpo::update;

namespace {

void gradients(double bad, gdpo::index_t nans, gdpo::index_t infinities) {
  for (const Norm norm : {Norm::Two, Norm::Max}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{17}, std::size_t{4999}}) {
      std::vector<double> x(5000, 2);
      x[place] = bad;
      const std::vector<double> before = x;
      const ClippedGradient c = clip_grad_norm({gdpo::view(x)}, 1, {norm});
      expect("a number that is not finite is counted",
             c.nans == nans && c.infinities == infinities);
      expect("the step is left out", !c.take_step && c.fault_array == 0);
      expect("the norm is not finite", (bits(c.norm) & 0x7ff0000000000000u) == 0x7ff0000000000000u);
      same("the gradient stays", x, before);
      clip_grad_norm({gdpo::view(x)}, 1, {norm, OnNonFinite::Zero});
      same("the gradient is 0", x, std::vector<double>(5000, 0));
    }
  }
}

}  // namespace

int main() {
  const double nan = exact::nan(), infinity = exact::infinity();
  gradients(nan, 1, 0);
  gradients(exact::from_bits(0xfff8000000000001u), 1, 0);
  gradients(infinity, 0, 1);
  gradients(-infinity, 0, 1);

  std::vector<double> x{3, 4};
  const ClippedGradient c = clip_grad_norm({gdpo::view(x)}, 2.5);
  same("a clipped gradient", {x[0], x[1], c.norm, c.scale}, {1.5, 2, 5, 0.5});
  expect("no bound measures", clip_grad_norm({gdpo::view(x)}, infinity).norm == 2.5);
  expect("NaN is no bound", refused([&] { clip_grad_norm({gdpo::view(x)}, nan); }));

  std::vector<double> reference{1, infinity, nan, 4};
  const std::vector<double> policy{3, infinity, 5, nan};
  polyak({gdpo::view(reference)}, {gdpo::view(policy)}, 0.5);
  same("averages", {reference[0], reference[1]}, {2, infinity});
  expect("NaN spreads", exact::is_nan(reference[2]) && exact::is_nan(reference[3]));
  expect("NaN is no weight",
         refused([&] { polyak({gdpo::view(reference)}, {gdpo::view(policy)}, nan); }));

  std::vector<double> rewards{nan, 2, -infinity};
  const std::vector<int> lengths{10, 18, 5};
  const ShapedRewards shaped = shape_rewards(gdpo::view(rewards), gdpo::view(lengths),
                                             shaping::Clip{-1, 1}, shaping::SoftOverlong{20, 4});
  expect("a missing reward stays missing", exact::is_nan(rewards[0]) && shaped.missing == 1);
  same("shaped rewards", {rewards[1], rewards[2]}, {0.5, -1});
  return exact::failures == 0 ? 0 : 1;
}
