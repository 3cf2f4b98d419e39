#include "value.hpp"

#include <string>

#include "as_is.hpp"
#include "comparison.hpp"
#include "loss.hpp"
#include "params.hpp"
#include "registry.hpp"
#include "value_inputs.hpp"

namespace conformance {
namespace {

using gdpo::index_t;
using gdpo::runtime::TokenAdvantage, gdpo::runtime::token_advantage;

// --- returns and advantages

template <class S>
TokenOutputs run_returns_as(const Target& target, const TokenAdvantage& any, const Inputs& in,
                            const Layout& layout) {
  const BoundTokens<S> bound(in, layout);
  gdpo::ReturnBatch<S> batch = bound.batch;
  if (!in.row_rewards.empty()) batch.row_rewards = gdpo::view(in.row_rewards);
  std::vector<S> advantages(layout.place.size(), S(-77)), returns = advantages;
  if (target.exec == Exec::Device) {
    returns_on_device(batch, any, advantages.data(), returns.data());
    return {layout.padded(in, advantages), layout.padded(in, returns)};
  }
  std::visit(
      [&](const auto& estimator) {
        const auto to_advantages = layout.view<gdpo::TokenOut<S>>(in, advantages);
        const auto to_returns = layout.view<gdpo::TokenOut<S>>(in, returns);
        gdpo::ReturnsWorkspace<S> workspace;
        const auto call = [&](const auto& exec) {
          gdpo::advantages_and_returns_into(exec, batch, estimator, to_advantages, to_returns,
                                            workspace);
        };
        target.exec == Exec::Seq        ? call(gdpo::seq)
        : target.exec == Exec::Parallel ? call(gdpo::parallel(threads()))
                                        : call(gdpo::simd);
      },
      any);
  return {layout.padded(in, advantages), layout.padded(in, returns)};
}

TokenOutputs run_returns(const Target& target, const TokenAdvantage& estimator, const Inputs& in,
                         bool packed) {
  const Layout layout(in, packed);
  return target.single ? run_returns_as<float>(target, estimator, in, layout)
                       : run_returns_as<double>(target, estimator, in, layout);
}

// Sets members that belong to a run, in whatever estimator the name stands for.
struct Discounts {
  double gamma = 1, lambda = 1, lambda_returns = gdpo::same_lambda, length_alpha = 0;

