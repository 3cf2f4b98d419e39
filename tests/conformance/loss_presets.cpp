// Maps each recorded loss function to a preset, and its parameters to the members of that preset.
#include <algorithm>
#include <gdpo/constraint.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "conditions.hpp"
#include "corrections.hpp"
#include "gate_metrics.hpp"
#include "loss_settings.hpp"
#include "mismatch.hpp"
#include "releases.hpp"

namespace conformance {
namespace {

using gdpo::Aggregate;
using gdpo::LossMetrics;
using gdpo::Over;
namespace prepass = gdpo::prepass;
namespace trl = gdpo::trl;
namespace ms_swift = gdpo::ms_swift;

// The settings that TRL, its fork by NVlabs, ms-swift and Liger share.
LossSetup trl_family(Params& params, const Case& recorded, const std::string& trainer,
                     std::initializer_list<const char*> levels) {
  const std::string type = params.choice(
      "loss_type", {"grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "fipo", "sapo", "vespo"});
  const bool cispo = type == "cispo", vespo = type == "vespo";
  const std::vector<std::string>& known = gdpo::runtime::loss_names();
  const std::string preset = preset_of(recorded, trainer + type);
  if (std::find(known.begin(), known.end(), preset) == known.end())
    throw Unsupported("there is no preset " + preset);
  LossSetup setup;
  const std::string level = params.choice("importance_sampling_level", levels, "token");
  setup.loss = gdpo::runtime::loss(preset, vespo ? "" : level);  // vespo's is that of rows
  const double high = params.number("epsilon_high");
  if (cispo) {
    set_ratio_bounds(setup, 0, high);
    params.without_effect({"epsilon_low", "delta"});
  } else if (type == "sapo") {
    const bool is_tau = params.has("tau_pos");
    set_surrogate(
        setup, gdpo::surrogate::Soft{params.number(is_tau ? "tau_pos" : "sapo_temperature_pos"),
                                     params.number(is_tau ? "tau_neg" : "sapo_temperature_neg")});
    params.without_effect({"epsilon_low", "delta"});
  } else if (vespo) {
    set_factor(setup, gdpo::factor::Gamma{
                          params.number("vespo_k_pos"), params.number("vespo_lambda_pos"),
                          params.number("vespo_k_neg"), params.number("vespo_lambda_neg")});
    if (params.has("token_log_ratio_clamp")) {
      params.of_preset("token_log_ratio_clamp",
                       gdpo::Bounds{gdpo::vespo_level.map.lo, gdpo::vespo_level.map.hi});
      params.of_preset("seq_log_ratio_clamp", gdpo::vespo_level.bounds);
    }
    params.without_effect({"epsilon_low", "delta"});
  } else {
    set_clip(setup, params.number("epsilon_low"), high, params.at_most("delta"),
             gdpo::math::infinity);
  }
  set_beta(setup, params.number("beta"));
  params.remark("kl");
  if (cispo && params.has("rule")) params.remark("rule");
  if (trainer != "unsloth_zoo::") no_log_ratio_clamp(params);
  if (type == "dr_grpo") {
    aggregate_of(setup).constant = params.number("max_completion_length");
  } else {
    params.without_effect({"max_completion_length"});
  }
  Over& over = aggregate_of(setup).over;
  if (type == "dapo" || cispo || vespo || over == Over::Given) {
    if (params.has("num_items_in_batch")) {
      setup.given = params.number("num_items_in_batch");
      if (trainer == "liger::") over = Over::Given;  // the argument is optional in Liger
    } else if (over == Over::Given) {
      throw Unsupported("loss_type " + type + " without num_items_in_batch is not mapped");
    }
  } else {
    params.without_effect({"num_items_in_batch"});
  }
  // Up to 1.9.2 TRL, and Liger, take luspo's mean over the padded row, each position times the
  // number of its valid tokens.
  const bool masks = trainer == "unsloth_zoo::" || since(recorded, {1, 10});
  if (type == "luspo" && level == "token" && !masks) {
    aggregate_of(setup) = gdpo::aggregate::seq_mean_token_mean();
    setup.over_padding = true;
  }
  if (params.has("num_processes")) params.fixed("num_processes", 1);
  if (params.has("use_bias_correction_kl") && params.flag("use_bias_correction_kl")) {
    set_kl(setup, gdpo::KlEstimator::K3, gdpo::KlGradient::ImportanceWeighted);
  }
  return setup;
}

// --- metrics

// Keys of the clip metrics, in the order low mean, low min, high mean, high max, region mean.
struct ClipKeys {
  const char *low, *low_min, *high, *high_max, *region;
};
constexpr ClipKeys kTrlKeys{"clip_ratio/low_mean", "clip_ratio/low_min", "clip_ratio/high_mean",
                            "clip_ratio/high_max", "clip_ratio/region_mean"};
constexpr ClipKeys kSwiftKeys{"clipping/low_clip_mean", "clipping/low_clip_min",
                              "clipping/high_clip_mean", "clipping/high_clip_max",
                              "clipping/region_clip_mean"};

// Means over tokens. The trainer takes min and max over the processes of the run; a record has one
// process, so both are the mean.
void clip_metrics_of_tokens(const ClipKeys& keys, const LossMetrics& m, Comparison& comparison) {
  comparison.metric(keys.low, m.clip_fraction_low.mean());
  comparison.metric(keys.low_min, m.clip_fraction_low.mean());
  comparison.metric(keys.high, m.clip_fraction_high.mean());
  comparison.metric(keys.high_max, m.clip_fraction_high.mean());
  comparison.metric(keys.region, m.clip_fraction.mean());
}

// True if delta is inside the range or below it. Then a trainer that counts clips before it applies
// delta counts other tokens than the library, which counts after.
bool delta_hides_clips(const LossSetup& setup) {
  return std::visit(
      [](const auto& loss) {
        if constexpr (clips_ratio<std::decay_t<decltype(loss)>>)
          return loss.surrogate.delta <= 1 + loss.surrogate.high;
        else
          return false;
      },
      setup.loss);
}

// The weights after the pre-passes, over the tokens that were valid before: their mean, and the
// share of those that are 0.
struct Weights {
  double mean = 0, zeros = 0;
};
Weights weights_of(const LossRun& run) {
  double sum = 0, zeros = 0, n = 0;
  for (std::size_t k = 0; k < run.recorded.size(); ++k) {
    if (run.recorded[k] != 0) sum += run.weights[k], zeros += run.weights[k] == 0, n += 1;
  }
  return n > 0 ? Weights{sum / n, zeros / n} : Weights{};
}

// --- trl

// Whether the loss is divided by a count that the step gives.
bool counts_the_step(LossSetup& setup) {
  const Aggregate& of = aggregate_of(setup);
  return of.mode == Aggregate::Mode::TokenMean && of.over == Over::Given;
}

// dapo and cispo divide by the count of a generation batch, of which a step sees a part; the other
// losses are divided by the number of accumulation steps.
void trl_accumulation(Params& params, LossSetup& setup) {
  if (!params.has("gradient_accumulation_steps")) return;
  const double steps = params.number("gradient_accumulation_steps");
  const double of_generation =
      params.has("steps_per_generation") ? params.number("steps_per_generation") : steps;
  aggregate_of(setup).scale = (counts_the_step(setup) ? of_generation : 1) / steps;
}

// vllm_importance_sampling_mode. unsloth-zoo has geometric means of a row too.
// Of vespo the weights go into the ratio of the row.
void vllm_importance(Params& params, LossSetup& setup, const Case& recorded) {
  if (!params.has("vllm_importance_sampling_mode")) return;
  const bool vespo = recorded.params.at("loss_type") == "vespo";
  const gdpo::Reach reach = vespo ? gdpo::Reach::Level : gdpo::Reach::Surrogate;
  const std::string how = params.choice("vllm_importance_sampling_mode",
                                        {"token_truncate", "token_mask", "sequence_truncate",
                                         "sequence_mask", "geometric_truncate", "geometric_mask"});
  const gdpo::Bounds range{params.at_least("vllm_importance_sampling_clip_min"),
                           params.at_most("vllm_importance_sampling_clip_max")};
  const bool of_rows = how.rfind("token", 0) != 0, geometric = how.rfind("geometric", 0) == 0;
  if (how.find("mask") != std::string::npos) {
    prepass::MaskedImportance pass = geometric ? gdpo::unsloth_zoo::geometric_mask
                                     : of_rows ? trl::sequence_mask
                                               : trl::token_mask;
    pass.rest.first.min = range.lo, pass.rest.first.max = range.hi;
    pass.first.reach = pass.rest.first.reach = reach;
    set_passes(setup, pass);
  } else {
    prepass::Importance weight = geometric ? gdpo::unsloth_zoo::geometric_truncate
                                 : of_rows ? trl::sequence_truncate
                                           : trl::token_truncate;
    weight.clip = range, weight.reach = reach;
    set_passes(setup, weight);
  }
}

// entropy_coef: the mean over the active tokens, whatever the loss type, over the accumulated
// batches. With entropy_target a controller moves the coefficient; its entropy is that of the
// batch.
void trl_entropy(Params& params, LossSetup& setup) {
  if (!params.has("entropy_coef")) return;
  double coef = params.number("entropy_coef");
  if (params.has("entropy_target")) {
    const gdpo::AdaptiveEntropy controller{
        params.number("entropy_target"), params.number("entropy_coef_delta"),
        params.number("entropy_coef_min"), params.number("entropy_coef_max")};
    const gdpo::EntropyState state{coef, params.number("last_world_entropy")};
    coef = controller.applied(state);
    setup.outputs = [=](const LossRun& run, Comparison& comparison) {
      gdpo::EntropyState next = state;
      controller.update(next, run.result.metrics.entropy.mean());
      comparison.output("entropy_coef", Array{{}, {next.coef}});
    };
  }
  const double steps =
      params.has("gradient_accumulation_steps") ? params.number("gradient_accumulation_steps") : 1;
  with_loss(setup, [&](auto& loss) { loss.entropy = {coef / steps, gdpo::EntropyMean::Tokens}; });
}

LossSetup trl_loss(Params& params, const Case& recorded) {
  LossSetup setup = trl_family(params, recorded, "trl::", {"token", "sequence"});
  trl_accumulation(params, setup);
  trl_entropy(params, setup);
  if (params.has("off_policy_mask_threshold"))
    set_passes(setup, trl_off_policy_mask(recorded, params.number("off_policy_mask_threshold")));
  if (params.has("top_entropy_quantile")) {
    prepass::TopEntropy top;
    top.quantile = 1 - params.number("top_entropy_quantile");
    prepass::TopEntropy of_bonus = top;
    of_bonus.reach = gdpo::Reach::Entropy;
    prepass::MeanOne mean_one;
    mean_one.reach = gdpo::Reach::Entropy;
    set_passes(setup, top, of_bonus, mean_one);
  }
  vllm_importance(params, setup, recorded);

  // to_map() has the keys and the numbers that TRL logs.
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    for (const auto& [key, value] : run.result.metrics.to_map()) comparison.metric(key, value);
    comparison.metric("cispo_clip_ratio", run.result.metrics.clip_fraction_high.mean());
  };
  return setup;
}

// RLOOTrainer, whose ratio is that of the whole row.
LossSetup trl_rloo(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trl::rloo");
  set_clip(setup, params.number("epsilon_low"), params.number("epsilon_high"));
  params.fixed("importance_sampling_level", "sequence, sum of log-ratios");
  params.remark("reduction");
  no_log_ratio_clamp(params);
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    for (const auto& [key, value] : run.result.metrics.to_map()) comparison.metric(key, value);
  };
  return setup;
}

// GMPOTrainer. Tokens below the quantile of entropies leave the geometric mean.
LossSetup trl_gmpo(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("trl::gmpo");
  set_map(setup,
          gdpo::map::TrustRegion{params.number("epsilon_low"), params.number("epsilon_high")});
  set_beta(setup, params.number("beta"));
  aggregate_of(setup).scale = 1 / params.number("gradient_accumulation_steps");
  params.remark("reduction");
  prepass::TopEntropy top;
  top.quantile = 1 - params.number("top_entropy_quantile");
  top.reach = gdpo::Reach::Mask;
  if (top.quantile > 0) set_passes(setup, top);
  prepass::Gate region;  // the tokens that the map holds, as those at which a gate closes
  region.estimator = prepass::Estimator::K1, region.pair = prepass::Pair::Update;
  region.when = prepass::When::Outward;
  region.min = -params.number("epsilon_high"), region.max = params.number("epsilon_low");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric("kl", run.result.metrics.kl.mean());
    comparison.metric("clip_ratio/region_mean", run.before.log_ratio_bounded.mean());
    const gdpo::GateReport clips = gate_report_of(*run.in, region, {}, comparison);
    comparison.metric("clip_ratio/high_mean", clips.closed_low_share());
    comparison.metric("clip_ratio/low_mean", clips.closed_high_share());
  };
  return setup;
}

// --- unsloth_zoo

double rows_with_tokens(const LossRun& run) {
  const std::size_t width = run.recorded.size() / run.rows;
  double rows = 0;
  for (std::size_t k = 0; k < run.recorded.size(); k += width) {
    const auto row = run.recorded.begin() + static_cast<std::ptrdiff_t>(k);
    rows += std::any_of(row, row + static_cast<std::ptrdiff_t>(width),
                        [](unsigned char valid) { return valid != 0; });
  }
  return rows;
}

LossSetup unsloth_loss(Params& params, const Case& recorded) {
  LossSetup setup = trl_family(params, recorded, "unsloth_zoo::", {"token", "sequence"});
  with_loss(setup, [&](const auto& loss) {
    params.of_preset("kl_input_clamp", loss.kl.input);
    params.of_preset("kl_output_clamp", loss.kl.output);
  });
  trl_accumulation(params, setup);
  const bool of_rollout = params.has("rollout_logps_as_old") && params.flag("rollout_logps_as_old");
  if (of_rollout) {
    const gdpo::Bounds clamp = params.interval("log_ratio_clamp");
    setup.loss = with_token_clamp(setup.loss, clamp);
  }
  if (recorded.inputs.contains("sample_weight")) {  // in place of every denominator
    Aggregate& aggregate = aggregate_of(setup);
    if (!counts_the_step(setup)) aggregate.scale = 1;
    aggregate = {Aggregate::Mode::TokenSum, Over::Rows, 0, aggregate.scale};
  }
  if (params.has("off_policy_mask_threshold"))
    set_passes(setup, trl_off_policy_mask(recorded, params.number("off_policy_mask_threshold")));
  vllm_importance(params, setup, recorded);
  if (params.has("rollout_rs")) {
    rejections(params, setup, "unsloth_zoo",
               of_rollout ? prepass::Pair::Update : prepass::Pair::Mismatch);
  }
  const bool rejects = params.has("rollout_rs");
  const LossSetup rejecting = setup;
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    // A mean over the rows that have tokens. Rejected tokens have a KL of 0 and count.
    double of_rows = m.kl.row_sum;
    if (rejects) {
      of_rows = 0;
      for (const TokenInputs& row : rows_of(*run.in)) {
        const LossRun one = run_loss(rejecting, row);
        if (one.before.kl.count > 0) of_rows += one.kept.kl.sum / one.before.kl.count;
      }
    }
    comparison.metric("kl", of_rows / rows_with_tokens(run));
    comparison.metric("completion_length", m.completion_length.row_mean());
  };
  return setup;
}

