// labels: none
// math::log1p against the logarithm in long double, from the smallest numbers to the largest.
#include <gdpo/math/log1p.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"

namespace log1p_test {

TEST_CASE("log1p is accurate relative to its size, also near 0", "[math]") {
  const std::uint64_t seed = 20260101;
  INFO("seed " << seed);
  Random random(seed);
  // Two divisions, a polynomial and two sums, each rounded: at most 4 units of 2^-53, and one more
  // where 1 + y is rounded.
  const long double tolerance = 5 * 0x1p-53L;
  long double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double u = random.uniform();
    const double y = i % 3 == 0   ? 0.999999 * (2 * u - 1)
                     : i % 3 == 1 ? std::ldexp(u - 0.5, -random.below(300))
                                  : std::ldexp(u, random.below(990));
    const long double exact = log1pl(static_cast<long double>(y));
    const long double off = exact == 0 ? std::fabs(static_cast<long double>(gdpo::math::log1p(y)))
                                       : std::fabs((gdpo::math::log1p(y) - exact) / exact);
    worst = off > worst ? off : worst;
  }
  CHECK(worst <= tolerance);
  CHECK(gdpo::math::log1p(0.0) == 0);
  CHECK(gdpo::math::log1p(1e-307) == 1e-307);
  CHECK(gdpo::math::is_nan(gdpo::math::log1p(gdpo::math::nan())));
}

}  // namespace log1p_test
