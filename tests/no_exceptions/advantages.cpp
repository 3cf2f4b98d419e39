// Compiled with -fno-exceptions -fno-rtti: every front door works, and a mistake reaches the handler that the user set.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <gdpo/gdpo.hpp>

namespace {

// Reached by the mistake below: the message must name it, and only then does the test pass.
void report_mistake(const char* message) { std::exit(std::strstr(message, "groups_of") ? EXIT_SUCCESS : EXIT_FAILURE); }

bool near_to(double a, double b) { return std::abs(a - b) < 1e-12; }

}  // namespace

int main() {
  const double rewards[] = {1, 0, 0, 0, 1, 1, 0, 1};
  const std::vector<int> ids{7, 7, 3, 3};
  const double expected = std::sqrt(0.75);

  const std::vector<double> of_view = gdpo::advantages(gdpo::view(rewards, 4, 2), gdpo::by_id(ids));
  const Eigen::Map<const Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> map(rewards, 4, 2);
  const Eigen::ArrayXd of_eigen = gdpo::advantages(map, gdpo::groups_of(2));
  for (int i = 0; i < 4; ++i) {
    const double sign = i % 2 ? -1 : 1;
    if (!near_to(of_view[static_cast<std::size_t>(i)], sign * expected) || !near_to(of_eigen[i], sign * expected)) {
      std::puts("wrong advantages");
      return EXIT_FAILURE;
    }
  }

  gdpo::on_failure = report_mistake;
  gdpo::advantages(gdpo::view(rewards, 4, 2), gdpo::groups_of(3));
  std::puts("4 rows in groups of 3 went unnoticed");
  return EXIT_FAILURE;
}
