// Cases of kind aggregate: reductions of token arrays over a mask, and what trainers decide from
// them.
#include <cstdint>
#include <string>
#include <utility>

#include "loss_settings.hpp"
#include "releases.hpp"

namespace conformance {
namespace {

// --- from losses of tokens to one loss

// With A = -1 the loss -A logp is logp: the array that the trainer sums takes the place of the
// log-probs.
void compare_sums(const Case& recorded, const gdpo::Aggregate& aggregate, double given,
                  Comparison& comparison) {
  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce, gdpo::kl::None> loss;
  loss.aggregate = aggregate;
  TokenInputs in = token_inputs(recorded, "loss_mat");
  in.advantages.assign(static_cast<std::size_t>(in.rows), -1.0);
  const LossRun run = padded_and_packed(
      in, [&](const TokenInputs& layout) { return run_loss(loss, layout, {}, given); }, comparison);
  comparison.output("loss", Array{{}, {run.result.loss}});
  comparison.output("grad_loss_mat", of_tokens(in, run.gradient));
}

void openrlhf_sums(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  double given = 0;
  const gdpo::Aggregate aggregate = openrlhf_aggregate(params, given);
  params.all_read();
  compare_sums(recorded, aggregate, given, comparison);
}

void trinity_sums(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  double given = 0;
  const auto width = static_cast<double>(array_of(recorded.inputs.at("loss_mat")).shape.at(1));
  const gdpo::Aggregate aggregate = trinity_aggregate(params, width, given);
  params.all_read();
  compare_sums(recorded, aggregate, given, comparison);
}

// skyrl: the loss is a sum over tokens, so the weights of the aggregate go into the advantages. The
// products are -dloss/dlogp of REINFORCE.
void scaled_advantages(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const std::string reduction =
      params.choice("loss_reduction", {"token_mean", "token_mean_legacy", "sequence_mean",
                                       "seq_mean_token_sum_norm", "prompt_mean"});
  const auto at_once = static_cast<std::size_t>(params.integer("micro_batch_size"));
  const double length = params.number("max_seq_len");
  params.without_effect({"prompt_boundaries"});
  params.all_read();

  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce, gdpo::kl::None> loss;
  TokenInputs in = token_inputs(recorded, "response_mask");  // log-probs do not matter
  double given = 0;
  if (reduction == "prompt_mean") {
    loss.aggregate = gdpo::aggregate::group_mean();
    const Array ranges = array_of(recorded.params.at("prompt_boundaries"));
    given = static_cast<double>(ranges.shape.at(0));
    for (std::size_t g = 0; g < ranges.shape[0]; ++g) {
      if (ranges.data[2 * g] != static_cast<double>(in.group_ids.size()))
        throw BadGolden("prompt_boundaries must be the rows of one prompt after the other");
      in.group_ids.resize(static_cast<std::size_t>(ranges.data[2 * g + 1]),
                          static_cast<std::int64_t>(g));
    }
  } else if (reduction == "sequence_mean") {
    loss.aggregate = gdpo::aggregate::seq_mean_token_mean();
  } else if (reduction == "seq_mean_token_sum_norm") {
    loss.aggregate = gdpo::aggregate::seq_mean_token_sum_norm(length);
  } else {
    loss.aggregate = gdpo::aggregate::token_mean();
  }
  std::vector<double> scaled;
  const auto add = [&](const TokenInputs& rows) {
    const LossRun run = padded_and_packed(
        rows, [&](const TokenInputs& layout) { return run_loss(loss, layout, {}, given); },
        comparison);
    for (const double slope : run.gradient) scaled.push_back(-slope);
  };
  std::vector<unsigned char> selected = in.mask;
  if (reduction == "token_mean_legacy") {
    // The mean over micro-batches of their token means. The rows after the last whole micro-batch,
    // which the trainer never has, are left out.
    const auto rows = static_cast<std::size_t>(in.rows), whole = rows / at_once;
    loss.aggregate.scale = 1 / static_cast<double>(whole);
    for (std::size_t i = 0; i < whole; ++i) add(rows_of(in, i * at_once, (i + 1) * at_once));
    for (std::size_t k = scaled.size(); k < selected.size(); ++k) selected[k] = 0;
    scaled.resize(selected.size());
  } else {
    add(in);
  }
  comparison.output("advantages", of_tokens(in, scaled), selected);
}

void agg_loss(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const auto known = [&](const char* name) { return params.has(name) ? params.number(name) : 0.0; };
  const GlobalBatch step{params.number("dp_size"), known("batch_num_tokens"),
                         known("global_batch_size"), known("loss_scale_factor")};
  double given = 0;
  const gdpo::Aggregate aggregate = verl_aggregate(params, step, given);
  params.all_read();
  compare_sums(recorded, aggregate, given, comparison);
}

// --- what an entropy bonus weighs

// unsloth-zoo's weights w of the entropies H: their sum w H is its bonus, which is the gradient by
// H. Rows whose weight is 0 leave it.
void unsloth_entropy_weights(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce, gdpo::kl::None> loss;
  loss.entropy = {params.number("entropy_coef") / params.number("gradient_accumulation_steps"),
                  gdpo::EntropyMean::Tokens};
  params.without_effect({"loss_type"});
  params.all_read();
  TokenInputs in = token_inputs(recorded, "response_mask");
  in.logp.assign(in.logp.size(), -1.0), in.entropies.assign(in.logp.size(), 1.0);
  in.advantages.assign(static_cast<std::size_t>(in.rows), 0.0);
  in.entropy_weights.swap(in.weights);  // entropy_mask
  for (std::size_t k = 0; k < in.mask.size() && !in.row_weights.empty(); ++k) {
    if (in.row_weights[k / static_cast<std::size_t>(in.width)] == 0) in.mask[k] = 0;
  }
  in.row_weights.clear();
  gdpo::prepass::MeanOne mean_one;
  mean_one.reach = gdpo::Reach::Entropy;
  const auto over_kept = [=](const auto& batch, auto& memory) {
    return gdpo::prepare(batch, memory, mean_one);
  };
  const LossRun run = padded_and_packed(
      in,
      [&](const TokenInputs& layout) {
        return run_loss(loss, layout, Prepare{over_kept, over_kept});
      },
      comparison);
  comparison.output("weights", of_tokens(in, run.entropy_gradient));
}

// --- means and moments

struct Values {
  Array values;
  std::vector<unsigned char> mask;
  std::vector<double> counted;  // the values at which the mask is not 0

