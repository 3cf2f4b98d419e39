#pragma once
#include <atomic>

namespace counted {
/// The number of calls of operator new, which the test program replaces (allocations.cpp).
extern std::atomic<long> allocations;
}  // namespace counted
