// Losses that are several calls of the library: their losses and gradients add up.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "conditions.hpp"
#include "gate_metrics.hpp"
#include "loss_settings.hpp"
#include "mismatch.hpp"

namespace conformance {
namespace {

using gdpo::Aggregate;
using gdpo::LossMetrics;
namespace prepass = gdpo::prepass;

// The same tokens with the mask where keep(k) holds of token k, in row k / width.
template <class Keep>
TokenInputs where(const TokenInputs& in, const Keep& keep) {
  TokenInputs part = in;
  for (std::size_t k = 0; k < part.mask.size(); ++k) part.mask[k] = keep(k) ? 1 : 0;
  return part;
}

// --- nemo_rl: the likelihood of rewarded rows

std::vector<Part> nemo_rl(Params& params, const Case& recorded, const TokenInputs& in) {
  std::vector<Part> parts{{nemo_rl_loss(params, recorded), in, in}};
  const double weight = params.number("positive_example_nll_weight");
  if (weight == 0) return parts;
  const Array rewards = array_of(recorded.inputs.at("rewards"));
  const auto width = static_cast<std::size_t>(in.width);
  LossSetup setup;
  setup.loss = gdpo::runtime::loss("nemo_rl::positive_nll");
  aggregate_of(setup).scale = weight;
  setup.metrics = [weight](const LossRun& run, Comparison& comparison) {
    comparison.metric("positive_nll_loss", run.result.loss / weight);
  };
  const TokenInputs rewarded =
      where(in, [&](std::size_t k) { return in.mask[k] && rewards.data[k / width] > 0; });
  parts.push_back({setup, rewarded, rewarded});
  return parts;
}

// --- prime_rl

// Binds the weights of a part to its KL term too.
void weigh_all(LossSetup& setup) {
  set_prepare(setup, [](auto batch, auto&) {
    if (batch.weights) batch.kl_weights = batch.weights;
    return batch;
  });
}

// One number a row, of the tokens that rl_weights leave.
void compare_prime_rl(const LossRun& run, const prepass::Gate& gate, bool counts_all,
                      Comparison& comparison) {
  Array masked{{run.rows}, {}};
  Array low = masked, high = masked, positive = masked, negative = masked, kl_masked = masked,
        kl_left = masked;
  TokenInputs in = *run.in;
  for (std::size_t k = 0; k < in.weights.size(); ++k) {
    if (in.weights[k] == 0) in.mask[k] = 0;
  }
  in.weights.clear();
  for (TokenInputs row : rows_of(in)) {
    row.old_logp = row.rollout_logp;
    const gdpo::GateReport r = trainers_gate_report(row, gate, gdpo::GateKeys::PrimeRl, comparison);
    masked.data.push_back(r.closed_share());
    low.data.push_back(r.closed_low_share()), high.data.push_back(r.closed_high_share());
    const auto of_masked = [&](gdpo::index_t part) {
      return r.closed > 0 ? static_cast<double>(part) / static_cast<double>(r.closed) : 0.0;
    };
    // The gate closes above for A > 0, and below for A < 0.
    positive.data.push_back(of_masked(r.closed_high)),
        negative.data.push_back(of_masked(r.closed_low));
    TokenInputs left = after(row, gate), dropped = left;
    for (std::size_t k = 0; k < row.mask.size(); ++k)
      dropped.mask[k] = row.mask[k] != 0 && left.mask[k] == 0;
    const auto kl_of = [&](TokenInputs tokens) {
      tokens.old_logp = tokens.logp;
      return mismatch_of(tokens, {}, comparison).k3_kl();
    };
    kl_left.data.push_back(kl_of(left)), kl_masked.data.push_back(kl_of(dropped));
  }
  comparison.metric("is_masked_low", low), comparison.metric("is_masked_high", high);
  if (!counts_all) return;  // it counts tokens of A = 0 as masked
  comparison.metric("is_masked", masked);
  comparison.metric("masked_mismatch_kl", kl_masked);
  comparison.metric("unmasked_mismatch_kl", kl_left);
  comparison.metric("masked_advantage_positive", positive);
  comparison.metric("masked_advantage_negative", negative);
}

Parts prime_rl(const char* preset, bool ipo) {
  return [=](Params& params, const Case& recorded, const TokenInputs& in) {
    LossSetup setup;
    setup.loss = gdpo::runtime::loss(preset);
    const double weight = params.number("adv_tau");
    set_beta(setup, 2 * params.number("kl_tau") / weight);
    aggregate_of(setup).scale = weight;
    setup.given = params.number("rl_scale");
    no_log_ratio_clamp(params);
    old_is_rollout(setup);
    weigh_all(setup);
    prepass::Gate gate = ipo ? gdpo::prime_rl::ipo_mask : gdpo::prime_rl::dppo_mask;
    if (ipo) {
      gate.max = params.number("ipo_threshold");
    } else {
      gate.min = -params.number("dppo_mask_low"), gate.max = params.number("dppo_mask_high");
    }
    set_passes(setup, gate);
    const bool has_parts =  // its lists leave out rows without a token of the part
        recorded.inputs.contains("ce_weights") && recorded.inputs.contains("ref_kl_weights");
    const bool counts_all = (ipo || !zero_advantage(recorded)) && !has_parts;
    setup.metrics = [=](const LossRun& run, Comparison& comparison) {
      compare_prime_rl(run, gate, counts_all, comparison);
    };
    std::vector<Part> parts{{setup, in, in}};

    // Parts whose weights are not 0 where they have a token.
    const auto add = [&](const char* input, const char* name, const char* scale) -> Part* {
      params.without_effect({scale});
      if (!recorded.inputs.contains(input)) return nullptr;
      const std::vector<double> weights = array_of(recorded.inputs.at(input)).data;
      TokenInputs of_part = where(in, [&](std::size_t k) { return weights[k] != 0; });
      of_part.weights = weights;
      LossSetup of;
      of.loss = gdpo::runtime::loss(name);
      of.given = params.number(scale);
      parts.push_back({of, of_part, of_part});
      return &parts.back();
    };
    add("ce_weights", "prime_rl::cross_entropy", "ce_scale");
    if (Part* part = add("ref_kl_weights", "prime_rl::ref_kl", "ref_kl_scale")) {
      TokenInputs& of_part = part->in;
      of_part.advantages.clear(), of_part.token_advantages.clear();
      for (std::size_t k = 0; k < of_part.logp.size(); ++k)
        of_part.token_advantages.push_back(of_part.ref_logp[k] - of_part.logp[k]);
      old_is_rollout(part->setup);
      weigh_all(part->setup);
      set_passes(part->setup, gdpo::prime_rl::ref_kl_mask);
    }
    return parts;
  };
}

// --- trinity: usual rows and rows of an expert

Parts trinity_mix(const char* expert_loss, const char* expert_metric) {
  return [=](Params& params, const Case& recorded, const TokenInputs& in) {
    double given = 0;
    const Aggregate aggregate = trinity_aggregate(params, static_cast<double>(in.width), given);
    const double eps = params.number("mean_eps");
    const Array expert = array_of(recorded.inputs.at("expert_mask"));
    const auto width = static_cast<std::size_t>(in.width);
    double experts = 0;
    for (const double flag : expert.data) experts += flag != 0;
    const double rows = static_cast<double>(in.rows);
    // Its divisions of whole numbers drop the rest; ngpus_trainer is 1.
    const int step_rows = params.integer("ppo_mini_batch_size"),
              micro_rows = params.integer("ppo_micro_batch_size_per_gpu");
    const bool dynamic = params.has("use_dynamic_bsz") && params.flag("use_dynamic_bsz");
    const double micro_batches = dynamic ? static_cast<double>(step_rows) / rows
                                         : static_cast<double>(step_rows / micro_rows);
    double mu;
    if (params.has("mu")) {
      mu = params.number("mu");
    } else {
      mu = gdpo::trinity::chord_mu(params.number("step"), params.number("mu_warmup_steps"),
                                   params.number("mu_decay_steps"), params.number("mu_peak"),
                                   params.number("mu_valley"));
      params.fixed("enable_phi_function", true);
    }
    const auto weight = [&](double share, double of_part, const char* batch) {
      return gdpo::trinity::mix_scale(share, of_part, micro_batches, params.number(batch));
    };

    LossSetup usual = trinity_clip(params, aggregate);
    const double of_usual = weight(1, rows - experts, "train_batch_size_usual");
    aggregate_of(usual).scale = (1 - mu) * of_usual;
    usual.metrics = [=](const LossRun& run, Comparison& comparison) {
      const LossMetrics& m = run.result.metrics;
      comparison.metric("usual/pg_loss", run.result.loss / (1 - mu));
      comparison.metric("usual/pg_clipfrac", of_usual * m.clip_fraction.mean(eps));
      comparison.metric("usual/pg_clipfrac_lower", of_usual * m.dual_clip_fraction.mean(eps));
      comparison.metric("usual/ppo_kl", of_usual * m.approx_kl_k1.mean(eps));
      comparison.metric("mu", mu);
    };
    LossSetup of_expert;
    of_expert.loss = gdpo::runtime::loss(expert_loss);
    aggregate_of(of_expert) = aggregate;
    aggregate_of(of_expert).scale = weight(mu, experts, "train_batch_size_expert");
    of_expert.metrics = [=](const LossRun& run, Comparison& comparison) {
      comparison.metric(expert_metric, run.result.loss / mu);
    };
    usual.given = of_expert.given = given;
    const auto rows_where = [&](bool of_experts) {
      return where(in, [&](std::size_t k) {
        return in.mask[k] && (expert.data[k / width] != 0) == of_experts;
      });
    };
    return std::vector<Part>{{usual, rows_where(false), rows_where(false)},
                             {of_expert, rows_where(true), rows_where(true)}};
  };
}

}  // namespace

void add_added_losses(Registry& registry) {
  const auto add = [&](const char* source, const char* function, Parts parts) {
    registry.add_loss(source, "loss", function, added(std::move(parts)));
  };
  add("nemo_rl", "ClippedPGLossFn.__call__", nemo_rl);
  add("prime_rl", "compute_loss[default_loss_fn]", prime_rl("prime_rl::default", false));
  add("prime_rl", "compute_loss[ipo_loss_fn]", prime_rl("prime_rl::ipo", true));
  add("trinity", "MIXPolicyLossFn", trinity_mix("trinity::sft", "expert/sft_loss"));
  add("trinity", "MIXCHORDPolicyLossFn", trinity_mix("trinity::sft_phi", "expert/sft_phi_loss"));
}

}  // namespace conformance
