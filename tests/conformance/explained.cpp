// Cases of kind advantage that record what an estimator computes on the way: compared with the
// numbers of gdpo::explain.
#include <cstdint>
#include <gdpo/advantage/explain.hpp>

#include "advantage.hpp"
#include "as_is.hpp"

namespace conformance {
namespace {

// The baseline and the std of every row, by a preset whose advantages are (x - baseline) / std.
template <class Estimator>
void baseline_and_std(const Case& recorded, const Estimator& estimator, Comparison& comparison) {
  only(recorded.inputs, {"rewards", "group_ids", "valid"});
  const Array rewards = array_of(recorded.inputs.at("rewards"));
  std::vector<std::int64_t> ids;
  for (const long long id : integers_of(recorded.inputs.at("group_ids"))) ids.push_back(id);
  gdpo::RewardBatch batch{gdpo::view(rewards.data), gdpo::by_id(ids)};
  std::vector<double> valid(rewards.data.size(), 1.0);
  if (recorded.inputs.contains("valid")) valid = array_of(recorded.inputs.at("valid")).data;
  batch.valid = gdpo::view(valid);

  const std::vector<double> advantages = gdpo::advantages(gdpo::simd, batch, estimator);
  Array baseline{rewards.shape, std::vector<double>(valid.size())}, std = baseline;
  std::vector<unsigned char> compared(valid.size(), 1);
  const auto groups = batch.groups.count(static_cast<gdpo::index_t>(valid.size()));
  for (gdpo::index_t g = 0; g < groups; ++g) {
    const gdpo::Explanation explained = gdpo::explain(batch, estimator, g);
    for (std::size_t k = 0; k < explained.rows.size(); ++k) {
      const auto row = static_cast<std::size_t>(explained.rows[k]);
      baseline.data[row] = explained.columns[0].baseline[k];
      std.data[row] = explained.columns[0].spread[k];
      // Under leave-one-out the trainer takes a row out of the sums that is not in them: an unused
      // row is compared with the sum of the used ones over their number - 1, and the rest of the
      // sum of squares may be negative. Here it is compared with the moments of the used rows.
      if (recorded.params.at("leave_one_out_baseline") == true) compared[row] = explained.used[k];
      comparison.law(explained.advantage[k] == advantages[row],
                     "explain gives other advantages than the call");
    }
  }
  comparison.output("baseline", baseline, compared);
  comparison.output("std", std, compared);
}

void nemo_rl_baseline(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const bool others = params.flag("leave_one_out_baseline");
  params.all_read();
  if (others) {
    baseline_and_std(recorded, gdpo::nemo_rl::grpo, comparison);
  } else {
    baseline_and_std(recorded, gdpo::nemo_rl::grpo_group_mean, comparison);
  }
}

}  // namespace

void add_explained(Registry& registry) {
  registry.add("nemo_rl", "advantage", "calculate_baseline_and_std_per_prompt", nemo_rl_baseline);
}

}  // namespace conformance
