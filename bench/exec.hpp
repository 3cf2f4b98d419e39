#pragma once
// Execution tags by number: the argument `threads` of a benchmark is 0 for gdpo::seq, 1 for
// gdpo::simd, and otherwise that many threads of gdpo::parallel.
#include <gdpo/core/exec.hpp>
#include <gdpo/with/thread_pool.hpp>

/// Calls f with the tag for `threads`.
template <class F>
void with_exec(long threads, const F& f) {
  if (threads == 0) return f(gdpo::seq);
  if (threads == 1) return f(gdpo::simd);
  gdpo::ThreadPool pool(static_cast<int>(threads));
  f(gdpo::parallel(pool));
}
