#pragma once

#include <string>
#include <vector>

#include "policy.hpp"

namespace corrections {

/// The engine that samples. It has one or more states, and each token is drawn in one of them: a
/// kernel's rounding differs from token to token.
struct Engine {
  struct State {
    double share;    ///< how often a token is drawn in this state
    Table sampled;   ///< the probabilities that tokens are drawn from
    Table reported;  ///< the probabilities whose logarithms are reported
  };
  std::vector<State> states;

  /// What a token is drawn with, over all states.
  Table mean() const;
  /// The same times policy / reported: the kernel of sequences that are weighed by the product of
  /// all ratios.
  Table weighed(const Table& policy) const;
};

/// A kind of disagreement between the engine and the policy that is trained.
struct Sampler {
  std::string name, description;
  std::size_t length;       ///< tokens of a sequence
  double noise = 0;         ///< standard deviation of the logits' error, after rounding to bfloat16
  std::size_t errors = 64;  ///< how many different errors a token's context can have
  double flips = 0;         ///< share of the tokens whose logits are quite different
  double flip_noise = 0;    ///< standard deviation of that difference
  double stale = 0;         ///< norm of each of four updates that the engine has not seen
  double top_p = 1;         ///< the engine samples from the smallest set with this probability
  bool reports_all = false;  ///< it reports log-probs over all tokens, not over that set
};

/// All samplers, in the order of the page.
const std::vector<Sampler>& all_samplers();

/// The engine of a sampler beside the policy of the task.
Engine make_engine(const Sampler& sampler, const Task& task, Random random);

}  // namespace corrections
