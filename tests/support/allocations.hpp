#pragma once
#include <atomic>

namespace counted {
/// How often operator new was called; the test program replaces it (allocations.cpp).
extern std::atomic<long> allocations;
}  // namespace counted