// --- nvlabs_gdpo: its forks of trl and verl

LossSetup nvlabs_trl_loss(Params& params, const Case& recorded) {
  LossSetup setup = trl_family(params, recorded, "nvlabs::trl_", {"token"});
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric("kl", run.result.metrics.kl.mean());
    clip_metrics_of_tokens(kTrlKeys, run.result.metrics, comparison);
  };
  return setup;
}

LossSetup nvlabs_verl_loss(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("nvlabs::verl");
  const double range = params.number("cliprange");
  set_clip(setup, range, range);
  no_log_ratio_clamp(params);
  params.fixed("loss_agg", "token-mean");
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric_taken_in_float("pg_clipfrac", run.result.metrics.clip_fraction.mean());
    comparison.metric("ppo_kl", run.result.metrics.approx_kl_k1.mean());
  };
  return setup;
}

// --- liger

LossSetup liger_loss(Params& params, const Case& recorded) {
  LossSetup setup = trl_family(params, recorded, "liger::", {"token", "sequence"});
  setup.weighs_ratio =
      recorded.params.at("loss_type") == "vespo" && recorded.inputs.contains("vllm_is_ratio");
  params.without_effect({"chunks"});  // rows were cut, losses and metrics added
  if (params.has("rule")) params.remark("rule");
  params.without_effect({"sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos",
                         "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"});
  const bool same_clips = !delta_hides_clips(setup);
  LossSetup before_delta = setup;
  if (!same_clips) {  // it counts clips before it applies delta
    with_loss(before_delta, [](auto& loss) {
      if constexpr (clips_ratio<std::decay_t<decltype(loss)>>)
        loss.surrogate.delta = gdpo::math::infinity;
    });
  }
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric("kl", run.result.metrics.kl.mean());
    const LossMetrics m =
        same_clips ? run.result.metrics : run_loss(before_delta, *run.in).result.metrics;
    comparison.metric("clip_ratio", m.clip_fraction.mean());
  };
  return setup;
}

