// Advantages of eight completions, four per prompt, from two rewards.
#include <gdpo/gdpo.hpp>
#include <iostream>

int main() {
  Eigen::ArrayXXf rewards(8, 2);  // (completions, rewards): correct, well formatted
  rewards << 1, 1, 1, 0, 0, 1, 0, 0, /* prompt 2 */ 1, 0, 1, 1, 1, 1, 1, 1;

  const auto groups = gdpo::groups_of(4);
  const Eigen::ArrayXf gdpo_advantages = gdpo::advantages(rewards, groups);              // the paper's defaults
  const Eigen::ArrayXf grpo_advantages = gdpo::advantages<gdpo::Grpo>(rewards, groups);  // the sum, standardised

  std::cout << "GDPO " << gdpo_advantages.transpose() << "\nGRPO " << grpo_advantages.transpose() << "\n";
}
