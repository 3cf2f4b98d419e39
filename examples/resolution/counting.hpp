#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace resolution {

/// The GDPO paper's counting experiment (arXiv:2601.05242, Figure 3): how many different outcomes can a group have?
///
/// n binary rewards, G rollouts. Counted are the distinct multisets {A_1 .. A_G} of advantages (the order of the
/// rollouts does not matter) over all 2^(n G) assignments of rewards, the all-zero multiset once, with eps = 0 and
/// before the batch step, which multiplies all advantages of a batch by one number. Assignments that differ in the
/// order of the rollouts only are enumerated once.
struct CountTable {
  struct Series {
    std::string estimator;
    std::vector<std::size_t> counts;  ///< one per entry of `sizes`
  };
  std::vector<std::size_t> sizes;             ///< what varies: G or n
  std::vector<std::size_t> reward_multisets;  ///< multisets of reward vectors that were enumerated
  std::vector<Series> series;
};

struct Counting {
  std::size_t rewards = 2;     ///< n of by_group_size
  std::size_t group_size = 4;  ///< G of by_rewards
  CountTable by_group_size;    ///< G = 2 .. 16
  CountTable by_rewards;       ///< n = 2 .. 6
};

/// The definition in words, as the reports print it.
extern const char* const count_definition;

/// Distinct multisets of advantages for one (n, G), per estimator.
struct Count {
  std::size_t reward_multisets = 0;
  std::vector<std::size_t> distinct;  ///< per estimator
};
Count count_multisets(std::size_t rewards, std::size_t group_size,
                      const std::vector<std::string>& estimators);

/// Both tables of the paper.
Counting count_all(const std::vector<std::string>& estimators);

}  // namespace resolution
