// Registers the operators as torch.ops.gdpo.
#include <cstdlib>
#include <cstring>
#include <gdpo/core/near.hpp>
#include <gdpo/core/version.hpp>
#include <gdpo/with/torch_stable.hpp>
#include <sstream>

#include "operators.hpp"

namespace {

// Whether the environment variable GDPO_INSTRUCTION_SET, which tests set, admits one ("v3", "v4").
bool wanted(const char* name) {
  const char* highest = std::getenv("GDPO_INSTRUCTION_SET");
  return !highest || std::strcmp(name, highest) <= 0;
}

// The instruction set that this processor runs, and the lists of operators that are compiled for
// it; torch.ops.gdpo.instruction_set() gives its name.
struct Choice {
  const char* name;
  const Operator* lists[3];
};
#define GDPO_CHOICE(set)                                \
  Choice {                                              \
#set, { set::losses, set::advantages, set::tokens } \
  }
Choice choose() {
#ifdef __x86_64__
  __builtin_cpu_init();
  [[maybe_unused]] const bool v3 = __builtin_cpu_supports("avx2") &&
                                   __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                                   __builtin_cpu_supports("bmi2");
  [[maybe_unused]] const bool v4 =
      v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
#endif
#ifdef GDPO_HAS_V4
  if (v4 && wanted("v4")) return GDPO_CHOICE(v4);
#endif
#ifdef GDPO_HAS_V3
  if (v3 && wanted("v3")) return GDPO_CHOICE(v3);
#endif
  return GDPO_CHOICE(baseline);
}

std::string instruction_set() { return choose().name; }

// The version of the library (core/version.hpp).
std::string version() {
  return std::to_string(GDPO_VERSION_MAJOR) + "." + std::to_string(GDPO_VERSION_MINOR) + "." +
         std::to_string(GDPO_VERSION_PATCH);
}

// The known names, one a line, that an unknown one may have meant (core/near.hpp).
std::string near(const std::string& name, const std::string& known) {
  std::vector<std::string> names;
  std::string lines;
  std::istringstream stream(known);
  for (std::string each; std::getline(stream, each);) names.push_back(each);
  for (const std::string& each : gdpo::contract::near_names(name, names))
    lines += (lines.empty() ? "" : "\n") + each;
  return lines;
}

}  // namespace

