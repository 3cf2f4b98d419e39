// Compiles gdpo/gdpo.hpp with -fno-exceptions -fno-rtti, and checks that advantages of views and of
// Eigen arrays come out right. The last call is a mistake. It must reach the failure handler that
// this program sets, because a mistake cannot be thrown here. The handler ends the program with
// success, so what follows that call runs only if the mistake went unnoticed.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <gdpo/gdpo.hpp>

#include "support/no_exceptions.hpp"

namespace {

bool near_to(double a, double b) { return std::abs(a - b) < 1e-12; }

}  // namespace

int main() {
  const double rewards[] = {1, 0, 0, 0, 1, 1, 0, 1};
  const std::vector<int> ids{7, 7, 3, 3};
  const double expected = std::sqrt(0.75);

  const std::vector<double> of_view = gdpo::advantages(gdpo::view(rewards, 4, 2), gdpo::by_id(ids));
  const Eigen::Map<const Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> map(
      rewards, 4, 2);
  const Eigen::ArrayXd of_eigen = gdpo::advantages(map, gdpo::groups_of(2));
  for (int i = 0; i < 4; ++i) {
    const double sign = i % 2 ? -1 : 1;
    expect("advantages of a view", near_to(of_view[static_cast<std::size_t>(i)], sign * expected));
    expect("advantages of Eigen", near_to(of_eigen[i], sign * expected));
  }

  expect_mistake(
      "gdpo::advantages: groups: given 4 rows, which leaves a last group (number 1) of 1; needed: "
      "a multiple of 3 rows, as groups_of(3) says");
  gdpo::advantages(gdpo::view(rewards, 4, 2), gdpo::groups_of(3));
  std::puts("4 rows in groups of 3 went unnoticed");
  return EXIT_FAILURE;
}
