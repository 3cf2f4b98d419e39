// Maps each recorded advantage function to a preset, and its parameters to the members of that
// preset.
#include <string>

#include "advantage.hpp"

namespace conformance {
namespace {

using gdpo::runtime::estimator;

// eps and ddof of the standard deviation.
void std_settings(Params& params, Setup& setup) {
  set_scale(setup.estimator, params.number("eps"), params.integer("ddof"));
}

void weights(Params& params, Setup& setup) {
  set_weights(setup.estimator, params.numbers("reward_weights"));
}

// Normalization over the rows of the batch.
void batch_norm(Params& params, Setup& setup) {
  Params norm = params.object("batch_norm");
  norm.fixed("level", "sequence");
  set_renorm(setup.estimator, norm.number("eps"), norm.integer("ddof"));
  norm.all_read();
}

// Whitening over the valid tokens of the batch; mean_eps is what a trainer adds to the number of
// tokens.
void whiten(Params& params, Setup& setup) {
  params.remark("whiten");
  set_renorm(setup.estimator, params.number("whiten_eps"), params.integer("whiten_ddof"));
  if (params.has("mean_eps")) set_count_eps(setup.estimator, params.number("mean_eps"));
}

void remarks(Params& params) {
  for (const char* name : {"nan_rule", "reward_placement", "rewards_combined", "singleton", "std"})
    params.remark(name);
}

// --- trl

auto trl_metrics(gdpo::ZeroStd zero_std) {
  return [zero_std](const gdpo::GroupReport& report, Comparison& comparison) {
    for (std::size_t k = 0; k < report.rewards.size(); ++k) {
      const std::string name = "rewards/r" + std::to_string(k);
      comparison.metric(name + "/mean", report.rewards[k].mean);
      comparison.metric(name + "/std", report.rewards[k].std);
    }
    comparison.metric("reward", report.reward_mean);
    comparison.metric("reward_std", report.reward_std);
    comparison.metric("frac_reward_zero_std", report.zero_std_rows(zero_std));
  };
}

Setup trl_rollouts(Params& params, const Case&) {
  const auto aggregation =
      params.choice("multi_objective_aggregation", {"sum_then_normalize", "normalize_then_sum"});
  const bool per_reward = aggregation == "normalize_then_sum";
  const auto scale = per_reward ? params.choice("scale_rewards", {"group"}, "group")
                                : params.choice("scale_rewards", {"group", "batch", "none"});
  Setup setup{estimator(per_reward         ? "trl::gdpo"
                        : scale == "batch" ? "trl::grpo_batch_scale"
                        : scale == "none"  ? "trl::grpo_no_scale"
                                           : "trl::grpo")};
  setup.group_size = params.integer("num_generations");
  std_settings(params, setup);
  weights(params, setup);
  if (per_reward) batch_norm(params, setup);
  remarks(params);

  const auto zero_std = per_reward         ? gdpo::ZeroStd::Sum
                        : scale == "batch" ? gdpo::ZeroStd::Batch
                                           : gdpo::ZeroStd::Groups;
  setup.metrics = trl_metrics(zero_std);
  return setup;
}

// The mean of the others among the rows that were scored.
Setup trl_rloo(Params& params, const Case&) {
  const bool normalizes = params.flag("normalize_advantages");
  Setup setup{estimator(normalizes ? "trl::rloo_normalized" : "trl::rloo")};
  setup.group_size = params.integer("num_generations");
  weights(params, setup);
  if (normalizes) set_renorm(setup.estimator, params.number("eps"), params.integer("ddof"));
  params.without_effect({"eps", "ddof"});
  params.remark("kl");
  set_penalty(setup.estimator, params.number("beta"));
  const gdpo::Bounds clip = params.interval("reward_clip_range");
  std::visit([&](auto& e) { e.reward_clip = clip; }, setup.estimator);
  // TRL logs the rewards before the clip and the penalty.
  setup.reports_given_rewards = true;
  setup.metrics = trl_metrics(gdpo::ZeroStd::Groups);
  return setup;
}

// --- skyrl, trinity, areal, prime_rl: the conventions of verl or of its papers

Setup skyrl_grpo(Params& params, const Case&) {
  Setup setup{estimator(params.flag("grpo_norm_by_std") ? "skyrl::grpo" : "skyrl::grpo_no_std")};
  std_settings(params, setup);
  return setup;
}

Setup skyrl_maxrl(Params& params, const Case&) {
  gdpo::MaxRl e = gdpo::skyrl::maxrl;
  e.scale.eps = params.number("eps");
  return {e};
}

Setup trinity_grpo(Params& params, const Case&) {
  const bool of_batch = params.choice("std_cal_level", {"group", "batch"}) == "batch";
  Setup setup{estimator(of_batch ? "trinity::grpo_batch_std" : "trinity::grpo")};
  set_scale(setup.estimator, params.number("epsilon"), 1);
  params.fixed("duplicate_experiences", false);
  if (params.has("std_threshold")) setup.min_std = params.number("std_threshold");
  return setup;
}

Setup trinity_rec(Params& params, const Case&) {
  const bool divides = params.flag("std_normalize");
  Setup setup{estimator(divides ? "trinity::rec_std" : "trinity::rec")};
  set_scale(setup.estimator, params.number("epsilon"), 0);
  return setup;
}

Setup trinity_opmd(Params& params, const Case&) {
  if (params.choice("opmd_baseline", {"mean", "logavgexp"}) == "mean") {
    params.without_effect({"tau"});
    return {estimator("trinity::opmd")};
  }
  auto e = gdpo::trinity::opmd_logavgexp;
  e.baseline.tau = params.number("tau");
  return {e};
}

Setup trinity_asymre(Params& params, const Case&) {
  auto e = gdpo::trinity::asymre;
  e.baseline.shift = params.number("baseline_shift");
  return {e};
}

Setup areal_normalization(Params& params, const Case&) {
  const auto level = [&](const char* name) {
    return params.has(name) ? params.choice(name, {"group", "batch"}) : std::string("none");
  };
  const std::string mean = level("mean_level"), std = level("std_level");
  const bool others = params.flag("mean_leave1out");
  const std::string levels = mean + "/" + std + (others ? "/others" : "");
  const char* const name = levels == "batch/batch"          ? "batch_norm"
                           : levels == "none/batch"         ? "batch_std_norm"
                           : levels == "group/group"        ? "group_norm"
                           : levels == "group/batch"        ? "group_mean_batch_std_norm"
                           : levels == "group/none"         ? "group_mean_norm"
                           : levels == "group/group/others" ? "leave_one_out_norm"
                           : levels == "group/none/others"  ? "leave_one_out_mean_norm"
                                                            : "";
  if (!*name) throw Unsupported("parameters mean_level and std_level: " + levels);
  Setup setup{estimator(std::string("areal::") + name)};
  set_scale(setup.estimator, params.number("eps"), params.flag("std_unbiased") ? 1 : 0);
  // Over the batch a last group may have fewer rows.
  const int group_size = params.integer("group_size");
  if (mean == "group" || std == "group") setup.group_size = group_size;
  return setup;
}

Setup prime_rl_grpo(Params& params, const Case&) {
  Setup setup{estimator("prime_rl::grpo")};
  if (!params.has("length_penalty")) return setup;
  Params weights = params.object("length_penalty");
  gdpo::update::shaping::RelativeCost cost = gdpo::prime_rl::length_penalty;
  cost.output = weights.number("num_output_tokens_weight");
  cost.input = weights.number("num_input_tokens_weight");
  cost.turns = weights.number("num_turns_weight");
  weights.all_read();
  setup.shaping = {cost};
  return setup;
}

// --- nvlabs_gdpo: its forks of trl and verl

Setup nvlabs_trl_rollouts(Params& params, const Case&) {
  const bool per_reward = params.flag("apply_gdpo"), scale = params.flag("scale_rewards");
  if (per_reward && !scale)
    throw Unsupported("parameter apply_gdpo = true with scale_rewards = false is not mapped");
  Setup setup{estimator(per_reward ? "nvlabs::trl_gdpo_nan_singleton"
                        : scale    ? "nvlabs::trl_grpo_nan_singleton"
                                   : "nvlabs::trl_grpo_no_scale")};
  setup.group_size = params.integer("num_generations");
  std_settings(params, setup);
  weights(params, setup);
  if (per_reward) batch_norm(params, setup);
  remarks(params);
  return setup;
}

// An outcome estimator of the verl fork. Only functions that whiten record the whitening.
auto nvlabs_outcome(const char* preset, bool divides, bool whitens) {
  return [=](Params& params, const Case&) {
    Setup setup{estimator(preset)};
    params.fixed("divide_by_std", divides);
    std_settings(params, setup);
    if (whitens) whiten(params, setup);
    remarks(params);
    return setup;
  };
}

// compute_advantage of the verl fork, which chooses the estimator and is given the two rewards
// separately.
auto nvlabs_choice(const char* preset, bool whitens) {
  return [=](Params& params, const Case&) {
    Setup setup{estimator(preset)};
    std_settings(params, setup);
    weights(params, setup);
    if (whitens) whiten(params, setup);
    remarks(params);
    return setup;
  };
}

// --- ms_swift

std::string ms_swift_preset(const std::string& kind, const std::string& scale) {
  if (scale == "gdpo") {
    if (kind != "grpo")
      throw Unsupported("parameter scale_rewards = \"gdpo\" with " + kind + " is not mapped");
    return "ms_swift::gdpo";
  }
  if (kind == "grpo") {
    return scale == "group"   ? "ms_swift::grpo"
           : scale == "batch" ? "ms_swift::grpo_batch_scale"
                              : "ms_swift::grpo_no_scale";
  }
  if (kind == "rloo") {
    return scale == "group"   ? "ms_swift::rloo_group_scale"
           : scale == "batch" ? "ms_swift::rloo_batch_scale"
                              : "ms_swift::rloo";
  }
  return scale == "group"   ? "ms_swift::reinforce_plus_plus_group_scale"
         : scale == "batch" ? "ms_swift::reinforce_plus_plus"
                            : "ms_swift::reinforce_plus_plus_no_scale";
}

Setup ms_swift_rows(Params& params, const Case& recorded) {
  const auto kind = params.choice("advantage_estimator", {"grpo", "rloo", "reinforce_plus_plus"});
  const auto scale = params.choice("scale_rewards", {"group", "batch", "none", "gdpo"});
  Setup setup{estimator(ms_swift_preset(kind, scale))};
  setup.group_size = params.integer("num_generations");
  std_settings(params, setup);
  weights(params, setup);
  if (scale == "gdpo") batch_norm(params, setup);
  if (params.has("kl_in_reward")) {
    const double beta = params.number("beta");
    set_penalty(setup.estimator, params.flag("kl_in_reward") ? beta : 0);
  }
  remarks(params);

  const bool over_batch = scale == "batch", of_release = since(recorded, {4, 6});
  setup.metrics = [=](const gdpo::GroupReport& report, Comparison& comparison) {
    Array mean{{report.rewards.size()}, {}}, std{{report.rewards.size()}, {}};
    for (const gdpo::RewardReport& reward : report.rewards) {
      // Releases leave out a reward that nobody gave, and one reward alone has std 0.
      if (of_release && gdpo::math::is_nan(reward.mean)) continue;
      const bool alone = of_release && gdpo::math::is_nan(reward.std);
      mean.data.push_back(reward.mean);
      std.data.push_back(alone ? 0 : reward.std);
    }
    mean.shape = std.shape = {mean.data.size()};
    comparison.metric("per_func_mean", mean);
    comparison.metric("per_func_std", std);
    comparison.metric("reward_mean", report.reward_mean);
    comparison.metric("reward_std",
                      over_batch ? report.reward_std : report.reward_std_mean_of_groups);
    comparison.metric("frac_reward_zero_std", report.zero_std_rows(gdpo::ZeroStd::Groups));
  };
  return setup;
}

// The same for rows of requests in groups of any size. It has no gdpo, and scales nothing for it.
Setup ms_swift_requests(Params& params, const Case&) {
  const auto kind = params.choice("advantage_estimator", {"grpo", "rloo", "reinforce_plus_plus"});
  const auto scale = params.choice("scale_rewards", {"group", "batch", "none", "gdpo"});
  Setup setup{estimator(ms_swift_preset(kind, scale == "gdpo" ? "none" : scale))};
  std_settings(params, setup);
  weights(params, setup);
  if (params.has("kl_in_reward")) {
    const double beta = params.number("beta");
    set_penalty(setup.estimator, params.flag("kl_in_reward") ? beta : 0);
  }
  params.remark("duplicate_requests");
  remarks(params);
  return setup;
}

// --- open_instruct

Setup open_instruct_rows(Params& params, const Case&) {
  const auto kind = params.choice("advantage_normalization_type", {"standard", "centered"});
  Setup setup{estimator("open_instruct::" + kind)};
  setup.group_size = params.integer("num_generations");
  std_settings(params, setup);
  return setup;
}

// --- verl

Setup verl_grpo(Params& params, const Case&) {
  Setup setup{
      estimator(params.flag("norm_adv_by_std_in_grpo") ? "verl::grpo" : "verl::grpo_no_std")};
  std_settings(params, setup);
  remarks(params);
  return setup;
}

Setup verl_gdpo(Params& params, const Case&) {
  Setup setup{
      estimator(params.flag("norm_adv_by_std_in_grpo") ? "verl::gdpo" : "verl::gdpo_no_std")};
  std_settings(params, setup);
  weights(params, setup);
  whiten(params, setup);
  remarks(params);
  return setup;
}

Setup verl_reinforce_baseline(Params& params, const Case&) {
  Setup setup{estimator("verl::reinforce_plus_plus_baseline")};
  whiten(params, setup);
  remarks(params);
  return setup;
}

// A function without settings of its own.
auto without_settings(const char* preset) {
  return [=](Params& params, const Case&) {
    remarks(params);
    return Setup{estimator(preset)};
  };
}

Setup verl_gpg(Params& params, const Case&) {
  params.fixed("f_norm", 1);
  params.remark("alpha");
  remarks(params);
  return {estimator("verl::gpg")};
}

Setup verl_opo(Params& params, const Case&) {
  params.remark("baseline");
  remarks(params);
  return {estimator("verl::opo")};
}

Setup verl_passk(Params& params, const Case&) {
  Setup setup{estimator(params.flag("norm_adv_by_std_in_grpo") ? "verl::grpo_passk"
                                                               : "verl::grpo_passk_no_std")};
  std_settings(params, setup);
  params.remark("rule");
  remarks(params);
  return setup;
}

// --- nemo_rl

// The std of 0 does not divide; ddof is 1, as the record says in words.
void nemo_rl_settings(Params& params, Setup& setup) {
  set_scale(setup.estimator, params.number("eps"), 1);
  params.remark("zero_std");
  remarks(params);
}

Setup nemo_rl_grpo(Params& params, const Case&) {
  const std::string mean = params.flag("use_leave_one_out_baseline") ? "" : "_group_mean",
                    std = params.flag("normalize_rewards") ? "" : "_no_std";
  Setup setup{estimator("nemo_rl::grpo" + mean + std)};
  nemo_rl_settings(params, setup);
  return setup;
}

Setup nemo_rl_gdpo(Params& params, const Case&) {
  const std::string mean = params.flag("use_leave_one_out_baseline") ? "" : "_group_mean",
                    std = params.flag("normalize_rewards") ? "" : "_no_std";
  Setup setup{estimator("nemo_rl::gdpo" + mean + std)};
  nemo_rl_settings(params, setup);
  weights(params, setup);
  Params norm = params.object("batch_norm");
  norm.fixed("level", "sequence");
  norm.remark("zero_std");
  set_renorm(setup.estimator, norm.number("eps"), norm.integer("ddof"));
  norm.all_read();
  return setup;
}

// --- slime

Setup slime_rows(Params& params, const Case&) {
  const auto kind = params.choice("advantage_estimator", {"grpo", "reinforce_plus_plus_baseline"});
  const bool scaled = params.flag("grpo_std_normalization") && kind == "grpo";
  Setup setup{estimator(scaled ? "slime::grpo_nan_singleton" : "slime::grpo_no_std")};
  setup.group_size = params.integer("n_samples_per_prompt");
  std_settings(params, setup);
  return setup;
}

}  // namespace

void add_advantages(Registry& registry) {
  const auto add = [&](const char* source, const char* function,
                       std::function<Setup(Params&, const Case&)> mapping) {
    registry.add(source, "advantage", function, rows(std::move(mapping)));
  };
  add("trl", "GRPOTrainer._generate_and_score_completions[advantages]", trl_rollouts);

  add("nvlabs_gdpo", "GRPOTrainer._generate_and_score_completions[advantages]",
      nvlabs_trl_rollouts);
  add("nvlabs_gdpo", "compute_grpo_outcome_advantage",
      nvlabs_outcome("nvlabs::verl_grpo", true, false));
  add("nvlabs_gdpo", "compute_grpo_no_std_outcome_advantage",
      nvlabs_outcome("nvlabs::verl_grpo_no_std", false, false));
  add("nvlabs_gdpo", "compute_grpo_bn_outcome_advantage",
      nvlabs_outcome("nvlabs::verl_grpo_bn", true, true));
  add("nvlabs_gdpo", "compute_grpo_no_std_bn_outcome_advantage",
      nvlabs_outcome("nvlabs::verl_grpo_no_std_bn", false, true));
  add("nvlabs_gdpo", "compute_advantage[grpo]", nvlabs_choice("nvlabs::verl_grpo", false));
  add("nvlabs_gdpo", "compute_advantage[grpo_no_std]",
      nvlabs_choice("nvlabs::verl_grpo_no_std", false));
  add("nvlabs_gdpo", "compute_advantage[gdpo]", nvlabs_choice("nvlabs::verl_gdpo", true));

  add("ms_swift", "compute_advantages", ms_swift_rows);
  add("ms_swift", "compute_advantages_dynamic", ms_swift_requests);

  add("open_instruct", "DataPreparationActor[advantages]", open_instruct_rows);

  add("verl", "compute_grpo_outcome_advantage", verl_grpo);
  add("verl", "compute_grpo_vectorized_outcome_advantage", verl_grpo);
  add("verl", "compute_gdpo_outcome_advantage", verl_gdpo);
  add("verl", "compute_reinforce_plus_plus_baseline_outcome_advantage", verl_reinforce_baseline);
  add("verl", "compute_rloo_outcome_advantage", without_settings("verl::rloo"));
  add("verl", "compute_rloo_vectorized_outcome_advantage",
      without_settings("verl::rloo_vectorized"));
  add("verl", "compute_gpg_outcome_advantage", verl_gpg);
  add("verl", "compute_opo_outcome_advantage", verl_opo);
  add("verl", "compute_grpo_passk_outcome_advantage", verl_passk);

  add("nemo_rl", "GRPOAdvantageEstimator.compute_advantage", nemo_rl_grpo);
  add("nemo_rl", "GDPOAdvantageEstimator.compute_advantage", nemo_rl_gdpo);

  add("slime", "RolloutManager._post_process_rewards", slime_rows);

  add("trl", "RLOOTrainer._generate_and_score_completions[advantages]", trl_rloo);
  add("skyrl", "compute_grpo_outcome_advantage", skyrl_grpo);
  add("skyrl", "compute_rloo_outcome_advantage", without_settings("skyrl::rloo"));
  add("skyrl", "compute_maxrl_advantage", skyrl_maxrl);
  add("trinity", "GRPOGroupedAdvantage", trinity_grpo);
  add("trinity", "RECGroupedAdvantage", trinity_rec);
  add("trinity", "OPMDGroupAdvantage", trinity_opmd);
  add("trinity", "ASYMREGroupAdvantage", trinity_asymre);
  add("trinity", "REINFORCEGroupAdvantage", without_settings("trinity::reinforce"));
  add("areal", "Normalization", areal_normalization);
  add("prime_rl", "GRPOAlgorithm.score_group", prime_rl_grpo);
  add("prime_rl", "MaxRLAlgorithm.score_group", without_settings("prime_rl::maxrl"));
  registry.add("prime_rl", "advantage", "RAEAlgorithm.score_group", moving_baselines());
}

}  // namespace conformance
