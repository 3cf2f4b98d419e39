// A consumer of the library: GDPO of two prompts with two completions and two rewards each. The
// second reward is constant inside each prompt and adds nothing. The first becomes +-sqrt(1/2) in
// its group (sample std). The std of these over the batch of four is sqrt(2/3), and the quotient is
// sqrt(0.75).
#include <cmath>
#include <gdpo/gdpo.hpp>

int main() {
  const double rewards[] = {1, 0, 0, 0, 1, 1, 0, 1};
  const auto a = gdpo::advantages(gdpo::view(rewards, 4, 2), gdpo::groups_of(2));
  const double expected[] = {std::sqrt(0.75), -std::sqrt(0.75), std::sqrt(0.75), -std::sqrt(0.75)};
  for (int i = 0; i < 4; ++i) {
    if (!(std::abs(a[static_cast<std::size_t>(i)] - expected[i]) < 1e-12)) return 1;
  }
  return 0;
}
