#include "json_values.hpp"

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <algorithm>

#include "../words.hpp"

namespace resolution {
namespace {

using rapidjson::SizeType;

// Numbers stay text, so that ids of any size stay what they are. The iterative parser needs no
// stack of calls for nested arrays.
constexpr unsigned flags = rapidjson::kParseNanAndInfFlag | rapidjson::kParseNumbersAsStringsFlag |
                           rapidjson::kParseIterativeFlag;

/// The wanted columns as a tree of keys.
struct Node {
  /// A column that ends here. A name that is a key as a whole ranks before the path it spells.
  struct End {
    std::size_t column;
    int rank;
    bool is_list = false;  ///< there is a `*` before: this is one value of several
  };
  std::string key;
  std::vector<Node> children;
  std::vector<End> ends;

  void insert(const std::vector<std::string>& keys, std::size_t from, End end) {
    if (from == keys.size()) {
      ends.push_back(end);
      return;
    }
    for (Node& node : children) {
      if (node.key == keys[from]) return node.insert(keys, from + 1, end);
    }
    children.push_back({keys[from], {}, {}});
    children.back().insert(keys, from + 1, end);
  }
  const Node* child(std::string_view name) const {
    for (const Node& node : children) {
      if (node.key == name) return &node;
    }
    return nullptr;
  }
  /// Whether at some place there is both a `*` and a key: a value could belong to either.
  bool is_ambiguous() const {
    return (child("*") != nullptr && children.size() > 1) ||
           std::any_of(children.begin(), children.end(),
                       [](const Node& node) { return node.is_ambiguous(); });
  }
  /// Calls use(column) for every column that ends here or below.
  template <class Use>
  void for_each_column(const Use& use) const {
    for (const End& end : ends) use(end.column);
    for (const Node& node : children) node.for_each_column(use);
  }
};

const std::string every = "*";  // the key that stands for every element or member

std::string reason(rapidjson::ParseErrorCode code) {
  if (code == rapidjson::kParseErrorDocumentRootNotSingular) return "text after the object";
  std::string text = rapidjson::GetParseError_En(code);
  if (!text.empty() && text.back() == '.') text.pop_back();
  if (!text.empty()) text[0] = static_cast<char>(text[0] | 0x20);  // to lower case
  return text;
}

}  // namespace

/// Receives the events of the parser, and keeps the values of wanted columns.
class JsonFinder::Handler : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Handler> {
 public:
  explicit Handler(const std::vector<Wanted>& wanted) : values(wanted.size()) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      columns_.push_back(std::make_unique<Column>());
      const std::string& name = wanted[i].name;
      const std::vector<std::string> path = split_path(name);
      const auto stars = std::count(path.begin(), path.end(), every);
      if (stars > 1) throw UserError(in_quotes(name) + ": only one * can stand in a path");
      root_.insert({name}, 0, {i, 1});
      if (path != std::vector{name} || stars == 1) root_.insert(path, 0, {i, 0, stars == 1});
      if (root_.is_ambiguous()) {
        throw UserError(in_quotes(name) +
                        ": where one name has a *, no other can have a key or an index");
      }
    }
  }

  void begin(std::string_view text, const rapidjson::MemoryStream& stream) {
    text_ = text;
    stream_ = &stream;
    previous_end_ = 0;
    open_containers_.clear();
    open_columns_.clear();
    for (JsonValue& value : values) {
      value.kind = JsonValue::Kind::Absent;
      value.elements.clear();
      value.is_list = false;
      value.place = 0;
    }
    for (auto& column : columns_) column->rank = -1;
  }

  bool Null() {
    return single({}, true, [](auto& writer) { writer.Null(); });
  }
  bool Bool(bool value) {
    return single(value ? "true" : "false", false, [&](auto& writer) { writer.Bool(value); });
  }
  bool RawNumber(const char* text, SizeType length, bool) {
    return single({text, length}, std::string_view(text, length) == "NaN",
                  [&](auto& writer) { writer.RawValue(text, length, rapidjson::kNumberType); });
  }
  bool String(const char* text, SizeType length, bool) {
    return single({text, length}, length == 0, [&](auto& writer) { writer.String(text, length); });
  }
  bool StartObject() {
    return start(JsonValue::Kind::Object, [](auto& writer) { writer.StartObject(); });
  }
  bool StartArray() {
    return start(JsonValue::Kind::Array, [](auto& writer) { writer.StartArray(); });
  }
  bool EndObject(SizeType) {
    return end([](auto& writer) { writer.EndObject(); });
  }
  bool EndArray(SizeType) {
    return end([](auto& writer) { writer.EndArray(); });
  }
  bool Key(const char* text, SizeType length, bool) {
    Container& around = open_containers_.back();
    member_ = child_of(around, {text, length});
    ++around.next_index;
    for (const std::size_t c : open_columns_) columns_[c]->writer.Key(text, length);
    previous_end_ = stream_->Tell();
    return true;
  }

  std::vector<JsonValue> values;

 private:
  /// What is needed while the value of a column is read.
  struct Column {
    int rank = -1;          ///< of the value found so far
    std::size_t depth = 0;  ///< number of containers around the value
    std::size_t element_begin = 0;
    rapidjson::StringBuffer text;  ///< the object or array as JSON text
    rapidjson::Writer<rapidjson::StringBuffer> writer;
  };
  /// An object or array that has not ended.
  struct Container {
    const Node* node;  ///< null where no wanted column is inside
    bool is_array;
    std::size_t next_index = 0;  ///< of its next element or member
  };

  /// The node of the value that begins now, or null.
  const Node* node_of_value() {
    if (open_containers_.empty()) return &root_;
    Container& around = open_containers_.back();
    if (!around.is_array) return member_;
    if (around.node == nullptr || around.node->children.empty()) return nullptr;
    const Node* node = child_of(around, std::to_string(around.next_index));
    ++around.next_index;
    return node;
  }

  /// The node of the element or member with this key that comes next in a container, or null.
  const Node* child_of(const Container& around, std::string_view key) {
    if (around.node == nullptr) return nullptr;
    if (const Node* child = around.node->child(key)) return child;
    const Node* child = around.node->child(every);
    if (child != nullptr) list_index_ = around.next_index;
    return child;
  }

  /// Where the value begins that the parser reports: after the previous one and the separators.
  std::size_t place() const {
    return std::min(text_.find_first_not_of(" \t\r\n:,", previous_end_), text_.size());
  }

  /// Whether the value that is reported is an element of the array that is column `c`.
  bool is_element(std::size_t c) const {
    return !values[c].is_list && values[c].kind == JsonValue::Kind::Array &&
           open_containers_.size() == columns_[c]->depth + 1;
  }

  /// Makes the value that begins now the value, or the next in the list of values, of the columns
  /// that end at `node`, and calls taken(column, cell) for each of them, unless a value of a better
  /// rank was found before. The cell is where its text belongs.
  template <class Taken>
  void take(const Node* node, JsonValue::Kind kind, const Taken& taken) {
    if (node == nullptr) return;
    for (const Node::End& end : node->ends) {
      Column& column = *columns_[end.column];
      JsonValue& value = values[end.column];
      if (end.rank < column.rank) continue;
      if (!end.is_list || end.rank > column.rank) value.elements.clear();
      column.rank = end.rank;
      value.is_list = end.is_list;
      if (end.is_list) {
        value.kind = JsonValue::Kind::Array;
        value.elements.resize(list_index_);  // what the list had no value for is missing
        value.elements.push_back({{}, kind == JsonValue::Kind::Single, place()});
        if (value.place == 0) value.place = place();
        taken(end.column, value.elements.back().cell);
      } else {
        value.kind = kind;
        value.place = place();
        value.is_element = !open_containers_.empty() && open_containers_.back().is_array;
        taken(end.column, value.cell);
      }
    }
  }

  template <class Write>
  bool single(std::string_view text, bool missing, const Write& write) {
    const Node* node = node_of_value();
    for (const std::size_t c : open_columns_) {
      if (is_element(c))
        values[c].elements.push_back({{missing, std::string(text)}, true, place()});
      write(columns_[c]->writer);
    }
    take(node, JsonValue::Kind::Single, [&](std::size_t, Cell& cell) {
      cell.missing = missing;
      cell.text.assign(text);
    });
    previous_end_ = stream_->Tell();
    return true;
  }

  template <class Write>
  bool start(JsonValue::Kind kind, const Write& write) {
    const Node* node = node_of_value();
    for (const std::size_t c : open_columns_) {
      if (is_element(c)) values[c].elements.push_back({{}, false, place()});
      write(columns_[c]->writer);
      if (is_element(c)) columns_[c]->element_begin = columns_[c]->text.GetSize() - 1;
    }
    take(node, kind, [&](std::size_t c, Cell&) {
      Column& column = *columns_[c];
      column.depth = open_containers_.size();
      column.text.Clear();
      column.writer.Reset(column.text);
      write(column.writer);
      if (std::find(open_columns_.begin(), open_columns_.end(), c) == open_columns_.end())
        open_columns_.push_back(c);
    });
    open_containers_.push_back({node, kind == JsonValue::Kind::Array});
    previous_end_ = stream_->Tell() + 1;  // the parser has not taken the bracket yet
    return true;
  }

  template <class Write>
  bool end(const Write& write) {
    const Container& ended = open_containers_.back();
    const Node* list = ended.node == nullptr ? nullptr : ended.node->child(every);
    if (list != nullptr) {
      // The last elements, or all of them, may have had no value.
      list->for_each_column([&](std::size_t c) {
        if (columns_[c]->rank > 0) return;  // found under the whole name
        columns_[c]->rank = 0;
        values[c].is_list = true;
        values[c].kind = JsonValue::Kind::Array;
        values[c].elements.resize(ended.next_index);
      });
    }
    open_containers_.pop_back();
    for (std::size_t i = open_columns_.size(); i-- > 0;) {
      const std::size_t c = open_columns_[i];
      Column& column = *columns_[c];
      write(column.writer);
      const std::string_view text{column.text.GetString(), column.text.GetSize()};
      if (is_element(c))
        values[c].elements.back().cell = {false, std::string(text.substr(column.element_begin))};
      if (open_containers_.size() > column.depth) continue;
      Cell& cell = values[c].is_list ? values[c].elements.back().cell : values[c].cell;
      cell = Cell{false, std::string(text)};
      open_columns_.erase(open_columns_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    previous_end_ = stream_->Tell() + 1;
    return true;
  }

  Node root_;
  const Node* member_ = nullptr;  ///< of the key that was read last
  std::size_t list_index_ = 0;    ///< of the last element or member that a `*` stood for
  std::vector<Container> open_containers_;
  std::vector<std::size_t> open_columns_;  ///< whose value is an object or array that has not ended
  std::vector<std::unique_ptr<Column>> columns_;
  std::string_view text_;
  const rapidjson::MemoryStream* stream_ = nullptr;
  std::size_t previous_end_ = 0;
};

JsonFinder::JsonFinder(const std::vector<Wanted>& wanted)
    : handler_(std::make_unique<Handler>(wanted)) {}
JsonFinder::~JsonFinder() = default;

const std::vector<JsonValue>& JsonFinder::find(std::string_view text, Position start,
                                               const std::string& file, const std::string& advice) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{')
    throw error_at(file, start, "every record must be a JSON object");
  rapidjson::MemoryStream stream(text.data(), text.size());
  handler_->begin(text, stream);
  rapidjson::Reader reader;
  const rapidjson::ParseResult result = reader.Parse<flags>(stream, *handler_);
  if (!result) {
    throw error_at(file, position_in(text, std::min(result.Offset(), text.size()), start),
                   "this is not valid JSON: " + reason(result.Code()) +
                       (result.Offset() >= text.size() ? advice : ""));
  }
  return handler_->values;
}

namespace {

/// Collects the names in an object.
class NameCollector : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, NameCollector> {
 public:
  bool Default() { return single(every); }
  bool RawNumber(const char*, SizeType, bool) { return single(every); }
  bool String(const char*, SizeType, bool) { return single("0"); }
  bool Key(const char* text, SizeType length, bool) {
    key_ = escaped_key({text, length});
    return true;
  }
  bool StartObject() { return start(false); }
  bool StartArray() { return start(true); }
  bool EndObject(SizeType) { return end(); }
  bool EndArray(SizeType) { return end(); }

  std::vector<std::string> names;

 private:
  static constexpr std::size_t deepest = 16;  ///< containers in containers that are entered
  struct Container {
    std::string path;  ///< of what is inside, with a dot at its end; \n stands for an index
    bool is_array;
    bool is_entered;  ///< whether the names inside are collected
    std::size_t elements = 0;
  };

  /// Adds the name of a value. The lists around it are written with `index`: numbers are wanted of
  /// every element, a text, as of a chat, of one.
  bool single(const std::string& index) {
    constexpr std::size_t most = 200;
    if (open_.empty() || !open_.back().is_entered || names.size() == most) return true;
    Container& around = open_.back();
    if (around.is_array && around.elements++ > 0) return true;
    std::string name =
        around.is_array ? around.path.substr(0, around.path.size() - 1) : around.path + key_;
    for (std::size_t at = 0; (at = name.find('\n', at)) != std::string::npos;)
      name.replace(at, 1, index);
    names.push_back(name);
    return true;
  }
  bool start(bool is_array) {
    Container inside{"", is_array, true};
    if (!open_.empty()) {
      Container& around = open_.back();
      inside.is_entered =
          around.is_entered && open_.size() < deepest && !(around.is_array && around.elements > 0);
      if (around.is_array) ++around.elements;
      const std::string name = around.is_array ? "\n" : key_;
      if (inside.is_entered) inside.path = around.path + name + ".";
    }
    open_.push_back(inside);
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  std::vector<Container> open_;
  std::string key_;
};

}  // namespace

std::vector<std::string> names_in(std::string_view text) {
  rapidjson::MemoryStream stream(text.data(), text.size());
  NameCollector collector;
  rapidjson::Reader().Parse<flags>(stream, collector);
  return collector.names;
}

}  // namespace resolution
