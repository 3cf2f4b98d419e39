#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace resolution {

/// A table of the GDPO paper's counting experiment (arXiv:2601.05242, Figure 3): how many different
/// outcomes can a group have?
///
/// There are n binary rewards and G rollouts in a group. The count is that of the distinct
/// multisets {A_1 .. A_G} of advantages (the order of the rollouts does not matter) over all
/// 2^(n*G) assignments of rewards; the multiset of zeros counts once. Advantages are taken before
/// the batch step, which would multiply all advantages of a batch by one number. Assignments that
/// differ only in the order of the rollouts are enumerated once.
struct CountTable {
  struct Series {
    std::string estimator;
    std::vector<std::size_t> counts;  ///< one per entry of `sizes`
  };
  std::vector<std::size_t> sizes;             ///< values of what varies, G or n
  std::vector<std::size_t> reward_multisets;  ///< multisets of reward vectors that were enumerated
  std::vector<Series> series;
};

/// Both tables of the experiment.
struct Counting {
  std::size_t rewards = 2;     ///< n in by_group_size
  std::size_t group_size = 4;  ///< G in by_rewards
  CountTable by_group_size;    ///< G = 2 .. 16
  CountTable by_rewards;       ///< n = 2 .. 6
};

/// The counts for one pair (n, G).
struct Count {
  std::size_t reward_multisets = 0;   ///< multisets of reward vectors that were enumerated
  std::vector<std::size_t> distinct;  ///< distinct multisets of advantages, one per estimator
};
Count count_multisets(std::size_t rewards, std::size_t group_size,
                      const std::vector<std::string>& estimators);

/// Both tables of the paper.
Counting count_all(const std::vector<std::string>& estimators);

/// The answer of the experiment in words: the last counts of both tables, largest first.
std::string count_answer(const Counting& counting);

/// Why the counts matter, and what exactly is counted, as the reports print it.
extern const char* const count_meaning;
extern const char* const count_definition;

}  // namespace resolution
