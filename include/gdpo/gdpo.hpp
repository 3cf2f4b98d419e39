#pragma once
/// \file
/// The umbrella header: everything that a C++ trainer with Eigen needs.
///
/// **Which door.** A training step passes through the doors in this order; each can be included
/// alone.
///
/// - gdpo/advantages.hpp: rewards to advantages (GDPO, GRPO, Dr.GRPO, RLOO).
/// - gdpo/constraint.hpp: the same where some rewards are to be kept at a limit, by multipliers.
/// - gdpo/prepass.hpp: masks and weights that are decided from whole rows or the batch (truncated
///   completions, high entropy, rollout correction).
/// - gdpo/loss.hpp: log-probs and advantages to a loss, its gradient and metrics.
/// - gdpo/value.hpp: the critic's side of PPO: GAE, returns, the value loss.
/// - gdpo/logits.hpp: the same straight from the logits, with the gradient by them.
/// - gdpo/dist.hpp: the above over many ranks: rows gathered, counts and metrics merged.
/// - gdpo/update.hpp: the rest of a policy update: plans, packing, clipping, the reference policy.
/// - gdpo/diagnose.hpp: what metrics and report say about the mistakes that runs usually fail by.
/// - gdpo/with/eigen.hpp: Eigen objects as arguments and results of the above.
///
/// Include by themselves: gdpo/runtime.hpp for estimators and losses by the names of a
/// configuration, gdpo/cuda.hpp for device memory, gdpo/presets/ for the conventions of a
/// trainer, and the other adapters of gdpo/with/ (Eigen tensors, DLPack, threads, OpenMP,
/// JSON). A program without Eigen includes the doors that it needs instead of this header.
///
/// **Example.** Advantages of two prompts with four completions each, and the loss of their
/// tokens:
///
/// <!-- build: door_gdpo run -->
/// ```cpp
/// Eigen::ArrayXXf rewards(8, 2);  // (completions, rewards): two prompts, four completions each
/// rewards << 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1;
/// const Eigen::ArrayXf advantages = gdpo::advantages(rewards, gdpo::groups_of(4));
///
/// Eigen::ArrayXXf logp = Eigen::ArrayXXf::Constant(8, 3, -0.5f), dlogp(8, 3);  // (.., tokens)
/// const Eigen::ArrayXXf old_logp = logp;  // of the policy that sampled
/// logp.row(0) += 0.4f;                    // completion 0 is now likelier: its ratio is 1.49
/// gdpo::TokenBatch<float> batch;
/// batch.logp = gdpo::view(logp);
/// batch.old_logp = gdpo::view(old_logp);
/// batch.advantages = gdpo::view(advantages);
/// const gdpo::LossResult r = gdpo::dapo_loss(batch, gdpo::count(batch), gdpo::view(dlogp));
/// std::printf("loss %.3f, clipped %.3f\n", r.loss, r.metrics.clip_fraction.mean());
/// std::printf("gradient %.3f and %.3f\n", dlogp(0, 0), dlogp(3, 0));
/// ```
///
/// **Cost and errors.** They are those of the doors; the umbrella adds the time of the compiler.
/// Mistakes throw `gdpo::invalid_input`, which names the function, the argument, what was given
/// and what is needed.
///
/// **Read on.** The usage pages at the top of the doors; README.md; examples/quickstart.cpp and
/// examples/trainer_step.cpp, a whole step.
#include <gdpo/advantages.hpp>
#include <gdpo/constraint.hpp>
#include <gdpo/diagnose.hpp>
#include <gdpo/dist.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/update.hpp>
#include <gdpo/value.hpp>
#include <gdpo/with/eigen.hpp>