// --- ms_swift

LossSetup swift_loss(Params& params, const Case& recorded, const char* accumulation) {
  LossSetup setup =
      trl_family(params, recorded, "ms_swift::", {"token", "sequence", "sequence_token"});
  // Its base class divides by the number of accumulated batches, so a loss that is divided by a
  // count of the whole step is multiplied by it.
  if (params.has(accumulation)) {
    const double batches = params.number(accumulation);
    if (counts_the_step(setup)) aggregate_of(setup).scale = batches;
  }

  swift_fipo(params, setup);
  if (params.has("overlong_filter") && params.flag("overlong_filter")) {
    set_prepare(setup, [](const auto& batch, auto& memory) {
      return gdpo::prepare(batch, memory, prepass::Overlong{batch.truncated});
    });
  }
  if (params.has("top_entropy_quantile")) {
    prepass::TopEntropy top;
    top.quantile = 1 - params.number("top_entropy_quantile");
    set_passes(setup, top);
  }
  if (params.has("rollout_importance_sampling_mode")) {
    const std::string how =
        params.choice("rollout_importance_sampling_mode",
                      {"token_truncate", "token_mask", "sequence_truncate", "sequence_mask"});
    const double threshold = params.number("rollout_importance_sampling_threshold");
    params.of_preset("rollout_log_ratio_clamp", ms_swift::token_truncate.clamp);
    if (how == "token_truncate" || how == "sequence_truncate") {
      prepass::Importance weight =
          how == "token_truncate" ? ms_swift::token_truncate : ms_swift::sequence_truncate;
      weight.clip.hi = threshold;
      set_passes(setup, weight);
    } else {
      prepass::MaskedImportance pass =
          how == "token_mask" ? ms_swift::token_mask : ms_swift::sequence_mask;
      pass.rest.first.max = threshold;
      set_passes(setup, pass);
    }
  }
  if (params.has("off_policy_sequence_mask_delta")) {
    prepass::Gate gate = ms_swift::off_policy_sequence_mask;
    gate.max = params.number("off_policy_sequence_mask_delta");
    set_passes(setup, gate);
  }
  return setup;
}

// What ms-swift logs of fipo: the weights, their sums before the exponential, and the share of the
// tokens that the safety does not hold.
void compare_fipo(const std::vector<std::pair<std::string, gdpo::runtime::Prepass>>& passes,
                  const LossRun& run, Comparison& comparison) {
  if (passes.empty()) return;
  comparison.metric("fipo/influence_weight_mean", weights_of(run).mean);
  const auto& pass = std::get<prepass::FutureKl>(passes.front().second);
  comparison.metric("fipo/future_kl_mean",
                    gate_report_of(*run.in, pass, {}, comparison).token_mean());
  prepass::Gate safety;
  safety.pair = prepass::Pair::Update, safety.when = prepass::When::NegativeAdvantage;
  safety.max = pass.safety;
  comparison.metric("fipo/safety_keep_ratio",
                    gate_report_of(*run.in, safety, {}, comparison).open_share());
}

LossSetup swift_trainer_loss(Params& params, const Case& recorded) {
  LossSetup setup = swift_loss(params, recorded, "gradient_accumulation_steps");
  setup.metrics = [passes = setup.logged](const LossRun& run, Comparison& comparison) {
    comparison.metric("kl", run.result.metrics.kl.mean());
    clip_metrics_of_tokens(kSwiftKeys, run.result.metrics, comparison);
    comparison.metric("clipping/cispo_clip_ratio", run.result.metrics.clip_fraction_high.mean());
    compare_fipo(passes, run, comparison);
  };
  return setup;
}

LossSetup swift_sdar(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("ms_swift::sdar");
  with_loss(setup, [&](auto& loss) { loss.kl.gate_beta = params.number("gate_beta"); });
  const std::string mode =
      params.choice("loss_agg_mode", {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean"});
  aggregate_of(setup) = mode == "token-mean"           ? gdpo::aggregate::token_mean()
                        : mode == "seq-mean-token-sum" ? gdpo::aggregate::seq_mean_token_sum()
                                                       : gdpo::aggregate::seq_mean_token_mean();
  setup.metrics = [](const LossRun& run, Comparison& comparison) {
    comparison.metric("sdar/loss", run.result.loss);
    comparison.metric("sdar/teacher_gap_mean", run.result.metrics.kl.mean());
  };
  return setup;
}

LossSetup swift_megatron_loss(Params& params, const Case& recorded) {
  LossSetup setup = swift_loss(params, recorded, "num_microbatches");
  const bool same_clips = !delta_hides_clips(setup);
  const auto passes = setup.logged;
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    comparison.metric("loss", run.result.loss);
    comparison.metric("kl", m.kl.mean());
    if (same_clips) clip_metrics_of_tokens(kTrlKeys, m, comparison);
    comparison.metric("cispo_clip_ratio", m.clip_fraction_high.mean());
    compare_fipo(passes, run, comparison);
    comparison.metric("completions/mean_length", m.completion_length.row_mean());
    comparison.metric("completions/max_length", m.completion_length.row_max);
    comparison.metric("completions/min_length", m.completion_length.row_min);
  };
  return setup;
}

// --- verl

GlobalBatch global_batch(Params& params) {
  GlobalBatch step;
  if (params.has("loss_scale_factor")) step.loss_scale_factor = params.number("loss_scale_factor");
  if (!params.has("global_batch_info")) return step;
  Params info = params.object("global_batch_info");
  step = {info.number("dp_size"), info.number("batch_num_tokens"), info.number("global_batch_size"),
          info.number("loss_scale_factor")};
  info.all_read();
  return step;
}

struct VerlKeys {
  const char *clipped, *dual, *kl;
};
constexpr VerlKeys kActorKeys{"actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl"};
constexpr VerlKeys kPlainKeys{"pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"};

void verl_metrics(Params& params, LossSetup& setup, const VerlKeys& keys) {
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric(keys.clipped, run.result.metrics.clip_fraction.mean(eps));
    comparison.metric(keys.dual, run.result.metrics.dual_clip_fraction.mean(eps));
    comparison.metric(keys.kl, run.result.metrics.approx_kl_k1.mean(eps));
  };
}

