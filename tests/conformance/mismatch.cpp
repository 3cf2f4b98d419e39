#include "mismatch.hpp"

#include <tuple>

#include "params.hpp"
#include "registry.hpp"

namespace conformance {
namespace {

using gdpo::MismatchKeys, gdpo::MismatchReport, gdpo::MismatchSettings;

// All numbers of a report but the settings.
auto bits_of(const MismatchReport& r) {
  std::vector<std::uint64_t> bits;
  const auto place = [&](const gdpo::PlacedNumber& x) {
    bits.push_back(gdpo::math::bits_of(x.value));
    bits.push_back(static_cast<std::uint64_t>(x.row));
    bits.push_back(static_cast<std::uint64_t>(x.token));
  };
#define GDPO_X(name, ...) bits.push_back(static_cast<std::uint64_t>(r.name));
  GDPO_MISMATCH_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) bits.insert(bits.end(), std::begin(r.name.limb), std::end(r.name.limb));
  GDPO_MISMATCH_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) place(r.name);
  GDPO_MISMATCH_EXTREMES(GDPO_X)
#undef GDPO_X
  return bits;
}

// verl: one case is one batch of all rows.
void offpolicy_metrics(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  MismatchSettings settings = gdpo::mismatch_settings(MismatchKeys::Verl);
  params.of_preset("mean_eps", settings.count_eps);
  params.all_read();
  const TokenInputs in = token_inputs(recorded, "old_logp");
  compare_mismatch(mismatch_of(in, settings, comparison), MismatchKeys::Verl, "rollout_corr/",
                   comparison);
}

// unsloth-zoo: rows that are cut into micro-batches and merged give the same.
void mismatch_metrics(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const MismatchSettings settings = gdpo::mismatch_settings(MismatchKeys::Unsloth);
  params.of_preset("log_ratio_clamp", gdpo::Bounds{-settings.clamp, settings.clamp});
  params.all_read();
  const TokenInputs in = token_inputs(recorded, "old_logp");
  compare_mismatch(mismatch_of(in, settings, comparison), MismatchKeys::Unsloth, "", comparison);
}

// The bounds of verl's threshold: a number, or a text "low_high".
MismatchSettings verl_settings(const Json& correction, MismatchKeys keys) {
  const Json& threshold = correction.at("rollout_is_threshold");
  if (!threshold.is_string()) return gdpo::mismatch_settings(keys, threshold.get<double>());
  const std::string text = threshold.get<std::string>();
  const std::size_t line = text.find('_');
  MismatchSettings settings = gdpo::mismatch_settings(
      keys, std::stod(line == std::string::npos ? text : text.substr(line + 1)));
  if (line != std::string::npos)
    settings.token_low = settings.row_low = std::stod(text.substr(0, line));
  return settings;
}

// NeMo-RL divides by the tokens of the step, logs the estimator of its KL term, and with
// force_on_policy_ratio takes the current log-probs for the old ones.
void compare_nemo_rl(const Case& recorded, TokenInputs in, Comparison& comparison) {
  const MismatchSettings settings = gdpo::mismatch_settings(MismatchKeys::NemoRl);
  if (recorded.params.value("force_on_policy_ratio", false)) in.old_logp = in.logp;
  const MismatchReport report = mismatch_of(in, settings, comparison);
  const double eps = settings.count_eps,
               share = (static_cast<double>(report.scored) + eps) /
                       (recorded.params.at("global_valid_toks").get<double>() + eps);
  const std::string estimator = recorded.params.value("reference_policy_kl_type", "");
  for (const auto& [name, number] : report.to_map(MismatchKeys::NemoRl)) {
    const bool of_k3 = name == "gen_kl_error" || name == "policy_kl_error";
    if (!of_k3 || estimator == "k3") comparison.metric(name, number * share);
  }
  if (estimator != "k1") return;
  comparison.metric("gen_kl_error", report.kl() * share);
  comparison.metric("policy_kl_error", -report.kl() * share);
}

}  // namespace

MismatchReport mismatch_of(const TokenInputs& in, const MismatchSettings& settings,
                           Comparison& comparison) {
  const auto run = [&](const TokenInputs& layout) {
    const TokenArrays<double> arrays(layout);
    return gdpo::mismatch(arrays.batch(), settings);
  };
  const MismatchReport report = run(in);
  // A row with holes is packed whole, so places of tokens are the same.
  comparison.law(bits_of(report) == bits_of(run(packed(in))),
                 "another mismatch report of the packed batch");
  return report;
}

