// labels: lanes, sanitizers
// exp_parts gives e^x, e^x - 1 and e^x - 1 - x: accuracy over the whole range, saturation and
// special values. The reference is expm1 in long double, and for e^x - 1 - x the series of the
// oracle.
#include <gdpo/lanes/exp_parts.hpp>
#include <reference/naive_loss.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"

namespace exp_parts_test {

namespace {

using naive_loss::real;

struct Worst {
  real exp = 0, expm1 = 0, k3 = 0;  // relative errors
};
template <class S>
void measure(Worst& worst, S x) {
  const auto got = gdpo::math::exp_parts(x);
  const real exact = static_cast<real>(x);
  const auto error = [](S value, real expected) {
    return std::fabs((static_cast<real>(value) - expected) / expected);
  };
  worst.exp = std::fmax(worst.exp, error(got.exp, std::exp(exact)));
  if (x == 0) return;
  worst.expm1 = std::fmax(worst.expm1, error(got.expm1, std::expm1(exact)));
  worst.k3 = std::fmax(worst.k3, error(got.k3, naive_loss::exp_less_line(exact)));
}

}  // namespace

TEST_CASE("float: exp and expm1 to 2 units in the last place, k3 to 1e-6 for 1e-6 <= |x| <= 20",
          "[exp_parts]") {
  // 2 ulp are a relative error of at most 2 x 2^-23. For k3 the library documents 4e-7 up to |x| =
  // 80, which is less than the 1e-6 of the test's name.
  Random random(1);
  Worst small, large;
  for (int k = 0; k < 400000; ++k) {
    const double size = std::exp(std::log(1e-6) + random.uniform() * std::log(20 / 1e-6));
    measure(small, static_cast<float>(random.chance(0.5) ? size : -size));
    measure(large, static_cast<float>(160 * random.uniform() - 80));
  }
  for (int n = -110; n <= 110; ++n) {  // where the range reduction goes from one n to the next
    float x = static_cast<float>((n + 0.5) * 0.6931471805599453);
    for (int k = 0; k < 20; ++k) x = std::nextafter(x, -100.0f);
    for (int k = 0; k < 40; ++k, x = std::nextafter(x, 100.0f)) {
      if (std::fabs(x) <= 80) measure(large, x);
    }
  }
  for (const Worst* worst : {&small, &large}) {
    CHECK(static_cast<double>(worst->exp) <= 0x1p-22);
    CHECK(static_cast<double>(worst->expm1) <= 0x1p-22);
    CHECK(static_cast<double>(worst->k3) <= 4e-7);
  }
}

TEST_CASE("double: exp and expm1 to 2 units in the last place, k3 to 6", "[exp_parts]") {
  // An ulp is at most 2^-52 of the number. long double has 11 bits more, so the error of the
  // reference does not count.
  Random random(2);
  Worst worst;
  for (int k = 0; k < 400000; ++k) {
    const double size = std::exp(std::log(1e-9) + random.uniform() * std::log(700 / 1e-9));
    measure(worst, random.chance(0.5) ? size : -size);
  }
  for (int n = -1009; n <= 1009; ++n) {  // where the range reduction goes from one n to the next
    double x = (n + 0.5) * 0.6931471805599453;
    for (int k = 0; k < 20; ++k) x = std::nextafter(x, -1000.0);
    for (int k = 0; k < 40; ++k, x = std::nextafter(x, 1000.0)) measure(worst, x);
  }
  CHECK(static_cast<double>(worst.exp) <= 0x1p-51);
  CHECK(static_cast<double>(worst.expm1) <= 0x1p-51);
  CHECK(static_cast<double>(worst.k3) <= 6 * 0x1p-52);
}

TEMPLATE_TEST_CASE("0, signs and the smallest numbers", "[exp_parts]", float, double) {
  const auto zero = gdpo::math::exp_parts(TestType(0));
  CHECK(zero.exp == 1);
  CHECK(zero.expm1 == 0);
  CHECK(zero.k3 == 0);
  for (const TestType x : {std::numeric_limits<TestType>::denorm_min(),
                           std::numeric_limits<TestType>::min(), TestType(1e-30)}) {
    for (const TestType signed_x : {x, -x}) {
      const auto e = gdpo::math::exp_parts(signed_x);
      CHECK(e.exp == 1);
      CHECK(e.expm1 == signed_x);
      CHECK(e.k3 >= 0);
      CHECK(e.k3 <= signed_x * signed_x);
    }
  }
}

TEMPLATE_TEST_CASE(
    "every finite number gives finite, non-negative estimates; the exponential saturates",
    "[exp_parts]", float, double) {
  using S = TestType;
  const S limit = static_cast<S>(gdpo::math::exp_limit<S>);
  const auto top = gdpo::math::exp_parts(limit), bottom = gdpo::math::exp_parts(-limit);
  Random random(3);
  int seen = 0;
  for (int k = 0; k < 200000; ++k) {
    S x;
    if constexpr (sizeof(S) == 4) {
      const auto bits = static_cast<std::uint32_t>(random.bits() >> 32);
      std::memcpy(&x, &bits, sizeof x);
    } else {
      const std::uint64_t bits = random.bits();
      std::memcpy(&x, &bits, sizeof x);
    }
    if (!std::isfinite(x)) continue;
    ++seen;
    const auto e = gdpo::math::exp_parts(x);
    if (!std::isfinite(e.exp) || !std::isfinite(e.expm1) || !std::isfinite(e.k3) || e.k3 < 0 ||
        e.exp <= 0)
      CHECK(x == 0);
    if (x >= limit && (e.exp != top.exp || e.k3 != top.k3)) CHECK(x == limit);
    if (x <= -limit && e.exp != bottom.exp) CHECK(x == -limit);
    if (x <= -2 * limit && std::fabs(e.k3 / (-1 - x) - 1) > 4 * std::numeric_limits<S>::epsilon())
      CHECK(e.k3 == -1 - x);
  }
  CHECK(seen > 150000);
  for (const S x : {std::numeric_limits<S>::max(), std::numeric_limits<S>::lowest()})
    CHECK(std::isfinite(gdpo::math::exp_parts(x).k3));
}

TEMPLATE_TEST_CASE("NaN stays, infinities saturate", "[exp_parts]", float, double) {
  using S = TestType;
  const S infinite = std::numeric_limits<S>::infinity();
  const auto nan = gdpo::math::exp_parts(std::numeric_limits<S>::quiet_NaN());
  CHECK((std::isnan(nan.exp) && std::isnan(nan.expm1) && std::isnan(nan.k3)));
  const auto up = gdpo::math::exp_parts(infinite), down = gdpo::math::exp_parts(-infinite);
  CHECK(up.exp == gdpo::math::exp_parts(static_cast<S>(gdpo::math::exp_limit<S>)).exp);
  CHECK(std::isfinite(up.k3));
  CHECK(down.exp > 0);
  CHECK(down.exp < S(1e-30));
  CHECK(down.k3 == infinite);
}

TEMPLATE_TEST_CASE("exp_or_zero: the bits of exp_parts within its limits, and 0 far below",
                   "[exp_parts]", float, double) {
  using S = TestType;
  const double limit = gdpo::math::exp_limit<S>;
  for (int k = -1000; k <= 1000; ++k) {
    const S x = static_cast<S>(limit * k / 1000);
    CHECK(gdpo::math::exp_or_zero(x) == gdpo::math::exp_parts(x).exp);
  }
  const S infinite = std::numeric_limits<S>::infinity();
  for (const S x : {static_cast<S>(-10 * limit), std::numeric_limits<S>::lowest(), -infinite})
    CHECK(gdpo::math::exp_or_zero(x) == 0);
  for (const S x : {static_cast<S>(10 * limit), infinite})
    CHECK(gdpo::math::exp_or_zero(x) == gdpo::math::exp_parts(static_cast<S>(limit)).exp);
  CHECK(std::isnan(gdpo::math::exp_or_zero(std::numeric_limits<S>::quiet_NaN())));
}

}  // namespace exp_parts_test
