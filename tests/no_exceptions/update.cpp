// Compiles gdpo/update.hpp with -fno-exceptions -fno-rtti. Without exceptions Step keeps no error
// until finish(): the handler gets it where it is found.
#include <cstdio>
#include <cstdlib>
#include <gdpo/update.hpp>

#include "support/no_exceptions.hpp"

int main() {
  using namespace gdpo::update;
  const std::vector<int> lengths{3, 1, 2};
  expect("packs", pack(lengths, 4).packs() == 2);
  expect("shards", shard(lengths, 2).rank_of(0) == 0);
  PlanSettings settings;
  settings.mini_batches = 3;
  expect("steps", plan(3, settings).steps() == 3);
  const double rewards[] = {1, 0, 1, 1};
  const gdpo::RewardBatch batch{gdpo::view(rewards, 4, 1), gdpo::groups_of(2)};
  expect("groups", select_groups(batch).groups.size() == 1);

  std::vector<double> logp{-1, -2}, advantages{1, -1};
  const gdpo::index_t offsets[] = {0, 1, 2};
  gdpo::TokenBatch<double> tokens;
  tokens.logp = tokens.old_logp = gdpo::view(logp);
  tokens.advantages = gdpo::view(advantages);
  tokens.offsets = gdpo::view(offsets, 3);
  Step step(1, [&](gdpo::index_t) { return gdpo::count(tokens); });
  step.add(0, [&] { return gdpo::dapo_loss(tokens, step.normalizer()); });
  expect("tokens", step.finish().metrics.completion_length.row_sum == 2);

  std::vector<double> gradient{3, 4};
  expect("norm", clip_grad_norm({gdpo::view(gradient)}, 1).norm == 5);
  polyak({gdpo::view(gradient)}, {gdpo::view(logp)}, 1);
  expect("reference", gradient == logp);
  expect_mistake("gdpo::update::polyak: tau: given 2; needed: a number from 0 to 1");
  polyak({gdpo::view(gradient)}, {gdpo::view(logp)}, 2);
  std::puts("a tau of 2 went unnoticed");
  return EXIT_FAILURE;
}
