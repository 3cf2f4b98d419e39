// Maps the losses of trainers of which only releases were recorded (tests/golden/released).
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "conditions.hpp"
#include "corrections.hpp"
#include "gate_metrics.hpp"
#include "loss_settings.hpp"
#include "mismatch.hpp"

namespace conformance {
namespace {

using gdpo::Aggregate;
using gdpo::LossMetrics;
using gdpo::Over;
namespace prepass = gdpo::prepass;

double width_of(const Case& recorded) {
  return static_cast<double>(array_of(recorded.inputs.at("logp")).shape.at(1));
}

// --- skyrl

LossSetup skyrl(Params& params, const std::string& preset) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss(preset);
  params.fixed("reduction", "sum over valid tokens");
  if (params.has("off_policy_correction")) {
    Params correction = params.object("off_policy_correction");
    skyrl_correction(correction, setup);
    correction.all_read();
  }
  params.remark("advantages_were_scaled_for");
  setup.metrics = [preset, passes = setup.logged](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.before;  // a mean over the tokens before the correction
    comparison.metric("clip_ratio", preset == "skyrl::cispo" ? m.clip_fraction_any.mean()
                                                             : m.clip_fraction.mean());
    compare_skyrl_correction(*run.in, passes, comparison);
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

LossSetup skyrl_sapo(Params& params, const Case&) {
  LossSetup setup = skyrl(params, "skyrl::sapo");
  Params taus = params.object("sapo");
  set_surrogate(setup, gdpo::surrogate::Soft{taus.number("tau_pos"), taus.number("tau_neg")});
  taus.all_read();
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

// Its clip_ratio is the share of tokens that the mask of the loss drops.
void dropped_share(const LossRun& run, Comparison& comparison) {
  double tokens = 0, dropped = 0;
  for (std::size_t k = 0; k < run.recorded.size(); ++k) {
    if (run.recorded[k] != 0) tokens += 1, dropped += run.weights[k] == 0;
  }
  comparison.metric("clip_ratio", tokens > 0 ? dropped / tokens : 0);
}

LossSetup skyrl_rollout_is(Params& params, const Case&) {
  LossSetup setup = skyrl(params, "skyrl::rollout_is");
  prepass::Gate gate = gdpo::skyrl::rollout_is;
  gate.min = 1 - params.number("eps_clip_low"), gate.max = 1 + params.number("eps_clip_high");
  old_is_rollout(setup);
  set_passes(setup, gate);
  setup.metrics = dropped_share;
  return setup;
}

LossSetup skyrl_dppo(Params& params, const Case&) {
  LossSetup setup = skyrl(params, "skyrl::dppo");
  Params of = params.object("dppo");
  const std::string type = of.choice("dppo_type", {"binary_tv", "binary_kl"});
  prepass::Gate gate =
      type == "binary_tv" ? gdpo::skyrl::dppo_binary_tv : gdpo::skyrl::dppo_binary_kl;
  gate.min = -of.number("delta_low"), gate.max = of.number("delta_high");
  of.all_read();
  old_is_rollout(setup);
  set_passes(setup, gate);
  setup.metrics = [passes = setup.logged](const LossRun& run, Comparison& comparison) {
    dropped_share(run, comparison);
    compare_skyrl_correction(*run.in, passes, comparison);
  };
  return setup;
}

// --- trinity

void trinity_metrics(Params& params, LossSetup& setup, const char* loss) {
  const double eps = params.number("mean_eps");
  const auto passes = setup.logged;
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    comparison.metric(loss, run.result.loss);
    comparison.metric("pg_clipfrac", m.clip_fraction.mean(eps));
    comparison.metric("pg_clipfrac_lower", m.dual_clip_fraction.mean(eps));
    comparison.metric("ppo_kl", m.approx_kl_k1.mean(eps));
    const gdpo::GateReportSettings of_tokens{eps, false}, of_all_rows{0, true};
    prepass::Gate sequence_kl;
    sequence_kl.estimator = prepass::Estimator::K1, sequence_kl.pair = prepass::Pair::Update;
    sequence_kl.statistic = prepass::Statistic::SequenceMean, sequence_kl.count_eps = eps;
    comparison.metric("ppo_kl_seq",
                      gate_report_of(*run.in, sequence_kl, of_all_rows, comparison).row_mean());
    const prepass::Gate mask =
        passes.empty() ? prepass::Gate{gdpo::prepass::Estimator::Ratio, prepass::Pair::Update}
                       : std::get<prepass::Gate>(passes.front().second);
    comparison.metric("unmasked_frac",
                      gate_report_of(*run.in, mask, of_tokens, comparison).open_share());
    comparison.metric("seq_mask/mean_sequence_kl",
                      gate_report_of(*run.in, mask, of_all_rows, comparison).row_mean());
  };
}

}  // namespace

LossSetup trinity_clip(Params& params, const Aggregate& aggregate) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trinity::ppo");
  const auto bound = [&](const char* name) {
    return params.number(params.has(name) ? name : "clip_range");
  };
  params.without_effect({"clip_range"});
  // MIX and MIXCHORD leave the dual clip at its default.
  set_clip(setup, bound("clip_range_low"), bound("clip_range_high"), gdpo::math::infinity,
           params.has("clip_ratio_c") ? params.number("clip_ratio_c")
                                      : gdpo::trinity::ppo_loss.surrogate.dual);
  aggregate_of(setup) = aggregate;
  return setup;
}

namespace {

LossSetup trinity_ppo(Params& params, const Case& recorded) {
  double given = 0;
  const Aggregate aggregate = trinity_aggregate(params, width_of(recorded), given);
  LossSetup setup = trinity_clip(params, aggregate);
  setup.given = given;
  if (params.flag("fallback_to_policy_gradient")) {  // the ratio 1 with a gradient
    set_prepare(setup, [](auto batch, auto&) {
      batch.old_logp = {};
      return batch;
    });
  }
  if (params.flag("enable_sequence_masking")) {
    prepass::Gate gate = gdpo::trinity::sequence_masking;
    gate.max = params.number("delta_sequence_masking");
    set_passes(setup, gate);
    setup.logged.emplace_back("seq_mask/mean_sequence_kl", gate);
  }
  params.without_effect({"delta_sequence_masking"});
  trinity_metrics(params, setup, "pg_loss");
  return setup;
}

LossSetup trinity_loss(const char* preset, Params& params, const Case& recorded) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss(preset);
  aggregate_of(setup) = trinity_aggregate(params, width_of(recorded), setup.given);
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
    prepass::Gate gate = gdpo::trinity::mask_clip;
    gate.min = 1 - params.number("mask_clip_range_low");
    gate.max = 1 + params.number("mask_clip_range_high");
    set_passes(setup, gate);
    setup.logged.emplace_back("unmasked_frac", gate);
  }
  params.without_effect({"mask_clip_range_low", "mask_clip_range_high"});
  trinity_metrics(params, setup, "cispo_loss");
  return setup;
}

