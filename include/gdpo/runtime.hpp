#pragma once
/// Front door: estimators by the name that stands in a trainer's configuration.
///
///   gdpo::runtime::Estimator e = gdpo::runtime::estimator("trl::gdpo");
///   std::visit([&](const auto& estimator) { gdpo::advantages_into(gdpo::seq, batch, estimator, out, workspace); }, e);
#include <gdpo/advantages.hpp>
#include <gdpo/presets/brief.hpp>
#include <gdpo/presets/ms_swift.hpp>
#include <gdpo/presets/nvlabs.hpp>
#include <gdpo/presets/open_instruct.hpp>
#include <gdpo/presets/paper.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/presets/verl.hpp>
#include <string_view>
#include <utility>
#include <variant>

GDPO_BEGIN_NAMESPACE
namespace runtime {

/// Every estimator type that a name stands for.
using Estimator = std::variant<Gdpo, Grpo, DrGrpo, Rloo, brief::GroupGdpo, verl::Whitened, verl::WhitenedNoStd,
                               verl::ReinforceBaseline, nvlabs::WhitenedGrpo, ms_swift::ScaledRloo>;

namespace detail {
inline const std::vector<std::pair<std::string, Estimator>>& table() {
  static const std::vector<std::pair<std::string, Estimator>> entries = {
      {"gdpo", Gdpo{}},
      {"grpo", Grpo{}},
      {"dr_grpo", DrGrpo{}},
      {"rloo", Rloo{}},
      {"paper::gdpo", paper::gdpo},
      {"paper::grpo", paper::grpo},
      {"paper::grpo_no_std", paper::grpo_no_std},
      {"trl::grpo", trl::grpo},
      {"trl::grpo_no_scale", trl::grpo_no_scale},
      {"trl::grpo_batch_scale", trl::grpo_batch_scale},
      {"trl::gdpo", trl::gdpo},
      {"verl::grpo", verl::grpo},
      {"verl::grpo_no_std", verl::grpo_no_std},
      {"verl::gdpo", verl::gdpo},
      {"verl::gdpo_no_std", verl::gdpo_no_std},
      {"verl::rloo", verl::rloo},
      {"verl::rloo_vectorized", verl::rloo_vectorized},
      {"verl::reinforce_plus_plus_baseline", verl::reinforce_plus_plus_baseline},
      {"nvlabs::trl_grpo", nvlabs::trl_grpo},
      {"nvlabs::trl_grpo_no_scale", nvlabs::trl_grpo_no_scale},
      {"nvlabs::trl_gdpo", nvlabs::trl_gdpo},
      {"nvlabs::trl_grpo_nan_singleton", nvlabs::trl_grpo_nan_singleton},
      {"nvlabs::trl_gdpo_nan_singleton", nvlabs::trl_gdpo_nan_singleton},
      {"nvlabs::verl_grpo", nvlabs::verl_grpo},
      {"nvlabs::verl_grpo_no_std", nvlabs::verl_grpo_no_std},
      {"nvlabs::verl_grpo_bn", nvlabs::verl_grpo_bn},
      {"nvlabs::verl_grpo_no_std_bn", nvlabs::verl_grpo_no_std_bn},
      {"nvlabs::verl_gdpo", nvlabs::verl_gdpo},
      {"ms_swift::grpo", ms_swift::grpo},
      {"ms_swift::grpo_no_scale", ms_swift::grpo_no_scale},
      {"ms_swift::grpo_batch_scale", ms_swift::grpo_batch_scale},
      {"ms_swift::rloo", ms_swift::rloo},
      {"ms_swift::rloo_group_scale", ms_swift::rloo_group_scale},
      {"ms_swift::rloo_batch_scale", ms_swift::rloo_batch_scale},
      {"ms_swift::reinforce_plus_plus", ms_swift::reinforce_plus_plus},
      {"ms_swift::reinforce_plus_plus_group_scale", ms_swift::reinforce_plus_plus_group_scale},
      {"ms_swift::reinforce_plus_plus_no_scale", ms_swift::reinforce_plus_plus_no_scale},
      {"ms_swift::gdpo", ms_swift::gdpo},
      {"open_instruct::standard", open_instruct::standard},
      {"open_instruct::centered", open_instruct::centered},
      {"brief::gdpo", brief::gdpo},
  };
  return entries;
}
}  // namespace detail

/// All names, in the order of the trainers.
inline const std::vector<std::string>& estimator_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& entry : detail::table()) all.push_back(entry.first);
    return all;
  }();
  return names;
}

/// The estimator of that name. Unknown: invalid_input, which lists the names.
inline Estimator estimator(std::string_view name) {
  std::string known;
  for (const auto& entry : detail::table()) {
    if (entry.first == name) return entry.second;
    known += (known.empty() ? "" : ", ") + entry.first;
  }
  contract::fail("gdpo::runtime::estimator", "name", "'" + std::string(name) + "'", "one of " + known);
}

}  // namespace runtime
GDPO_END_NAMESPACE
