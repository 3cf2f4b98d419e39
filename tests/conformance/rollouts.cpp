// Cases of kind advantage whose rows are parts of something: steps of an agent's run, steps with a
// reward each in a row of tokens, agents of an episode.
#include <algorithm>
#include <cstdint>
#include <gdpo/advantage/gigpo.hpp>
#include <map>
#include <utility>

#include "advantage.hpp"
#include "as_is.hpp"

namespace conformance {
namespace {

using gdpo::index_t;
using Ids = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

Ids ids_of(const Case& recorded, const char* name) {
  const std::vector<long long> ids = integers_of(recorded.inputs.at(name));
  return {ids.begin(), ids.end()};
}

// A number for each pair of ids.
Ids pairs(const Ids& a, const Ids& b) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> number;
  Ids out;
  for (std::size_t i = 0; i < a.size(); ++i)
    out.push_back(number.emplace(std::pair(a[i], b[i]), number.size()).first->second);
  return out;
}

// Compares the advantages of rows at the valid tokens.
void compare_tokens(const Case& recorded, const Numbers& rows, Comparison& comparison) {
  const Array mask = array_of(recorded.inputs.at("response_mask"));
  const std::vector<unsigned char> valid(mask.data.begin(), mask.data.end());
  Array tokens{mask.shape, Numbers(mask.data.size())};
  const auto width = static_cast<index_t>(mask.shape.at(1)),
             count = static_cast<index_t>(rows.size());
  gdpo::broadcast_into(gdpo::view(rows), gdpo::view(valid.data(), count, width),
                       gdpo::view(tokens.data.data(), count, width));
  comparison.output("advantages", tokens, valid);
}

// --- trinity

// The last step of a run counts; its score is that of all steps, or is shared out among them.
void trinity_stepwise(const Case& recorded, Comparison& comparison) {
  only(recorded.inputs, {"rewards", "task_ids", "run_ids", "step_ids", "response_mask"});
  Params params(recorded.params);
  gdpo::runtime::Estimator estimator = gdpo::runtime::estimator("verl::grpo");
  set_scale(estimator, params.number("epsilon"), 1);
  if (params.choice("std_cal_level", {"group", "batch"}) == "batch") {
    std::visit(
        [](auto& e) {
          if constexpr (std::is_same_v<decltype(e.scale), gdpo::scale::StdDev>)
            e.scale.of = gdpo::scale::Of::Batch;
        },
        estimator);
  }
  const bool shared_out = params.flag("enable_step_norm");
  params.fixed("rewards", "of the last step");
  params.all_read();
  comparison.runs(settings_of(estimator));

  const Numbers rewards = array_of(recorded.inputs.at("rewards")).data;
  const Ids tasks = ids_of(recorded, "task_ids"), runs = pairs(tasks, ids_of(recorded, "run_ids"));
  const gdpo::RewardBatch batch{gdpo::view(rewards), gdpo::by_id(tasks)};
  const auto one = gdpo::rollouts(batch, gdpo::view(runs), gdpo::Take::Last);
  Numbers scores = row_advantages(recorded, one.batch(), estimator);
  for (index_t m = 0; shared_out && m < one.count(); ++m)
    scores[static_cast<std::size_t>(m)] /= static_cast<double>(one.lengths()(m));
  compare_tokens(recorded, one.spread(scores), comparison);
}

Numbers gigpo_rows(const Case& recorded, const gdpo::runtime::StepAdvantage& estimator) {
  Numbers rewards = array_of(recorded.inputs.at("rewards")).data;
  const Ids tasks = ids_of(recorded, "task_ids"), runs = pairs(tasks, ids_of(recorded, "run_ids")),
            states = ids_of(recorded, "state_ids");
  if (recorded.params.at("rewards") == "of the last step") {
    for (std::size_t i = 0; i < runs.size(); ++i) {  // steps of a run stand one after the other
      if (i + 1 < runs.size() && runs[i + 1] == runs[i]) rewards[i] = gdpo::math::nan();
    }
  }
  const gdpo::RewardBatch batch{gdpo::view(std::as_const(rewards)), gdpo::by_id(tasks)};
  Numbers out(rewards.size());
  gdpo::GigpoWorkspace<double, gdpo::ById> workspace;
  const auto run = [&](const auto& exec) {
    std::visit(
        [&](const auto& gigpo) {
          gdpo::gigpo_into(exec, batch, gdpo::view(runs), gdpo::view(states), gigpo,
                           gdpo::view(out), workspace);
        },
        estimator);
  };
  if (recorded.target.exec == Exec::Seq) {
    run(gdpo::seq);
  } else {
    run(gdpo::simd);
  }
  return out;
}

void trinity_gigpo(const Case& recorded, Comparison& comparison) {
  only(recorded.inputs,
       {"rewards", "task_ids", "run_ids", "step_ids", "response_mask", "state_ids"});
  Params params(recorded.params);
  const double omega = params.number("omega"), gamma = params.number("gamma"),
               eps = params.number("epsilon");
  const bool divides = params.choice("fnorm", {"none", "std"}) == "std";
  params.choice("rewards", {"of steps", "of the last step"});
  for (const char* name : {"step_reward_key", "env_state_hash_key"}) params.remark(name);
  params.all_read();
  gdpo::runtime::StepAdvantage estimator =
      gdpo::runtime::step_advantage(divides ? "trinity::gigpo" : "gigpo_no_std");
  std::visit(
      [&](auto& gigpo) {
        gigpo.omega = omega, gigpo.gamma = gamma, gigpo.pool_states = true;
        if constexpr (std::is_same_v<decltype(gigpo.step.scale), gdpo::scale::StdDev>) {
          gigpo.episode.scale.eps = gigpo.step.scale.eps = eps;
        } else {  // it divides by 1 + eps
          gigpo.episode.weights = gigpo.step.weights = {1 / (1 + eps)};
        }
      },
      estimator);
  comparison.runs(settings_of(estimator));
  compare_tokens(recorded, gigpo_rows(recorded, estimator), comparison);
}

// --- torchrl

// Steps have rewards, at their places in a row; the group is all steps, or all trajectories.
void torchrl_mc(const Case& recorded, Comparison& comparison) {
  only(recorded.inputs, {"token_level_rewards", "group_ids", "response_mask"});
  Params params(recorded.params);
  const Array rewards = array_of(recorded.inputs.at("token_level_rewards")),
              mask = array_of(recorded.inputs.at("response_mask"));
  const Ids groups = ids_of(recorded, "group_ids");
  const int size = params.integer("grpo_size");
  if (groups.size() != static_cast<std::size_t>(size))
    throw Unsupported("a choice among more rows than a group has");
  params.without_effect({"keep_return_bounds", "strategy"});
  gdpo::runtime::Estimator estimator = gdpo::runtime::estimator("grpo");
  set_scale(estimator, params.number("std_min"), params.integer("ddof"));
  std::visit(
      [](auto& e) {
        if constexpr (std::is_same_v<decltype(e.scale), gdpo::scale::StdDev>)
          e.scale.eps_at = gdpo::EpsAt::ClampStd;
      },
      estimator);
  const bool of_steps = !params.has("trajectory_return");
  const std::string taken =
      of_steps ? "" : params.choice("trajectory_return", {"sum", "max", "mean"});
  params.all_read();
  comparison.runs(settings_of(estimator));

  const std::size_t width = mask.shape.at(1);
  Numbers steps;  // the rewards of the steps, one row each
  Ids group_of_step, row_of_step;
  for (std::size_t k = 0; k < mask.data.size(); ++k) {
    if (mask.data[k] == 0) continue;
    const double reward = rewards.data[k];
    steps.push_back(recorded.float32 ? static_cast<float>(reward) : reward);
    group_of_step.push_back(groups[k / width]);
    row_of_step.push_back(static_cast<std::int64_t>(k / width));
  }
  const gdpo::RewardBatch batch{gdpo::view(std::as_const(steps)), gdpo::by_id(group_of_step)};
  Numbers values;
  if (of_steps) {
    values = row_advantages(recorded, batch, estimator);
  } else {
    const gdpo::Take take = taken == "sum"   ? gdpo::Take::Sum
                            : taken == "max" ? gdpo::Take::Max
                                             : gdpo::Take::Mean;
    const auto trajectories = gdpo::rollouts(batch, gdpo::view(std::as_const(row_of_step)), take);
    values = trajectories.spread(row_advantages(recorded, trajectories.batch(), estimator));
  }
  Array tokens{mask.shape, Numbers(mask.data.size())};
  auto next = values.begin();
  for (std::size_t k = 0; k < mask.data.size(); ++k)
    if (mask.data[k] != 0) tokens.data[k] = *next++;
  comparison.output("advantages", tokens, {mask.data.begin(), mask.data.end()});
}

// --- prime_rl

// Some agents are compared within their episode, the others over the batch: two kinds of groups in
// one call.
void prime_rl_hierarchical(const Case& recorded, Comparison& comparison) {
  only(recorded.inputs, {"rewards", "agent_ids", "episode_ids"});
  Params params(recorded.params);
  const Numbers within = params.numbers("episode_agents");
  params.all_read();
  const Numbers rewards = array_of(recorded.inputs.at("rewards")).data;
  const Ids agents = ids_of(recorded, "agent_ids");
  Ids episodes = ids_of(recorded, "episode_ids");
  for (std::size_t i = 0; i < agents.size(); ++i) {
    if (std::find(within.begin(), within.end(), static_cast<double>(agents[i])) == within.end())
      episodes[i] = -1;
  }
  const gdpo::RewardBatch batch{gdpo::view(rewards), gdpo::by_id(pairs(agents, episodes))};
  const gdpo::runtime::Estimator estimator = gdpo::runtime::estimator("dr_grpo");
  comparison.runs(settings_of(estimator));
  const Numbers advantages = row_advantages(recorded, batch, estimator);
  comparison.output("advantages", Array{{advantages.size()}, advantages});
}

}  // namespace

void add_rollouts(Registry& registry) {
  registry.add("trinity", "advantage", "StepWiseGRPOAdvantageFn", trinity_stepwise);
  registry.add("trinity", "advantage", "GiGPOAdvantageFn", trinity_gigpo);
  registry.add("torchrl", "advantage", "MCAdvantage", torchrl_mc);
  registry.add("prime_rl", "advantage", "HierarchicalGRPOAlgorithm.score_group",
               prime_rl_hierarchical);
}

}  // namespace conformance
