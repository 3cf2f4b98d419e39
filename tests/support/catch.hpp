// Includes Catch2, version 2.13 or, where it is installed, 3, and gives both one spelling. No other
// file includes Catch2 itself.
#pragma once

// TEMPLATE_TEST_CASE leaves arguments of its macros out. Catch2 silences this for the name that the
// warning had before clang 19.
#if defined(__clang_major__) && __clang_major__ >= 19
#pragma clang diagnostic ignored "-Wc++20-extensions"
#endif

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
namespace Catch {
namespace Matchers {
inline auto ContainsSubstring(const std::string& text) { return Contains(text); }
}  // namespace Matchers
}  // namespace Catch
#endif
