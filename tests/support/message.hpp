#pragma once
#include <gdpo/core/errors.hpp>
#include <string>

/// The message of the error that the call throws, or "no error" where it throws none.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const gdpo::invalid_input& e) {
    return e.what();
  }
  return "no error";
}
