// Maps the losses of trainers of which only releases were recorded (tests/golden/released).
#include <string>
#include <utility>

#include "corrections.hpp"
#include "loss_settings.hpp"

namespace conformance {
namespace {

using gdpo::Aggregate;
using gdpo::LossMetrics;
using gdpo::Over;
using gdpo::Reach;
namespace prepass = gdpo::prepass;

double width_of(const Case& recorded) {
  return static_cast<double>(array_of(recorded.inputs.at("logp")).shape.at(1));
}

// --- skyrl

LossSetup skyrl(Params& params, const std::string& preset) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss(preset);
  params.fixed("reduction", "sum over valid tokens");
  bool masks = false;
  if (params.has("off_policy_correction")) {
    Params correction = params.object("off_policy_correction");
    masks = skyrl_correction(correction, setup);
    correction.all_read();
  }
  params.remark("advantages_were_scaled_for");
  if (masks) return setup;  // its clip_ratio is a mean over the tokens before the correction
  setup.metrics = [preset](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    comparison.metric("clip_ratio", preset == "skyrl::cispo" ? m.clip_fraction_any.mean()
                                                             : m.clip_fraction.mean());
  };
  return setup;
}

LossSetup skyrl_ppo(Params& params, const Case&) {
  const bool dual = params.choice("policy_loss_type", {"regular", "dual_clip"}) == "dual_clip";
  LossSetup setup = skyrl(params, "skyrl::regular");
  set_clip(setup, params.number("eps_clip_low"), params.number("eps_clip_high"),
           gdpo::math::infinity, dual ? params.number("clip_ratio_c") : gdpo::math::infinity);
  return setup;
}

LossSetup skyrl_gspo(Params& params, const Case&) {
  LossSetup setup = skyrl(params, "skyrl::gspo");
  set_clip(setup, params.number("eps_clip_low"), params.number("eps_clip_high"));
  return setup;
}

LossSetup skyrl_cispo(Params& params, const Case&) {
  LossSetup setup = skyrl(params, "skyrl::cispo");
  Params bounds = params.object("cispo");
  set_ratio_bounds(setup, 1 - bounds.number("cispo_eps_clip_low"),
                   1 + bounds.number("cispo_eps_clip_high"));
  bounds.all_read();
  return setup;
}

// --- trinity

void trinity_metrics(Params& params, LossSetup& setup, const char* loss) {
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    comparison.metric(loss, run.result.loss);
    comparison.metric("pg_clipfrac", m.clip_fraction.mean(eps));
    comparison.metric("pg_clipfrac_lower", m.dual_clip_fraction.mean(eps));
    comparison.metric("ppo_kl", m.approx_kl_k1.mean(eps));
  };
}

LossSetup trinity_ppo(Params& params, const Case& recorded) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trinity::ppo");
  const auto bound = [&](const char* name) {
    return params.number(params.has(name) ? name : "clip_range");
  };
  params.without_effect({"clip_range"});
  set_clip(setup, bound("clip_range_low"), bound("clip_range_high"), gdpo::math::infinity,
           params.number("clip_ratio_c"));
  aggregate_of(setup) = trinity_aggregate(params, width_of(recorded), setup.given);
  params.fixed("fallback_to_policy_gradient", false);
  if (params.flag("enable_sequence_masking")) {
    prepass::Gate gate;
    gate.estimator = prepass::Estimator::K1, gate.pair = prepass::Pair::Update;
    gate.statistic = prepass::Statistic::SequenceMean, gate.count_eps = 1e-10;
    gate.when = prepass::When::NegativeAdvantage, gate.clamp = {-20, 20};
    gate.max = params.number("delta_sequence_masking");
    set_passes(setup, gate);
  }
  params.without_effect({"delta_sequence_masking"});
  trinity_metrics(params, setup, "pg_loss");
  return setup;
}

LossSetup trinity_gspo(Params& params, const Case& recorded) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trinity::gspo");
  set_clip(setup, params.number("clip_range_low"), params.number("clip_range_high"));
  aggregate_of(setup) = trinity_aggregate(params, width_of(recorded), setup.given);
  trinity_metrics(params, setup, "pg_loss");
  return setup;
}

