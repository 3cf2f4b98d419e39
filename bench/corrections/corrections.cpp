#include "corrections.hpp"

namespace corrections {

const std::vector<Correction>& all_corrections() {
  static const std::vector<Correction> all = {
      {"none", ""},
      {"sequence_weight", "trl::sequence_weight"},
      {"token_weight", "trl::token_weight"},
      {"token_truncate", "trl::token_truncate clip.hi=2"},
      {"icepop", "trl::token_weight + trl::token_mask min=0.5 max=5"},
      {"token_mask", "trl::token_mask min=0.5 max=5"},
      {"sequence_truncate", "trl::sequence_truncate clip.hi=2"},
      {"sequence_mask", "trl::sequence_weight + trl::sequence_mask max=3"},
      {"geometric_weight", "ms_swift::sequence_truncate reach=surrogate"},
      {"geometric_mask",
       "trl::token_weight + trl::sequence_mask statistic=sequence_mean min=0.99 max=1.01"},
      {"opsm",
       "trl::token_mask estimator=k1 pair=drift statistic=sequence_mean when=negative_advantage "
       "max=0.02"},
      {"opsm_tight",
       "trl::token_mask estimator=k1 pair=drift statistic=sequence_mean when=negative_advantage "
       "max=1e-4"},
      {"vaco",
       "open_instruct::rho + trl::token_mask estimator=total_variation statistic=sequence_mean "
       "when=outward max=0.08"},
      {"reject_mean_k1", "trl::token_mask estimator=k1 statistic=sequence_mean min=-0.01 max=0.01"},
      {"reject_mean_k3", "trl::token_mask estimator=k3 statistic=sequence_mean max=0.002"},
      {"reject_max_k3", "trl::token_mask estimator=k3 statistic=sequence_max max=0.1"},
      {"reject_token_k3", "trl::token_mask estimator=k3 max=0.1"},
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