LossSetup trinity_importance_sampling(Params& params, const Case& recorded) {
  LossSetup setup = trinity_loss("trinity::importance_sampling", params, recorded);
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric("pg_loss", run.result.loss);
    comparison.metric("ratio/mean", run.result.metrics.ratio.mean(eps));
    comparison.metric("approx_kl", run.result.metrics.approx_kl_k1.mean(eps));
  };
  return setup;
}

LossSetup trinity_sapo(Params& params, const Case& recorded) {
  LossSetup setup = trinity_loss("trinity::sapo", params, recorded);
  set_factor(setup, gdpo::factor::SoftGate{params.number("tau_pos"), params.number("tau_neg")});
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric("sapo_loss", run.result.loss);
    comparison.metric("ppo_kl", run.result.metrics.approx_kl_k1.mean(eps));
    comparison.metric("avg_ratio", run.result.metrics.ratio.mean(eps));
  };
  return setup;
}

LossSetup trinity_topr(Params& params, const Case& recorded) {
  LossSetup setup = trinity_loss("trinity::topr", params, recorded);
  gdpo::factor::SignedRatio factor;
  factor.threshold = params.number("advantage_threshold");
  set_factor(setup, factor);
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric("topr_loss", run.result.loss);
    comparison.metric("avg_ratio", run.result.metrics.ratio.mean(eps));
  };
  return setup;
}

