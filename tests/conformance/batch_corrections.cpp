// Corrections that are decided from a whole row or the whole batch, and the losses that need them.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "corrections.hpp"
#include "loss_settings.hpp"

namespace conformance {
namespace {

namespace prepass = gdpo::prepass;

// --- Clip-Cov and KL-Cov

// The picks are random unless all candidates are picked, as in the records.
prepass::Covariance all_between(prepass::Covariance pass, double share) {
  if (share != 1) throw Unsupported("picks from the random numbers of torch");
  pass.share = share;
  return pass;
}

gdpo::Aggregate verl_sums(Params& params, LossSetup& setup) {
  GlobalBatch step;
  if (params.has("loss_scale_factor")) step.loss_scale_factor = params.number("loss_scale_factor");
  return verl_aggregate(params, step, setup.given);
}

// The number of valid tokens, and of those whose weight the pre-passes made 0.
struct Picked {
  double tokens = 0, picked = 0;
};
Picked picked_of(const LossRun& run) {
  Picked count;
  for (std::size_t k = 0; k < run.recorded.size(); ++k) {
    if (run.recorded[k] != 0) count.tokens += 1, count.picked += run.weights[k] == 0;
  }
  return count;
}

LossSetup verl_clip_cov(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("verl::clip_cov");
  no_log_ratio_clamp(params);
  params.without_effect({"clip_ratio"});
  const double low = params.number("clip_ratio_low"), high = params.number("clip_ratio_high");
  set_clip(setup, low, high);
  aggregate_of(setup) = verl_sums(params, setup);
  prepass::Covariance pass = all_between(gdpo::verl::clip_cov, params.number("clip_cov_ratio"));
  pass.low = low, pass.high = high;
  pass.min = params.number("clip_cov_lb"), pass.max = params.number("clip_cov_ub");
  set_passes(setup, pass);
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const Picked count = picked_of(run);
    comparison.metric("actor/pg_clipfrac", count.picked / (count.tokens + eps));
    comparison.metric("actor/ppo_kl", run.result.metrics.approx_kl_k1.mean(eps));
  };
  return setup;
}

LossSetup verl_kl_cov(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("verl::kl_cov");
  no_log_ratio_clamp(params);
  set_beta(setup, params.number("ppo_kl_coef"));
  aggregate_of(setup) = verl_sums(params, setup);
  prepass::Covariance pass = gdpo::verl::kl_cov;
  pass.share = params.number("kl_cov_ratio");
  set_passes(setup, pass);
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {  // |log ratio| of all tokens
    comparison.metric("actor/ppo_kl", run.result.metrics.kl.mean(eps));
  };
  return setup;
}

LossSetup skyrl_loss(Params& params, const char* preset) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss(preset);
  params.fixed("reduction", "sum over valid tokens");
  params.fixed("off_policy_correction", nullptr);
  return setup;
}

LossSetup skyrl_clip_cov(Params& params, const Case&) {
  LossSetup setup = skyrl_loss(params, "skyrl::clip_cov");
  const double low = params.number("eps_clip_low"), high = params.number("eps_clip_high");
  set_clip(setup, low, high);
  Params of = params.object("clip_cov");
  prepass::Covariance pass = all_between(gdpo::skyrl::clip_cov, of.number("clip_ratio"));
  pass.low = low, pass.high = high;
  pass.min = of.number("clip_cov_lb"), pass.max = of.number("clip_cov_ub");
  of.all_read();
  set_passes(setup, pass);
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    const Picked count = picked_of(run);
    comparison.metric("clip_ratio", count.picked / count.tokens);
  };
  return setup;
}

LossSetup skyrl_kl_cov(Params& params, const Case&) {
  LossSetup setup = skyrl_loss(params, "skyrl::kl_cov");
  Params of = params.object("kl_cov");
  set_beta(setup, of.number("ppo_kl_coef"));
  prepass::Covariance pass = gdpo::skyrl::kl_cov;
  pass.share = of.number("kl_cov_frac");
  of.all_read();
  set_passes(setup, pass);
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric("clip_ratio", run.result.metrics.clip_fraction.mean());
  };
  return setup;
}

// --- areal

void proximal_logp(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const std::string method = params.choice("method", {"loglinear", "linear", "rollout"});
  const int current = params.integer("current_version");
  params.all_read();
  only(recorded.inputs, {"logp", "rollout_logp", "versions"});
  const Array logp = array_of(recorded.inputs.at("logp")),
              rollout = array_of(recorded.inputs.at("rollout_logp")),
              numbers = array_of(recorded.inputs.at("versions"));
  const std::vector<std::int64_t> versions(numbers.data.begin(), numbers.data.end());
  const auto rows = static_cast<gdpo::index_t>(logp.shape.at(0)),
             width = static_cast<gdpo::index_t>(logp.shape.at(1));
  gdpo::ProximalMethod how{};
  for (const auto& e : enumerators(how)) {
    if (method == e.word) how = e.value;
  }
  const std::vector<double> got = gdpo::proximal_logp(
      gdpo::view(logp.data.data(), rows, width), gdpo::view(rollout.data.data(), rows, width),
      gdpo::view(versions.data(), rows, width), current, how);
  comparison.output("old_logp", Array{logp.shape, got});
}

}  // namespace

void areal_m2po(Params& params, LossSetup& setup) {
  prepass::SecondMoment pass = gdpo::areal::m2po;
  pass.threshold = params.number("m2_threshold");
  set_passes(setup, pass);
}

void swift_fipo(Params& params, LossSetup& setup) {
  if (params.text("loss_type") != "fipo") return;
  prepass::FutureKl pass = gdpo::ms_swift::fipo;
  pass.gamma = params.number("fipo_gamma");
  params.without_effect({"fipo_decay_rate"});  // gamma was computed from it
  const double range = params.number("fipo_clip_range");
  pass.clip = {params.flag("fipo_clip_high_only") ? 1.0 : 1 - range, 1 + range};
  pass.drop_above = params.at_most("delta");
  pass.safety = params.at_most("fipo_safety_threshold");
  set_passes(setup, pass);
  setup.logged.emplace_back("fipo", pass);
}

void add_batch_corrections(Registry& registry) {
  const auto add = [&](const char* source, const char* function, Mapping mapping) {
    registry.add_loss(source, "loss", function, losses(std::move(mapping)));
  };
  add("verl", "compute_policy_loss_clip_cov", verl_clip_cov);
  add("verl", "compute_policy_loss_kl_cov", verl_kl_cov);
  add("skyrl", "compute_policy_loss_clip_cov", skyrl_clip_cov);
  add("skyrl", "compute_policy_loss_kl_cov", skyrl_kl_cov);
  registry.add("areal", "aggregate", "compute_prox_logp_approximations", proximal_logp);
}

}  // namespace conformance
