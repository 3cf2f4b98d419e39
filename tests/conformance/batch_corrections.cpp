// Corrections that are decided from a whole row or the whole batch, and the losses that need them.
#include <cmath>
#include <cstdint>
#include <gdpo/group/by_id.hpp>
#include <string>
#include <utility>

#include "advantage.hpp"
#include "as_is.hpp"
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

// --- trinity

// Where the tokens of an array (rows, width) are: all, or packed up to the last valid one of a row.
struct Tokens {
  gdpo::index_t rows, width;
  std::vector<gdpo::index_t> offsets;  // packed alone
  std::vector<std::size_t> place;

  Tokens(const Array& mask, bool packed)
      : rows(static_cast<gdpo::index_t>(mask.shape.at(0))),
        width(static_cast<gdpo::index_t>(mask.shape.at(1))) {
    if (packed) offsets.push_back(0);
    for (gdpo::index_t i = 0; i < rows; ++i) {
      const auto at = [&](gdpo::index_t t) { return static_cast<std::size_t>(i * width + t); };
      gdpo::index_t length = width;
      while (packed && length > 0 && mask.data[at(length - 1)] == 0) --length;
      for (gdpo::index_t t = 0; t < length; ++t) place.push_back(at(t));
      if (packed) offsets.push_back(static_cast<gdpo::index_t>(place.size()));
    }
  }
  template <class T>
  std::vector<T> of(const Array& padded) const {
    std::vector<T> tokens;
    for (const std::size_t k : place) tokens.push_back(static_cast<T>(padded.data[k]));
    return tokens;
  }
  template <class View, class T>
  View view(const std::vector<T>& tokens) const {
    if (tokens.empty()) return {};
    if (!offsets.empty()) return gdpo::view(tokens);
    return gdpo::view(tokens.data(), rows, width);
  }
};

struct Clipped {
  std::vector<double> mask;  // padded
  std::map<std::string, double> report;
};
template <class S>
Clipped clip_entropy(const prepass::EntropyClip& pass, const Json& inputs,
                     const std::vector<double>& advantages, bool packed) {
  const Array valid = array_of(inputs.at("response_mask"));
  const Tokens tokens(valid, packed);
  const auto read = [&](const char* name) {
    return inputs.contains(name) ? tokens.of<S>(array_of(inputs.at(name))) : std::vector<S>{};
  };
  const auto old_logp = read("old_log_probs"), rollout_logp = read("rollout_log_probs"),
             entropies = read("entropys"), centers = read("necs");
  const auto mask = tokens.of<unsigned char>(valid);
  using View = gdpo::TokenView<S>;
  gdpo::TokenBatch<S> batch;
  batch.old_logp = tokens.template view<View>(old_logp);
  batch.rollout_logp = tokens.template view<View>(rollout_logp);
  batch.entropies = tokens.template view<View>(entropies);
  batch.tags = tokens.template view<View>(centers);
  batch.mask = tokens.template view<gdpo::TokenView<unsigned char>>(mask);
  batch.advantages = gdpo::view(advantages);
  if (packed) batch.offsets = gdpo::view(tokens.offsets);
  gdpo::PrepassMemory<S> memory;
  gdpo::prepare(batch, memory, pass);
  Clipped clipped{std::vector<double>(valid.data.size(), 0.0),
                  gdpo::entropy_clip_report(batch, pass).to_map()};
  for (std::size_t k = 0; k < tokens.place.size(); ++k)
    clipped.mask[tokens.place[k]] = memory.mask[k];
  return clipped;
}

// GRPO, and then a mask: mu, and of Clip-V max_frac.
Handler entropy_clip(const char* name) {
  return [=](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    auto pass = prepass_named<prepass::EntropyClip>(name);
    pass.mu = params.number("mu");
    if (params.has("max_frac")) pass.max_share = params.number("max_frac");
    gdpo::runtime::Estimator estimator = gdpo::runtime::estimator("verl::grpo");
    set_scale(estimator, params.number("epsilon"), 1);
    params.all_read();
    only(recorded.inputs, {"token_level_rewards", "group_ids", "response_mask", "old_log_probs",
                           "rollout_log_probs", "entropys", "necs"});
    comparison.runs(settings_of(gdpo::runtime::Prepass(pass)));
    const Array rewards = array_of(recorded.inputs.at("token_level_rewards")),
                valid = array_of(recorded.inputs.at("response_mask"));
    const std::size_t rows = valid.shape.at(0), width = valid.shape.at(1);
    std::vector<double> sums(rows, 0.0), of_tokens;
    for (std::size_t k = 0; k < rewards.data.size(); ++k) sums[k / width] += rewards.data[k];
    const auto groups = gdpo::by_id(integers_of(recorded.inputs.at("group_ids")));
    const std::vector<double> advantages = std::visit(
        [&](const auto& e) { return gdpo::advantages(gdpo::view(sums), groups, e); }, estimator);
    for (const double a : advantages) of_tokens.insert(of_tokens.end(), width, a);
    const auto run = recorded.target.single ? clip_entropy<float> : clip_entropy<double>;
    const Clipped padded = run(pass, recorded.inputs, advantages, false),
                  packed = run(pass, recorded.inputs, advantages, true);
    comparison.law(padded.mask == packed.mask, "another mask packed");
    comparison.law(padded.report == packed.report, "another report packed");
    const std::vector<unsigned char> selected(valid.data.begin(), valid.data.end());
    comparison.output("advantages", Array{valid.shape, of_tokens}, selected);
    comparison.output("mask", Array{valid.shape, padded.mask});
    for (const auto& [key, value] : padded.report) comparison.metric(key, value);
  };
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
  registry.add_loss("trinity", "advantage", "ClipBAdvantageFn", entropy_clip("trinity::clip_b"));
  registry.add_loss("trinity", "advantage", "ClipVAdvantageFn", entropy_clip("trinity::clip_v"));
  registry.add("areal", "aggregate", "compute_prox_logp_approximations", proximal_logp);
}

}  // namespace conformance
