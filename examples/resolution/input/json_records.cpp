#include "json_records.hpp"

#include "../errors.hpp"

namespace resolution {
namespace {

constexpr const char* blanks = " \t\r\n";

}  // namespace

JsonRecords::JsonRecords(Bytes& bytes) : bytes_(bytes) {
  if (!skip_blanks()) return;
  const std::string_view text = bytes_.window();
  if (text[0] == '[') {
    form_ = Form::Array;
    skip(1);
  } else {
    const std::size_t second = text.find_first_not_of(" \t\r", 1);
    const bool brace_alone =
        text[0] == '{' && second != std::string_view::npos && text[second] == '\n';
    if (brace_alone) form_ = Form::Sequence;
  }
}

bool JsonRecords::next() {
  skip(length_);
  length_ = 0;
  return form_ == Form::Lines ? next_line() : next_in_sequence();
}

bool JsonRecords::next_line() {
  if (!skip_blanks()) return false;
  std::size_t from = 0;
  std::size_t end = 0;
  while ((end = bytes_.window().find('\n', from)) == std::string_view::npos) {
    from = bytes_.window().size();
    if (!bytes_.more()) break;
  }
  is_cut_ = end == std::string_view::npos;
  length_ = is_cut_ ? bytes_.window().size() : end;
  return true;
}

bool JsonRecords::next_in_sequence() {
  const bool more = skip_blanks();
  if (form_ == Form::Array) {
    if (!more) fail("the array ends without a ]");
    if (bytes_.window()[0] == ']') {
      skip(1);
      if (skip_blanks()) fail("text after the array");
      return false;
    }
    if (any_) {
      if (bytes_.window()[0] != ',') fail("a comma or ] is needed after an object");
      skip(1);
      if (!skip_blanks()) fail("the array ends without a ]");
      if (bytes_.window()[0] == ']') fail("a comma before the end of the array");
    }
  }
  if (!more) return false;
  if (bytes_.window()[0] != '{') {
    fail(form_ == Form::Array ? "every element of the array must be a JSON object"
                              : "every record must be a JSON object");
  }
  any_ = true;
  while (!find_end()) {
    if (!bytes_.more()) {
      length_ = bytes_.window().size();  // the parser will say where it ends too early
      break;
    }
  }
  return true;
}

/// Finds the bracket that closes the object at the front of the window; brackets inside strings do
/// not count. Returns false where the window ends before.
bool JsonRecords::find_end() {
  const std::string_view text = bytes_.window();
  std::size_t depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth > 0) continue;
      length_ = at + 1;
      return true;
    }
  }
  return false;
}

/// Goes to the next character that is no blank; false at the end of the log.
bool JsonRecords::skip_blanks() {
  while (true) {
    const std::size_t at = bytes_.window().find_first_not_of(blanks);
    if (at != std::string_view::npos) {
      skip(at);
      return true;
    }
    skip(bytes_.window().size());
    if (!bytes_.more()) return false;
  }
}

void JsonRecords::skip(std::size_t bytes) {
  if (bytes == 0) return;
  place_ = position_in(bytes_.window(), bytes, place_);
  bytes_.consume(bytes);
}

void JsonRecords::fail(const std::string& message) const {
  throw error_at(bytes_.name(), place_, message);
}

}  // namespace resolution
