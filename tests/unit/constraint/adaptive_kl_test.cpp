// labels: sanitizers
// The adaptive KL coefficient of Ziegler et al. 2019, section 2.2, as verl and OpenRLHF implement
// it.
#include <gdpo/constraint/adaptive_kl.hpp>
#include <support/catch.hpp>
#include <support/generators.hpp>
#include <support/message.hpp>
#include <support/tolerance.hpp>

namespace adaptive_kl_test {

using gdpo::AdaptiveKl;

TEST_CASE("the coefficient grows and falls with the KL, by hand") {
  AdaptiveKl controller;
  controller.target = 0.5, controller.horizon = 1024;
  CHECK(controller(0.25, 0.5, 256) == 0.25);                          // on the target
  CHECK(controller(0.25, 0.5625, 256) == 0.25 * (1 + 0.125 * 0.25));  // within the clip
  CHECK(controller(0.25, 0.4375, 256) == 0.25 * (1 - 0.125 * 0.25));
  CHECK(controller(0.25, 5, 256) == 0.25 * (1 + 0.2 * 256 / 1024));  // clipped to 0.2
  CHECK(controller(0.25, 0, 256) == 0.25 * (1 - 0.2 * 256 / 1024));
  CHECK(controller(0.25, -3, 256) == 0.25 * (1 - 0.2 * 256 / 1024));  // a KL by k1 may be negative
  CHECK(controller(0.25, 5, 0) == 0.25);                              // no samples, no step
  CHECK(controller(0, 5, 256) == 0);
  CHECK(controller(0.25, 0, 5 * 1024) == 0);  // -0.2 times 5 horizons: the longest step down
  controller.min_error = -0.5, controller.max_error = 1;
  CHECK(controller(0.25, 5, 256) == 0.25 * 1.25);
  CHECK(controller(0.25, 0, 256) == 0.25 * 0.875);
}

TEST_CASE("the published formula, bit for bit") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    AdaptiveKl controller;
    controller.target = 0.01 + random.uniform();
    controller.horizon = 100 + 1e4 * random.uniform();
    double ours = random.uniform(), published = ours;
    for (int t = 0; t < 500; ++t) {
      const double kl = 2 * controller.target * random.uniform(), n = 1 + random.below(512);
      ours = controller(ours, kl, n);
      const double error = std::min(std::max(kl / controller.target - 1, -0.2), 0.2);
      const volatile double scaled = error * n;  // no fused multiply-add
      published *= 1 + scaled / controller.horizon;
      REQUIRE(same_bits(ours, published));
    }
  }
}

TEST_CASE("a closed loop brings the KL to its target") {
  // The KL of this simulated policy is 0.02 / coefficient.
  AdaptiveKl controller;
  double coef = 0.02;
  for (int t = 0; t < 2000; ++t) coef = controller(coef, 0.02 / coef, 256);
  CHECK(std::abs(0.02 / coef - controller.target) < 1e-3 * controller.target);
}

TEST_CASE("a KL that is not finite leaves the coefficient") {
  const AdaptiveKl controller;
  for (const double bad : {std::nan(""), gdpo::math::infinity, -gdpo::math::infinity}) {
    CHECK(same_bits(controller(0.3, bad, 256), 0.3));
  }
  CHECK(std::isfinite(controller(0.3, 1e308, 256)));
  CHECK(controller(0.3, 1e308, 256) == controller(0.3, 1, 256));
}

TEST_CASE("mistakes with the adaptive KL coefficient are named") {
  const auto said = [](auto change, double coef = 0.1, double steps = 1) {
    AdaptiveKl controller;
    change(controller);
    return message_of([&] { controller(coef, 0.1, steps); });
  };
  const auto nothing = [](AdaptiveKl&) {};
  const double no = std::nan(""), infinite = gdpo::math::infinity;
  const std::string coefficient = "gdpo::AdaptiveKl: coef: given ";
  const std::string needed_of_it = "; needed: a finite number of at least 0";
  CHECK(said(nothing) == "no error");
  CHECK(said(nothing, no) == coefficient + "nan" + needed_of_it);
  CHECK(said(nothing, infinite) == coefficient + "inf" + needed_of_it);
  CHECK(said(nothing, -0.5) == coefficient + "-0.5" + needed_of_it);
  for (const double bad : {-1.0, 50000.5, no, infinite}) {
    CHECK(said(nothing, 0.1, bad) ==
          "gdpo::AdaptiveKl: steps: given " + std::string(gdpo::contract::text(bad)) +
              "; needed: from 0 to horizon / -min_error, beyond which the coefficient would "
              "turn negative");
  }
  CHECK(said(nothing, 0.1, 50000) == "no error");
  CHECK(said([](AdaptiveKl& c) { c.min_error = 0; }, 0.1, 1e300) == "no error");
  for (const double bad : {0.0, -1.0, no, infinite}) {
    const std::string given =
        ": given " + gdpo::contract::text(bad) + "; needed: a finite number that is more than 0";
    CHECK(said([&](AdaptiveKl& c) { c.target = bad; }) == "gdpo::AdaptiveKl: target" + given);
    CHECK(said([&](AdaptiveKl& c) { c.horizon = bad; }) == "gdpo::AdaptiveKl: horizon" + given);
  }
  const std::string bounds = "gdpo::AdaptiveKl: min_error, max_error: given ",
                    order = "; needed: the lower before the upper";
  CHECK(said([](AdaptiveKl& c) { c.min_error = 1; }) ==
        bounds + "1 and 0.20000000000000001" + order);
  for (const double bad : {no, infinite}) {
    CHECK(said([&](AdaptiveKl& c) { c.max_error = bad; }) ==
          "gdpo::AdaptiveKl: max_error: given " + std::string(gdpo::contract::text(bad)) +
              "; needed: a finite number");
  }
  CHECK(said([&](AdaptiveKl& c) { c.min_error = -infinite; }) ==
        "gdpo::AdaptiveKl: min_error: given -inf; needed: a finite number");
}

}  // namespace adaptive_kl_test