// Its clip fraction is the share of tokens without a gradient.
void dropped_tokens(Params& params, LossSetup& setup) {
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric("pg_loss", run.result.loss);
    comparison.metric("pg_clipfrac", run.result.metrics.clip_fraction_any.mean(eps));
  };
}

LossSetup trinity_sppo(Params& params, const Case& recorded) {
  LossSetup setup = trinity_loss("trinity::sppo", params, recorded);
  set_surrogate(setup, gdpo::surrogate::LogRatio{params.number("epsilon")});
  dropped_tokens(params, setup);
  return setup;
}

LossSetup trinity_opmd(Params& params, const Case& recorded) {
  LossSetup setup = trinity_loss("trinity::opmd", params, recorded);
  aggregate_of(setup).scale = 1 / (1 + params.number("tau"));
  params.without_effect({"mean_eps"});
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric("opmd_loss", run.result.loss);
  };
  return setup;
}

LossSetup trinity_rec(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trinity::rec");
  gdpo::factor::Ring ring;
  const std::string mode =
      params.choice("clip_mode", {"none", "one-side", "two-side", "ring", "gspo-one-side"});
  const bool one_side = mode == "one-side" || mode == "gspo-one-side", of_rows = mode[0] == 'g';
  if (mode != "none") {
    ring.low = params.number("epsilon_low"), ring.high = params.number("epsilon_high");
    if (one_side) ring.low_prime = ring.low, ring.high_prime = ring.high;
    if (mode == "ring") {
      ring.low_prime = params.number("epsilon_low_prime");
      ring.high_prime = params.number("epsilon_high_prime");
    }
  }
  params.without_effect(
      {"epsilon_low", "epsilon_high", "epsilon_low_prime", "epsilon_high_prime", "temp"});
  const std::string weight = params.choice(
      "weight", {"none", "importance_sampling", "gspo_importance_sampling", "advantage"});
  if (weight == "advantage") {
    ring.temp = params.number("temp");
  } else if (weight != "none") {
    if ((weight[0] == 'g') != of_rows) throw Unsupported("a range of rows and weights of tokens");
    ring.min_ratio = 0, ring.max_ratio = gdpo::math::infinity;
  }
  const double eps = params.number("mean_eps");
  if (of_rows) {
    setup.loss = gdpo::runtime::loss("trinity::rec", "sequence_token");
    with_loss(setup, [eps](auto& loss) {
      loss.aggregate = gdpo::trinity::gspo_loss.aggregate;
      if constexpr (std::decay_t<decltype(loss.level)>::of_segment)
        loss.level.statistic.count_eps = eps;
    });
  }
  set_factor(setup, ring);
  const std::string regularizer = params.choice("regularizer", {"none", "k2", "forward-kl"});
  const double coef = params.number("regularizer_coef");
  if (regularizer == "k2") set_beta(setup, 2 * coef);
  if (regularizer == "forward-kl") {
    set_beta(setup, coef);
    set_kl(setup, gdpo::KlEstimator::ForwardK1);
    with_loss(setup, [](auto& loss) { loss.kl.against = gdpo::Against::Data; });
  }
  dropped_tokens(params, setup);
  return setup;
}

// A likelihood: its value has the name of the metric.
Mapping trinity_likelihood(const char* preset, const char* metric) {
  return [=](Params& params, const Case& recorded) {
    LossSetup setup = trinity_loss(preset, params, recorded);
    if (params.has("cutoff_prob") && params.number("cutoff_prob") < 1)
      set_surrogate(setup, gdpo::surrogate::Likelihood{-std::log(params.number("cutoff_prob"))});
    params.without_effect({"mean_eps"});
    setup.metrics = [metric](const LossRun& run, Comparison& comparison) {
      comparison.metric(metric, run.result.loss);
    };
    return setup;
  };
}