STABLE_TORCH_LIBRARY(gdpo, library) {
  using namespace gdpo::torch_stable;
  library.def(policy_loss_schema);
  library.def(policy_loss_forward_schema);
  library.def(policy_loss_from_logits_schema);
  library.def(policy_loss_from_logits_in_place_schema);
  library.def(contrastive_loss_schema);
  library.def(value_loss_schema);
  library.def(scaled_schema);
  library.def(scale_in_place_schema);
  library.def(settings_schema);
  library.def(configure_schema);
  library.def(loss_over_schema);
  library.def(count_schema);
  library.def(count_groups_schema);
  library.def(count_group_tokens_schema);
  library.def(token_logprobs_schema);
  library.def(token_logprobs_backward_schema);
  library.def(advantages_schema);
  library.def(token_advantages_schema);
  library.def(outcome_advantages_schema);
  library.def(step_advantages_schema);
  library.def(optimal_token_baseline_schema);
  library.def(token_moments_schema);
  library.def(whiten_schema);
  library.def(explain_schema);
  library.def(prepare_schema);
  library.def(names_schema);
  library.def(metrics_map_schema);
  library.def(merge_results_schema);
  library.def(value_metrics_map_schema);
  library.def(explained_variance_schema);
  library.def(merge_value_results_schema);
  library.def(report_map_schema);
  library.def(merge_reports_schema);
  library.def(mismatch_schema);
  library.def(merge_mismatch_schema);
  library.def(mismatch_map_schema);
  library.def(diagnose_schema);
  library.def(pid_schema);
  library.def(adaptive_entropy_schema);
  library.def(shape_rewards_schema);
  library.def(measure_schema);
  library.def(merge_moments_schema);
  library.def(running_moments_schema);
  library.def(ema_baseline_schema);
  library.def(observe_returns_schema);
  library.def(return_scale_schema);
  library.def(agree_schema);
  library.def(all_merge_schema);
  library.def(gather_rows_schema);
  library.def(gather_tokens_schema);
  library.def(token_advantages_of_ranks_schema);
  library.def(outcome_advantages_of_ranks_schema);
  library.def(step_open_schema);
  library.def(step_given_schema);
  library.def(step_add_schema);
  library.def(step_finish_schema);
  library.def(step_close_schema);
  library.def(plan_schema);
  library.def(pack_schema);
  library.def(select_groups_schema);
  library.def(clip_grad_norm_schema);
  library.def(polyak_schema);
  library.def(grad_scale_schema);
  library.def("instruction_set() -> str");
  library.def("version() -> str");
  library.def("near(str name, str known) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(gdpo, CPU, library) {
  using namespace gdpo::torch_stable;
  for (const Operator* list : choose().lists) {
    for (const Operator* o = list; o->name; ++o) library.impl(o->name, o->call);
  }
  library.impl("count_groups", TORCH_BOX(&count_groups));
  library.impl("count_group_tokens", TORCH_BOX(&count_group_tokens));
  library.impl("outcome_advantages", TORCH_BOX(&outcome_advantages));
  library.impl("step_advantages", TORCH_BOX(&step_advantages));
  library.impl("token_moments", TORCH_BOX(&token_moments));
  library.impl("whiten", TORCH_BOX(&whiten));
  library.impl("explain", TORCH_BOX(&explain));
  library.impl("metrics_map", TORCH_BOX(&metrics_map));
  library.impl("merge_results", TORCH_BOX(&merge_results));
  library.impl("value_metrics_map", TORCH_BOX(&value_metrics_map));
  library.impl("explained_variance", TORCH_BOX(&explained_variance));
  library.impl("merge_value_results", TORCH_BOX(&merge_value_results));
  library.impl("report_map", TORCH_BOX(&report_map));
  library.impl("merge_reports", TORCH_BOX(&merge_reports));
  library.impl("merge_mismatch", TORCH_BOX(&merge_mismatch));
  library.impl("mismatch_map", TORCH_BOX(&mismatch_map));
  library.impl("diagnose", TORCH_BOX(&diagnose));
  library.impl("pid", TORCH_BOX(&pid));
  library.impl("adaptive_entropy", TORCH_BOX(&adaptive_entropy));
  library.impl("shape_rewards", TORCH_BOX(&shape_rewards));
  library.impl("measure", TORCH_BOX(&measure));
  library.impl("merge_moments", TORCH_BOX(&merge_moments));
  library.impl("running_moments", TORCH_BOX(&running_moments));
  library.impl("ema_baseline", TORCH_BOX(&ema_baseline));
  library.impl("observe_returns", TORCH_BOX(&observe_returns));
  library.impl("return_scale", TORCH_BOX(&return_scale));
}

// Operators without a tensor, or with tensors that may be absent, have no device by which PyTorch
// could choose.
STABLE_TORCH_LIBRARY_IMPL(gdpo, CompositeExplicitAutograd, library) {
  library.impl("names", TORCH_BOX(&gdpo::torch_stable::names));
  library.impl("settings", TORCH_BOX(&gdpo::torch_stable::settings));
  library.impl("configure", TORCH_BOX(&gdpo::torch_stable::configure));
  library.impl("loss_over", TORCH_BOX(&gdpo::torch_stable::loss_over));
  library.impl("agree", TORCH_BOX(&gdpo::torch_stable::agree));
  library.impl("all_merge", TORCH_BOX(&gdpo::torch_stable::all_merge));
  library.impl("gather_rows", TORCH_BOX(&gdpo::torch_stable::gather_rows));
  library.impl("gather_tokens", TORCH_BOX(&gdpo::torch_stable::gather_tokens));
  library.impl("token_advantages_of_ranks",
               TORCH_BOX(&gdpo::torch_stable::token_advantages_of_ranks));
  library.impl("outcome_advantages_of_ranks",
               TORCH_BOX(&gdpo::torch_stable::outcome_advantages_of_ranks));
  library.impl("step_open", TORCH_BOX(&gdpo::torch_stable::step_open));
  library.impl("step_given", TORCH_BOX(&gdpo::torch_stable::step_given));
  library.impl("step_add", TORCH_BOX(&gdpo::torch_stable::step_add));
  library.impl("step_finish", TORCH_BOX(&gdpo::torch_stable::step_finish));
  library.impl("step_close", TORCH_BOX(&gdpo::torch_stable::step_close));
  library.impl("plan", TORCH_BOX(&gdpo::torch_stable::plan));
  library.impl("pack", TORCH_BOX(&gdpo::torch_stable::pack));
  library.impl("select_groups", TORCH_BOX(&gdpo::torch_stable::select_groups));
  library.impl("clip_grad_norm", TORCH_BOX(&gdpo::torch_stable::clip_grad_norm));
  library.impl("polyak", TORCH_BOX(&gdpo::torch_stable::polyak));
  library.impl("grad_scale", TORCH_BOX(&gdpo::torch_stable::grad_scale));
  library.impl("instruction_set", TORCH_BOX(&instruction_set));
  library.impl("version", TORCH_BOX(&version));
  library.impl("near", TORCH_BOX(&near));
}
