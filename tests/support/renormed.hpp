// An estimator with another second normalization.
#pragma once
#include <gdpo/advantage/renorm.hpp>

template <class Estimator, class Renorm>
constexpr Estimator renormed(Estimator e, const Renorm& renorm) {
  e.renorm = renorm;
  return e;
}
