#include "jsonl.hpp"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "words.hpp"

namespace resolution {
namespace {

using Json = nlohmann::json;

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> keys(1);
  for (const char c : path) {
    if (c == '.') {
      keys.emplace_back();
    } else {
      keys.back().push_back(c);
    }
  }
  return keys;
}

/// The value at a path, or null where there is none. A key that equals the whole path comes first.
const Json* find(const Json& object, const std::string& path) {
  if (const auto whole = object.find(path); whole != object.end()) return &*whole;
  const Json* value = &object;
  for (const std::string& key : split_path(path)) {
    if (value->is_object()) {
      const auto member = value->find(key);
      if (member == value->end()) return nullptr;
      value = &*member;
    } else if (value->is_array()) {
      const bool is_index =
          !key.empty() && key.size() < 10 &&
          std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!is_index || std::stoul(key) >= value->size()) return nullptr;
      value = &(*value)[std::stoul(key)];
    } else {
      return nullptr;
    }
  }
  return value;
}

/// The column, from 1, of the character at byte `offset` of a line of UTF-8.
std::size_t character_column(const std::string& line, std::size_t offset) {
  return 1 + static_cast<std::size_t>(std::count_if(
                 line.begin(),
                 line.begin() + static_cast<std::ptrdiff_t>(std::min(offset, line.size())),
                 [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

/// The position of the last key of a path in a line; the parsed object does not keep positions. It
/// is only used in messages: text inside a string that looks like `"key":` could mislead it.
Position place_of(const std::string& line, const std::string& path, std::size_t line_number) {
  std::size_t at = 0;
  const auto seek = [&](const std::string& key) {
    const std::string spelled = Json(key).dump(-1, ' ', false, Json::error_handler_t::replace);
    for (std::size_t from = at; (from = line.find(spelled, from)) != std::string::npos; ++from) {
      const std::size_t after = line.find_first_not_of(" \t", from + spelled.size());
      if (after != std::string::npos && line[after] == ':') {
        at = from;
        return true;
      }
    }
    return false;
  };
  if (!seek(path)) {
    for (const std::string& key : split_path(path)) seek(key);
  }
  return {line_number, character_column(line, at)};
}

Json parse(const std::string& line, std::size_t line_number, const std::string& file) {
  try {
    Json object = Json::parse(line);
    if (object.is_object()) return object;
  } catch (const Json::parse_error& error) {
    const std::size_t offset = error.byte == 0 ? 0 : error.byte - 1;
    throw error_at(file, {line_number, character_column(line, offset)},
                   "this line is not valid JSON");
  }
  throw error_at(file, {line_number, 1}, "a line must be one JSON object");
}

/// A JSON value as a cell: null, a missing value and an empty string are Missing.
Cell to_cell(const Json* value) {
  Cell cell;
  if (value == nullptr || value->is_null()) {
    cell.kind = Cell::Kind::Missing;
  } else if (value->is_string()) {
    cell.text = value->get<std::string>();
    if (cell.text.empty()) cell.kind = Cell::Kind::Missing;
  } else {
    cell.text = value->dump();
  }
  return cell;
}

}  // namespace

void read_jsonl(const Source& source, const std::vector<std::string>& wanted,
                const OnRecord& on_record) {
  std::vector<bool> seen(wanted.size(), false);
  std::vector<Cell> record(wanted.size());
  std::set<std::string> keys;
  std::string line;
  bool any = false;
  for (std::size_t number = 1; std::getline(source.stream, line); ++number) {
    if (number == 1 && line.compare(0, 3, "\xEF\xBB\xBF") == 0) line.erase(0, 3);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json object = parse(line, number, source.name);
    if (!any) {
      for (const auto& member : object.items()) keys.insert(member.key());
    }
    any = true;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Json* value = find(object, wanted[i]);
      if (value != nullptr) seen[i] = true;
      if (value != nullptr && value->is_structured()) {
        throw error_at(source.name, place_of(line, wanted[i], number),
                       in_quotes(wanted[i]) +
                           (value->is_object() ? " is an object" : " is an array") +
                           "; name one of its members by a dotted path");
      }
      record[i] = to_cell(value);
    }
    try {
      on_record(record);
    } catch (const BadCell& bad) {
      throw error_at(source.name, place_of(line, wanted[bad.index], number), bad.message);
    }
  }
  if (source.stream.bad()) throw UserError(source.name + ": cannot be read to its end");
  if (!any) return;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (seen[i]) continue;
    throw error_at(source.name, {1, 1},
                   "no line has " + in_quotes(wanted[i]) + "; the keys are " +
                       list(std::vector<std::string>(keys.begin(), keys.end())) +
                       " (members of an object by a dotted path)");
  }
}

}  // namespace resolution
