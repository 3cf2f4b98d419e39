// Compiles gdpo/dist.hpp with -fno-exceptions -fno-rtti. Without exceptions a rank cannot take back
// a mistake to tell the others of it: the handler gets it where it is found.
#include <cstdio>
#include <cstdlib>
#include <gdpo/dist.hpp>

#include "support/no_exceptions.hpp"

int main() {
  const gdpo::dist::Single comm;
  gdpo::Normalizer n;
  n.tokens = 3;
  expect("counts", gdpo::dist::all_merge(comm, n).tokens == 3);
  expect("work", gdpo::dist::agree(comm, [] { return 4; }) == 4);
  gdpo::dist::agree_on(comm, gdpo::Gdpo{}, gdpo::grpo_loss);

  const double rewards[] = {1, 0};
  const std::vector<int> prompts{7, 7}, keys{5, 5};
  const gdpo::RewardBatch batch{gdpo::view(rewards, 2, 1), gdpo::by_id(prompts)};
  expect("rows", gdpo::dist::gather_rows(comm, batch).rows() == 2);
  expect_mistake(
      "gdpo::dist::gather_rows: keys: given the key 5 for a row of rank 0 and one of rank 0; "
      "needed: a key of its own for every row of all ranks");
  gdpo::dist::gather_rows(comm, batch, gdpo::view(keys));
  std::puts("two rows of one key went unnoticed");
  return EXIT_FAILURE;
}
