#include "corrections.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "gate_metrics.hpp"
#include "loss_settings.hpp"
#include "mismatch.hpp"

namespace conformance {
namespace {

namespace prepass = gdpo::prepass;

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> out;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, by);) out.push_back(part);
  return out;
}

// "low_high", or only a high bound.
gdpo::Bounds range_of(const std::string& text) {
  const std::vector<std::string> ends = split(text, '_');
  if (ends.size() == 1) return {-gdpo::math::infinity, std::stod(ends[0])};
  return {std::stod(ends.at(0)), std::stod(ends.at(1))};
}

constexpr gdpo::Bounds kClamp{-20, 20};

using Corrections = std::function<void(Params&, LossSetup&)>;

// The weights that the trainer's statistics are of: verl takes those before it divides by the mean.
std::vector<double> logged_weights(const Case& recorded, const Corrections& mapping,
                                   const std::vector<double>& weights) {
  const char* normalizes = "rollout_is_batch_normalize";
  if (!recorded.params.value(normalizes, false)) return weights;
  Json plain = recorded.params;
  plain[normalizes] = false;
  Params params(plain);
  LossSetup setup;
  mapping(params, setup);
  const TokenInputs in = token_inputs(recorded, "old_logp");
  const TokenArrays<double> arrays(in);
  gdpo::PrepassMemory<double> memory;
  const auto batch = std::get<0>(setup.prepare)(arrays.batch(), memory);
  return padded(in, tokens_of(in, batch.weights, 1.0));
}

// verl's numbers of each gate of its rejections.
void compare_gates(const TokenInputs& in,
                   const std::vector<std::pair<std::string, gdpo::runtime::Prepass>>& gates,
                   const std::string& prefix, Comparison& comparison) {
  for (const auto& [name, gate] : gates) {
    compare_gate(
        trainers_gate_report(in, std::get<prepass::Gate>(gate), gdpo::GateKeys::Verl, comparison),
        gdpo::GateKeys::Verl, prefix + name, comparison);
  }
}

// Runs the pre-passes alone and compares the weights and the mask.
Handler corrections(Corrections mapping) {
  return [mapping = std::move(mapping)](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    LossSetup setup;
    mapping(params, setup);
    params.all_read();
    for (const std::string& settings : setup.passes) comparison.runs(settings);
    const TokenInputs in = token_inputs(recorded, "old_logp");
    const auto run = [&](const TokenInputs& layout) {
      const TokenArrays<double> arrays(layout);
      gdpo::PrepassMemory<double> memory;
      const auto batch = std::get<0>(setup.prepare)(arrays.batch(), memory);
      return std::pair{padded(layout, tokens_of(layout, batch.weights, 1.0)),
                       padded(layout, tokens_of<unsigned char>(layout, batch.mask, 1))};
    };
    const auto [weights, mask] = run(in);
    const auto [of_packed, packed_mask] = run(packed(in));
    const std::vector<unsigned char> valid =
        in.mask.empty() ? std::vector<unsigned char>(weights.size(), 1) : in.mask;
    bool same = true;
    Array kept = of_tokens(in, weights), of_expected = kept;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      if (valid[k] == 0) continue;
      same = same && weights[k] == of_packed[k] && mask[k] == packed_mask[k];
      kept.data[k] = mask[k] != 0 && weights[k] != 0;
    }
    comparison.law(same, "other weights or another mask of the packed batch");
    std::vector<double> logged = logged_weights(recorded, mapping, weights);
    for (std::size_t k = 0; k < logged.size(); ++k) {
      if (mask[k] == 0) logged[k] = 0;  // of a gate whose decision reaches the mask
    }
    compare_correction(recorded, in, logged, comparison);
    if (recorded.source == "verl") compare_gates(in, setup.logged, "", comparison);
    if (recorded.source == "skyrl") compare_skyrl_correction(in, setup.logged, comparison);
    if (recorded.expected.contains("weights")) {
      const Array wanted = array_of(recorded.expected.at("weights"));
      std::vector<unsigned char> stays = valid;  // a token that a gate took out has no weight
      for (std::size_t k = 0; k < stays.size(); ++k) stays[k] = stays[k] != 0 && mask[k] != 0;
      if (wanted.shape == kept.shape) {
        comparison.output("weights", of_tokens(in, weights), stays);
      } else {  // one weight a row: that of its first valid token
        Array rows{wanted.shape, std::vector<double>(wanted.data.size(), 1.0)};
        std::vector<unsigned char> any(wanted.data.size(), 0);
        for (std::size_t k = weights.size(); k-- > 0;) {
          if (stays[k] == 0) continue;
          const std::size_t row = k / static_cast<std::size_t>(in.width);
          rows.data.at(row) = weights[k], any.at(row) = 1;
        }
        comparison.output("weights", rows, any);
      }
    }
    if (recorded.expected.contains("mask")) comparison.output("mask", kept, valid);
  };
}

}  // namespace

