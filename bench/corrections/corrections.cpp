#include "corrections.hpp"

namespace corrections {

const std::vector<Correction>& all_corrections() {
  static const std::vector<Correction> all = {
      {"none", ""},
      {"sequence_weight", "importance statistic=sequence_sum"},
      {"token_weight", "importance"},
      {"token_truncate", "importance clip.hi=2"},
      {"icepop", "masked_importance gate.min=0.5 gate.max=5"},
      {"token_mask", "gate min=0.5 max=5"},
      {"sequence_truncate", "importance statistic=sequence_sum clip.hi=2"},
      {"sequence_normalized", "importance statistic=sequence_sum clip.hi=2 + mean_one of=rows"},
      {"sequence_mask",
       "masked_importance importance.statistic=sequence_sum gate.statistic=sequence_sum "
       "gate.max=3"},
      {"geometric_weight", "importance statistic=sequence_mean clip.hi=2"},
      {"geometric_mask",
       "masked_importance gate.statistic=sequence_mean gate.min=0.99 gate.max=1.01"},
      {"opsm",
       "gate estimator=k1 pair=drift statistic=sequence_mean when=negative_advantage max=0.02"},
      {"opsm_tight",
       "gate estimator=k1 pair=drift statistic=sequence_mean when=negative_advantage max=1e-4"},
      {"vaco",
       "masked_importance importance.clip.hi=2 gate.estimator=ratio_deviation "
       "gate.statistic=sequence_mean gate.when=outward gate.max=0.08"},
      {"reject_mean_k1", "gate estimator=k1 statistic=sequence_mean min=-0.01 max=0.01"},
      {"reject_mean_k3", "gate estimator=k3 statistic=sequence_mean max=0.002"},
      {"reject_max_k3", "gate estimator=k3 statistic=sequence_max max=0.1"},
      {"reject_token_k3", "gate estimator=k3 max=0.1"},
      {"binary_kl", "masked_importance gate.estimator=binary_kl gate.max=0.02"},
      {"sequence_binary_kl",
       "masked_importance gate.estimator=binary_kl gate.statistic=sequence_mean gate.max=0.002"},
      {"probability", "gate estimator=binary_total_variation pair=drift max=0.1"},
      {"dppo", "gate estimator=probability_gain pair=drift when=outward min=-0.2 max=0.2"},
      {"m2po", "second_moment threshold=0.04 reach=surrogate"},
  };
  return all;
}

std::vector<gdpo::runtime::Prepass> passes_of(const Correction& correction) {
  std::vector<gdpo::runtime::Prepass> passes;
  constexpr const char* joint = " + ";
  for (std::size_t begin = 0; begin < correction.lines.size();) {
    const std::size_t end = std::min(correction.lines.find(joint, begin), correction.lines.size());
    passes.push_back(
        gdpo::runtime::configured_prepass(correction.lines.substr(begin, end - begin)));
    begin = end + 3;
  }
  return passes;
}

}  // namespace corrections