void compare_mismatch(const MismatchReport& report, MismatchKeys keys, const std::string& folder,
                      Comparison& comparison, gdpo::index_t positions) {
  for (const auto& [name, number] : report.to_map(keys, "", positions)) {
    const bool cut = !folder.empty() && name.compare(0, folder.size(), folder) == 0;
    comparison.metric(cut ? name.substr(folder.size()) : name, number);
  }
}

void compare_correction(const Case& recorded, const TokenInputs& in,
                        const std::vector<double>& weights, Comparison& comparison) {
  if (recorded.source == "skyrl") {
    compare_mismatch(mismatch_of(in, gdpo::mismatch_settings(MismatchKeys::SkyRl), comparison),
                     MismatchKeys::SkyRl, "", comparison, in.rows * in.width);
  } else if (recorded.params.contains("rollout_is_threshold")) {
    compare_verl_weights(recorded.params, in, weights, "rollout_corr/", comparison);
  } else if (recorded.source == "verl" && recorded.params.contains("rollout_rs")) {
    compare_verl_rejected(in, weights, "", comparison);
  }
}

void compare_verl_weights(const Json& correction, const TokenInputs& in,
                          const std::vector<double>& weights, const std::string& folder,
                          Comparison& comparison) {
  const std::string prefix = folder.empty() ? "rollout_corr/" : "";
  const bool of_rows = correction.value("rollout_is", Json()) == "sequence";
  const MismatchKeys keys = of_rows ? MismatchKeys::VerlSequence : MismatchKeys::Verl;
  TokenInputs weighed = in;
  weighed.weights = weights;
  const MismatchReport report = mismatch_of(
      weighed, weights.empty() ? gdpo::mismatch_settings(keys) : verl_settings(correction, keys),
      comparison);
  compare_mismatch(report, keys, folder, comparison);
  comparison.metric(prefix + "rollout_is_oob_ratio", report.weight_dropped());
  // The mean of the weights that rollout_is_batch_normalize divides by: of tokens, or of the rows
  // that have some.
  MismatchSettings settings = report.settings;
  settings.empty_rows = false;
  if (correction.value("rollout_is_batch_normalize", false)) {
    comparison.metric(prefix + "rollout_is_batch_norm_factor",
                      of_rows ? mismatch_of(weighed, settings, comparison).row_weight_mean()
                              : report.weight_mean());
  }
}

void compare_verl_rejected(const TokenInputs& in, const std::vector<double>& kept,
                           const std::string& prefix, Comparison& comparison) {
  TokenInputs weighed = in;
  weighed.weights = kept;
  const MismatchReport report =
      mismatch_of(weighed, gdpo::mismatch_settings(MismatchKeys::Verl), comparison);
  comparison.metric(prefix + "rollout_rs_masked_fraction", report.weight_dropped());
  comparison.metric(prefix + "rollout_rs_seq_masked_fraction",
                    gdpo::detail::mismatch_list::share(report.dropping_rows, report.rows));
}

void compare_mismatch_of_loss(const Case& recorded, const TokenInputs& inputs,
                              const std::vector<double>& weights, Comparison& comparison) {
  if (inputs.rollout_logp.empty()) return;
  TokenInputs in = inputs;
  in.weights = weights;
  const auto compare = [&](MismatchKeys keys, double bound = 2) {
    compare_mismatch(mismatch_of(in, gdpo::mismatch_settings(keys, bound), comparison), keys, "",
                     comparison, in.rows * in.width);
  };
  if (recorded.source == "ms_swift" &&
      !recorded.params.value("rollout_importance_sampling_mode", Json()).is_null()) {
    const std::string mode =
        recorded.params.at("rollout_importance_sampling_mode").get<std::string>();
    const bool rows = mode.compare(0, 8, "sequence") == 0;
    compare(rows ? MismatchKeys::MsSwiftSequence : MismatchKeys::MsSwift,
            recorded.params.at("rollout_importance_sampling_threshold").get<double>());
  } else if (recorded.source == "skyrl") {
    compare(MismatchKeys::SkyRl);
  } else if (recorded.source == "openrlhf") {
    // GSPO takes its ratio against the sampler, and the trainer then logs a vllm_kl of 0.
    if (recorded.params.value("policy_loss_type", "") != "gspo") compare(MismatchKeys::OpenRlhf);
  } else if (recorded.source == "nemo_rl") {
    compare_nemo_rl(recorded, in, comparison);
  }
}

void add_mismatch(Registry& registry) {
  registry.add("verl", "aggregate", "compute_offpolicy_metrics", offpolicy_metrics);
  registry.add("unsloth_zoo", "aggregate", "grpo_rollout_mismatch_metrics", mismatch_metrics);
}

}  // namespace conformance