LossSetup trinity_cispo(Params& params, const Case& recorded) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trinity::cispo");
  set_ratio_bounds(setup, 1 - params.number("clip_range_low"),
                   1 + params.number("clip_range_high"));
  aggregate_of(setup) = trinity_aggregate(params, width_of(recorded), setup.given);
  if (params.flag("enable_mask_clip")) {
    prepass::Gate gate;
    gate.pair = prepass::Pair::Update, gate.when = prepass::When::Outward;
    gate.min = 1 - params.number("mask_clip_range_low");
    gate.max = 1 + params.number("mask_clip_range_high");
    set_passes(setup, gate);
  }
  params.without_effect({"mask_clip_range_low", "mask_clip_range_high"});
  trinity_metrics(params, setup, "cispo_loss");
  return setup;
}

// r A without a clip: the surrogate of a preset whose range is everything.
LossSetup trinity_importance_sampling(Params& params, const Case& recorded) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trinity::ppo");
  set_clip(setup, 1, gdpo::math::infinity);
  aggregate_of(setup) = trinity_aggregate(params, width_of(recorded), setup.given);
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric("pg_loss", run.result.loss);
    comparison.metric("ratio/mean", run.result.metrics.ratio.mean(eps));
    comparison.metric("approx_kl", run.result.metrics.approx_kl_k1.mean(eps));
  };
  return setup;
}

LossSetup skyrl_importance_sampling(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trl::bnpo");
  set_clip(setup, 1, gdpo::math::infinity);
  aggregate_of(setup) = gdpo::aggregate::token_sum();
  params.fixed("reduction", "sum over valid tokens");
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric("importance_ratio", run.result.metrics.ratio.mean());
  };
  return setup;
}

// --- areal: PPO over tokens or rows, with the ratio to the sampler as a weight

LossSetup areal_loss(Params& params, const Case& recorded) {
  LossSetup setup;
  const std::string level =
      params.choice("importance_sampling_level", {"token", "sequence"}, "token");
  setup.loss = gdpo::runtime::loss("trl::bnpo", level);
  no_log_ratio_clamp(params);
  params.remark("denominator"), params.remark("layout");
  const double low = params.number("eps_clip");
  set_clip(setup, low, params.has("eps_clip_higher") ? params.number("eps_clip_higher") : low,
           gdpo::math::infinity, params.at_most("c_clip"));
  if (!recorded.inputs.contains("rollout_logp")) return setup;

  Params rejection = params.object("rejection_sampling");
  const bool of_rows = rejection.choice("level", {"token", "sequence"}) == "sequence";
  const bool masks = rejection.choice("action", {"mask", "clamp"}) == "mask";
  const std::string metric = rejection.choice("metric", {"ratio", "kl_k1", "kl_k2", "kl_k3"}),
                    agg = rejection.choice("agg", {"mean", "sum", "max"});
  const gdpo::Bounds range{rejection.at_least("lower"), rejection.at_most("upper")};
  rejection.all_read();
  prepass::Importance weight;
  if (of_rows && metric == "ratio") weight.statistic = prepass::Statistic::SequenceMean;
  if (!masks) {
    if (of_rows && metric != "ratio") throw Unsupported("a clamp by rows' KL is not mapped");
    weight.clip = range;
    set_passes(setup, weight);
    return setup;
  }
  prepass::Gate gate;
  gate.min = range.lo, gate.max = range.hi;
  if (metric == "kl_k1") {  // AReaL's k1 is old - rollout
    gate.estimator = prepass::Estimator::K1;
    gate.min = -range.hi, gate.max = -range.lo;
  } else if (metric == "kl_k2") {
    gate.estimator = prepass::Estimator::K2;
  } else if (metric == "kl_k3") {
    throw Unsupported("AReaL's k3 is that of rollout - old");
  }
  if (of_rows) {
    gate.statistic = agg == "mean"  ? prepass::Statistic::SequenceMean
                     : agg == "sum" ? prepass::Statistic::SequenceSum
                                    : prepass::Statistic::SequenceMax;
  }
  set_passes(setup, weight, gate);
  return setup;
}

// --- openrlhf

