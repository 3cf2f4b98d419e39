// The smallest program that uses the library, and the first to read: GDPO advantages of eight
// completions, four for each of two prompts, from two rewards per completion.
//
// Build and run, from the root of the repository (Eigen may be in another folder on your system):
//   g++ -std=c++17 -I include -I /usr/include/eigen3 examples/quickstart.cpp -o quickstart
//   ./quickstart
#include <gdpo/gdpo.hpp>
#include <iostream>

int main() {
  // One row per completion, one column per reward. Rows 0 to 3 answer the first prompt, rows 4 to 7
  // the second.
  Eigen::ArrayXXf rewards(8, 2);
  rewards << 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1;
  // Without a third argument the estimator is GDPO with the paper's defaults.
  const Eigen::ArrayXf advantages = gdpo::advantages(rewards, gdpo::groups_of(4));
  std::cout << advantages.transpose() << "\n";
}
