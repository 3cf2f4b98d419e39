#pragma once
/// \file
/// Estimators, policy losses and logits for arrays in device memory, on a CUDA stream.
///
/// For trainers whose data is on an NVIDIA GPU. Compile with nvcc of CUDA 12 or 13, as C++17 and
/// for sm_80 or later (`nvcc -std=c++17 -arch=sm_90`). Formulas and sources are in the headers of
/// the host.
///
/// <!-- build: door_cuda cuda -->
/// ```cpp
/// const int rows = 512, width = 1024;  // 64 prompts with 8 completions each, 2 rewards
/// float *rewards, *advantages, *logp, *old_logp, *dlogp;  // fill rewards, logp and old_logp
/// for (float** array : {&rewards, &advantages, &logp, &old_logp, &dlogp})
///   gdpo::cuda::check("array", cudaMalloc(array, rows * width * sizeof(float)));
/// gdpo::Normalizer* counts;
/// gdpo::LossResult* result;
/// gdpo::cuda::check("counts", cudaMalloc(&counts, sizeof *counts));
/// gdpo::cuda::check("result", cudaMalloc(&result, sizeof *result));
/// const gdpo::RewardBatch group{gdpo::view(rewards, rows, 2), gdpo::groups_of(8)};
/// gdpo::TokenBatch<float> batch;
/// batch.logp = gdpo::view(logp, rows, width), batch.old_logp = gdpo::view(old_logp, rows, width);
/// batch.advantages = gdpo::view(advantages, rows);
/// const auto loss = gdpo::dapo_loss;
/// gdpo::cuda::Scratch scratch{nullptr, std::max(gdpo::cuda::scratch_bytes(gdpo::Gdpo{}, group),
///                                               gdpo::cuda::scratch_bytes(loss, batch))};
/// gdpo::cuda::check("scratch", cudaMalloc(&scratch.data, scratch.bytes));
///
/// const gdpo::cuda::On on{cudaStreamPerThread};
/// gdpo::advantages_into(on, group, gdpo::Gdpo{}, gdpo::view(advantages, rows), scratch);
/// gdpo::cuda::count_into(on, batch, counts, scratch);  // sum these over micro-batches
/// loss(on, batch, counts, gdpo::view(dlogp, rows, width), result, scratch);
/// std::printf("loss %g\n", gdpo::cuda::to_host(on, result).loss);  // waits: for logging alone
/// ```
///
/// **Calls.** The host's calls, with `cuda::On{stream}` in place of `gdpo::simd`:
///
///     advantages_into           advantages from rewards            gdpo/advantages.hpp
///     first_stage, finish       the same in two stages             gdpo/advantages.hpp
///     prepare                   masks and weights of pre-passes    gdpo/prepass.hpp
///     cuda::count_into          what a loss is divided by          gdpo/loss.hpp
///     loss(on, batch, ...)      loss, dloss/dlogp and metrics      gdpo/loss.hpp (any PolicyLoss)
///     token_logprobs_into       log-probs from logits              gdpo/logits.hpp
///     token_logprobs_backward   and their gradient                 gdpo/logits.hpp
///     policy_loss_from_logits   loss and dloss/dlogits at once     gdpo/logits.hpp
///     distillation_from_logits  a teacher's k tokens               gdpo/logits.hpp
///     cuda/value/               returns and value losses           gdpo/value.hpp
///     cuda::mismatch_into       the mismatch report                gdpo/mismatch.hpp
///
/// **Inputs.** Every pointer in a view is memory of the current device. Shapes, units, storage
/// types and optional arrays are as on the host; groups by id go through `cuda::sorted_groups`. The
/// normalizer of a loss is a pointer to counts on the device, or a value that the host knows. The
/// last argument is a `cuda::Scratch` of at least `cuda::scratch_bytes(...)` bytes;
/// token_logprobs_into and _backward need none, and prepare takes a `cuda::PrepassMemory` of
/// `cuda::prepass_bytes(batch)` bytes.
///
/// **Results.** What a host call returns is written to device memory: counts, `LossResult`,
/// `cuda::FromLogits`, `MismatchReport`. The same data give the same bits on every run and for
/// every `cuda::Tuning`.
///
/// **Cost.** No call allocates, waits or uses another stream, so a CUDA graph can capture each. A
/// call is one to five launches, advantages_into up to twelve, prepare one to thirty for each
/// pre-pass. Memory is read once; levels of segments read log-probs again, from the caches, logits
/// are read a second time, and pre-passes read what they need in each launch.
///
/// **Errors.** gdpo::invalid_input, before anything is launched, for shapes, settings, missing
/// arrays and too little scratch; gdpo::cuda::error if a launch fails. What only the data on the
/// device says is not checked: offsets that decrease, a count of 0, targets outside the vocabulary.
/// It never makes a kernel read or write outside the arrays. Data never throws, so
/// Singleton::Error, MissingEntry::Reject and InfiniteEntry::Reject are refused.
///
/// **Read on.** include/gdpo/cuda/README.md: what you can rely on, building. The header of each
/// call: its accuracy and launches. examples/cuda_step.cu: a training step, captured into a graph.
#include <gdpo/advantages.hpp>
#include <gdpo/cuda/advantage/device_two_stages.hpp>
#include <gdpo/cuda/device/on.hpp>
#include <gdpo/cuda/logits/device_distill.hpp>
#include <gdpo/cuda/logits/device_logprobs.hpp>
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/cuda/loss/device_loss.hpp>
#include <gdpo/cuda/mismatch/device_mismatch.hpp>
#include <gdpo/cuda/prepass/device_prepare.hpp>
#include <gdpo/cuda/value/device_outcomes.hpp>
#include <gdpo/cuda/value/device_returns.hpp>
#include <gdpo/cuda/value/device_value_loss.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/mismatch.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/value.hpp>