void verl_weights(Params& params, LossSetup& setup, prepass::Pair pair) {
  namespace verl = gdpo::verl;
  const bool of_rows = params.choice("rollout_is", {"token", "sequence"}) == "sequence";
  const bool normalized =
      params.has("rollout_is_batch_normalize") && params.flag("rollout_is_batch_normalize");
  if (params.is_text("rollout_is_threshold")) {
    const gdpo::Bounds range = range_of(params.text("rollout_is_threshold"));
    prepass::MaskedImportance pass = of_rows ? verl::sequence_icepop : verl::token_icepop;
    prepass::Gate& gate = pass.rest.first;
    pass.first.pair = gate.pair = pair, gate.min = range.lo, gate.max = range.hi;
    set_passes(setup, pass);
    if (normalized) {
      set_passes(setup, of_rows ? verl::sequence_is_normalized.rest.first
                                : verl::token_is_normalized.rest.first);
    }
    return;
  }
  const auto with_settings = [&](prepass::Importance& weight) {
    weight.clip.hi = params.number("rollout_is_threshold"), weight.pair = pair;
  };
  if (normalized) {
    auto pass = of_rows ? verl::sequence_is_normalized : verl::token_is_normalized;
    with_settings(pass.first);
    set_passes(setup, pass);
  } else {
    prepass::Importance pass = of_rows ? verl::sequence_is : verl::token_is;
    with_settings(pass);
    set_passes(setup, pass);
  }
}

void rejections(Params& params, LossSetup& setup, const std::string& trainer, prepass::Pair pair) {
  const std::vector<std::string> names = split(params.text("rollout_rs"), ',');
  std::vector<gdpo::Bounds> bounds;
  if (params.is_text("rollout_rs_threshold")) {
    for (const std::string& text : split(params.text("rollout_rs_threshold"), ','))
      bounds.push_back(range_of(text));
  } else {
    bounds.push_back({-gdpo::math::infinity, params.number("rollout_rs_threshold")});
  }
  if (bounds.size() == 1) bounds.resize(names.size(), bounds.front());  // one for all
  if (names.size() != bounds.size()) throw Unsupported("rollout_rs and its thresholds differ");
  const std::vector<std::string>& known = gdpo::runtime::prepass_names();
  std::vector<prepass::Gate> gates;
  for (std::size_t k = 0; k < names.size(); ++k) {
    const std::string name = trainer + "::" + names[k];
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw Unsupported("rollout_rs = " + names[k] + " is not mapped");
    auto gate = prepass_named<prepass::Gate>(name);
    const gdpo::Bounds range = bounds[k];
    gate.pair = pair, gate.min = range.lo, gate.max = range.hi;
    if (gate.estimator == prepass::Estimator::K1)  // the bounds are those of e^k1
      gate.min = std::log(range.lo), gate.max = std::log(range.hi);
    gates.push_back(gate);
  }
  for (std::size_t k = 0; k < names.size(); ++k) {
    note_settings(setup, gates[k]);
    setup.logged.emplace_back("rollout_rs_" + names[k], gates[k]);
  }
  constexpr std::size_t most = 3;
  if (gates.size() > most) throw Unsupported("more than three rejections");
  prepass::Gate off;
  off.reach = gdpo::Reach::None;
  gates.resize(most, off);
  // In one call: all statistics are over the mask of before.
  set_prepare(setup, [gates](const auto& batch, auto& memory) {
    return gdpo::prepare(batch, memory, gates[0], gates[1], gates[2]);
  });
}

void skyrl_correction(Params& params, LossSetup& setup) {
  namespace skyrl = gdpo::skyrl;
  const auto add = [&](const char* logged, prepass::Gate gate, double min, double max) {
    gate.min = min, gate.max = max;
    set_passes(setup, gate);
    setup.logged.emplace_back(logged, gate);
  };
  // A row leaves if one of its tokens is outside.
  if (params.has("outlier_token_is_threshold_high"))
    add("outlier_seq_over_high_ratio", skyrl::outlier_token_high, -gdpo::math::infinity,
        params.number("outlier_token_is_threshold_high"));
  if (params.has("outlier_token_is_threshold_low"))
    add("outlier_seq_under_low_ratio", skyrl::outlier_token_low, -gdpo::math::infinity,
        -std::log(params.number("outlier_token_is_threshold_low")));
  if (params.has("token_mask_is_threshold_low"))
    add("token_mask_ratio", skyrl::token_mask, params.number("token_mask_is_threshold_low"),
        params.number("token_mask_is_threshold_high"));
  if (params.has("tis_ratio_type")) {
    const bool of_rows = params.choice("tis_ratio_type", {"token", "sequence"}) == "sequence";
    prepass::Importance weight = of_rows ? skyrl::sequence_tis : skyrl::token_tis;
    weight.clip.hi =
        params.number(of_rows ? "sequence_tis_ratio_clip_high" : "token_tis_ratio_clip_high");
    set_passes(setup, weight);
    setup.logged.emplace_back(of_rows ? "tis_seq_clip_high_ratio" : "tis_token_clip_high_ratio",
                              weight);
  }
  if (params.has("sequence_mask_metric")) {
    const bool product =
        params.choice("sequence_mask_metric", {"geometric", "product"}) == "product";
    add(product ? "product_sequence_mask" : "geo_sequence_mask",
        product ? skyrl::product_mask : skyrl::geometric_mask,
        params.number(product ? "product_mask_low" : "geo_mask_low"),
        params.number(product ? "product_mask_high" : "geo_mask_high"));
  }
}

