// A consumer of the headers that need no Eigen: all front doors but gdpo/gdpo.hpp. It computes GDPO
// of two prompts, as main.cpp does.
#include <cmath>
#include <gdpo/advantages.hpp>
#include <gdpo/constraint.hpp>
#include <gdpo/diagnose.hpp>
#include <gdpo/dist.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/mismatch.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/update.hpp>
#include <gdpo/value.hpp>

#if defined(EIGEN_WORLD_VERSION)
#error "a front door includes Eigen"
#endif

int main() {
  const double rewards[] = {1, 0, 0, 0, 1, 1, 0, 1};
  const auto a = gdpo::advantages(gdpo::view(rewards, 4, 2), gdpo::groups_of(2));
  const double expected[] = {std::sqrt(0.75), -std::sqrt(0.75), std::sqrt(0.75), -std::sqrt(0.75)};
  for (int i = 0; i < 4; ++i) {
    if (!(std::abs(a[static_cast<std::size_t>(i)] - expected[i]) < 1e-12)) return 1;
  }
  return 0;
}
