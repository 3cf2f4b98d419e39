#include "json.hpp"

#include <algorithm>

#include "../words.hpp"
#include "json_records.hpp"
#include "json_values.hpp"

namespace resolution {
namespace {

using Kind = JsonValue::Kind;

/// Turns the values of one object into completions.
class Completions {
 public:
  Completions(const std::vector<Wanted>& wanted, const OnRecord& on_record,
              const OnBadCell& on_bad_cell, const std::string& file)
      : wanted_(wanted),
        on_record_(on_record),
        on_bad_cell_(on_bad_cell),
        file_(file),
        cells_(wanted.size()) {}

  /// See ListRecords::column.
  const std::string& list_column() const { return list_column_; }

  void add(const std::vector<JsonValue>& values, std::string_view text, Position start) {
    text_ = text;
    start_ = start;
    const std::size_t count = number_of_completions(values);
    for (std::size_t element = 0; element < count; ++element) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const JsonValue& value = values[i];
        if (is_per_completion(i, value)) {
          cells_[i] = value.elements[element].cell;
        } else if (value.kind == Kind::Absent) {
          cells_[i].missing = true;
        } else {
          cells_[i] = value.cell;
        }
      }
      for (const BadCell& bad : on_record_(cells_)) {
        const JsonValue& value = values[bad.index];
        const bool in_list = is_per_completion(bad.index, value);
        on_bad_cell_(position_in(text_,
                                 value.kind == Kind::Absent ? 0
                                 : in_list                  ? value.elements[element].place
                                                            : value.place,
                                 start_),
                     bad);
      }
    }
  }

 private:
  /// How many completions the object holds: as many as the arrays of its numbers have elements.
  /// Checks the types of all values.
  std::size_t number_of_completions(const std::vector<JsonValue>& values) {
    std::size_t count = 1;
    std::size_t first = values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const JsonValue& value = values[i];
      if (!value.is_there() && !wanted_[i].is_number) {
        fail(0, "this object has no " + in_quotes(wanted_[i].name) + "; the names in it are " +
                    list(nearest_first(names_in(text_), wanted_[i].name)));
      }
      if (!wanted_[i].is_number) continue;
      const std::string& name = wanted_[i].name;
      if (value.kind == Kind::Object) {
        fail(value.place, in_quotes(name) +
                              " is an object; name one of its members: " + list(members(name)) +
                              ", or all of them, a completion each: " + in_quotes(name + ".*"));
      }
      if (value.kind == Kind::Array && value.is_element) {
        const std::size_t dot = name.rfind('.');
        fail(value.place, in_quotes(name) + " is an array inside an array; a value of each is " +
                              in_quotes(name.substr(0, dot) + ".*" + name.substr(dot)));
      }
      if (value.kind == Kind::Array && first == values.size()) {
        first = i;
        count = value.elements.size();
      }
    }
    holds_several_ = first != values.size();
    if (!holds_several_) return 1;
    bool tells_apart = false;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const JsonValue& value = values[i];
      if (!is_per_completion(i, value)) continue;
      tells_apart = tells_apart || !wanted_[i].is_number;
      if (value.elements.size() != count) {
        fail(value.place, in_quotes(wanted_[i].name) + " has " +
                              counted(value.elements.size(), "element") + ", " +
                              in_quotes(wanted_[first].name) + " has " + std::to_string(count));
      }
      for (const JsonValue::Element& element : value.elements) {
        if (wanted_[i].is_number && !element.is_single) fail_not_single(wanted_[i].name, element);
      }
    }
    if (count > 1 && !tells_apart) list_column_ = wanted_[first].name;
    return count;
  }

  [[noreturn]] void fail_not_single(const std::string& name, const JsonValue::Element& element) {
    const std::vector<std::string> inside = members(name + ".*");
    fail(element.place, "this element of " + in_quotes(name) +
                            " is no number; name a value in each element: " +
                            (inside.empty() ? in_quotes(name + ".*.0") : list(inside)));
  }

  /// Whether the elements of value number `i` belong to one completion each. A list of objects that
  /// tells groups or batches apart is a chat, and one value.
  bool is_per_completion(std::size_t i, const JsonValue& value) const {
    const auto is_object = [](const JsonValue::Element& e) {
      return !e.is_single && e.cell.text.rfind('{', 0) == 0;
    };
    return holds_several_ && value.kind == Kind::Array &&
           (wanted_[i].is_number || value.is_list || value.elements.empty() ||
            !std::all_of(value.elements.begin(), value.elements.end(), is_object));
  }

  /// The names in the object that begin with `name` and a dot.
  std::vector<std::string> members(const std::string& name) const {
    std::vector<std::string> names = names_in(text_);
    names.erase(std::remove_if(names.begin(), names.end(),
                               [&](const std::string& n) { return n.rfind(name + ".", 0) != 0; }),
                names.end());
    return names;
  }

  [[noreturn]] void fail(std::size_t place, const std::string& message) const {
    throw error_at(file_, position_in(text_, place, start_), message);
  }

  const std::vector<Wanted>& wanted_;
  const OnRecord& on_record_;
  const OnBadCell& on_bad_cell_;
  const std::string& file_;
  std::vector<Cell> cells_;
  bool holds_several_ = false;  ///< whether the object holds arrays of completions
  std::string list_column_;
  std::string_view text_;
  Position start_;
};

}  // namespace

ListRecords read_json(Bytes& bytes, const std::vector<Wanted>& wanted,
                      const std::function<void(const std::vector<std::string>&)>& on_names,
                      const OnRecord& on_record, const OnBadCell& on_bad_cell) {
  JsonRecords records(bytes);
  JsonFinder finder(wanted);
  Completions completions(wanted, on_record, on_bad_cell, bytes.name());
  std::vector<bool> seen(wanted.size(), false);
  std::vector<std::string> names;
  std::size_t objects = 0;
  while (records.next()) {
    const auto& values =
        finder.find(records.text(), records.place(), bytes.name(), records.is_cut() ? cut_off : "");
    ++objects;
    if (names.empty()) {
      names = names_in(records.text());
      on_names(names);
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) seen[i] = seen[i] || values[i].is_there();
    completions.add(values, records.text(), records.place());
  }
  if (names.empty()) return {};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (seen[i]) continue;
    throw error_at(bytes.name(), {1, 1},
                   "no record has " + in_quotes(wanted[i].name) +
                       "; the names in the first one are " +
                       list(nearest_first(names, wanted[i].name)));
  }
  return {objects, completions.list_column()};
}

}  // namespace resolution
