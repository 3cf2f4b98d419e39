#pragma once
#include <gdpo/advantage/reward_batch.hpp>
#include <gdpo/group/by_id.hpp>

#include "random.hpp"

/// The rows of all ranks in the order of (group, key), and which of them each rank has, in the
/// sampler's order. It has drawn the prompts at random, and the completions of each prompt are on
/// different ranks.
struct SpreadRows {
  static constexpr std::size_t of_each_rank = 64, reward_count = 4, group = 8;
  std::vector<float> rewards;
  std::vector<std::int64_t> prompts, keys;
  std::vector<std::vector<std::size_t>> of_rank;

  SpreadRows(std::size_t ranks, std::uint64_t seed) : of_rank(ranks) {
    UnitRandom random(seed);
    const std::size_t groups = ranks * of_each_rank / group;
    const auto drawn = random.permutation(groups), place = random.permutation(groups);
    std::vector<std::size_t> prompt_at(groups);
    for (std::size_t g = 0; g < groups; ++g) prompt_at[drawn[g]] = g;
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t k = 0; k < group; ++k) {
        prompts.push_back(static_cast<std::int64_t>(3 * g));
        keys.push_back(static_cast<std::int64_t>(drawn[g] * group + k));
        // Two rewards are 0 or 1 and two are real numbers.
        for (std::size_t c = 0; c < reward_count; ++c) {
          const double x = random();
          rewards.push_back(static_cast<float>(c < 2 ? (x < 0.5 ? 0 : 1) : x));
        }
      }
    }
    for (std::size_t at = 0; at < groups; ++at) {
      for (std::size_t k = 0; k < group; ++k)
        of_rank[(place[at] + k * (ranks / group)) % ranks].push_back(prompt_at[at] * group + k);
    }
  }
};

/// The rows of one rank, in memory of their own.
struct OwnRows {
  std::vector<float> rewards;
  std::vector<std::int64_t> prompts, keys;
  OwnRows(const SpreadRows& all, std::size_t rank) {
    for (const std::size_t i : all.of_rank[rank]) {
      prompts.push_back(all.prompts[i]), keys.push_back(all.keys[i]);
      const float* row = all.rewards.data() + i * SpreadRows::reward_count;
      rewards.insert(rewards.end(), row, row + SpreadRows::reward_count);
    }
  }
};

inline gdpo::RewardBatch<float, gdpo::ById> batch_of(const std::vector<float>& rewards,
                                                     const std::vector<std::int64_t>& prompts) {
  return {gdpo::view(rewards.data(), static_cast<gdpo::index_t>(prompts.size()),
                     static_cast<gdpo::index_t>(SpreadRows::reward_count)),
          gdpo::by_id(prompts)};
}