// A KL term by itself.
template <class Kl>
Mapping trinity_kl_loss(const Kl& kl) {
  return [=](Params& params, const Case& recorded) {
    gdpo::runtime::AnyLossAt<gdpo::level::Token<>> loss;
    loss.surrogate = gdpo::surrogate::None{};
    loss.kl = gdpo::runtime::detail::any_kl(kl);
    loss.kl.beta = params.number("kl_coef");
    LossSetup setup;
    setup.loss = loss;
    aggregate_of(setup) = trinity_aggregate(params, width_of(recorded), setup.given);
    if (loss.kl.gradient == gdpo::KlGradient::ClippedImportanceWeighted)
      params.of_preset("ratio_clamp", gdpo::Bounds{0, loss.kl.max_weight});
    params.without_effect({"ratio_clamp"});
    return setup;
  };
}

LossSetup skyrl_cross_entropy(Params& params, const Case&) {
  return skyrl(params, "skyrl::cross_entropy");
}

LossSetup skyrl_importance_sampling(Params& params, const Case&) {
  LossSetup setup = skyrl(params, "skyrl::importance_sampling");
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric("importance_ratio", run.result.metrics.ratio.mean());
  };
  return setup;
}

// What AReaL lists of each token: the weights, 0 where the mask drops a token, and the mask. A
// clamp drops none.
void compare_areal(const LossRun& run, const gdpo::GateReport& report, bool clamps,
                   Comparison& comparison) {
  const LossMetrics& m = run.kept;  // clips of the tokens that are left
  comparison.metric_sum("clip_mask", m.clip_fraction.sum);
  comparison.metric_sum("dual_clip_mask", m.dual_clip_fraction.sum);
  comparison.metric(
      "filtered_fraction",
      clamps ? report.token_fraction_low() + report.token_fraction_high() : report.closed_share());
  Array weights = of_tokens(*run.in, run.weights), mask = weights;
  for (std::size_t k = 0; k < run.recorded.size(); ++k) {
    const bool kept = run.recorded[k] != 0 && run.mask[k] != 0;
    weights.data[k] = kept ? run.weights[k] : 0;
    mask.data[k] = kept && (clamps || run.weights[k] != 0);
  }
  comparison.metric("behave_imp_weight", weights), comparison.metric("behave_mask", mask);
}

// --- areal: PPO over tokens or rows, with the ratio to the sampler as a weight

LossSetup areal(Params& params, const char* preset) {
  LossSetup setup;
  const std::string level =
      params.choice("importance_sampling_level", {"token", "sequence"}, "token");
  setup.loss = gdpo::runtime::loss(preset, level);
  setup.row_advantages = level == "sequence";
  no_log_ratio_clamp(params);
  params.remark("denominator"), params.remark("layout");
  return setup;
}

LossSetup areal_sapo(Params& params, const Case&) {
  LossSetup setup = areal(params, "areal::sapo");
  set_surrogate(setup, gdpo::surrogate::Soft{params.number("tau_pos"), params.number("tau_neg")});
  return setup;
}

