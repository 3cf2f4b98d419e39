#pragma once
// Checks for the programs of no_exceptions/, which are compiled without exceptions. Each ends with
// one mistake of the caller, which must reach the failure handler.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <gdpo/core/errors.hpp>

inline void expect(const char* what, bool ok) {
  if (ok) return;
  std::puts(what);
  std::exit(EXIT_FAILURE);
}

/// Installs a handler that expects the next mistake to have exactly this message. The program
/// succeeds only by ending there.
inline void expect_mistake(const char* message) {
  static const char* expected;
  expected = message;
  gdpo::on_failure = [](const char* given) {
    expect(given, std::strcmp(given, expected) == 0);
    std::exit(EXIT_SUCCESS);
  };
}
