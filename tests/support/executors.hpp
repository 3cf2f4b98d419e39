// Every execution target, with executors that hand out the work in different orders.
#pragma once
#include <gdpo/core/exec.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/few_rounds.hpp"

namespace executors {

/// An executor of the caller's: a new thread for every call.
struct Threads {
  int n;
  template <class F>
  void for_each(gdpo::index_t calls, const F& f) const {
    std::vector<std::thread> threads;
    for (gdpo::index_t i = 0; i < calls; ++i) threads.emplace_back([&f, i] { f(i); });
    for (std::thread& thread : threads) thread.join();
  }
  int concurrency() const { return n; }
};

/// An executor with one thread that runs the calls of the workers from the last to the first.
struct Backwards {
  template <class F>
  void for_each(gdpo::index_t calls, const F& f) const {
    for (gdpo::index_t i = calls; i > 0; --i) f(i - 1);
  }
  int concurrency() const { return 3; }
};

/// A pool of `workers` threads, shared by all tests.
inline gdpo::ThreadPool& pool(int workers) {
  static std::vector<std::unique_ptr<gdpo::ThreadPool>> pools(16);
  auto& one = pools.at(static_cast<std::size_t>(workers));
  if (!one) one = std::make_unique<gdpo::ThreadPool>(workers);
  return *one;
}

/// Calls visit(target, name) for all targets but seq. Where work is parallel, a batch needs
/// detail::worth_a_thread numbers for each worker to be shared by several.
template <class Visit>
void for_each_target(const Visit& visit) {
  visit(gdpo::simd, "simd");
  for (int n = 1; n <= 7; n += few_rounds ? 3 : 1)
    visit(gdpo::parallel(pool(n)), "pool of " + std::to_string(n));
  visit(gdpo::parallel(Threads{5}), "five threads");
  visit(gdpo::parallel(Backwards{}), "backwards");
}

}  // namespace executors
