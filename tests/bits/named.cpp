// Hashes of everything that has a name: estimators, losses, presets, settings, pre-passes. Beside
// results.cpp, which compares the tags, and compiled for fewer targets, because it takes as long.
//   -DGDPO_BITS=<name of the function>
#include "estimators.hpp"
#include "losses.hpp"
#include "prepasses.hpp"
#include "results.hpp"

extern "C" int GDPO_BITS(gdpo_bits_line line, void* to) {
  const Lines lines{line, to};
  Estimators(lines).all();
  Losses(lines).all();
  Prepasses(lines).all();
  return GDPO_HAS_FMA;
}