LossSetup areal_loss(Params& params, const Case& recorded) {
  LossSetup setup = areal(params, "areal::ppo");
  const double low = params.number("eps_clip");
  set_clip(setup, low, params.has("eps_clip_higher") ? params.number("eps_clip_higher") : low,
           gdpo::math::infinity, params.at_most("c_clip"));
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric_sum("clip_mask", run.result.metrics.clip_fraction.sum);
    comparison.metric_sum("dual_clip_mask", run.result.metrics.dual_clip_fraction.sum);
  };
  if (!recorded.inputs.contains("rollout_logp")) return setup;

  Params rejection = params.object("rejection_sampling");
  const bool of_rows = rejection.choice("level", {"token", "sequence"}) == "sequence";
  const bool masks = rejection.choice("action", {"mask", "clamp"}) == "mask";
  const std::string metric = rejection.choice("metric", {"ratio", "kl_k1", "kl_k2", "kl_k3"}),
                    agg = rejection.choice("agg", {"mean", "sum", "max"});
  const gdpo::Bounds range{rejection.at_least("lower"), rejection.at_most("upper")};
  rejection.all_read();
  if (!masks) {
    if (of_rows && metric != "ratio") throw Unsupported("a clamp by rows' KL is not mapped");
    prepass::Importance weight = of_rows ? gdpo::areal::sequence_clamp : gdpo::areal::token_clamp;
    weight.clip = range;
    set_passes(setup, weight);
    setup.metrics = [=](const LossRun& run, Comparison& comparison) {
      compare_areal(run, gate_report_of(*run.in, weight, {}, comparison), true, comparison);
    };
    return setup;
  }
  auto pass = prepass_named<prepass::MaskedImportance>(
      std::string("areal::") + (of_rows ? "sequence" : "token") + "_mask_" + metric);
  prepass::Gate& gate = pass.rest.first;
  gate.min = range.lo, gate.max = range.hi;
  if (metric == "kl_k1") {  // AReaL's is old - rollout
    gate.min = -range.hi, gate.max = -range.lo;
    if (of_rows && agg == "max") throw Unsupported("the largest -k1 of a row is not mapped");
  }
  if (of_rows) {
    gate.statistic = agg == "mean"  ? prepass::Statistic::SequenceMean
                     : agg == "sum" ? prepass::Statistic::SequenceSum
                                    : prepass::Statistic::SequenceMax;
  }
  set_passes(setup, pass);
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    compare_areal(run, gate_report_of(*run.in, gate, {}, comparison), false, comparison);
  };
  return setup;
}

// --- openrlhf

// is_correction_*, which releases up to 0.11.1 called vllm_is_correction_type.
void openrlhf_correction(Params& params, LossSetup& setup, const Case& recorded, bool gspo) {
  std::string level, mode, gating = "ratio";
  const bool former = recorded.params.contains("enable_vllm_is_correction");
  const char* threshold = former ? "vllm_is_truncated_threshold" : "is_correction_threshold";
  if (former) {
    const std::string type =
        params.choice("vllm_is_correction_type", {"tis", "icepop", "seq-mask-tis"});
    level = !params.flag("enable_vllm_is_correction") ? "off"
            : type == "seq-mask-tis"                  ? "seq"
                                                      : "token";
    mode = type == "tis" ? "clip" : "mask";
  } else {
    level = params.choice("is_correction_level", {"off", "token", "seq"});
    mode = params.choice("is_correction_mode", {"mask", "clip"});
    gating = params.choice("is_correction_gating", {"ratio", "binary_kl", "tv"});
  }
  const gdpo::Bounds range = params.interval(threshold);
  if (level == "off") return;
  if (gspo) {
    old_is_rollout(setup);
  } else if (mode == "clip") {
    auto pass = prepass_named<prepass::Importance>("openrlhf::" + level + "_clip");
    pass.clip = range;
    set_passes(setup, pass);
    setup.logged.emplace_back("is_filter_ratio", pass);
  } else {
    auto pass = prepass_named<prepass::MaskedImportance>("openrlhf::" + level + "_mask_" + gating);
    pass.rest.first.min = gating == "ratio" ? range.lo : -gdpo::math::infinity;
    pass.rest.first.max = range.hi;
    if (gating != "ratio" && range.lo > 0) throw Unsupported("a lower bound of a divergence");
    set_passes(setup, pass);
    setup.logged.emplace_back("is_filter_ratio", pass.rest.first);
  }
}

