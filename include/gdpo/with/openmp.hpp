#pragma once
/// OpenMP's threads as an executor of parallel().
///   gdpo::advantages_into(gdpo::parallel(gdpo::OpenMp{}), batch, estimator, out, workspace);
#ifndef _OPENMP
#error \
    "gdpo/with/openmp.hpp needs OpenMP: compile with -fopenmp, or link OpenMP::OpenMP_CXX in CMake"
#endif
#include <omp.h>

#include <algorithm>
#include <gdpo/core/errors.hpp>

GDPO_BEGIN_NAMESPACE

/// No global setting is touched. Inside another parallel region OpenMP's nesting rules hold: by default one thread.
struct OpenMp {
  int threads = 0;  ///< 0: as many as omp_get_max_threads() says at the call

  int concurrency() const {
    if (threads < 0)
      contract::fail("gdpo::OpenMp", "threads", contract::text(index_t{threads}),
                     "0 (all) or more");
    return threads > 0 ? threads : omp_get_max_threads();
  }

  /// f(0) ... f(n - 1), each once; returns when all have returned.
  template <class F>
  void for_each(index_t n, const F& f) const {
    const int workers = static_cast<int>((std::min<index_t>)(n, concurrency()));
    if (workers < 1) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers)
    for (index_t i = 0; i < n; ++i) f(i);
  }
};

GDPO_END_NAMESPACE
