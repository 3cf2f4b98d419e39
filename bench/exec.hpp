#pragma once
// Benchmarks over execution tags: the argument `threads` is 0 for seq, 1 for simd, else that many threads.
#include <gdpo/core/exec.hpp>
#include <gdpo/with/thread_pool.hpp>

/// f(tag)
template <class F>
void with_exec(long threads, const F& f) {
  if (threads == 0) return f(gdpo::seq);
  if (threads == 1) return f(gdpo::simd);
  gdpo::ThreadPool pool(static_cast<int>(threads));
  f(gdpo::parallel(pool));
}
