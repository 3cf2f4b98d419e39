// Functions from the rewards of rows to the advantages of tokens.
#include <cstdint>
#include <gdpo/update/shape_rewards.hpp>
#include <numeric>
#include <string>

#include "as_is.hpp"
#include "params.hpp"
#include "registry.hpp"
#include "value.hpp"
#include "value_inputs.hpp"

namespace conformance {
namespace {

using gdpo::runtime::OutcomeAdvantage, gdpo::runtime::outcome_advantage;

struct OutcomeInputs {
  Inputs tokens;
  std::vector<double> rewards;  // of rows
  std::vector<std::int64_t> ids;

  explicit OutcomeInputs(const Case& recorded) : OutcomeInputs(recorded, inputs_of(recorded)) {}
  OutcomeInputs(const Case& recorded, Inputs of_tokens) : tokens(std::move(of_tokens)) {
    if (recorded.inputs.contains("rewards")) rewards = array_of(recorded.inputs.at("rewards")).data;
    tokens.row_rewards.clear();
    for (const long long id : integers_of(recorded.inputs.at("group_ids"))) ids.push_back(id);
  }
  gdpo::RewardBatch<double, gdpo::ById> batch() const {
    return {gdpo::view(rewards), gdpo::by_id(ids)};
  }
};

template <class S>
TokenOutputs run_as(const Target& target, const OutcomeAdvantage& any, const OutcomeInputs& in,
                    bool packed, gdpo::GroupReport& report) {
  const Layout layout(in.tokens, packed);
  const BoundTokens<S> bound(in.tokens, layout);
  const auto rewards = in.batch();
  std::vector<S> advantages(layout.place.size(), S(-77)), returns = advantages;
  std::visit(
      [&](const auto& estimator) {
        const auto to_advantages = layout.view<gdpo::TokenOut<S>>(in.tokens, advantages);
        const auto to_returns = layout.view<gdpo::TokenOut<S>>(in.tokens, returns);
        gdpo::OutcomeWorkspace<S> workspace;
        const auto call = [&](const auto& exec) {
          gdpo::advantages_and_returns_into(exec, rewards, bound.batch, estimator, to_advantages,
                                            to_returns, workspace, &report);
        };
        target.exec == Exec::Seq        ? call(gdpo::seq)
        : target.exec == Exec::Parallel ? call(gdpo::parallel(threads()))
                                        : call(gdpo::simd);
      },
      any);
  if (target.exec == Exec::Device)  // which writes no report
    outcomes_on_device(rewards, bound.batch, any, advantages.data(), returns.data());
  return {layout.padded(in.tokens, advantages), layout.padded(in.tokens, returns)};
}

TokenOutputs run(const Target& target, const OutcomeAdvantage& any, const OutcomeInputs& in,
                 bool packed, gdpo::GroupReport* report = nullptr) {
  gdpo::GroupReport unread;
  gdpo::GroupReport& to = report ? *report : unread;
  return target.single ? run_as<float>(target, any, in, packed, to)
                       : run_as<double>(target, any, in, packed, to);
}

void compare_outcome(const Case& recorded, const OutcomeAdvantage& estimator,
                     const OutcomeInputs& in, Comparison& comparison) {
  comparison.runs(settings_of(estimator));
  gdpo::GroupReport report;
  compare_tokens(recorded, in.tokens, comparison,
                 [&](bool packed) { return run(recorded.target, estimator, in, packed, &report); });
  if (!recorded.expected.contains("group_reward_std")) return;
  Array std{{in.rewards.size()}, std::vector<double>(in.rewards.size())};
  const auto groups = in.batch().groups;
  for (index_t g = 0; g < report.groups; ++g) {
    for (index_t k = 0; k < groups.length(g); ++k)
      std.data[at(groups.row(g, k))] = report.group_std[at(g)];
  }
  comparison.output("group_reward_std", std);
}

template <class F>
void change(OutcomeAdvantage& any, const F& f) {
  std::visit(f, any);
}
void set_whitening(OutcomeAdvantage& any, int ddof, double eps) {
  change(any, [&](auto& e) { e.tokens.renorm.ddof = ddof, e.tokens.renorm.eps = eps; });
}

// --- openrlhf

// What the rewards pay before any baseline: for their length, and for being cut off.
void shape(Params& params, const Case& recorded, OutcomeInputs& in) {
  const auto tokens_of = [&](std::size_t i) {
    const auto row = in.tokens.mask.begin() + static_cast<std::ptrdiff_t>(i) * in.tokens.width;
    return std::accumulate(row, row + in.tokens.width, 0.0);
  };
  if (params.has("overlong_buffer_len")) {
    gdpo::update::shaping::SoftOverlong rule;
    rule.max_length = params.number("max_new_tokens");
    rule.buffer = params.number("overlong_buffer_len");
    rule.penalty = params.number("overlong_penalty_factor");
    for (std::size_t i = 0; i < in.rewards.size(); ++i)
      in.rewards[i] = rule({in.rewards[i], tokens_of(i)});
  }
  if (params.has("stop_properly_penalty_coef")) {  // a factor, or below 0 the reward itself
    const double coef = params.number("stop_properly_penalty_coef");
    const gdpo::update::shaping::Affine rule{coef < 0 ? 0 : coef, coef < 0 ? coef : 0};
    const std::vector<double> truncated = array_of(recorded.inputs.at("truncated")).data;
    for (std::size_t i = 0; i < in.rewards.size(); ++i)
      if (truncated[i] != 0) in.rewards[i] = rule({in.rewards[i], tokens_of(i)});
  }
  params.without_effect({"max_new_tokens"});
}

void openrlhf(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const std::string kind =
      params.choice("estimator", {"gae", "reinforce", "rloo", "reinforce_baseline", "group_norm",
                                  "dr_grpo", "flash_reinforce"});
  OutcomeAdvantage any = outcome_advantage("openrlhf::" + kind);
  if (kind == "gae" || kind == "reinforce")
    comparison.runs(settings_of(gdpo::runtime::token_advantage("openrlhf::" + kind)));
  OutcomeInputs in(recorded);
  shape(params, recorded, in);
  for (std::size_t k = 0; k < in.tokens.values.size(); ++k)
    if (in.tokens.mask[k] == 0) in.tokens.values[k] = 0;  // as OpenRLHF does
  const double gamma = params.number("gamma"), coef = params.number("kl_coef"),
               lambda = params.has("lambd") ? params.number("lambd") : 1;
  const gdpo::Bounds clip = params.interval("reward_clip_range");
  change(any, [&](auto& e) {
    e.tokens.returns.gamma = gamma;
    if constexpr (std::decay_t<decltype(e.tokens.returns)>::reads_values)
      e.tokens.returns.lambda = lambda;
    e.tokens.penalty.coef = coef;  // the record has the estimates themselves
    e.tokens.reward_clip = clip;
  });
  if (kind == "group_norm") {
    const double eps = params.number("group_norm_eps");
    const int ddof = params.integer("ddof");
    change(any, [&](auto& e) {
      if constexpr (std::is_same_v<decltype(e.rows.scale), gdpo::scale::StdDev>)
        e.rows.scale.eps = eps, e.rows.scale.ddof = ddof;
    });
  }
  if (params.has("batch_norm")) {
    Params norm = params.object("batch_norm");
    norm.fixed("level", "valid tokens");
    set_whitening(any, norm.integer("ddof"), norm.number("var_clamp_min"));
    const bool divides = norm.has("std") ? norm.flag("std") : true;
    if (!divides) change(any, [](auto& e) { e.tokens.renorm.eps_at = gdpo::EpsAt::None; });
    norm.remark("note");
    norm.all_read();
  }
  if (params.has("no_std_norm") && params.flag("no_std_norm"))
    change(any, [](auto& e) { e.tokens.renorm.eps_at = gdpo::EpsAt::None; });
  params.remark("reward_clip");
  params.without_effect({"n_samples_per_prompt", "group_norm_eps", "ddof"});
  params.all_read();
  compare_outcome(recorded, any, in, comparison);
}

// --- nemo_rl

void nemo_rl_plus_plus(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  OutcomeAdvantage any = outcome_advantage(
      params.flag("minus_baseline") ? "nemo_rl::reinforce_plus_plus" : "nemo_rl::raw_reward");
  set_whitening(any, params.integer("ddof"), params.number("var_clamp_min"));
  params.remark("level");
  if (params.has("use_kl_in_reward") && params.flag("use_kl_in_reward")) {
    const gdpo::AnyKl kl = gdpo::runtime::kl(params.choice("kl_type", {"k1", "k2", "k3"}));
    const double coef = params.number("kl_coef");
    const gdpo::Bounds input = params.interval("input_clamp"),
                       output = params.interval("output_clamp");
    change(any, [&](auto& e) {
      e.tokens.penalty.coef = coef;
      e.tokens.penalty.kl.estimator = kl.estimator;
      e.tokens.penalty.kl.input = input, e.tokens.penalty.kl.output = output;
    });
  }
  params.all_read();
  compare_outcome(recorded, any, OutcomeInputs(recorded), comparison);
}

void nemo_rl_raw_reward(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  OutcomeAdvantage any = outcome_advantage("nemo_rl::raw_reward");
  params.fixed("normalize_advantages", true);
  set_whitening(any, params.integer("ddof"), params.number("var_clamp_min"));
  params.all_read();
  compare_outcome(recorded, any, OutcomeInputs(recorded), comparison);
}

// --- trinity

// The reward of a row is the sum over all its positions.
void trinity_rloo(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  params.all_read();
  OutcomeInputs in(recorded);
  std::vector<double> of_tokens;
  of_tokens.swap(in.tokens.rewards);
  for (auto row = of_tokens.begin(); row != of_tokens.end(); row += in.tokens.width)
    in.rewards.push_back(std::accumulate(row, row + in.tokens.width, 0.0));
  compare_outcome(recorded, outcome_advantage("trinity::rloo"), in, comparison);
}

// --- areal

// A row of numbers moved by one: position t has what stood at t + 1, the last one has 0.
template <class T>
std::vector<T> rolled(const std::vector<T>& all, index_t width) {
  std::vector<T> moved(all.size());
  for (std::size_t k = 0; k < all.size(); ++k)
    moved[k] = (k + 1) % at(width) == 0 ? T(0) : all[k + 1];
  return moved;
}

// A normalization of AReaL: what its mean and its std are of.
struct Levels {
  std::string mean, std;
  double eps = 0;
  int ddof = 0;
};
Levels levels(Params& params, const char* name) {
  Levels to;
  if (!params.has(name)) return to;
  Params norm = params.object(name);
  to.mean = norm.text("mean_level");
  if (norm.has("std_level")) to.std = norm.text("std_level");
  to.ddof = norm.flag("std_unbiased") ? 1 : 0, to.eps = norm.number("eps");
  norm.fixed("mean_leave1out", false);
  norm.without_effect({"group_size"});  // the record has the groups
  norm.all_read();
  return to;
}

// The arrays of tokens. The log-probs of the sampler and the mask are those of a position's own
// token, all others those of the next one.
Inputs areal_tokens(const Case& recorded) {
  only(recorded.inputs,
       {"rewards", "group_ids", "loss_mask", "attention_mask", "logprobs", "ref_logp", "values"});
  Inputs in;
  in.ref_logp = token_array(recorded, "ref_logp", in);
  in.values = token_array(recorded, "values", in);
  in.logp = rolled(token_array(recorded, "logprobs", in), in.width);
  for (const double m : rolled(token_array(recorded, "loss_mask", in), in.width))
    in.mask.push_back(m != 0);
  if (in.values.empty()) return in;
  // A row that fills the width has been cut off: the value of its last position is the bootstrap.
  Inputs unused;
  const auto attended = token_array(recorded, "attention_mask", unused);
  for (std::size_t end = at(in.width); end <= in.size(); end += at(in.width))
    in.bootstrap.push_back(attended[end - 1] != 0 ? in.values[end - 1] : 0);
  return in;
}

// The rewards of rows before any normalization.
std::vector<double> areal_rewards(Params& params, const Case& recorded,
                                  std::vector<double> rewards) {
  namespace shaping = gdpo::update::shaping;
  Inputs shape;
  const auto tokens = token_array(recorded, "loss_mask", shape),
             attended = token_array(recorded, "attention_mask", shape);
  const auto sum_of_row = [&](const std::vector<double>& all, std::size_t i) {
    const auto row = all.begin() + static_cast<std::ptrdiff_t>(i) * shape.width;
    return std::accumulate(row, row + shape.width, 0.0);
  };
  const double scaling = params.number("reward_scaling"), bias = params.number("reward_bias");
  const bool needs_end = params.flag("mask_no_eos_with_zero"), pays = params.has("overlong");
  shaping::SoftOverlong overlong;
  if (pays) {
    Params of = params.object("overlong");
    overlong.max_length = of.number("max_new_tokens");
    overlong.buffer = of.number("overlong_tokens");
    overlong.penalty = of.number("overlong_penalty_factor"), overlong.clamp = false;
    of.all_read();
  }
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    double& r = rewards[i];
    if (pays) r = overlong({r, sum_of_row(tokens, i)});
    r = shaping::Affine{scaling, scaling * bias}({r, 0});
    if (needs_end && sum_of_row(attended, i) == static_cast<double>(shape.width)) r = 0;
  }
  return rewards;
}

void areal(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  OutcomeInputs in(recorded, areal_tokens(recorded));
  in.rewards = areal_rewards(params, recorded, in.rewards);
  const Levels of_rows = levels(params, "reward_norm"), of_tokens = levels(params, "adv_norm");
  const bool critic = !in.tokens.values.empty();
  if (!of_rows.mean.empty() && (of_rows.mean != "group" || critic || of_rows.std == "batch"))
    throw Unsupported("this reward_norm is not mapped");
  if (!of_tokens.mean.empty() && (of_tokens.mean != "batch" || of_tokens.std != "batch"))
    throw Unsupported("this adv_norm is not mapped");
  const std::string without_critic = of_rows.std == "group"    ? "areal::grpo"
                                     : of_rows.mean == "group" ? "areal::dr_grpo"
                                                               : "areal::reinforce";
  const double gamma = params.number("discount"), lambda = params.number("gae_lambda"),
               coef = params.number("kl_ctl"), most = params.number("reward_clip");
  const auto kl = gdpo::runtime::kl(params.choice("kl_estimator", {"k1", "k3"})).estimator;
  if (!critic && (gamma != 1 || lambda != 1)) throw Unsupported("gae_lambda without a critic");
  params.without_effect({"prompt_length"});
  params.all_read();
  const auto set = [&](auto& e) {
    if constexpr (std::is_same_v<decltype(e.rows.scale), gdpo::scale::StdDev>)
      e.rows.scale.eps = of_rows.eps, e.rows.scale.ddof = of_rows.ddof;
    e.rows.reward_clip = {-most, most};
    e.tokens.returns.gamma = gamma;
    if constexpr (std::decay_t<decltype(e.tokens.returns)>::reads_values)
      e.tokens.returns.lambda = lambda;
    e.tokens.penalty.coef = coef, e.tokens.penalty.kl.estimator = kl;
    e.tokens.renorm = {};
    if (of_tokens.std == "batch") {
      e.tokens.renorm = gdpo::areal::adv_norm;
      e.tokens.renorm.ddof = of_tokens.ddof, e.tokens.renorm.eps = of_tokens.eps;
    }
  };
  OutcomeAdvantage any = outcome_advantage(critic ? "areal::gae" : without_critic);
  change(any, set);
  compare_outcome(recorded, any, in, comparison);

  // With a discount of 0 the returns are the rewards of the tokens.
  OutcomeAdvantage rewards = outcome_advantage(without_critic);
  change(rewards, set);
  change(rewards, [](auto& e) { e.tokens.returns.gamma = 0; });
  const std::vector<std::size_t> shape{at(in.tokens.rows), at(in.tokens.width)};
  const std::vector<unsigned char>& mask = in.tokens.mask;
  comparison.output("tot_rewards", Array{shape, run(recorded.target, rewards, in, false).returns},
                    mask);
  comparison.output("loss_mask", Array{shape, {mask.begin(), mask.end()}});
}

}  // namespace

void add_outcomes(Registry& registry) {
  const auto add = [&](const char* source, const char* function, const Handler& handler) {
    registry.add_loss(source, "advantage", function, handler);
  };
  add("openrlhf", "RemoteExperienceMaker.compute_advantages_and_returns", openrlhf);
  add("nemo_rl", "ReinforcePlusPlusAdvantageEstimator.compute_advantage", nemo_rl_plus_plus);
  add("nemo_rl", "RawRewardAdvantageEstimator.compute_advantage", nemo_rl_raw_reward);
  add("trinity", "RLOOAdvantageFn", trinity_rloo);
  add("areal", "PPOActor._compute_advantages", areal);
}

}  // namespace conformance