  gdpo::View<const double, 2> view() const {
    return gdpo::view(values.data.data(), static_cast<gdpo::index_t>(values.shape[0]),
                      static_cast<gdpo::index_t>(values.shape[1]));
  }
  gdpo::View<const unsigned char, 2> mask_view() const {
    return gdpo::view(mask.data(), static_cast<gdpo::index_t>(values.shape[0]),
                      static_cast<gdpo::index_t>(values.shape[1]));
  }
};

Values values_of(const Case& recorded) {
  only(recorded.inputs, {"values", "response_mask"});
  Values in{array_of(recorded.inputs.at("values")), {}, {}};
  const Array mask = array_of(recorded.inputs.at("response_mask"));
  if (in.values.shape.size() != 2 || mask.shape != in.values.shape)
    throw BadGolden("values and mask must be rows x T");
  for (std::size_t k = 0; k < mask.data.size(); ++k) {
    in.mask.push_back(mask.data[k] != 0);
    if (in.mask.back() != 0) in.counted.push_back(in.values.data[k]);
  }
  return in;
}

void same_bits(const char* name, double padded, double packed, Comparison& comparison) {
  comparison.law(gdpo::math::bits_of(padded) == gdpo::math::bits_of(packed),
                 std::string(name) + ": " + gdpo::contract::text(padded) + " padded, " +
                     gdpo::contract::text(packed) + " packed");
}

void mean_and_variance(const Case& recorded, double count_eps, Comparison& comparison) {
  const Values in = values_of(recorded);
  const auto packed = gdpo::view(in.counted);
  const auto compare = [&](const char* name, double of_padded, double of_packed) {
    if (!recorded.expected.contains(name)) return;
    same_bits(name, of_padded, of_packed, comparison);
    comparison.output(name, Array{{}, {of_padded}});
  };
  compare("mean", gdpo::masked_mean(in.view(), in.mask_view(), count_eps),
          gdpo::masked_mean(packed, {}, count_eps));
  compare("mean_denom7", gdpo::masked_mean_over(in.view(), in.mask_view(), 7.0),
          gdpo::masked_mean_over(packed, gdpo::View<const unsigned char, 1>{}, 7.0));
  compare("mean_global50", gdpo::masked_mean_over(in.view(), in.mask_view(), 50 + count_eps),
          gdpo::masked_mean_over(packed, gdpo::View<const unsigned char, 1>{}, 50 + count_eps));
  compare("var", gdpo::masked_variance(in.view(), in.mask_view(), 1, count_eps),
          gdpo::masked_variance(packed, {}, 1, count_eps));
  compare("var_biased", gdpo::masked_variance(in.view(), in.mask_view(), 0, count_eps),
          gdpo::masked_variance(packed, {}, 0, count_eps));
  if (!recorded.expected.contains("row_mean")) return;
  if (recorded.expected.at("row_mean").is_array()) {
    const std::vector<double> means = gdpo::masked_row_means(in.view(), in.mask_view(), count_eps);
    comparison.output("row_mean", Array{{means.size()}, means});
  } else {
    comparison.output("row_mean",
                      Array{{}, {gdpo::masked_row_mean(in.view(), in.mask_view(), count_eps)}});
  }
}

// A handler of a masked mean; `count_eps` is the trainer's name for what it adds to the count.
Handler masked_mean(const char* count_eps) {
  return [=](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    const double eps = params.number(count_eps);
    params.all_read();
    mean_and_variance(recorded, eps, comparison);
  };
}

void open_instruct_mean(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  params.fixed("denominator", Json{nullptr, 7});
  params.remark("rule");
  params.all_read();
  mean_and_variance(recorded, 0, comparison);
}

void whiten(const gdpo::Renorm& settings, const Case& recorded, Comparison& comparison) {
  const Values in = values_of(recorded);
  Array padded{in.values.shape, std::vector<double>(in.values.data.size())};
  std::vector<double> packed(in.counted.size());
  const auto rows = static_cast<gdpo::index_t>(in.values.shape[0]);
  const auto width = static_cast<gdpo::index_t>(in.values.shape[1]);
  gdpo::whiten_into(in.view(), in.mask_view(), settings,
                    gdpo::view(padded.data.data(), rows, width));
  gdpo::whiten_into(gdpo::view(in.counted), gdpo::View<const unsigned char, 1>{}, settings,
                    gdpo::view(packed));
  for (std::size_t k = 0, n = 0; k < in.mask.size(); ++k) {
    const double wanted = in.mask[k] != 0 ? packed[n++] : 0.0;
    same_bits(in.mask[k] != 0 ? "a whitened value" : "a masked value", padded.data[k], wanted,
              comparison);
  }
  comparison.output("values", padded, in.mask);
}

void verl_whiten(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::Renorm settings = gdpo::verl::masked_whiten;
  params.of_preset("whiten_eps", settings.eps);
  params.of_preset("whiten_ddof", settings.ddof);
  params.of_preset("mean_eps", settings.count_eps);
  settings.keep_mean = !params.flag("shift_mean");
  params.all_read();
  whiten(settings, recorded, comparison);
}

void nvlabs_whiten(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::Renorm settings = gdpo::nvlabs::masked_whiten;
  params.of_preset("eps", settings.eps);
  params.of_preset("ddof", settings.ddof);
  settings.keep_mean = !params.flag("shift_mean");
  params.all_read();
  whiten(settings, recorded, comparison);
}

// The same for each row by itself: `settings` over the tokens of the row.
void whiten_rows(const gdpo::Renorm& settings, const Case& recorded, Comparison& comparison) {
  const Values in = values_of(recorded);
  Array out{in.values.shape, std::vector<double>(in.values.data.size())};
  const std::size_t width = in.values.shape[1];
  for (std::size_t begin = 0; begin < in.values.data.size(); begin += width) {
    const auto n = static_cast<gdpo::index_t>(width);
    gdpo::whiten_into(gdpo::view(in.values.data.data() + begin, n),
                      gdpo::view(in.mask.data() + begin, n), settings,
                      gdpo::view(out.data.data() + begin, n));
  }
  comparison.output("values", out, in.mask);
}

void openrlhf_normalize(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::Renorm settings = gdpo::openrlhf::batch_norm;
  params.of_preset("var_clamp_min", settings.eps);
  params.of_preset("ddof", settings.ddof);
  params.fixed("dim", 1);
  params.without_effect({"eps"});  // of the std, which is at least 1e-4
  params.all_read();
  whiten_rows(settings, recorded, comparison);
}

void areal_normalize(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::Renorm settings = gdpo::areal::masked_normalization;
  params.of_preset("eps", settings.eps);
  settings.ddof = static_cast<int>(params.integer("ddof"));
  params.remark("variance");
  const bool of_rows = params.has("dim");
  if (of_rows) params.fixed("dim", 1);
  params.without_effect({"dim"});
  params.all_read();
  if (of_rows) {
    whiten_rows(settings, recorded, comparison);
  } else {
    whiten(settings, recorded, comparison);
  }
}

// VESPO's weight of a row: -dloss/dlogp of its tokens in the sum over tokens with advantages of 1
// and -1. It depends on the sign of the advantage alone.
Handler gamma_weights(const std::vector<const char*>& names, const char* output) {
  return [=](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    LossSetup setup;
    setup.loss = gdpo::runtime::loss("vespo");
    aggregate_of(setup) = gdpo::aggregate::token_sum();
    set_factor(setup, gdpo::factor::Gamma{params.number(names[0]), params.number(names[1]),
                                          params.number(names[2]), params.number(names[3])});
    if (params.has("token_log_ratio_clamp")) {
      params.of_preset("token_log_ratio_clamp",
                       gdpo::Bounds{gdpo::vespo_level.map.lo, gdpo::vespo_level.map.hi});
      params.of_preset("seq_log_ratio_clamp", gdpo::vespo_level.bounds);
    }
    params.all_read();
    Case renamed = recorded;  // TRL's name for the weights of the sampler
    const auto weights = renamed.inputs.find("importance_sampling_ratio");
    if (weights != renamed.inputs.end()) {
      renamed.inputs["vllm_is_ratio"] = *weights;
      renamed.inputs.erase("importance_sampling_ratio");
    }
    TokenInputs in = token_inputs(renamed);
    if (!in.weights.empty()) {
      const Array given = array_of(renamed.inputs.at("vllm_is_ratio"));
      in = in_ratio(in, given.shape.back() == 1 && in.width > 1);
    }
    for (double& a : in.advantages) a = a < 0 ? -1 : 1;
    const LossRun run = padded_and_packed(
        in, [&](const TokenInputs& layout) { return run_loss(setup, layout); }, comparison);
    Array of_rows{array_of(recorded.expected.at(output)).shape, {}};
    std::vector<unsigned char> selected;
    const auto width = static_cast<std::size_t>(in.width);
    for (std::size_t i = 0; i < run.rows; ++i) {
      std::size_t t = 0;  // the first valid token
      while (t < width && in.mask[i * width + t] == 0) ++t;
      selected.push_back(t < width);
      of_rows.data.push_back(t < width ? -in.advantages[i] * run.gradient[i * width + t] : 0.0);
    }
    comparison.output(output, of_rows, selected);
  };
}

// --- what trainers decide from reductions

// ms_swift: for every completion the standard deviation of its group.
void dynamic_sampling(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  params.fixed("ddof", 1);
  const gdpo::index_t size = params.integer("num_generations");
  const std::vector<double> weights = params.numbers("reward_weights");
  params.all_read();
  only(recorded.inputs, {"rewards", "group_ids"});
  const Array rewards = array_of(recorded.inputs.at("rewards"));
  if (rewards.shape.size() != 2) throw BadGolden("rewards must have two axes");
  const auto rows = static_cast<gdpo::index_t>(rewards.shape[0]);
  std::vector<std::int64_t> ids;
  for (const long long id : integers_of(recorded.inputs.at("group_ids"))) ids.push_back(id);
  const auto groups = gdpo::by_id(ids, size);
  gdpo::RewardBatch<double, std::decay_t<decltype(groups)>> batch{
      gdpo::view(rewards.data.data(), rows, static_cast<gdpo::index_t>(rewards.shape[1])), groups};
  gdpo::Grpo estimator = gdpo::ms_swift::grpo;
  estimator.weights = {weights.data(), static_cast<gdpo::index_t>(weights.size())};
  gdpo::GroupReport report;
  gdpo::advantages(gdpo::seq, batch, estimator, &report);
  const std::vector<double> std = gdpo::per_row(groups, rows, report.group_std);
  comparison.output("std", Array{{std.size()}, std});
}

// trl: 1 for every row that stays and 0 for the others, as (rows, 1).
void off_policy_mask(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  // The parameter's name in tests/golden, and in its recordings of releases.
  const char* threshold =
      params.has("off_policy_threshold") ? "off_policy_threshold" : "off_policy_mask_threshold";
  const auto pass = trl_off_policy_mask(recorded, params.number(threshold));
  params.all_read();
  const TokenInputs in = token_inputs(recorded);
  const auto kept = [&](const TokenInputs& layout) {
    const TokenArrays<double> arrays(layout);
    gdpo::PrepassMemory<double> memory;
    const auto batch = gdpo::prepare(arrays.batch(), memory, pass);
    const std::vector<double> weights = padded(layout, tokens_of(layout, batch.weights, 1.0));
    Array rows{{static_cast<std::size_t>(in.rows), 1},
               std::vector<double>(static_cast<std::size_t>(in.rows), 1.0)};
    // A row without valid tokens has nothing to drop and stays.
    for (std::size_t k = 0; k < weights.size(); ++k) {
      if (in.mask[k] != 0) rows.data[k / static_cast<std::size_t>(in.width)] *= weights[k];
    }
    return rows;
  };
  const Array rows = kept(in);
  comparison.law(rows.data == kept(packed(in)).data, "another mask of the packed batch");
  Array recorded_shape = rows;
  recorded_shape.shape = array_of(recorded.expected.at("mask")).shape;  // (rows, 1) or (rows)
  // The recorded releases judge a row without valid tokens too, whose mean is 0.
  std::vector<unsigned char> with_tokens(rows.data.size(), !since(recorded, {1, 11}));
  for (std::size_t k = 0; k < in.mask.size(); ++k) {
    if (in.mask[k] != 0) with_tokens[k / static_cast<std::size_t>(in.width)] = 1;
  }
  comparison.output("mask", recorded_shape, with_tokens);
}

}  // namespace

void add_reductions(Registry& registry) {
  registry.add_loss("verl", "aggregate", "agg_loss", agg_loss);
  registry.add_loss("unsloth_zoo", "aggregate", "grpo_entropy_bonus_weights",
                    unsloth_entropy_weights);
  registry.add_loss("openrlhf", "aggregate", "aggregate_loss", openrlhf_sums);
  registry.add_loss("trinity", "aggregate", "aggregate_loss", trinity_sums);
  registry.add_loss("skyrl", "aggregate", "apply_loss_reduction_to_advantages_minibatch",
                    scaled_advantages);
  registry.add("verl", "aggregate", "masked_mean", masked_mean("mean_eps"));
  registry.add("verl", "aggregate", "masked_whiten", verl_whiten);
  registry.add("nemo_rl", "aggregate", "masked_mean", masked_mean("eps"));
  registry.add("openrlhf", "aggregate", "masked_normalize", openrlhf_normalize);
  registry.add("areal", "aggregate", "masked_normalization", areal_normalize);
  const std::vector<const char*> names{"k_pos", "lambda_pos", "k_neg", "lambda_neg"},
      prefixed{"vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"};
  registry.add_loss("trl", "aggregate", "GRPOTrainer.get_gamma_weights",
                    [=](const Case& recorded, Comparison& comparison) {
                      const bool released = !recorded.release.empty();
                      gamma_weights(released ? prefixed : names, released ? "weights" : "phi_seq")(
                          recorded, comparison);
                    });
  registry.add_loss("liger", "aggregate", "get_gamma_weights", gamma_weights(prefixed, "weights"));
  registry.add("nvlabs_gdpo", "aggregate", "masked_mean", masked_mean("eps"));
  registry.add("nvlabs_gdpo", "aggregate", "masked_whiten", nvlabs_whiten);
  registry.add("open_instruct", "aggregate", "masked_mean", open_instruct_mean);
  registry.add("ms_swift", "aggregate", "compute_std_for_dynamic_sampling", dynamic_sampling);
  registry.add("trl", "aggregate", "GRPOTrainer.get_off_policy_mask", off_policy_mask);
}

}  // namespace conformance
