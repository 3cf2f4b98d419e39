#pragma once
/// gdpo: group-relative advantages. Everything a C++ trainer with Eigen needs; with/eigen_tensor.hpp is opt-in.
#include <gdpo/advantages.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/eigen.hpp>
