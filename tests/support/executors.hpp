// Every execution target, with executors that hand work out in other orders.
#pragma once
#include <gdpo/core/exec.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/sanitized.hpp"

namespace executors {

/// The caller's own: a thread for every call.
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

/// One thread, which plays the last worker first.
struct Backwards {
  template <class F>
  void for_each(gdpo::index_t calls, const F& f) const {
    for (gdpo::index_t i = calls; i > 0; --i) f(i - 1);
  }
  int concurrency() const { return 3; }
};

/// Of `workers` threads; tests share it.
inline gdpo::ThreadPool& pool(int workers) {
  static std::vector<std::unique_ptr<gdpo::ThreadPool>> pools(16);
  auto& one = pools.at(static_cast<std::size_t>(workers));
  if (!one) one = std::make_unique<gdpo::ThreadPool>(workers);
  return *one;
}

/// visit(target, its name) for all but seq. In parallel, detail::worth_a_thread numbers a worker are needed to have several.
template <class Visit>
void for_each_target(const Visit& visit) {
  visit(gdpo::simd, "simd");
  for (int n = 1; n <= 7; n += sanitized ? 3 : 1)
    visit(gdpo::parallel(pool(n)), "pool of " + std::to_string(n));
  visit(gdpo::parallel(Threads{5}), "five threads");
  visit(gdpo::parallel(Backwards{}), "backwards");
}

}  // namespace executors
