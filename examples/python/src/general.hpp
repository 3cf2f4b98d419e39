// The calls of `advantages` that are compiled once, for any processor of the architecture.
#pragma once
#include <gdpo/with/torch_stable/advantages.hpp>

using gdpo::torch_stable::Array;
using gdpo::torch_stable::Tensor;

/// gdpo::torch_stable::general_advantages.
std::tuple<Tensor, Tensor> general_advantages(GDPO_TORCH_ADVANTAGES_PARAMETERS);
