#pragma once
/// \file
/// The critic's side of PPO: returns and advantages of tokens (GAE), and the value loss.
///
/// For the tokens t of a row, with reward r_t, value V_t and the next valid token's value V_next:
///
///     RewardToGo  G_t = r_t + gamma G_next                        advantage and return
///     Gae         delta_t = r_t + gamma V_next - V_t
///                 A_t = delta_t + gamma lambda A_next,  return A_t + V_t
///     ValueLoss   L_t = 1/2 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2)
///                 loss = sum_i W_i sum_t L_t, with dloss/dv
///
/// GAE is arXiv 1506.02438, eq. 16. The clipped value loss is that of PPO's first implementation
/// (OpenAI baselines, ppo2), which verl, OpenRLHF, NeMo-RL and slime have kept. W_i is the weight
/// of the row, by the aggregates of the policy loss (tokens/aggregate.hpp).
///
/// One row of four tokens, the third of which a tool wrote. The row was cut off, and the critic
/// expects 0.5 more:
///
/// <!-- build: door_value run -->
/// ```cpp
/// const std::vector<float> rewards{0, 0, 9, 1}, values{0.2f, 0.4f, 7, 0.8f};
/// const std::vector<unsigned char> mask{1, 1, 0, 1};  // what the mask hides is not read
/// const std::vector<double> rest{0.5};                // 0 for an episode that has ended
/// gdpo::ReturnBatch<float> batch;
/// batch.rewards = gdpo::view(rewards.data(), 1, 4);
/// batch.values = gdpo::view(values.data(), 1, 4);
/// batch.mask = gdpo::view(mask.data(), 1, 4);
/// batch.bootstrap = gdpo::view(rest);
/// std::vector<float> advantages(4), returns(4);
/// gdpo::ReturnsWorkspace<float> memory;  // kept between steps
/// gdpo::advantages_and_returns_into(gdpo::simd, batch, gdpo::TokenAdvantage<>{{0.9, 0.5}},
///                                   gdpo::view(advantages.data(), 1, 4),
///                                   gdpo::view(returns.data(), 1, 4), memory);
/// for (const float a : advantages) std::printf("%.2f ", a);  // prints 0.44 0.61 0.00 0.65
///
/// const std::vector<float> now{0.3f, 0.9f, 0, 1.5f};  // the critic after some steps
/// std::vector<float> by_value(4);
/// gdpo::ValueBatch<float> learned;
/// learned.values = gdpo::view(now.data(), 1, 4), learned.old_values = batch.values;
/// learned.returns = gdpo::view(returns.data(), 1, 4), learned.mask = batch.mask;
/// const gdpo::ValueLoss<> loss{0.2};
/// const gdpo::ValueLossResult r =
///     loss(learned, gdpo::count(learned), gdpo::view(by_value.data(), 1, 4));
/// std::printf("\nloss %.3f, clipped %.2f\n", r.loss, r.metrics.clip_fraction.mean());
/// // prints loss 0.081, clipped 0.67
/// ```
///
/// **Calls.**
///
///     advantages_and_returns_into(exec, batch, estimator, advantages, returns, workspace)
///     advantages_and_returns_into(batch, estimator, advantages, returns)     on simd, own memory
///     advantages_and_returns_into(exec, rewards, batch, estimator, ...)      from rewards of rows
///     estimator.renorm                  renorm::none(), or renorm::token_weighted_batch():
///                                       whitening
///     token_advantages_into             advantages of rows, with a KL penalty at each token
///     optimal_token_baseline_into       returns minus a baseline for each position of a group
///     place_turns_into                  rewards of turns, each at the last token of its turn
///     distillation_advantage            the estimator of on-policy distillation: teacher - sampled
///     repeated(view)                    one number a row in place of an array of tokens
///     count(batch)                      what the loss is divided by, as for the policy loss
///     loss(exec, batch, n, gradient, workspace), loss(batch, n, gradient)
///     merge(result, result)             results of micro-batches or ranks
///
/// estimator is a TokenAdvantage, with rewards an OutcomeAdvantage; loss is a ValueLoss; n is the
/// sum of count() over the step: "One step" in include/gdpo/loss/README.md.
///
/// **Arrays.** "tokens" is (B, T), (prompts, completions, T), or packed (N) with offsets, of any
/// strides; numbers are float, double or 16-bit floats.
///
///     ReturnBatch        shape      without it
///     rewards            tokens     0; required without row_rewards and penalty
///     row_rewards        (B)        0; added at the last step of the row
///     values             tokens     required by Gae
///     logp, ref_logp     tokens     required if penalty.coef is not 0
///     bootstrap          (B)        0: every row has ended
///
///     ValueBatch
///     values, returns    tokens     required
///     old_values         tokens     required if clip is finite
///     row_weights        (B)        1
///     group_tokens       (B)        required by a mean over groups (tokens/count_groups.hpp)
///
///     TokenBaselineBatch
///     returns            tokens     required, as are logp and sum_pi_squared
///     weights            tokens     1
///
///     all: mask (tokens), without which all count, and offsets (B + 1), required where packed
///
/// **Results.** Advantages and returns of all tokens, exactly 0 where the mask is 0. The loss, its
/// gradient by the values, and ValueMetrics.
///
/// **Cost.** Linear in the tokens. `parallel(executor)` uses threads; all executions give the same
/// bits. With a workspace nothing is allocated after the first call.
///
/// **Errors.** `gdpo::invalid_input`, before anything is written, for gamma or lambda outside 0 to
/// 1, shapes that do not fit, missing arrays, and a count of 0. Data never throws: a NaN reward or
/// value shows in the tokens before it in its row, and the loss counts it.
///
/// **Read on.** include/gdpo/value/README.md: turns, ends of episodes, trainers' options, devices.
/// examples/ppo_step.cpp: a whole PPO step. presets/README.md: the settings of trainers.
#include <gdpo/loss.hpp>
#include <gdpo/value/advantages_and_returns.hpp>
#include <gdpo/value/mixture_penalty.hpp>
#include <gdpo/value/optimal_token_baseline.hpp>
#include <gdpo/value/outcome_call.hpp>
#include <gdpo/value/token_penalty.hpp>
#include <gdpo/value/turn_rewards.hpp>
#include <gdpo/value/value_loss.hpp>
