#pragma once
/// \file
/// Executor for callers who run OpenMP already: the threads of OpenMP for `gdpo::parallel`.
///
///     gdpo::advantages_into(gdpo::parallel(gdpo::OpenMp{}), batch, estimator, out, workspace);
///
/// Needs -fopenmp (OpenMP::OpenMP_CXX in CMake). Without OpenMP: with/thread_pool.hpp.
#ifndef _OPENMP
#error \
    "gdpo/with/openmp.hpp needs OpenMP: compile with -fopenmp, or link OpenMP::OpenMP_CXX in CMake"
#endif
#include <omp.h>

#include <algorithm>
#include <gdpo/core/errors.hpp>

GDPO_BEGIN_NAMESPACE

/// The threads of OpenMP as an executor. It changes no global setting of OpenMP. Inside another
/// parallel region the nesting rules of OpenMP hold: by default one thread runs all the work.
struct OpenMp {
  int threads = 0;  ///< Number of threads; 0: what omp_get_max_threads() returns.

  /// How many calls of f may run at once. Errors: `invalid_input` for a negative number of threads.
  int concurrency() const {
    if (threads < 0)
      contract::fail("gdpo::OpenMp", "threads", contract::text(index_t{threads}),
                     "0 (all) or more");
    return threads > 0 ? threads : omp_get_max_threads();
  }

  /// Calls f(0) ... f(n - 1), each once, and returns when all have returned. f must not throw.
  template <class F>
  void for_each(index_t n, const F& f) const {
    const int workers = static_cast<int>((std::min<index_t>)(n, concurrency()));
    if (workers < 1) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers)
    for (index_t i = 0; i < n; ++i) f(i);
  }
};

GDPO_END_NAMESPACE
