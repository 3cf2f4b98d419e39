#include "corrections.hpp"

#include <cmath>
#include <sstream>
#include <utility>

#include "loss_settings.hpp"
#include "mismatch.hpp"

namespace conformance {
namespace {

using gdpo::Reach;
namespace prepass = gdpo::prepass;
using prepass::Estimator, prepass::Statistic;

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

// verl's weights: of the token, or the product of the row. A range takes out what is outside.
void verl_weights(Params& params, LossSetup& setup) {
  prepass::Importance weight;
  const bool of_rows = params.choice("rollout_is", {"token", "sequence"}) == "sequence";
  weight.statistic = of_rows ? Statistic::SequenceSum : Statistic::Token;
  weight.clamp = kClamp;
  params.of_preset("log_ratio_clamp", kClamp);
  if (params.is_text("rollout_is_threshold")) {
    const gdpo::Bounds range = range_of(params.text("rollout_is_threshold"));
    prepass::Gate gate;
    gate.statistic = weight.statistic, gate.min = range.lo, gate.max = range.hi;
    set_passes(setup, weight, gate);
  } else {
    weight.clip.hi = params.number("rollout_is_threshold");
    set_passes(setup, weight);
  }
}

using Corrections = std::function<void(Params&, LossSetup&)>;

// Runs the pre-passes alone and compares the weights and the mask.
Handler corrections(Corrections mapping) {
  return [mapping = std::move(mapping)](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    LossSetup setup;
    mapping(params, setup);
    params.all_read();
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
    compare_correction(recorded, in, weights, comparison);
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

std::vector<prepass::Gate> rejections(const std::vector<std::string>& options,
                                      const std::string& thresholds, prepass::Pair pair,
                                      Reach reach) {
  std::vector<std::string> names;
  for (const std::string& option : options) {
    for (const std::string& name : split(option, ',')) names.push_back(name);
  }
  std::vector<std::string> bounds = split(thresholds, ',');
  if (bounds.size() == 1) bounds.resize(names.size(), bounds.front());  // one for all
  if (names.size() != bounds.size()) throw Unsupported("rollout_rs and its thresholds differ");
  std::vector<prepass::Gate> gates;
  for (std::size_t k = 0; k < names.size(); ++k) {
    const std::string &name = names[k], of = name.substr(0, name.rfind('_')),
                      estimator = name.substr(name.rfind('_') + 1);
    prepass::Gate gate;
    gate.pair = pair, gate.reach = reach, gate.clamp = kClamp;
    gate.missing = prepass::MissingRollout::NoDifference;
    if (of == "seq_sum") {
      gate.statistic = Statistic::SequenceSum;
    } else if (of == "seq_mean") {
      gate.statistic = Statistic::SequenceMean;
    } else if (of == "seq_max") {
      gate.statistic = Statistic::SequenceMax;
    } else if (of != "token") {
      throw Unsupported("rollout_rs = " + name + " is not mapped");
    }
    const gdpo::Bounds range = range_of(bounds[k]);
    gate.min = range.lo, gate.max = range.hi;
    if (estimator == "k1") {  // the bounds are those of e^k1
      gate.estimator = Estimator::K1;
      gate.min = std::log(range.lo), gate.max = std::log(range.hi);
    } else if (estimator == "k2") {
      gate.estimator = Estimator::K2;
    } else if (estimator == "k3") {
      gate.estimator = Estimator::K3;
    } else {
      throw Unsupported("rollout_rs = " + name + " is not mapped");
    }
    gates.push_back(gate);
  }
  return gates;
}

bool skyrl_correction(Params& params, LossSetup& setup) {
  bool masks = false;
  const auto gate = [&](Estimator estimator, Statistic statistic, double min, double max) {
    prepass::Gate of;
    of.estimator = estimator, of.statistic = statistic, of.min = min, of.max = max;
    of.clamp = statistic == Statistic::Token || statistic == Statistic::SequenceMax
                   ? kClamp
                   : gdpo::Bounds{};
    of.reach = Reach::Mask;
    masks = true;
    set_passes(setup, of);
  };
  const double inf = gdpo::math::infinity;
  // A row leaves if one of its tokens is outside.
  if (params.has("outlier_token_is_threshold_high"))
    gate(Estimator::Ratio, Statistic::SequenceMax, -inf,
         params.number("outlier_token_is_threshold_high"));
  if (params.has("outlier_token_is_threshold_low"))
    gate(Estimator::K1, Statistic::SequenceMax, -inf,
         -std::log(params.number("outlier_token_is_threshold_low")));
  if (params.has("token_mask_is_threshold_low"))
    gate(Estimator::Ratio, Statistic::Token, params.number("token_mask_is_threshold_low"),
         params.number("token_mask_is_threshold_high"));
  if (params.has("tis_ratio_type")) {
    prepass::Importance weight;
    const bool of_rows = params.choice("tis_ratio_type", {"token", "sequence"}) == "sequence";
    weight.statistic = of_rows ? Statistic::SequenceSum : Statistic::Token;
    weight.clamp = kClamp;
    weight.clip.hi =
        params.number(of_rows ? "sequence_tis_ratio_clip_high" : "token_tis_ratio_clip_high");
    set_passes(setup, weight);
  }
  if (params.has("sequence_mask_metric")) {
    const bool product =
        params.choice("sequence_mask_metric", {"geometric", "product"}) == "product";
    gate(Estimator::Ratio, product ? Statistic::SequenceSum : Statistic::SequenceMean,
         params.number(product ? "product_mask_low" : "geo_mask_low"),
         params.number(product ? "product_mask_high" : "geo_mask_high"));
  }
  return masks;
}

void add_corrections(Registry& registry) {
  registry.add("verl", "aggregate", "compute_rollout_correction_weights",
               corrections([](Params& params, LossSetup& setup) {
                 verl_weights(params, setup);
                 params.fixed("rollout_is_batch_normalize", false);
                 params.without_effect({"mean_eps"});
               }));
  const auto rejected = [](Params& params, LossSetup& setup) {
    params.of_preset("log_ratio_clamp", kClamp);
    for (const prepass::Gate& gate :
         rejections({params.text("rollout_rs")}, params.text("rollout_rs_threshold"),
                    prepass::Pair::Mismatch, Reach::Surrogate))
      set_passes(setup, gate);
  };
  registry.add("verl", "aggregate", "compute_rollout_rejection_mask", corrections(rejected));
  registry.add("unsloth_zoo", "aggregate", "grpo_rollout_rs_keep", corrections(rejected));
  registry.add("areal", "aggregate", "_apply_m2po_masking", corrections(areal_m2po));
  registry.add("skyrl", "aggregate", "compute_off_policy_correction",
               corrections([](Params& params, LossSetup& setup) {
                 params.of_preset("log_ratio_clamp", kClamp);
                 skyrl_correction(params, setup);
               }));
}

}  // namespace conformance