LossSetup verl_loss(Params& params, const std::string& name, double dual = gdpo::math::infinity) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss(name);
  // clip_ratio is the default of clip_ratio_low and clip_ratio_high, which are recorded.
  params.without_effect({"clip_ratio"});
  set_clip(setup, params.number("clip_ratio_low"), params.number("clip_ratio_high"),
           gdpo::math::infinity, dual);
  aggregate_of(setup) = verl_aggregate(params, global_batch(params), setup.given);
  return setup;
}

// compute_policy_loss_vanilla, and its predecessor compute_policy_loss.
auto verl_vanilla(const VerlKeys& keys) {
  return [keys](Params& params, const Case&) {
    LossSetup setup = verl_loss(params, "verl::vanilla", params.number("clip_ratio_c"));
    check_log_ratio_clamp(params, setup);
    if (params.has("entropy_coeff")) params.fixed("entropy_coeff", 0);
    verl_metrics(params, setup, keys);
    return setup;
  };
}

LossSetup verl_gspo(Params& params, const Case& recorded) {
  LossSetup setup = verl_loss(params, preset_of(recorded, "verl::v0_9_0::gspo"));
  with_loss(setup, [&](const auto& loss) {
    if constexpr (std::is_same_v<std::decay_t<decltype(loss.level)>,
                                 gdpo::level::SequenceToken<>>) {
      params.of_preset("log_seq_ratio_clamp_max", loss.level.bounds.hi);
    }
  });
  params.remark("form");
  verl_metrics(params, setup, kActorKeys);
  return setup;
}

// compute_policy_loss_cispo counts the tokens outside the bounds, whatever their advantage.
LossSetup verl_cispo(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("verl::cispo");
  params.without_effect({"clip_ratio"});
  set_ratio_bounds(setup, 1 - params.number("clip_ratio_low"),
                   1 + params.number("clip_ratio_high"));
  aggregate_of(setup) = verl_aggregate(params, global_batch(params), setup.given);
  check_log_ratio_clamp(params, setup);
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    comparison.metric("actor/pg_clipfrac", m.clip_fraction_any.mean(eps));
    comparison.metric("actor/pg_clipfrac_lower", m.dual_clip_fraction.mean(eps));
    comparison.metric("actor/ppo_kl", m.approx_kl_k1.mean(eps));
  };
  return setup;
}

// dppo_tv and dppo_kl: `pass` has the name of the loss.
Mapping verl_dppo(const prepass::Gate& pass, const char* preset) {
  return [=](Params& params, const Case& recorded) {
    LossSetup setup;
    setup.loss = gdpo::runtime::loss(preset);
    params.without_effect({"clip_ratio"});
    set_ratio_bounds(setup, 0, params.number("clip_ratio_c"));
    aggregate_of(setup) = verl_aggregate(params, global_batch(params), setup.given);
    check_log_ratio_clamp(params, setup);
    prepass::Gate gate = pass;
    gate.min = -params.number("clip_ratio_low"), gate.max = params.number("clip_ratio_high");
    set_passes(setup, gate);
    const double eps = params.number("mean_eps");
    const bool counts_all = !zero_advantage(recorded);
    prepass::Gate truncated;  // the tokens of A < 0 whose ratio the bound holds
    truncated.pair = prepass::Pair::Update, truncated.when = prepass::When::NegativeAdvantage;
    truncated.max = params.number("clip_ratio_c");
    setup.metrics = [=](const LossRun& run, Comparison& comparison) {
      comparison.metric(
          "actor/pg_clipfrac_lower",
          gate_report_of(*run.in, truncated, gdpo::GateReportSettings{eps, false}, comparison)
              .closed_share());
      const Weights weights = weights_of(run);
      const double n = run.result.metrics.approx_kl_k1.count;
      // verl takes A = 0 for negative.
      if (counts_all)
        comparison.metric("actor/pg_clipfrac", n > 0 ? weights.zeros * n / (n + eps) : 0);
      comparison.metric("actor/ppo_kl", run.result.metrics.approx_kl_k1.mean(eps));
    };
    return setup;
  };
}

// sapo and geo_mean have an aggregate of their own, whatever loss_agg_mode says.
void fixed_aggregate(Params& params) {
  params.without_effect({"loss_agg_mode", "loss_scale_factor"});
  params.of_preset("seq_len_eps", gdpo::verl::seq_mean_token_mean.row_count_eps);
}

LossSetup verl_sapo(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("verl::sapo");
  set_surrogate(setup, gdpo::surrogate::Soft{params.number("tau_pos"), params.number("tau_neg")});
  fixed_aggregate(params);
  check_log_ratio_clamp(params, setup);
  verl_metrics(params, setup, kActorKeys);
  return setup;
}

LossSetup verl_geo_mean(Params& params, const Case& recorded) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("verl::geo_mean");
  set_map(setup, gdpo::map::TrustRegion{params.number("clip_ratio_low"),
                                        params.number("clip_ratio_high")});
  params.without_effect({"clip_ratio"});
  params.remark("rule");
  fixed_aggregate(params);
  no_log_ratio_clamp(params);
  // It counts the log ratios outside of both bounds, by the sign of the advantage.
  prepass::Gate outside;
  outside.estimator = prepass::Estimator::K1, outside.pair = prepass::Pair::Update;
  outside.min = -params.number("clip_ratio_high"), outside.max = params.number("clip_ratio_low");
  const gdpo::GateReportSettings settings{params.number("mean_eps"), false};
  const bool counts_all = !zero_advantage(recorded);
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const gdpo::GateReport all = gate_report_of(*run.in, outside, settings, comparison);
    prepass::Gate of_negative = outside;
    of_negative.when = prepass::When::NegativeAdvantage;
    const gdpo::GateReport negative = gate_report_of(*run.in, of_negative, settings, comparison);
    comparison.metric("actor/ppo_kl", all.token_mean());
    comparison.metric("actor/pg_clipfrac_lower", negative.closed_share());
    if (counts_all)
      comparison.metric("actor/pg_clipfrac", all.closed_share() - negative.closed_share());
  };
  return setup;
}

LossSetup verl_dro(Params& params, const Case&) {
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("verl::dro");
  set_beta(setup, params.number("dro_beta"));
  aggregate_of(setup) = verl_aggregate(params, global_batch(params), setup.given);
  const double eps = params.number("mean_eps");
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    comparison.metric("actor/ppo_kl", run.result.metrics.approx_kl_k1.mean(eps));
  };
  return setup;
}

Mapping verl_reinforce(const char* preset) {
  return [=](Params& params, const Case&) {
    LossSetup setup;
    setup.loss = gdpo::runtime::loss(preset);
    aggregate_of(setup) = verl_aggregate(params, global_batch(params), setup.given);
    old_is_rollout(setup);
    const double eps = params.number("mean_eps");
    setup.metrics = [=](const LossRun& run, Comparison& comparison) {
      comparison.metric("actor/ppo_kl", run.result.metrics.approx_kl_k1.mean(eps));
    };
    return setup;
  };
}

// Its old log-probs are the sampler's, so that the corrections compare them with the current ones.
LossSetup verl_bypass(Params& params, const Case& recorded) {
  LossSetup setup;
  Params correction = params.object("rollout_correction");
  const bool clips = correction.choice("loss_type", {"ppo_clip", "reinforce"}) == "ppo_clip";
  setup.loss = gdpo::runtime::loss(clips ? "verl::vanilla" : "verl::reinforce");
  params.without_effect({"clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"});
  params.of_preset("log_ratio_clamp", gdpo::Bounds{-20, 20});
  if (clips) {
    set_clip(setup, params.number("clip_ratio_low"), params.number("clip_ratio_high"),
             gdpo::math::infinity, params.number("clip_ratio_c"));
  }
  aggregate_of(setup) = verl_aggregate(params, {}, setup.given);
  const bool weighs = !clips && correction.has("rollout_is");
  if (weighs) verl_weights(correction, setup, prepass::Pair::Update);
  correction.without_effect({"rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize"});
  if (correction.has("rollout_rs")) rejections(correction, setup, "verl", prepass::Pair::Update);
  correction.all_read();
  const Json logged = recorded.params.at("rollout_correction");
  const auto gates = setup.logged;
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    comparison.take_metrics_in_float();
    compare_bypass(logged, gates, run, comparison);
    if (clips) {
      comparison.metric_taken_in_float("actor/pg_clipfrac", m.clip_fraction.mean());
      comparison.metric_taken_in_float("actor/pg_clipfrac_lower", m.dual_clip_fraction.mean());
    }
    comparison.metric_taken_in_float("actor/ppo_kl", m.approx_kl_k1.mean());
  };
  return setup;
}

