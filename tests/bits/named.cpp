// Hashes of everything that has a name: estimators, losses, presets, settings and pre-passes.
// results.cpp compares the execution tags; this file is compiled for fewer instruction sets,
// because it takes as long again to compile.
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
