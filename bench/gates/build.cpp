#include "against.hpp"

gates::Build gates::build() {
#if defined(__AVX512F__)
  const bool runs_here = __builtin_cpu_supports("avx512f");
#elif defined(__AVX2__)
  const bool runs_here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  const bool runs_here = true;
#endif
  return {GDPO_GATES_COMPILER, GDPO_GATES_FLAGS, runs_here};
}

gates::Recipe gates::recipe() {
  return {GDPO_GATES_CMAKE, GDPO_GATES_GENERATOR, GDPO_GATES_SETTINGS, GDPO_GATES_FOLDER,
          GDPO_GATES_TREE};
}
