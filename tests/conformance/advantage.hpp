// Cases of kind advantage: rewards of completions in, an advantage per completion (or per valid
// token) out.
#pragma once

#include <functional>
#include <gdpo/runtime.hpp>
#include <string>
#include <vector>

#include "comparison.hpp"
#include "params.hpp"
#include "registry.hpp"

namespace conformance {

// A recorded function in the library's terms.
struct Setup {
  gdpo::runtime::Estimator estimator;
  // The recorded number of completions in every group; 0: groups of any size.
  gdpo::index_t group_size = 0;
  // What shapes the rewards first.
  std::vector<gdpo::runtime::Shaping> shaping{};

  // Groups with a std up to this leave the batch, and their rows get 0; below 0: none does.
  double min_std = -1;

  // The metrics are those of the rewards before the bounds and the penalty of the estimator.
  bool reports_given_rewards = false;

  // Compares the report with the metrics of the record, under the trainer's names for them.
  std::function<void(const gdpo::GroupReport&, Comparison&)> metrics = [](const auto&, auto&) {};
};

// The advantages of a batch, computed on the target of the case.
std::vector<double> row_advantages(const Case& recorded,
                                   const gdpo::RewardBatch<double, gdpo::ById>& batch,
                                   const gdpo::runtime::Estimator& estimator);

// Set members of an estimator from a record. A member that the estimator's type does not have is
// left out, because trainers record eps and ddof also where they do not divide by a std.
void set_scale(gdpo::runtime::Estimator& estimator, double eps, int ddof);
void set_renorm(gdpo::runtime::Estimator& estimator, double eps, int ddof);
void set_count_eps(gdpo::runtime::Estimator& estimator, double count_eps);
void set_weights(gdpo::runtime::Estimator& estimator, const std::vector<double>& weights);
void set_penalty(gdpo::runtime::Estimator& estimator, double coef);

// A handler for a function whose cases hold `rewards` (N, or N by rewards) and `group_ids`, and
// optionally a `response_mask` (N by tokens), `kl_values` (N) or `old_logp` and `ref_logp` (N by
// tokens), and the counts that rewards are shaped by: `num_output_tokens`, `num_total_tokens` and
// `num_turns` (N). Where they hold `values` (N by tokens) in place of rewards, each token is a row
// of the group of its row. The mapping must read every parameter.
Handler rows(std::function<Setup(Params&, const Case&)> mapping);

// A handler for a function whose cases hold `rewards` (N) and `agent_ids` (N), and whose baselines
// are averages of the agents' rewards so far.
Handler moving_baselines();

}  // namespace conformance
