#pragma once
/// gdpo: group-relative advantages and policy losses. Everything a C++ trainer with Eigen needs. Opt-in beside it: gdpo/runtime.hpp
/// (names chosen at run time), gdpo/cuda.hpp, the presets and the adapters of with/.
#include <gdpo/advantages.hpp>
#include <gdpo/constraint.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/with/eigen.hpp>
