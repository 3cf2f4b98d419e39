#pragma once

#include <algorithm>
#include <memory>

#include "records.hpp"

namespace resolution {

/// What an object has at the place of a wanted column.
struct JsonValue {
  enum class Kind { Absent, Single, Array, Object };
  struct Element {
    Cell cell;  ///< a string as its characters, an object or an array as JSON text
    bool is_single = true;
    std::size_t place = 0;  ///< byte of the object's text at which it begins; 0: not there
  };
  Kind kind = Kind::Absent;
  Cell cell;                      ///< like that of an element
  std::vector<Element> elements;  ///< of an array, or all values that a `*` stands for
  bool is_list = false;           ///< whether the values are what a `*` stands for
  bool is_element = false;        ///< whether the value is an element of an array
  std::size_t place = 0;

  /// Whether the object has the value or, of those that a `*` stands for, one.
  bool is_there() const {
    if (kind != Kind::Array || elements.empty()) return kind != Kind::Absent;
    return std::any_of(elements.begin(), elements.end(),
                       [](const Element& element) { return element.place > 0; });
  }
};

/// Finds the values of the wanted columns in JSON objects, without keeping the rest.
class JsonFinder {
 public:
  /// Throws UserError for a path with more than one `*`, or with one where another path has a key
  /// or an index.
  explicit JsonFinder(const std::vector<Wanted>& wanted);
  ~JsonFinder();
  JsonFinder(const JsonFinder&) = delete;
  JsonFinder& operator=(const JsonFinder&) = delete;

  /// The values in an object whose text begins at `start` of the file, one per wanted column; valid
  /// until the next call. Throws UserError, with the position, where the text is not one JSON
  /// object; with `advice` too, where it ends too early.
  const std::vector<JsonValue>& find(std::string_view text, Position start, const std::string& file,
                                     const std::string& advice = "");

 private:
  class Handler;
  std::unique_ptr<Handler> handler_;
};

/// The names of the single values and of the arrays of single values in an object, as paths. Of the
/// elements of an array only the first is entered: a number in it is named by `*`, as what every
/// element has, a text by the index. At most 200 names, of at most 16 keys each.
std::vector<std::string> names_in(std::string_view text);

}  // namespace resolution