// --- nemo_rl, slime

// use_importance_sampling_correction.
void nemo_rl_correction(Params& params, LossSetup& setup, bool of_rows) {
  namespace nemo_rl = gdpo::nemo_rl;
  if (!params.has("truncated_importance_sampling_type")) {
    set_passes(setup,
               of_rows ? nemo_rl::sequence_importance_sampling : nemo_rl::importance_sampling);
    return;
  }
  if (of_rows) throw Unsupported("a truncated correction of rows is not mapped");
  const std::string type =
      params.choice("truncated_importance_sampling_type", {"tis", "icepop", "seq-mask-tis"});
  const gdpo::Bounds range{params.at_least("truncated_importance_sampling_ratio_min"),
                           params.number("truncated_importance_sampling_ratio")};
  if (type == "tis") {
    prepass::Importance pass = nemo_rl::tis;
    pass.clip = range;
    set_passes(setup, pass);
    setup.logged.emplace_back("is_oob_ratio", pass);
  } else {
    prepass::MaskedImportance pass = type == "icepop" ? nemo_rl::icepop : nemo_rl::seq_mask_tis;
    pass.rest.first.min = range.lo, pass.rest.first.max = range.hi;
    set_passes(setup, pass);
    setup.logged.emplace_back("is_oob_ratio", pass.rest.first);
  }
}

// What it logs of ratios; its means divide by the tokens of the step.
struct NemoRl {
  double tokens = 0, rows = 0;  // valid ones of the step
  bool of_rows = false, plain = false, on_policy = false, k2 = false;
  prepass::Gate ratio;  // of the clip
  std::vector<std::pair<std::string, gdpo::runtime::Prepass>> passes;

  void compare(const LossRun& run, Comparison& comparison) const {
    constexpr auto keys = gdpo::GateKeys::NemoRl;
    const double eps = gdpo::gate_report_settings(keys).count_eps;
    TokenInputs in = *run.in;
    if (on_policy) in.old_logp = in.logp;
    const gdpo::GateReport of_ratio = trainers_gate_report(in, ratio, keys, comparison);
    const double share = (static_cast<double>(of_ratio.measured) + eps) / (tokens + eps);
    if (!plain) {  // a plain loss has log-probs in place of ratios
      for (const auto& [key, number] : of_ratio.to_map(keys, "probs_ratio")) {
        const bool mean = key == "probs_ratio" || key == "probs_ratio_clamped";
        comparison.metric(key, mean ? number * share : number);
      }
    }
    const LossMetrics& m = run.result.metrics;
    comparison.metric("num_valid_samples", static_cast<double>(m.rows - m.empty_rows));
    TokenInputs weighed = in;
    weighed.weights = run.weights;
    gdpo::MismatchSettings settings = gdpo::mismatch_settings(gdpo::MismatchKeys::NemoRl);
    settings.empty_rows = true;
    const gdpo::MismatchReport mismatch = mismatch_of(weighed, settings, comparison);
    const prepass::Gate to_sampler{};  // its ratio without a clamp
    double sampling =
        share * (passes.empty()
                     ? trainers_gate_report(in, to_sampler, keys, comparison).token_mean()
                     : mismatch.weight_mean());
    if (of_rows)  // a sum over the rows
      sampling = mismatch.product_mean() * static_cast<double>(mismatch.counted_rows) * rows /
                 (rows + eps);
    comparison.metric("sampling_importance_ratio", sampling);
    for (const auto& [name, pass] : passes) {
      if (const auto* weight = std::get_if<prepass::Importance>(&pass)) {
        const gdpo::GateReport r = trainers_gate_report(in, *weight, keys, comparison);
        comparison.metric(name, share * (r.token_fraction_low() + r.token_fraction_high()));
      } else {
        const gdpo::GateReport r =
            trainers_gate_report(in, std::get<prepass::Gate>(pass), keys, comparison);
        comparison.metric(name, r.shared ? static_cast<double>(r.rows_closing) /
                                               (static_cast<double>(r.counted_rows) + eps)
                                         : share * r.closed_share());
      }
    }
    if (k2) {
      prepass::Gate square;
      square.estimator = prepass::Estimator::K2;
      const double mean = share * trainers_gate_report(in, square, keys, comparison).token_mean();
      comparison.metric("gen_kl_error", mean), comparison.metric("policy_kl_error", mean);
    }
    // The surrogate of the ratio to the sampler, without its gradient, times REINFORCE, where all
    // advantages are 1.
    TokenInputs of_ones = in;
    of_ones.old_logp = in.rollout_logp;
    of_ones.advantages.assign(static_cast<std::size_t>(in.rows), 1.0);
    of_ones.token_advantages.clear(), of_ones.weights.clear();
    of_ones.ref_logp.clear();
    gdpo::CispoLoss<> entropy{};
    entropy.kl.beta = 0;
    entropy.factor.first = {0, gdpo::math::infinity};
    const TokenArrays<double> arrays(of_ones);
    gdpo::LossWorkspace<double> workspace;
    const gdpo::LossResult result =
        entropy(gdpo::seq, arrays.batch(), gdpo::count(arrays.batch()), {}, workspace);
    comparison.metric("approx_entropy", share * result.metrics.surrogate.mean(eps));
  }
};

}  // namespace

LossSetup nemo_rl_loss(Params& params, const Case& recorded) {
  LossSetup setup;
  const bool cispo = params.flag("use_cispo"), plain = params.flag("disable_ppo_ratio"),
             of_rows = params.flag("sequence_level_importance_ratios");
  if (of_rows && (cispo || plain)) throw Unsupported("rows with this surrogate are not mapped");
  setup.loss = gdpo::runtime::loss(cispo   ? "nemo_rl::cispo"
                                   : plain ? "nemo_rl::reinforce"
                                           : "nemo_rl::clipped_pg",
                                   of_rows ? "sequence" : "token");
  const double eps = params.number("mean_eps");
  const double low = params.number("ratio_clip_min"), high = params.number("ratio_clip_max");
  if (cispo) {
    set_ratio_bounds(setup, 1 - low, 1 + high);
    params.without_effect({"ratio_clip_c"});
  } else if (!plain) {
    set_clip(setup, low, high, gdpo::math::infinity, params.at_most("ratio_clip_c"));
  }
  params.without_effect({"ratio_clip_c"});
  set_beta(setup, params.number("reference_policy_kl_penalty"));
  const std::string type = params.choice("reference_policy_kl_type", {"k1", "k2", "k3"});
  set_kl(setup,
         type == "k1"   ? gdpo::KlEstimator::K1
         : type == "k2" ? gdpo::KlEstimator::K2
                        : gdpo::KlEstimator::K3,
         gdpo::KlGradient::ScoreFunction);
  with_loss(setup, [&](auto& loss) {
    params.of_preset("kl_input_clamp_value", loss.kl.input.hi);
    params.of_preset("kl_output_clamp_value", loss.kl.output.hi);
    if constexpr (std::decay_t<decltype(loss.level)>::of_segment)
      loss.level.statistic.count_eps = eps;
  });
  params.fixed("use_kl_in_reward", false);
  Aggregate& aggregate = aggregate_of(setup);
  if (params.flag("token_level_loss")) {
    aggregate.over = Over::Given, aggregate.count_eps = eps;
    setup.given = params.number("global_valid_toks");
    params.without_effect({"global_valid_seqs"});
  } else {
    aggregate = {Aggregate::Mode::SeqMeanTokenMean, Over::Given, eps, 1, eps};
    setup.given = params.number("global_valid_seqs");
    params.without_effect({"global_valid_toks"});
  }
  no_log_ratio_clamp(params);
  if (params.flag("use_importance_sampling_correction")) nemo_rl_correction(params, setup, of_rows);
  if (params.flag("use_on_policy_kl_approximation")) set_passes(setup, gdpo::nemo_rl::on_policy_kl);
  params.without_effect({"truncated_importance_sampling_type",
                         "truncated_importance_sampling_ratio",
                         "truncated_importance_sampling_ratio_min"});
  if (params.flag("force_on_policy_ratio")) {  // the ratio 1 with a gradient
    set_prepare(setup, [](auto batch, auto&) {
      batch.old_logp = batch.logp;
      return batch;
    });
  }
  const double beta = params.number("reference_policy_kl_penalty");
  NemoRl logged;
  logged.tokens = recorded.params.at("global_valid_toks").get<double>();
  logged.rows = recorded.params.at("global_valid_seqs").get<double>();
  logged.on_policy = recorded.params.at("force_on_policy_ratio").get<bool>();
  logged.of_rows = of_rows, logged.plain = plain;
  logged.ratio.pair = prepass::Pair::Update;
  logged.ratio.min = 1 - low, logged.ratio.max = 1 + high;
  if (of_rows) logged.ratio.statistic = prepass::Statistic::SequenceMean;
  logged.ratio.count_eps = eps;
  logged.k2 = type == "k2";
  logged.passes = setup.logged;
  const bool alone = params.number("positive_example_nll_weight") == 0;
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    if (alone) comparison.metric("loss", run.result.loss);
    comparison.metric("kl_penalty", beta != 0 ? run.result.kl_loss / beta : run.result.kl_loss);
    logged.compare(run, comparison);
  };
  return setup;
}

