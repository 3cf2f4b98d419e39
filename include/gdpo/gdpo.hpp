#pragma once
/// \file
/// The umbrella header: everything that a C++ trainer with Eigen needs.
///
/// **One step**, with the type at each arrow and the door that has the call:
///
///     rewards (N, C)                            floats, NaN where one is missing
///        |   RewardBatch, groups                advantages.hpp, constraint.hpp
///        v
///     advantages (N)                            Eigen::Array, std::vector or View; GroupReport
///        |   TokenBatch: logp, old_logp, ref_logp, mask, ...   (N, T) or packed
///        v
///     prepare   mask and weights                prepass.hpp, optional
///        v
///     count     Normalizer                      loss.hpp; summed over micro-batches and ranks
///        v
///     loss      LossResult, dloss/dlogp (N, T)  loss.hpp; from logits (N, T, V): logits.hpp
///        v
///     step      optimizer, reference policy     yours; update.hpp has the loop around it
///
/// Also included:
///
/// - gdpo/value.hpp: the critic's side of PPO: GAE, returns, the value loss.
/// - gdpo/dist.hpp: the same over ranks: rows gathered, counts and metrics merged.
/// - gdpo/mismatch.hpp: how far the sampling engine's log-probs are from the trainer's.
/// - gdpo/diagnose.hpp: finds common mistakes of runs in the metrics and the report.
/// - gdpo/with/eigen.hpp: Eigen objects as arguments and results.
///
/// Not included here: gdpo/runtime.hpp (estimators and losses by name), gdpo/cuda.hpp (device
/// memory), gdpo/presets/ (the conventions of trainers), and the other adapters of gdpo/with/
/// (Eigen tensors, DLPack, threads, OpenMP, JSON). Without Eigen, include the doors you need
/// instead of this header.
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
/// **Errors.** Mistakes throw `gdpo::invalid_input`, which names the function, the argument, what
/// was given and what is needed.
///
/// **Read on.** The comment at the top of each header above; README.md; examples/quickstart.cpp and
/// examples/trainer_step.cpp, a whole step.
#include <gdpo/advantages.hpp>
#include <gdpo/constraint.hpp>
#include <gdpo/diagnose.hpp>
#include <gdpo/dist.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/mismatch.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/update.hpp>
#include <gdpo/value.hpp>
#include <gdpo/with/eigen.hpp>
