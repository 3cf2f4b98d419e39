// One call of the library made from bytes. It may be a misuse: null pointers, extents that are
// negative or that no memory holds, offsets that do not fit, and whatever else a caller may get
// wrong. The decoder says what the documented contract makes of the call, and compares.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace fuzz {

/// What a call did.
enum class Did {
  Computed,  ///< It gave a result.
  Refused,   ///< It threw gdpo::invalid_input.
  Skipped    ///< It was not made, because it is well formed and would take too long.
};

struct Outcome {
  const char* function = "";  ///< What was called.
  Did did = Did::Skipped;
  /// Empty where the call did what its contract says, else what was wrong: a refusal of a call that
  /// is well formed, the reverse, a message of another form, an output that a refused call has
  /// written to, a result that differs from that of plain loops, or another exception.
  std::string failure;
};

/// Decodes the bytes into a call, makes it, and compares what it does with its contract. Behind the
/// end of the bytes every choice is the ordinary one: no bytes at all are a well-formed call.
Outcome call(const unsigned char* bytes, std::size_t size);

/// The names that Outcome::function can have.
const std::vector<const char*>& functions();

/// The bytes as hexadecimal digits, which gdpo_fuzz_replay takes as an argument.
std::string digits_of(const unsigned char* bytes, std::size_t size);

}  // namespace fuzz
