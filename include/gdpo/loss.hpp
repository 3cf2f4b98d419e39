#pragma once
/// Front door: policy losses with their analytic gradient and metrics. Needs no Eigen: gdpo::view of with/eigen.hpp and
/// with/eigen_tensor.hpp gives the views.
#include <gdpo/loss/count.hpp>
#include <gdpo/loss/named.hpp>