LossSetup openrlhf_loss(Params& params, const Case&) {
  LossSetup setup;
  const bool gspo = params.choice("policy_loss_type", {"ppo", "gspo"}) == "gspo";
  setup.loss =
      gspo ? gdpo::runtime::loss("trl::grpo", "sequence") : gdpo::runtime::loss("verl::vanilla");
  if (gspo) {
    no_log_ratio_clamp(params);
  } else {
    check_log_ratio_clamp(params, setup);
  }
  set_clip(setup, params.number("clip_eps_low"), params.number("clip_eps_high"),
           gdpo::math::infinity, params.at_most("dual_clip"));
  aggregate_of(setup) = openrlhf_aggregate(params, setup.given);
  const std::string level = params.choice("is_correction_level", {"off", "token", "seq"});
  const std::string mode = params.choice("is_correction_mode", {"mask", "clip"});
  params.choice("is_correction_gating", {"ratio"});
  if (level != "off") {
    if (gspo) throw Unsupported("gspo with a correction is not mapped");
    const gdpo::Bounds range = params.interval("is_correction_threshold");
    const auto statistic =
        level == "seq" ? prepass::Statistic::SequenceMean : prepass::Statistic::Token;
    prepass::Importance weight;
    if (mode == "clip") {
      weight.statistic = statistic, weight.clip = range;
      set_passes(setup, weight);
    } else {
      prepass::Gate gate;
      gate.statistic = statistic, gate.min = range.lo, gate.max = range.hi;
      set_passes(setup, weight, gate);
    }
  }
  params.without_effect({"is_correction_threshold"});
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric("clip_ratio", run.result.metrics.clip_fraction.mean());
    // Its mean is over log ratios before the clamp.
    if (run.result.metrics.log_ratio_bounded.sum == 0)
      comparison.metric("ppo_kl", run.result.metrics.approx_kl_k1.mean());
  };
  return setup;
}

// --- torchrl

LossSetup torchrl_loss(Params& params, const Case&) {
  LossSetup setup;
  const std::string aggregation =
      params.choice("aggregation", {"token_mean", "prompt_mean", "none"});
  setup.loss = gdpo::runtime::loss(aggregation == "prompt_mean" ? "trl::grpo" : "trl::bnpo");
  const gdpo::Bounds clip = params.interval("clip_epsilon");
  set_clip(setup, clip.lo, clip.hi);
  if (aggregation == "none") aggregate_of(setup) = gdpo::aggregate::token_sum();
  no_log_ratio_clamp(params);
  params.fixed("entropy_bonus", false);
  if (params.has("kl_mask_threshold")) {
    prepass::Gate gate;
    gate.estimator = prepass::Estimator::K2, gate.pair = prepass::Pair::Update;
    gate.max = params.number("kl_mask_threshold"), gate.reach = Reach::Mask;
    set_passes(setup, gate);
  }
  return setup;
}

}  // namespace

Aggregate openrlhf_aggregate(Params& params, double& given) {
  const bool of_tokens = params.flag("token_level_loss");
  Aggregate chosen = of_tokens ? gdpo::verl::token_mean : gdpo::verl::seq_mean_token_mean;
  if (params.has("seq_len_eps"))
    params.of_preset("seq_len_eps", gdpo::verl::seq_mean_token_mean.row_count_eps);
  chosen.scale = params.has("dp_size") ? params.number("dp_size") : 1;
  const char* count = of_tokens ? "batch_num_tokens" : "global_batch_size";
  if (params.has(count)) {
    given = params.number(count);
    chosen.over = Over::Given;
  }
  params.without_effect({"batch_num_tokens", "global_batch_size"});
  return chosen;
}

Aggregate trinity_aggregate(Params& params, double width, double& given) {
  const std::string mode = params.choice(
      "loss_agg_mode",
      {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"});
  const double eps = params.number("mean_eps");
  using Mode = Aggregate::Mode;
  if (mode == "token-mean") return {Mode::TokenMean, Over::Tokens, eps};
  if (mode == "seq-mean-token-sum") return {Mode::SeqMeanTokenSum, Over::Rows};
  if (mode == "seq-mean-token-mean") return {Mode::SeqMeanTokenMean, Over::Rows, 0, 1, eps};
  given = width;
  return {Mode::TokenMean, Over::Given, eps};
}

void add_release_losses(Registry& registry) {
  const auto add = [&](const char* source, const char* function, Mapping mapping) {
    registry.add_loss(source, "loss", function, losses(std::move(mapping)));
  };
  add("skyrl", "ppo_policy_loss", skyrl_ppo);
  add("skyrl", "gspo_policy_loss", skyrl_gspo);
  add("skyrl", "compute_policy_loss_cispo", skyrl_cispo);
  add("skyrl", "importance_sampling_loss", skyrl_importance_sampling);
  add("trinity", "PPOPolicyLossFn", trinity_ppo);
  add("trinity", "GSPOLossFn", trinity_gspo);
  add("trinity", "CISPOPolicyLossFn", trinity_cispo);
  add("trinity", "ImportanceSamplingLossFn", trinity_importance_sampling);
  add("areal", "ppo_actor_loss_fn", areal_loss);
  add("openrlhf", "PolicyLoss.forward", openrlhf_loss);
  add("torchrl", "GRPOLoss.forward", torchrl_loss);
}

}  // namespace conformance
