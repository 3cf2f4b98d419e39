#pragma once
/// \file
/// Adapter for trainers that use LibTorch: the library's calls on tensors, and its losses as
/// functions that autograd differentiates.
///
/// <!-- build: door_torch torch -->
/// ```cpp
/// const at::Tensor rewards = at::empty({8, 2}).random_(0, 2);  // (completions, rewards)
/// const at::Tensor logp = at::empty({8, 5}).fill_(-0.5).requires_grad_();  // from the model
/// gdpo::TorchBatch batch;
/// batch.logp = logp;
/// batch.old_logp = logp.detach();
/// batch.advantages = gdpo::advantages(rewards, gdpo::groups_of(4));
/// const gdpo::TorchLoss r = gdpo::torch_loss(gdpo::dapo_loss, batch, gdpo::count(batch));
/// r.loss.backward();  // logp.grad() is the gradient of the library, as if autograd had made it
/// std::printf("loss %g, clipped %g\n", r.result.loss, r.result.metrics.clip_fraction.mean());
/// ```
///
/// Tensors are read in place, with any strides, in float, double, bfloat16 and half. They are on
/// the host; `device_view` views tensors on a CUDA device for the calls of gdpo/cuda.hpp.
///
/// - torch/view.hpp: `view`, `device_view`, `torch_column`.
/// - torch/advantages.hpp: `advantages` of a tensor, `by_id` of ids in a tensor.
/// - torch/batch.hpp: `TorchBatch`, `token_batch` (for pre-passes), `count`.
/// - torch/loss.hpp: `torch_loss`; torch/logits.hpp: `TorchLogits`, `torch_loss_from_logits`.
/// - torch/threads.hpp: `TorchThreads`, the threads of LibTorch for `gdpo::parallel`.
///
/// A whole step: examples/torch_step.cpp. Ranks: with/torch_distributed.hpp.
///
/// Build: find_package(Torch REQUIRED) and link torch in CMake. It needs LibTorch 1.13 or later,
/// and the C++ standard that the release asks for (2.15: C++20).
#include <gdpo/with/torch/advantages.hpp>
#include <gdpo/with/torch/batch.hpp>
#include <gdpo/with/torch/logits.hpp>
#include <gdpo/with/torch/loss.hpp>
#include <gdpo/with/torch/threads.hpp>
#include <gdpo/with/torch/view.hpp>
