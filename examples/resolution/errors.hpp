#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace resolution {

/// An error that the user can correct: a bad option, file or cell. The message is the whole
/// explanation; main() prints it and returns 2.
struct UserError : std::runtime_error {
  explicit UserError(const std::string& message, std::string then = "")
      : std::runtime_error(message), advice(std::move(then)) {}
  std::string advice;  ///< what to do, as a line of its own; may be empty
};

/// A position in an input. Both numbers begin with 1; `column` counts characters, not bytes.
struct Position {
  std::size_t line = 0;
  std::size_t column = 0;
};

/// An error with the message "file:line:column: message", which editors and terminals turn into a
/// link.
inline UserError error_at(const std::string& file, Position at, const std::string& message) {
  return UserError(file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " +
                   message);
}

}  // namespace resolution