namespace {

// tis_function and opsm_delta.
void slime_correction(Params& params, LossSetup& setup) {
  if (params.has("tis_function")) {
    const gdpo::Bounds range{params.number("tis_clip_low"), params.number("tis_clip")};
    if (params.choice("tis_function", {"clamp", "icepop"}) == "clamp") {
      prepass::Importance pass = gdpo::slime::tis;
      pass.clip = range;
      set_passes(setup, pass);
      setup.logged.emplace_back("tis", pass);
    } else {
      prepass::MaskedImportance pass = gdpo::slime::icepop;
      pass.rest.first.min = range.lo, pass.rest.first.max = range.hi;
      set_passes(setup, pass);
      pass.first.clip = range;
      setup.logged.emplace_back("tis", pass.first);
    }
  }
  if (params.has("opsm_delta")) {
    prepass::Gate gate = gdpo::slime::opsm;
    gate.max = params.number("opsm_delta");
    set_passes(setup, gate);
    setup.logged.emplace_back("opsm_clipfrac", gate);
  }
}

// Sums over the samples of their means, or over tokens, of what the corrections look at.
void compare_slime(const std::vector<std::pair<std::string, gdpo::runtime::Prepass>>& passes,
                   bool of_tokens, const LossRun& run, Comparison& comparison) {
  const TokenInputs& in = *run.in;
  const auto sum_of_rows = [&](const auto& mean) {
    double sum = 0;
    for (const TokenInputs& row : rows_of(in)) {
      const gdpo::MismatchReport m = mismatch_of(row, {}, comparison);
      sum += mean(row) * (of_tokens ? static_cast<double>(m.scored) : 1);
    }
    return sum;
  };
  if (!in.rollout_logp.empty()) {
    comparison.metric("train_rollout_logprob_abs_diff", sum_of_rows([&](const TokenInputs& row) {
                        return mismatch_of(row, {}, comparison).abs_log_diff();
                      }));
  }
  for (const auto& [name, pass] : passes) {
    if (const auto* gate = std::get_if<prepass::Gate>(&pass)) {
      comparison.metric(name,
                        static_cast<double>(gate_report_of(in, *gate, {}, comparison).closed));
      continue;
    }
    const auto& weight = std::get<prepass::Importance>(pass);
    const auto report = [&](const TokenInputs& row) {
      return gate_report_of(row, weight, {}, comparison);
    };
    comparison.metric(name, sum_of_rows([&](const auto& row) { return report(row).token_mean(); }));
    comparison.metric("tis_clipfrac", sum_of_rows([&](const auto& row) {
                        const gdpo::GateReport r = report(row);
                        return r.token_fraction_low() + r.token_fraction_high();
                      }));
    prepass::Gate deviation;
    deviation.estimator = prepass::Estimator::RatioDeviation;
    comparison.metric("tis_abs", sum_of_rows([&](const auto& row) {
                        return gate_report_of(row, deviation, {}, comparison).token_mean();
                      }));
    const gdpo::Metric& ratio = run.result.metrics.ratio;
    comparison.metric("ois", of_tokens ? ratio.sum : ratio.row_sum);
  }
}

LossSetup slime_loss(Params& params, const Case& recorded) {
  LossSetup setup;
  const std::string type = params.choice("advantage_estimator", {"cispo", "grpo", "gspo"});
  const bool cispo = type == "cispo";
  setup.loss = gdpo::runtime::loss(cispo ? "slime::cispo" : "slime::policy_loss",
                                   type == "gspo" ? "sequence" : "token");
  const double low = params.number("eps_clip"), high = params.number("eps_clip_high");
  if (cispo) {
    set_ratio_bounds(setup, 1 - low, 1 + high);
    params.without_effect({"eps_clip_c"});
  } else {
    set_clip(setup, low, high, gdpo::math::infinity, params.at_most("eps_clip_c"));
  }
  if (params.flag("use_kl_loss")) {
    const std::string kl = params.choice("kl_loss_type", {"k1", "k2", "k3", "low_var_kl"});
    set_kl(setup,
           kl == "k1"   ? gdpo::KlEstimator::K1
           : kl == "k2" ? gdpo::KlEstimator::K2
                        : gdpo::KlEstimator::K3,
           params.flag("use_unbiased_kl") ? gdpo::KlGradient::ImportanceWeighted
                                          : gdpo::KlGradient::Direct);
    with_loss(setup, [&](auto& loss) {
      loss.kl.beta = params.number("kl_loss_coef");
      if (kl == "low_var_kl") loss.kl.output = {-10, 10};
    });
  }
  params.without_effect({"kl_loss_type", "kl_loss_coef", "use_unbiased_kl"});
  params.remark("kl_clamp");
  params.remark("reduction");
  double samples = 1;
  if (params.flag("calculate_per_token_loss")) {  // `normalizer` divides it outside
    aggregate_of(setup) = gdpo::aggregate::token_sum();
    params.without_effect({"normalizer", "step_global_batch_size"});
  } else {
    params.fixed("normalizer", 1);
    samples = setup.given = params.number("step_global_batch_size");
  }
  const bool of_rollouts = recorded.inputs.contains("rollout_ids");
  if (of_rollouts) {  // rows that one rollout was split into
    aggregate_of(setup) = gdpo::aggregate::group_mean();
    params.remark("sample_denominator");
  }
  no_log_ratio_clamp(params);
  slime_correction(params, setup);
  // Its metrics are sums over the samples, or over tokens.
  const bool of_tokens = params.flag("calculate_per_token_loss");
  const auto passes = setup.logged;
  const double beta = params.has("kl_loss_coef") ? params.number("kl_loss_coef") : 0;
  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    const auto sum = [&](const gdpo::Metric& of) { return of_tokens ? of.sum : of.row_sum; };
    comparison.metric("loss", run.result.loss * samples);
    comparison.metric("pg_loss", run.result.policy_loss * samples);
    if (of_rollouts) return;  // the library's means over rows are over the row's own tokens
    comparison.metric("pg_clipfrac", sum(cispo ? m.clip_fraction_any : m.clip_fraction));
    comparison.metric("ppo_kl", sum(m.approx_kl_k1));
    if (beta != 0) comparison.metric("kl_loss", run.result.kl_loss * samples / beta);
    compare_slime(passes, of_tokens, run, comparison);
  };
  return setup;
}

