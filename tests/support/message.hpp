#pragma once
#include <gdpo/core/errors.hpp>
#include <string>

/// What a mistake of the caller says; "no error" where the call accepts it.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const gdpo::invalid_input& e) {
    return e.what();
  }
  return "no error";
}
