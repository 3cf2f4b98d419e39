#pragma once
/// \file
/// Operators for PyTorch over its stable ABI: one library for every PyTorch from 2.10 on.
///
/// The functions of namespace `torch_stable` take and return tensors of torch::stable and read
/// settings from text, as the operators of a dispatcher do. examples/python registers them as
/// `torch.ops.gdpo`; another library registers them under its own name:
///
///     STABLE_TORCH_LIBRARY(mine, library) {
///       library.def(gdpo::torch_stable::policy_loss_schema);
///     }
///     STABLE_TORCH_LIBRARY_IMPL(mine, CPU, library) {
///       library.impl("policy_loss", TORCH_BOX(&gdpo::torch_stable::policy_loss));
///     }
///
/// Tensors are of the CPU, with any strides; with/torch_stable_cuda.hpp has kernels for a GPU.
/// Nothing is copied unless a function says so. The work runs on the threads of PyTorch
/// (torch.set_num_threads), and the bits of a result do not depend on their number. Counts, losses
/// and metrics are float64 where they leave an operator, and every output has a shape that follows
/// from the shapes of the inputs.
///
/// Build: with the headers of PyTorch 2.10 or later, as C++17, with TORCH_TARGET_VERSION set to
/// the oldest release that the library is for, such as 0x020a000000000000 (2.10). It uses the C
/// functions of PyTorch alone, so that nothing has to be linked.
///
/// Errors: `invalid_input`, which PyTorch shows as a RuntimeError with the same message.
#include <gdpo/with/torch_stable/advantages.hpp>
#include <gdpo/with/torch_stable/contrastive.hpp>
#include <gdpo/with/torch_stable/diagnose.hpp>
#include <gdpo/with/torch_stable/explain.hpp>
#include <gdpo/with/torch_stable/from_logits.hpp>
#include <gdpo/with/torch_stable/logprobs.hpp>
#include <gdpo/with/torch_stable/loss.hpp>
#include <gdpo/with/torch_stable/mismatch.hpp>
#include <gdpo/with/torch_stable/pid.hpp>
#include <gdpo/with/torch_stable/prepare.hpp>
#include <gdpo/with/torch_stable/ranks.hpp>
#include <gdpo/with/torch_stable/running.hpp>
#include <gdpo/with/torch_stable/scale.hpp>
#include <gdpo/with/torch_stable/settings.hpp>
#include <gdpo/with/torch_stable/token_advantages.hpp>
#include <gdpo/with/torch_stable/update.hpp>
#include <gdpo/with/torch_stable/value_loss.hpp>
#include <gdpo/with/torch_stable/whiten.hpp>