// --- open_instruct

LossSetup open_instruct_loss(Params& params, const Case&) {
  LossSetup setup;
  const std::string type = params.choice("loss_fn", {"dapo", "cispo"});
  setup.loss = gdpo::runtime::loss("open_instruct::" + type);
  if (type == "cispo") {
    set_ratio_bounds(setup, 0, 1 + params.number("clip_higher"));
    params.without_effect({"clip_lower"});
  } else {
    set_clip(setup, params.number("clip_lower"), params.number("clip_higher"));
  }
  setup.given = params.number("denominator_value");
  params.without_effect({"loss_denominator"});  // denominator_value was computed from it
  params.fixed("world_size", 1);
  params.fixed("sequence_parallel_size", 1);
  no_log_ratio_clamp(params);

  const double beta = params.flag("load_ref_policy") ? params.number("beta") : 0.0;
  params.without_effect({"beta"});
  set_beta(setup, beta);
  with_loss(setup,
            [&](const auto& loss) { params.of_preset("ref_log_ratio_clamp", loss.kl.input); });
  const int estimator = params.integer("kl_estimator");
  switch (estimator) {
    case 0:
      set_kl(setup, gdpo::KlEstimator::K1);
      break;
    case 1:
      set_kl(setup, gdpo::KlEstimator::K2);
      break;
    case 2:
      break;
    case 3:
      set_kl(setup, gdpo::KlEstimator::K1, gdpo::KlGradient::ImportanceWeighted);
      break;
    default:
      throw Unsupported("parameter kl_estimator is not 0 to 3");
  }

  std::vector<std::pair<std::string, LossSetup>> estimates;
  for (const auto& [name, kl] : {std::pair{"objective/kl0_avg", gdpo::KlEstimator::K1},
                                 std::pair{"objective/kl1_avg", gdpo::KlEstimator::K2},
                                 std::pair{"objective/kl2_avg", gdpo::KlEstimator::K3}}) {
    LossSetup other = setup;
    set_kl(other, kl);
    if (params.flag("load_ref_policy")) set_beta(other, 1);
    estimates.emplace_back(name, other);
  }
  estimates.emplace_back("objective/kl3_avg", estimates.front().second);
  set_kl(estimates.back().second, gdpo::KlEstimator::K1, gdpo::KlGradient::ImportanceWeighted);
  const bool corrected = params.flag("use_rho_correction");
  prepass::MaskedImportance rho;
  if (corrected) {
    const auto or_off = [](double bound, double off) { return bound != 0 ? bound : off; };
    const bool of_rows = params.flag("rho_mask_sequence_level"),
               variation = params.flag("rho_mask_tv_divergence");
    const double lower = params.number("rho_mask_lower_bound"),
                 upper = params.number("rho_mask_upper_bound");
    prepass::MaskedImportance pass =
        variation ? gdpo::open_instruct::rho_tv : gdpo::open_instruct::rho_mask;
    prepass::Importance& weight = pass.first;
    prepass::Gate& gate = pass.rest.first;
    weight.statistic = of_rows ? prepass::Statistic::SequenceMean : prepass::Statistic::Token;
    params.of_preset("rho_log_clamp", weight.clamp);
    weight.clip = {or_off(params.number("rho_clamp_lower_bound"), -gdpo::math::infinity),
                   params.number("rho_clamp_upper_bound")};
    gate.max = variation ? upper : or_off(upper, gdpo::math::infinity);
    if (!variation) {
      gate.statistic = weight.statistic;
      gate.min = or_off(lower, -gdpo::math::infinity);
    }
    set_passes(setup, pass);
    rho = pass;
  } else {
    params.without_effect({"rho_clamp_lower_bound", "rho_clamp_upper_bound", "rho_mask_lower_bound",
                           "rho_mask_upper_bound", "rho_mask_sequence_level",
                           "rho_mask_tv_divergence", "rho_log_clamp"});
  }

  setup.metrics = [=](const LossRun& run, Comparison& comparison) {
    const LossMetrics& m = run.result.metrics;
    comparison.metric("loss/total_avg", run.result.loss);
    comparison.metric("loss/policy_avg", m.surrogate.mean());
    comparison.metric("loss/kl_avg", beta * m.kl.mean());
    // The trainer measures all four estimates, the library the one in the loss.
    for (const auto& [name, other] : estimates)
      comparison.metric(name, run_loss(other, *run.in).result.metrics.kl.mean());
    if (corrected) {
      constexpr auto keys = gdpo::GateKeys::OpenInstruct;
      const gdpo::GateReport clip = trainers_gate_report(*run.in, rho.first, keys, comparison);
      comparison.metric("val/rho_clipfrac", clip.token_fraction_low() + clip.token_fraction_high());
      compare_gate(trainers_gate_report(*run.in, rho.rest.first, keys, comparison), keys,
                   "val/rho_drop", comparison);
    } else {
      for (const char* name :
           {"val/rho_clipfrac", "val/rho_drop_low_frac", "val/rho_drop_high_frac"})
        comparison.metric(name, 0.0);
    }
    // The tokens that are clipped and that the gate keeps, as a share of all tokens; with CISPO
    // those above the bound, whatever their advantage.
    const gdpo::Metric& clipped =
        type == "cispo" ? run.kept.clip_fraction_any : run.kept.clip_fraction;
    comparison.metric("policy/clipfrac_avg", m.ratio.count > 0 ? clipped.sum / m.ratio.count : 0.0);
    comparison.metric("val/ratio", m.ratio.mean());
    // The trainer reports 0 for a correction that is off.
    const Weights weights = corrected ? weights_of(run) : Weights{};
    comparison.metric("val/rho_weight", weights.mean);
    comparison.metric("val/rho_drop_frac", weights.zeros);
  };
  return setup;
}

// --- the handlers

void compare(const Case& recorded, const std::vector<Part>& parts, Comparison& comparison) {
  std::vector<LossRun> runs;
  double loss = 0;
  std::vector<double> gradient;
  for (const Part& part : parts) {
    runs.push_back(padded_and_packed(
        part.in, [&](const TokenInputs& layout) { return run_loss(part.setup, layout); },
        comparison));
    const LossRun& run = runs.back();
    loss += run.result.loss;
    gradient.resize(run.gradient.size());
    for (std::size_t k = 0; k < gradient.size(); ++k) gradient[k] += run.gradient[k];
  }
  const LossRun& run = runs.front();
  const TokenInputs& in = parts.front().in;
  comparison.output("loss", Array{{}, {loss}});
  if (parts.size() > 1) comparison.metric("loss", loss);
  if (recorded.expected.contains("grad_logp"))
    comparison.output("grad_logp", of_tokens(in, gradient));
  if (recorded.expected.contains("grad_entropies"))
    comparison.output("grad_entropies", of_tokens(in, run.entropy_gradient));
  parts.front().setup.outputs(run, comparison);
  if (recorded.expected.contains("importance_sampling_ratio")) {
    // The weights of the pre-passes, recorded per row as (rows, 1) or per token. The trainer writes
    // 1 at masked positions.
    const bool of_rows =
        array_of(recorded.expected.at("importance_sampling_ratio")).shape.back() == 1;
    Array weights = of_tokens(in, run.weights);
    for (std::size_t k = 0; k < run.mask.size(); ++k) {
      if (run.mask[k] == 0) weights.data[k] = 1;
    }
    if (of_rows && in.width > 1) {
      Array row{{weights.shape[0], 1}, {}};
      for (std::size_t i = 0; i < weights.shape[0]; ++i) {
        std::size_t t = 0;  // the first valid token has the row's weight
        while (t + 1 < weights.shape[1] && run.mask[i * weights.shape[1] + t] == 0) ++t;
        row.data.push_back(weights.data[i * weights.shape[1] + t]);
      }
      weights = row;
    }
    comparison.output("importance_sampling_ratio", weights);
  }
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const Part& part = parts[k];
    LossRun measured = part.setup.over_padding ? run_loss(part.setup, part.as_recorded) : runs[k];
    measured.in = &part.as_recorded;
    part.setup.metrics(measured, comparison);
  }
  compare_mismatch_of_loss(recorded, parts.front().as_recorded, run.weights, comparison);
}

}  // namespace