LossSetup openrlhf_loss(Params& params, const Case& recorded) {
  LossSetup setup;
  const bool gspo = params.choice("policy_loss_type", {"ppo", "gspo"}) == "gspo";
  setup.loss = gdpo::runtime::loss(gspo ? "openrlhf::gspo" : "openrlhf::ppo");
  if (gspo) {
    no_log_ratio_clamp(params);
  } else {
    check_log_ratio_clamp(params, setup);
  }
  set_clip(setup, params.number("clip_eps_low"), params.number("clip_eps_high"),
           gdpo::math::infinity, params.at_most("dual_clip"));
  aggregate_of(setup) = openrlhf_aggregate(params, setup.given);
  openrlhf_correction(params, setup, recorded, gspo);
  setup.metrics = [passes = setup.logged](const LossRun& run, Comparison& comparison) {
    comparison.metric("clip_ratio", run.result.metrics.clip_fraction.mean());
    // Its mean is over log ratios before the clamp, and of the old policy, whatever the ratio is.
    prepass::Gate update;
    update.estimator = prepass::Estimator::K1, update.pair = prepass::Pair::Update;
    comparison.metric("ppo_kl", gate_report_of(*run.in, update, {}, comparison).token_mean());
    for (const auto& [name, pass] : passes) {
      const bool clips = std::holds_alternative<prepass::Importance>(pass);
      const gdpo::GateReport r =
          clips ? gate_report_of(*run.in, std::get<prepass::Importance>(pass), {}, comparison)
                : gate_report_of(*run.in, std::get<prepass::Gate>(pass), {}, comparison);
      const double rows = static_cast<double>(r.rows),  // those without a token count as filtered
          outside = static_cast<double>(r.rows - r.counted_rows + r.rows_low + r.rows_high);
      comparison.metric(
          name, r.shared ? outside / rows : r.token_fraction_low() + r.token_fraction_high());
    }
  };
  return setup;
}

// --- torchrl

// GRPOLoss with KL terms, which no loss by name has.
// Means over all positions, padding too. `m`: of the tokens before the mask by their KL.
void torchrl_metrics(const LossRun& run, const LossMetrics& m, Comparison& comparison) {
  const auto positions = static_cast<double>(run.mask.size());
  comparison.metric("clip_fraction", m.clip_fraction_any.sum / positions);
  comparison.metric("kl_approx", m.approx_kl_k1.sum / positions);
  TokenInputs in = *run.in;
  in.rollout_logp = in.old_logp, in.old_logp = in.logp, in.mask = run.mask;
  comparison.metric(
      "ESS", mismatch_of(in, {0.5, 2, 0.5, 2, gdpo::math::infinity}, comparison).token_ess());
}

void torchrl_kl_loss(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  auto loss = gdpo::torchrl::grpo_kl_loss;
  params.choice("aggregation", {"token_mean"});
  const gdpo::Bounds clip = params.interval("clip_epsilon");
  loss.surrogate.low = clip.lo, loss.surrogate.high = clip.hi;
  const auto coefficient = [&](const char* name) {
    return params.has(name) ? params.number(name) : 0.0;
  };
  loss.kl.first.beta = coefficient("kl_to_ref_coeff");
  loss.kl.rest.first.beta = coefficient("kl_to_inference_coeff");
  params.without_effect({"kl_to_ref_coeff", "kl_to_inference_coeff", "kl_mask_threshold"});
  no_log_ratio_clamp(params);
  params.fixed("entropy_bonus", false);
  params.all_read();
  // Padded and packed rows are divided by the same length.
  for (gdpo::Aggregate* positions : {&loss.kl.first.aggregate, &loss.kl.rest.first.aggregate})
    positions->padded_width = false, positions->constant = width_of(recorded);
  const TokenInputs in = token_inputs(recorded);
  LossRun run = padded_and_packed(
      in, [&](const TokenInputs& layout) { return run_loss(AnyLoss(loss), layout); }, comparison);
  run.in = &in;
  comparison.output("loss", Array{{}, {run.result.loss}});
  comparison.output("grad_logp", of_tokens(in, run.gradient));
  comparison.metric("loss_objective", run.result.policy_loss);
  const double to_ref = run.result.metrics.kl.sum / static_cast<double>(run.mask.size());
  comparison.metric("kl_to_ref", to_ref);
  comparison.metric("loss_kl_to_ref", loss.kl.first.beta * to_ref);
  torchrl_metrics(run, run.result.metrics, comparison);
}

