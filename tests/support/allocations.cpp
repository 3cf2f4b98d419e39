#include "support/allocations.hpp"

#include <cstdlib>
#include <new>

std::atomic<long> counted::allocations{0};
using counted::allocations;

// These functions are not inlined: g++ warns where it sees free() in one half of a pair of
// operators and not malloc() in the other.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size > 0 ? size : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size > 0 ? size : 1);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