void compare_bypass(const Json& correction,
                    const std::vector<std::pair<std::string, gdpo::runtime::Prepass>>& gates,
                    const LossRun& run, Comparison& comparison) {
  TokenInputs in = *run.in;  // the policy as the trainer sees it, and as the sampler did
  in.rollout_logp = in.old_logp, in.old_logp = in.logp;
  in.weights.clear();
  std::vector<double> weights;
  if (correction.contains("rollout_is") && !correction.at("rollout_is").is_null()) {
    Json plain = correction;
    plain["rollout_is_batch_normalize"] = false;
    Params params(plain);
    LossSetup weigh;
    verl_weights(params, weigh, prepass::Pair::Mismatch);
    const TokenArrays<double> arrays(in);
    gdpo::PrepassMemory<double> memory;
    weights = tokens_of(in, std::get<0>(weigh.prepare)(arrays.batch(), memory).weights, 1.0);
  }
  compare_verl_weights(correction, in, weights, "", comparison);
  if (gates.empty()) return;
  TokenInputs of_gates = in;
  of_gates.old_logp = in.rollout_logp;  // their pair is that of the update
  compare_gates(of_gates, gates, "rollout_corr/", comparison);
  std::vector<double> kept(run.mask.begin(), run.mask.end());
  compare_verl_rejected(in, kept, "rollout_corr/", comparison);
}

void compare_skyrl_correction(
    const TokenInputs& in,
    const std::vector<std::pair<std::string, gdpo::runtime::Prepass>>& passes,
    Comparison& comparison) {
  constexpr auto keys = gdpo::GateKeys::SkyRl;
  TokenInputs now = in, outliers_left = in;
  double high = 0, low = 0;
  bool outliers = false;
  for (const auto& [name, pass] : passes) {
    if (const auto* weight = std::get_if<prepass::Importance>(&pass)) {
      const gdpo::GateReport report = trainers_gate_report(now, *weight, keys, comparison);
      comparison.metric(name,
                        report.shared ? report.row_fraction_high() : report.token_fraction_high());
      continue;
    }
    const auto& gate = std::get<prepass::Gate>(pass);
    if (name.rfind("outlier_seq", 0) == 0) {  // both bounds judge the rows as they came
      const double closing = trainers_gate_report(in, gate, keys, comparison).rows_closing_share();
      (name == "outlier_seq_over_high_ratio" ? high : low) = closing;
      outliers_left = after(outliers_left, gate), outliers = true;
    } else if (const gdpo::GateReport report = trainers_gate_report(now, gate, keys, comparison);
               report.shared) {
      compare_gate(report, keys, name, comparison);
    } else {
      comparison.metric(name, report.closed_share());
    }
    now = after(now, gate);
  }
  if (!outliers) return;
  comparison.metric("outlier_seq_over_high_ratio", high);
  comparison.metric("outlier_seq_under_low_ratio", low);
  TokenInputs weighed = in;  // 0 in rows that left for one of the two bounds
  weighed.weights.assign(outliers_left.mask.begin(), outliers_left.mask.end());
  const gdpo::MismatchReport left =
      mismatch_of(weighed, gdpo::mismatch_settings(gdpo::MismatchKeys::SkyRl), comparison);
  comparison.metric("outlier_seq_masked_ratio",
                    gdpo::detail::mismatch_list::share(left.dropping_rows, left.rows));
}

void add_corrections(Registry& registry) {
  registry.add("verl", "aggregate", "compute_rollout_correction_weights",
               corrections([](Params& params, LossSetup& setup) {
                 params.of_preset("log_ratio_clamp", kClamp);
                 verl_weights(params, setup, prepass::Pair::Mismatch);
                 params.without_effect({"mean_eps"});
               }));
  const auto rejected = [](const char* trainer) {
    return corrections([trainer](Params& params, LossSetup& setup) {
      params.of_preset("log_ratio_clamp", kClamp);
      rejections(params, setup, trainer, prepass::Pair::Mismatch);
    });
  };
  registry.add("verl", "aggregate", "compute_rollout_rejection_mask", rejected("verl"));
  registry.add("unsloth_zoo", "aggregate", "grpo_rollout_rs_keep", rejected("unsloth_zoo"));
  registry.add("areal", "aggregate", "_apply_m2po_masking", corrections(areal_m2po));
  registry.add("skyrl", "aggregate", "compute_off_policy_correction",
               corrections([](Params& params, LossSetup& setup) {
                 params.of_preset("log_ratio_clamp", kClamp);
                 skyrl_correction(params, setup);
               }));
}

}  // namespace conformance