  void set(TokenAdvantage& any) const {
    std::visit(
        [this](auto& e) {
          e.returns.gamma = gamma;
          if constexpr (std::decay_t<decltype(e.returns)>::reads_values) {
            e.returns.lambda = lambda;
            e.returns.lambda_returns = lambda_returns;
            e.returns.length_alpha = length_alpha;
          }
        },
        any);
  }
};
void set_penalty(TokenAdvantage& any, double coef, const std::string& kl_type) {
  std::visit(
      [&](auto& e) {
        e.penalty.coef = coef;
        if constexpr (std::is_same_v<std::decay_t<decltype(e.penalty.kl)>, gdpo::AnyKl>)
          e.penalty.kl.estimator = gdpo::runtime::kl(kl_type).estimator;
      },
      any);
}
// The whitening, whose settings may be changed.
gdpo::Renorm& whitening_of(TokenAdvantage& any) {
  return std::visit([](auto& e) -> gdpo::Renorm& { return e.renorm; }, any);
}

void compare_returns(const Case& recorded, TokenAdvantage estimator, const Inputs& in,
                     Comparison& comparison) {
  comparison.runs(settings_of(estimator));
  compare_tokens(recorded, in, comparison,
                 [&](bool packed) { return run_returns(recorded.target, estimator, in, packed); });
}

// A handler that runs the estimator that `mapping` makes of the parameters.
Handler returns_as(std::function<TokenAdvantage(Params&)> mapping) {
  return [mapping = std::move(mapping)](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    const TokenAdvantage estimator = mapping(params);
    params.all_read();
    compare_returns(recorded, estimator, inputs_of(recorded), comparison);
  };
}

auto verl_returns(const char* name) {
  return [=](Params& params) {
    TokenAdvantage e = token_advantage(name);
    Discounts of;
    of.gamma = params.number("gamma");
    if (params.has("lam")) of.lambda = params.number("lam");
    of.set(e);
    gdpo::Renorm& whitening = whitening_of(e);
    whitening.eps = params.number("whiten_eps"), whitening.ddof = params.integer("whiten_ddof");
    whitening.count_eps = params.has("mean_eps") ? params.number("mean_eps") : 0;  // SkyRL has none
    return e;
  };
}

TokenAdvantage nemo_rl_gae(Params& params) {
  Discounts of;
  of.gamma = params.number("gae_gamma"), of.lambda = params.number("gae_lambda");
  if (params.has("gae_lambda_value")) of.lambda_returns = params.number("gae_lambda_value");
  if (params.has("gae_lambda_policy"))
    throw Unsupported("parameter gae_lambda_policy is not mapped");
  of.length_alpha = params.number("length_adaptive_alpha");
  TokenAdvantage e = token_advantage(of.length_alpha > 0 ? "nemo_rl::vapo" : "nemo_rl::gae");
  of.set(e);
  set_penalty(e, params.number("kl_coef"), params.choice("kl_type", {"k1", "k2", "k3"}));
  params.fixed("normalize_advantages", true);
  gdpo::Renorm& whitening = whitening_of(e);
  whitening.eps = params.number("whiten_eps"), whitening.ddof = params.integer("whiten_ddof");
  return e;
}

TokenAdvantage slime_gae(Params& params) {
  TokenAdvantage e = token_advantage("slime::ppo");
  Discounts of;
  of.gamma = params.number("gamma"), of.lambda = params.number("lam");
  of.set(e);
  params.without_effect({"chunk_size"});  // how its code is vectorized
  return e;
}

// The rewards of rows of the record are those behind the normalization in groups: of an estimator
// from rows to tokens its second half runs.
void slime_returns(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const std::string kind =
      params.choice("advantage_estimator",
                    {"ppo", "reinforce_plus_plus", "grpo", "reinforce_plus_plus_baseline"});
  const bool of_rows = kind == "grpo" || kind == "reinforce_plus_plus_baseline";
  TokenAdvantage e = token_advantage(of_rows ? "slime::reinforce_plus_plus" : "slime::" + kind);
  Inputs in = inputs_of(recorded);
  if (of_rows) {
    const auto outcome = gdpo::runtime::outcome_advantage("slime::" + kind);
    comparison.runs(settings_of(outcome));
    std::visit([&](const auto& from_rows) { e = from_rows.tokens; }, outcome);
    in.of_rows.swap(in.row_rewards);
    params.without_effect({"gamma", "lambd"});
  } else {
    Discounts of;
    of.gamma = params.number("gamma"), of.lambda = params.number("lambd");
    of.set(e);
  }
  const double coef = params.number("kl_coef");
  set_penalty(e, kind == "grpo" ? 0 : coef, params.choice("kl_loss_type", {"k1", "k2", "k3"}));
  params.remark("whiten"), params.remark("padding");
  gdpo::Renorm whitening = gdpo::slime::whiten;
  whitening.eps = params.number("whiten_eps"), whitening.ddof = params.integer("whiten_ddof");
  if (params.flag("normalize_advantages")) whitening_of(e) = whitening;
  params.all_read();
  compare_returns(recorded, e, in, comparison);
}

// A handler for functions that take padding for steps: it is part of each row.
Handler over_padding(std::function<TokenAdvantage(Params&)> mapping) {
  return [mapping = std::move(mapping)](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    const TokenAdvantage estimator = mapping(params);
    params.all_read();
    Inputs in = inputs_of(recorded);
    in.lengths.assign(at(in.rows), in.width);
    compare_returns(recorded, estimator, in, comparison);
  };
}
TokenAdvantage trinity_gae(Params& params) {
  TokenAdvantage e = token_advantage("trinity::ppo");
  Discounts of;
  of.gamma = params.number("gamma"), of.lambda = params.number("lam");
  of.set(e);
  return e;
}
TokenAdvantage trinity_reinforce(Params& params) {
  TokenAdvantage e = token_advantage("trinity::reinforce_plus_plus");
  Discounts of;
  of.gamma = params.number("gamma");
  of.set(e);
  return e;
}
auto without_settings(const char* name) {
  return [=](Params&) { return token_advantage(name); };
}

// --- returns minus the baseline of their position in the group

// What a token baseline also reads. The log-probs are Inputs::logp.
struct BaselineInputs {
  std::vector<double> returns, sum_pi_squared, weights;
};

template <class S, class Groups>
std::vector<double> run_baseline_as(const Target& target,
                                    const gdpo::OptimalTokenBaseline& settings, const Inputs& in,
                                    const BaselineInputs& more, const Groups& groups, bool packed) {
  const Layout layout(in, packed);
  const auto returns = layout.of<S>(more.returns), logp = layout.of<S>(in.logp),
             squares = layout.of<S>(more.sum_pi_squared), weights = layout.of<S>(more.weights);
  const auto mask = layout.of<unsigned char>(in.mask);
  gdpo::TokenBaselineBatch<S> batch;
  const auto tokens = [&](const auto& x) { return layout.view<gdpo::TokenView<S>>(in, x); };
  batch.returns = tokens(returns), batch.logp = tokens(logp);
  batch.sum_pi_squared = tokens(squares), batch.weights = tokens(weights);
  batch.mask = layout.view<gdpo::TokenView<unsigned char>>(in, mask);
  if (packed) batch.offsets = gdpo::view(layout.offsets);
  std::vector<S> advantages(layout.place.size(), S(-77));
  const auto to = layout.view<gdpo::TokenOut<S>>(in, advantages);
  gdpo::TokenBaselineWorkspace<S> workspace;
  const auto call = [&](const auto& exec) {
    gdpo::optimal_token_baseline_into(exec, batch, groups, settings, to, workspace);
  };
  target.exec == Exec::Seq        ? call(gdpo::seq)
  : target.exec == Exec::Parallel ? call(gdpo::parallel(threads()))
                                  : call(gdpo::simd);
  return layout.padded(in, advantages);
}

// The presets of that name; handle_zero_tail decides the tail.
Handler token_baseline(const char* name) {
  return [=](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    gdpo::OptimalTokenBaseline settings = gdpo::runtime::token_baseline(name);
    settings.eps = params.number("eps");
    settings.tail =
        params.flag("handle_zero_tail") ? gdpo::BaselineTail::Raw : gdpo::BaselineTail::Cancel;
    params.all_read();
    comparison.runs(settings_of(settings));
    Inputs in;
    BaselineInputs more;
    only(recorded.inputs, {"token_level_rewards", "response_mask", "group_ids", "old_logp",
                           "sum_pi_squared", "rollout_is_weights"});
    in.rewards = token_array(recorded, "token_level_rewards", in);
    for (const double m : token_array(recorded, "response_mask", in)) in.mask.push_back(m != 0);
    const auto ids = integers_of(recorded.inputs.at("group_ids"));
    // The rewards to go, to which the baseline does not belong.
    TokenAdvantage rewards_to_go = token_advantage("verl::reinforce_plus_plus");
    whitening_of(rewards_to_go) = {};
    Target of_returns = recorded.target;
    if (of_returns.exec == Exec::Device) of_returns.exec = Exec::Simd;
    more.returns = run_returns(of_returns, rewards_to_go, in, false).returns;
    in.logp = token_array(recorded, "old_logp", in);
    more.sum_pi_squared = token_array(recorded, "sum_pi_squared", in);
    more.weights = token_array(recorded, "rollout_is_weights", in);
    const auto run = [&](const auto& groups, bool packed) {
      return recorded.target.single
                 ? run_baseline_as<float>(recorded.target, settings, in, more, groups, packed)
                 : run_baseline_as<double>(recorded.target, settings, in, more, groups, packed);
    };
    const auto groups = gdpo::by_id(ids);
    const std::vector<double> padded = run(groups, false);
    comparison.law(same_bits(padded, run(groups, true)), "other advantages packed");
    const Array advantages{{at(in.rows), at(in.width)}, padded},
        returns{{at(in.rows), at(in.width)}, more.returns};
    comparison.output("advantages", advantages, in.mask);
    comparison.output("returns", returns, in.mask);
  };
}

// --- advantages from a teacher

struct TeacherInputs {
  Inputs tokens;  // the sampler's log-probs as logp, the teacher's as ref_logp
  std::vector<double> advantages;
};

TeacherInputs teacher_inputs(const Case& recorded) {
  only(recorded.inputs, {"advantages", "response_mask", "teacher_logp", "old_logp",
                         "teacher_logprobs", "old_log_probs"});
  TeacherInputs in;
  const auto either = [&](const char* name, const char* other) {
    return token_array(recorded, recorded.inputs.contains(name) ? name : other, in.tokens);
  };
  in.tokens.logp = either("old_logp", "old_log_probs");
  in.tokens.ref_logp = either("teacher_logp", "teacher_logprobs");
  for (const double m : token_array(recorded, "response_mask", in.tokens))
    in.tokens.mask.push_back(m != 0);
  if (recorded.inputs.contains("advantages"))
    in.advantages = array_of(recorded.inputs.at("advantages")).data;
  // The advantage of a row is the reward of each of its tokens.
  for (const double a : in.advantages)
    in.tokens.rewards.insert(in.tokens.rewards.end(), at(in.tokens.width), a);
  return in;
}

// Means over the rows of the sums of their tokens, and the std of those.
void compare_row_sums(Comparison& comparison, const std::string& name,
                      const std::vector<double>& tokens, const Inputs& in) {
  const auto values = gdpo::view(tokens.data(), in.rows, in.width);
  const auto mask = gdpo::view(in.mask.data(), in.rows, in.width);
  std::vector<double> sums = gdpo::masked_row_means(values, mask);
  for (index_t i = 0; i < in.rows; ++i) {
    const auto row = in.mask.begin() + i * in.width;
    sums[at(i)] *= static_cast<double>(std::count(row, row + in.width, 1));
  }
  comparison.metric(name + "/mean",
                    gdpo::masked_mean_over(values, mask, static_cast<double>(in.rows)));
  comparison.metric(name + "/std", gdpo::stddev(gdpo::masked_moments(gdpo::view(sums)), 1));
}

// coef (teacher - old), added to the advantages if there are some.
Handler distillation(const char* name, const char* coef) {
  return [=](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    TokenAdvantage e = token_advantage(name);
    std::visit([&](auto& estimator) { estimator.penalty.coef = params.number(coef); }, e);
    params.all_read();
    const Inputs in = teacher_inputs(recorded).tokens;
    compare_returns(recorded, e, in, comparison);
    if (recorded.source != "trinity") return;  // the only one that logs them
    compare_row_sums(comparison, "advantages",
                     run_returns(recorded.target, e, in, false).advantages, in);
    std::visit([](auto& estimator) { estimator.penalty.coef = -1; }, e);
    compare_row_sums(comparison, "kl", run_returns(recorded.target, e, in, false).advantages, in);
  };
}

// Advantages from the log of a mixture.
void trinity_jsd(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const double lambda = params.number("lambda_coef"), coef = params.number("kl_coef"),
               temperature = params.number("temperature");
  params.without_effect({"chunk_size"});  // how its code is vectorized
  params.all_read();
  const Inputs in = teacher_inputs(recorded).tokens;
  const auto estimator = [&](double of_penalty) {
    TokenAdvantage any = token_advantage("trinity::jsd");
    auto& e =
        std::get<gdpo::TokenAdvantage<gdpo::returns::RewardToGo, gdpo::penalty::Mixture>>(any);
    e.penalty = {of_penalty, {lambda, temperature}};
    return any;
  };
  compare_returns(recorded, estimator(coef), in, comparison);
  const auto advantages = [&](double of_penalty) {
    return run_returns(recorded.target, estimator(of_penalty), in, false).advantages;
  };
  compare_row_sums(comparison, "advantages", advantages(coef), in);
  compare_row_sums(comparison, "jsd", advantages(-1), in);
}

// Advantages times the weights of TeacherRatio.
template <class S>
std::vector<double> reweighted(const gdpo::prepass::TeacherRatio& pass, const TeacherInputs& of,
                               bool packed) {
  const Inputs& in = of.tokens;
  const Layout layout(in, packed);
  const auto old_logp = layout.of<S>(in.logp), teacher_logp = layout.of<S>(in.ref_logp);
  const auto mask = layout.of<unsigned char>(in.mask);
  gdpo::TokenBatch<S> batch;
  batch.old_logp = layout.view<gdpo::TokenView<S>>(in, old_logp);
  batch.teacher_logp = layout.view<gdpo::TokenView<S>>(in, teacher_logp);
  batch.mask = layout.view<gdpo::TokenView<unsigned char>>(in, mask);
  batch.advantages = gdpo::view(of.advantages);
  if (packed) batch.offsets = gdpo::view(layout.offsets);
  gdpo::PrepassMemory<S> memory;
  gdpo::prepare(batch, memory, pass);
  std::vector<double> advantages = layout.padded(in, memory.weights);
  for (std::size_t k = 0; k < advantages.size(); ++k) advantages[k] *= in.rewards[k];
  return advantages;
}

void swift_rlsd(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::prepass::TeacherRatio pass = gdpo::ms_swift::rlsd;
  pass.mix = params.number("lam");
  const double range = params.number("clip_range");
  pass.clip = {1 - range, 1 + range};
  pass.negative_only = params.flag("negative_only");
  params.all_read();
  const TeacherInputs in = teacher_inputs(recorded);
  comparison.runs(settings_of(gdpo::runtime::Prepass(pass)));
  const auto run = [&](bool packed) {
    return recorded.target.single ? reweighted<float>(pass, in, packed)
                                  : reweighted<double>(pass, in, packed);
  };
  const std::vector<double> padded = run(false), packed = run(true);
  bool same = true;
  for (std::size_t k = 0; k < in.tokens.size(); ++k)
    same = same && (in.tokens.mask[k] == 0 || padded[k] == packed[k]);
  comparison.law(same, "other advantages packed");
  comparison.output("advantages", Array{{at(in.tokens.rows), at(in.tokens.width)}, padded},
                    in.tokens.mask);
}

// --- value losses

struct ValueRun {
  gdpo::ValueLossResult result;
  std::vector<double> gradient;
};

template <class S>
ValueRun run_value_loss_as(const Target& target, gdpo::runtime::ValueLoss loss, const Inputs& in,
                           const Layout& layout, double given) {
  const auto values = layout.of<S>(in.values), old_values = layout.of<S>(in.old_values),
             returns = layout.of<S>(in.returns);
  const auto mask = layout.of<unsigned char>(in.mask);
  gdpo::ValueBatch<S> batch;
  batch.values = layout.view<gdpo::TokenView<S>>(in, values);
  batch.old_values = layout.view<gdpo::TokenView<S>>(in, old_values);
  batch.returns = layout.view<gdpo::TokenView<S>>(in, returns);
  batch.mask = layout.view<gdpo::TokenView<unsigned char>>(in, mask);
  if (!layout.offsets.empty()) batch.offsets = gdpo::view(layout.offsets);
  std::vector<S> gradient(layout.place.size(), S(-77));
  gdpo::Normalizer n = gdpo::count(batch);
  n.given = given;
  ValueRun run;
  if (target.exec == Exec::Device) {
    run.result = value_loss_on_device(loss, batch, n, gradient.data());
  } else {
    const auto to = layout.view<gdpo::TokenOut<S>>(in, gradient);
    gdpo::ValueWorkspace<S> workspace;
    run.result = target.exec == Exec::Seq ? loss(gdpo::seq, batch, n, to, workspace)
                 : target.exec == Exec::Parallel
                     ? loss(gdpo::parallel(threads()), batch, n, to, workspace)
                     : loss(gdpo::simd, batch, n, to, workspace);
  }
  run.gradient = layout.padded(in, gradient);
  return run;
}

void compare_value_loss(const Case& recorded, const gdpo::runtime::ValueLoss& loss,
                        Comparison& comparison, double given = 0) {
  const Inputs in = inputs_of(recorded);
  comparison.runs(settings_of(loss));
  const auto run = [&](bool packed) {
    const Layout layout(in, packed);
    return recorded.target.single
               ? run_value_loss_as<float>(recorded.target, loss, in, layout, given)
               : run_value_loss_as<double>(recorded.target, loss, in, layout, given);
  };
  const ValueRun padded = run(false), packed = run(true);
  comparison.law(same_bits({padded.result.loss}, {packed.result.loss}), "another loss packed");
  comparison.law(same_bits(padded.gradient, packed.gradient), "another gradient packed");
  comparison.output("loss", Array{{}, {padded.result.loss}});
  comparison.output("grad_vpreds", Array{{at(in.rows), at(in.width)}, padded.gradient});
  comparison.metric("vf_clipfrac", padded.result.metrics.clip_fraction.mean());
  comparison.metric("clipfrac", padded.result.metrics.clip_fraction.mean());
  comparison.metric_sum("clip_mask", padded.result.metrics.clip_fraction.sum);
}

void verl_value_loss(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::runtime::ValueLoss loss = gdpo::runtime::value_loss("verl::value_loss");
  loss.clip = params.number("cliprange_value");
  double given = 0;
  loss.aggregate = verl_aggregate(params, {}, given);
  params.all_read();
  compare_value_loss(recorded, loss, comparison);
}

// Half the squared error: the mean over rows of their means.
void skyrl_value_loss(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::runtime::ValueLoss loss = gdpo::runtime::value_loss("verl::value_loss");
  loss.clip = params.at_most("value_clip");
  loss.aggregate = gdpo::aggregate::seq_mean_token_mean();
  params.fixed("factor", 0.5);
  params.all_read();
  compare_value_loss(recorded, loss, comparison);
}

void areal_value_loss(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::runtime::ValueLoss loss = gdpo::runtime::value_loss("areal::value_loss");
  loss.clip = params.at_most("value_eps_clip");
  params.fixed("factor", 0.5);
  if (params.choice("loss_fn_type", {"mse", "huber"}) == "huber")
    loss.delta = params.number("huber_delta");
  params.without_effect({"huber_delta"});
  params.all_read();
  compare_value_loss(recorded, loss, comparison);
}

void openrlhf_value_loss(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  gdpo::runtime::ValueLoss loss = gdpo::runtime::value_loss("openrlhf::value_loss");
  loss.clip = params.at_most("clip_eps");
  double given = 0;
  loss.aggregate = openrlhf_aggregate(params, given);
  if (params.has("factor")) params.fixed("factor", 0.5);
  params.all_read();
  compare_value_loss(recorded, loss, comparison, given);
}

}  // namespace

void add_values(Registry& registry) {
  const auto add = [&](const char* source, const char* function,
                       std::function<TokenAdvantage(Params&)> mapping) {
    registry.add_loss(source, "advantage", function, returns_as(std::move(mapping)));
  };
  add("verl", "compute_gae_advantage_return", verl_returns("verl::gae"));
  add("verl", "compute_reinforce_plus_plus_outcome_advantage",
      verl_returns("verl::reinforce_plus_plus"));
  registry.add_loss("skyrl", "advantage", "compute_gae_advantage_return",
                    over_padding(verl_returns("skyrl::gae")));
  add("skyrl", "compute_reinforce_plus_plus_outcome_advantage",
      verl_returns("verl::reinforce_plus_plus"));
  add("nemo_rl", "GeneralizedAdvantageEstimator.compute_advantage", nemo_rl_gae);
  add("slime", "vanilla_gae", slime_gae);
  add("slime", "chunked_gae", slime_gae);
  registry.add_loss("slime", "advantage", "compute_advantages_and_returns", slime_returns);
  registry.add_loss("trinity", "advantage", "PPOAdvantageFn", over_padding(trinity_gae));
  registry.add_loss("trinity", "advantage", "REINFORCEPLUSPLUSAdvantageFn",
                    over_padding(trinity_reinforce));
  // The baselines of rows are the values of each of their tokens (BoundTokens).
  add("verl", "compute_remax_outcome_advantage", without_settings("verl::remax"));
  add("trinity", "REMAXAdvantageFn", without_settings("trinity::remax"));
  registry.add_loss("verl", "advantage", "compute_optimal_token_baseline_advantage",
                    token_baseline("verl::optimal_token_baseline"));
  registry.add_loss("verl", "advantage", "compute_multi_turn_optimal_token_baseline_advantage",
                    token_baseline("verl::multi_turn_optimal_token_baseline"));
  registry.add_loss("ms_swift", "advantage", "expand_advantage_to_per_token",
                    distillation("ms_swift::teacher", "teacher_kl_coef"));
  registry.add_loss("ms_swift", "advantage", "apply_rlsd_reweight", swift_rlsd);
  registry.add_loss("trinity", "advantage", "JSDAdvantage", trinity_jsd);
  registry.add_loss("trinity", "advantage", "OnPolicyDistillAdvantage",
                    distillation("trinity::on_policy_distill", "kl_coef"));
  registry.add_loss("verl", "loss", "compute_value_loss", verl_value_loss);
  registry.add_loss("skyrl", "loss", "ppo_critic_loss", skyrl_value_loss);
  registry.add_loss("areal", "loss", "ppo_critic_loss_fn", areal_value_loss);
  registry.add_loss("openrlhf", "loss", "ValueLoss.forward", openrlhf_value_loss);
}

}  // namespace conformance
