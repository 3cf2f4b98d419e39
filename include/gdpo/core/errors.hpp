#pragma once
#include <cstdio>
#include <cstdlib>
#include <gdpo/core/view.hpp>
#include <stdexcept>
#include <string>

namespace gdpo {  // a trainer catches one type, whatever instruction set threw it

/// A mistake of the caller: shapes that do not fit, a setting out of range. Always checked. Data conditions (NaN, zero
/// variance, empty groups) never throw: they have a documented value and a counter in GroupReport.
/// what(): "<function>: <argument>: given <what was given>; needed: <what is needed>".
struct invalid_input : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Without exceptions (-fno-exceptions) a caller's mistake calls this handler and then aborts. Replace it to log
/// elsewhere.
using failure_handler = void (*)(const char* message);
inline failure_handler on_failure = [](const char* message) { std::fprintf(stderr, "%s\n", message); };

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace contract {

[[noreturn]] inline void fail(const char* function, const std::string& argument, const std::string& given,
                              const std::string& needed) {
  const std::string message = std::string(function) + ": " + argument + ": given " + given + "; needed: " + needed;
#if defined(__cpp_exceptions)
  throw invalid_input(message);
#else
  on_failure(message.c_str());
  std::abort();
#endif
}

inline std::string text(index_t value) { return std::to_string(value); }
/// "(2, 3)"
inline std::string shape(int rank, const index_t* extent) {
  std::string text_of = "(";
  for (int r = 0; r < rank; ++r) text_of += (r ? ", " : "") + text(extent[r]);
  return text_of + ")";
}
inline std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.17g", value);
  return buffer;
}

}  // namespace contract
GDPO_END_NAMESPACE
