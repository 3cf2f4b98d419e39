#pragma once

#include "bytes.hpp"
#include "records.hpp"

namespace resolution {

/// Cuts a log of JSON objects into the texts of its objects, which are parsed one by one.
class JsonRecords {
 public:
  /// Finds out how the objects stand in the log: in an array if it begins with `[`, over several
  /// lines if its first line is `{` alone, else one a line.
  explicit JsonRecords(Bytes& bytes);

  /// Goes to the next object; false at the end. Throws UserError where there is something else
  /// between two objects.
  bool next();
  std::string_view text() const { return bytes_.window().substr(0, length_); }
  Position place() const { return place_; }
  /// Whether the object is the last line of the log and has no line break behind it.
  bool is_cut() const { return is_cut_; }

 private:
  enum class Form { Lines, Array, Sequence };
  bool next_line();
  bool next_in_sequence();
  bool skip_blanks();
  bool find_end();
  void skip(std::size_t bytes);
  [[noreturn]] void fail(const std::string& message) const;

  Bytes& bytes_;
  Form form_ = Form::Lines;
  std::size_t length_ = 0;  ///< of the object at the front of the window
  Position place_{1, 1};    ///< of the front of the window
  bool is_cut_ = false;
  bool any_ = false;  ///< whether there was an object before
};

}  // namespace resolution
