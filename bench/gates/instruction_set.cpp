#include "experiments.hpp"

std::vector<gates::Figures> gates::figures() {
#if defined(__AVX2__)
  return {{"k1", {k1_over_naive("AVX2", at_least(5.5).on(zen5))}}};
#else
  return {{"k1", {k1_over_naive("SSE2", at_least(2).on(zen5))}}};
#endif
}
