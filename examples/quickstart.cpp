// The ten lines of the README: advantages of eight completions, four per prompt, from two rewards.
#include <gdpo/gdpo.hpp>
#include <iostream>

int main() {
  Eigen::ArrayXXf rewards(8, 2);  // (completions, rewards), four completions per prompt
  rewards << 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1;
  const Eigen::ArrayXf advantages =
      gdpo::advantages(rewards, gdpo::groups_of(4));  // GDPO, the paper's defaults
  std::cout << advantages.transpose() << "\n";
}