Handler losses(Mapping mapping) {
  return added(
      [mapping = std::move(mapping)](Params& params, const Case& recorded, const TokenInputs& all) {
        TokenInputs in = all;
        const LossSetup setup = mapping(params, recorded);
        if (setup.over_padding) in = over_padding(in);
        if (setup.row_advantages) in = row_advantages(in);
        if (setup.weighs_ratio) {
          const Array weights = array_of(recorded.inputs.at("vllm_is_ratio"));
          in = in_ratio(in, weights.shape.back() == 1 && in.width > 1);
        }
        return std::vector<Part>{{setup, in, all}};
      });
}

Handler added(Parts parts_of) {
  return [parts_of = std::move(parts_of)](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    const std::vector<Part> parts = parts_of(params, recorded, token_inputs(recorded));
    params.all_read();
    for (const Part& part : parts) {
      comparison.runs(settings_of(part.setup.loss));
      for (const std::string& settings : part.setup.passes) comparison.runs(settings);
    }
    compare(recorded, parts, comparison);
  };
}

namespace {

// Source grpo_tutorial, the NumPy and PyTorch listings of GRPO (gdpo/presets/textbook.hpp). A
// listing goes from rewards to the loss: the loss here is given the advantages that the library
// computes.
Handler tutorial(const char* estimator, bool torch) {
  return [=](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    LossSetup setup;
    setup.loss = gdpo::runtime::loss("textbook::grpo");
    const double range = params.number("epsilon"), beta = params.number("beta");
    set_clip(setup, range, range);
    set_beta(setup, beta);
    params.fixed("kl", "k3");
    params.remark("reduction");
    params.remark("advantage");
    params.remark("std");
    params.remark("max_grad");
    gdpo::Grpo grpo = std::get<gdpo::Grpo>(gdpo::runtime::estimator(estimator));
    params.of_preset("ddof", grpo.scale.ddof);
    if (params.has("adv_eps")) grpo.scale.eps = params.number("adv_eps");
    params.all_read();

    const Array rewards = array_of(recorded.inputs.at("rewards"));
    std::vector<std::int64_t> ids;
    for (const long long id : integers_of(recorded.inputs.at("group_ids"))) ids.push_back(id);
    const auto groups = gdpo::by_id(ids);
    gdpo::RewardBatch<double, std::decay_t<decltype(groups)>> batch{
        gdpo::view(rewards.data.data(), static_cast<gdpo::index_t>(rewards.data.size()), 1),
        groups};
    TokenInputs in = token_inputs(recorded);
    in.advantages = gdpo::advantages(gdpo::seq, batch, grpo);
    if (recorded.expected.contains("advantages")) {
      comparison.output("advantages", Array{{in.advantages.size()}, in.advantages});
    }
    const LossSetup loss = setup;
    LossSetup with_kl = setup;  // which the listing measures where beta is 0 too
    set_beta(with_kl, 1);
    setup.metrics = [=](const LossRun& run, Comparison& to) {
      const LossMetrics& m = run.result.metrics;
      if (!torch) {
        Array losses{{run.rows}, {}}, kl = losses;
        for (const TokenInputs& row : rows_of(in)) {
          losses.data.push_back(run_loss(loss, row).result.loss);
          kl.data.push_back(run_loss(with_kl, row).result.metrics.kl.mean());
        }
        to.metric("per_response_loss", losses), to.metric("per_response_kl", kl);
        return;
      }
      to.metric("pg_loss", run.result.policy_loss);
      to.metric("kl_ref", run_loss(with_kl, in).result.metrics.kl.row_mean());
      to.metric("approx_kl", m.approx_kl_k1.mean());
      to.metric_taken_in_float("clipfrac", m.clip_fraction_any.mean());
      to.metric("adv_std", gdpo::stddev(m.advantage));
    };
    compare(recorded, {{setup, in, in}}, comparison);
  };
}

}  // namespace

Aggregate verl_aggregate(Params& params, const GlobalBatch& step, double& given) {
  Aggregate chosen = gdpo::runtime::aggregate(
      params.choice("loss_agg_mode", {"token-mean", "token-sum", "seq-mean-token-sum",
                                      "seq-mean-token-sum-norm", "seq-mean-token-mean"}));
  if (params.has("seq_len_eps"))
    params.of_preset("seq_len_eps", gdpo::verl::seq_mean_token_mean.row_count_eps);
  if (step.dp_size != 0) chosen.scale = step.dp_size;
  using Mode = Aggregate::Mode;
  if (chosen.mode != Mode::TokenSum) {
    given = chosen.mode == Mode::TokenMean ? step.tokens : step.rows;
    if (given != 0) chosen.over = Over::Given;
  }
  if (chosen.mode == Mode::SeqMeanTokenSumNorm && step.loss_scale_factor != 0) {
    chosen.constant = step.loss_scale_factor, chosen.padded_width = false;
  }
  return chosen;
}

void add_losses(Registry& registry) {
  const auto add = [&](const char* source, const char* function, Mapping mapping) {
    registry.add_loss(source, "loss", function, losses(std::move(mapping)));
  };
  add("trl", "GRPOTrainer._compute_loss", trl_loss);
  add("trl", "RLOOTrainer._compute_loss", trl_rloo);
  add("trl", "GMPOTrainer._compute_loss", trl_gmpo);
  add("unsloth_zoo", "grpo_compute_loss", unsloth_loss);
  add("nvlabs_gdpo", "GRPOTrainer._compute_loss", nvlabs_trl_loss);
  add("nvlabs_gdpo", "compute_policy_loss", nvlabs_verl_loss);
  add("liger", "LigerFusedLinearGRPOFunction.ppo_loss_fn", liger_loss);
  registry.add_loss("ms_swift", "loss", "GRPOTrainer._compute_loss_and_metrics",
                    real_or(losses(swift_trainer_loss)));
  registry.add_loss("ms_swift", "loss", "MegatronGRPOTrainer.loss_func",
                    real_or(losses(swift_megatron_loss)));
  add("ms_swift", "compute_sdar_loss", swift_sdar);
  add("verl", "compute_policy_loss_vanilla", verl_vanilla(kActorKeys));
  add("verl", "compute_policy_loss", verl_vanilla(kPlainKeys));
  add("verl", "compute_policy_loss_gspo", verl_gspo);
  add("verl", "compute_policy_loss_cispo", verl_cispo);
  add("verl", "compute_policy_loss_dppo_tv", verl_dppo(gdpo::verl::dppo_tv, "verl::dppo_tv"));
  add("verl", "compute_policy_loss_dppo_kl", verl_dppo(gdpo::verl::dppo_kl, "verl::dppo_kl"));
  add("verl", "compute_policy_loss_sapo", verl_sapo);
  add("verl", "compute_policy_loss_geo_mean", verl_geo_mean);
  add("verl", "compute_policy_loss_dro", verl_dro);
  add("verl", "compute_policy_loss_gpg", verl_reinforce("verl::gpg"));
  add("verl", "compute_policy_loss_reinforce", verl_reinforce("verl::reinforce"));
  add("verl", "compute_policy_loss_bypass_mode", verl_bypass);
  add("slime", "loss_function[policy_loss]", slime_loss);
  add("open_instruct", "compute_grpo_loss+masked_mean", open_instruct_loss);
  registry.add_loss("grpo_tutorial", "loss", "grpo_loss_plain",
                    tutorial("textbook::grpo_numpy", false));
  registry.add_loss("grpo_tutorial", "loss", "grpo_step", tutorial("textbook::grpo_torch", true));
}

}  // namespace conformance
