#pragma once
#include <atomic>

namespace counted {
/// The number of calls of operator new, which the test program replaces (allocations.cpp).
extern std::atomic<long> allocations;
/// How often a call allocates when it is made again.
template <class Call>
long made_again(const Call& call) {
  call();
  const long before = allocations;
  call();
  return allocations - before;
}
}  // namespace counted