LossSetup torchrl_loss(Params& params, const Case& recorded) {
  LossSetup setup;
  bool missing = false;
  const std::string aggregation =
      params.choice("aggregation", {"token_mean", "prompt_mean", "none"});
  const gdpo::Bounds clip = params.interval("clip_epsilon");
  if (recorded.function == "CISPOLoss.forward") {
    setup.loss = gdpo::runtime::loss("torchrl::cispo");
    set_surrogate(setup, gdpo::surrogate::Clipped{clip.lo, clip.hi});
    if (aggregation == "prompt_mean") aggregate_of(setup) = gdpo::aggregate::seq_mean_token_mean();
  } else {
    setup.loss = gdpo::runtime::loss("torchrl::grpo");
    set_clip(setup, clip.lo, clip.hi);
    if (aggregation == "prompt_mean") aggregate_of(setup) = gdpo::aggregate::seq_mean_token_mean();
    const std::vector<double> old = array_of(recorded.inputs.at("old_logp")).data;
    missing = std::any_of(old.begin(), old.end(), [](double x) { return x != x; });
    if (missing) set_passes(setup, gdpo::torchrl::missing_old_logp);
  }
  if (aggregation == "none") aggregate_of(setup) = gdpo::aggregate::token_sum();
  no_log_ratio_clamp(params);
  params.fixed("entropy_bonus", false);
  if (params.has("kl_mask_threshold")) {
    prepass::Gate gate = gdpo::torchrl::kl_mask;
    gate.max = params.number("kl_mask_threshold");
    set_passes(setup, gate);
  }
  const bool drops = missing;
  setup.metrics = [drops](const LossRun& run, Comparison& comparison) {
    torchrl_metrics(run, drops ? run.result.metrics : run.before, comparison);
  };
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
  add_added_losses(registry);
  const auto add = [&](const char* source, const char* function, Mapping mapping) {
    registry.add_loss(source, "loss", function, losses(std::move(mapping)));
  };
  add("skyrl", "ppo_policy_loss", skyrl_ppo);
  add("skyrl", "gspo_policy_loss", skyrl_gspo);
  add("skyrl", "compute_policy_loss_cispo", skyrl_cispo);
  add("skyrl", "sapo_policy_loss", skyrl_sapo);
  add("skyrl", "importance_sampling_loss", skyrl_importance_sampling);
  add("skyrl", "rollout_is_policy_loss", skyrl_rollout_is);
  add("skyrl", "dppo_policy_loss", skyrl_dppo);
  add("skyrl", "cross_entropy_loss", skyrl_cross_entropy);
  add("trinity", "PPOPolicyLossFn", trinity_ppo);
  add("trinity", "GSPOLossFn", trinity_gspo);
  add("trinity", "CISPOPolicyLossFn", trinity_cispo);
  add("trinity", "ImportanceSamplingLossFn", trinity_importance_sampling);
  add("trinity", "SAPOPolicyLossFn", trinity_sapo);
  add("trinity", "TOPRPolicyLossFn", trinity_topr);
  add("trinity", "sPPOPolicyLossFn", trinity_sppo);
  add("trinity", "OPMDPolicyLossFn", trinity_opmd);
  add("trinity", "RECPolicyLossFn", trinity_rec);
  add("trinity", "SFTLossFn", trinity_likelihood("trinity::sft", "sft_loss"));
  add("trinity", "SFTISLossFn", trinity_likelihood("trinity::sft_is", "sft_is_loss"));
  add("trinity", "SFTPhiLossFn", trinity_likelihood("trinity::sft_phi", "sft_phi_loss"));
  add("trinity", "K3Fn.calculate_kl_loss", trinity_kl_loss(gdpo::trinity::k3_kl));
  add("trinity", "LowVarKLFn.calculate_kl_loss", trinity_kl_loss(gdpo::trinity::low_var_kl));
  add("trinity", "CorrectedK3Fn.calculate_kl_loss",
      trinity_kl_loss(gdpo::trinity::corrected_k3_kl));
  add("areal", "ppo_actor_loss_fn", areal_loss);
  add("areal", "sapo_loss_fn", areal_sapo);
  add("openrlhf", "PolicyLoss.forward", openrlhf_loss);
  registry.add_loss("torchrl", "loss", "GRPOLoss.forward",
                    [one = losses(torchrl_loss)](const Case& recorded, Comparison& comparison) {
                      Params params(recorded.params);
                      const bool terms =
                          params.has("kl_to_ref_coeff") || params.has("kl_to_inference_coeff");
                      terms ? torchrl_kl_loss(recorded, comparison) : one(recorded, comparison);
                    });
  add("torchrl", "CISPOLoss.forward", torchrl_loss);
}

}  // namespace conformance
