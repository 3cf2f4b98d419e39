#include "csv.hpp"

#include <algorithm>

#include "../words.hpp"

namespace resolution {
namespace {

/// Where a cell stands in the text of its row, without the quotes around it.
struct Field {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t place = 0;          ///< where the cell begins, with its quote
  bool has_quotes_twice = false;  ///< quotes inside are doubled
};

/// Splits the log into rows, and rows into fields.
class Rows {
 public:
  Rows(Bytes& bytes, char delimiter) : bytes_(bytes), delimiter_(delimiter) {}

  /// Goes to the next row that is not blank; false at the end.
  bool next() {
    do {
      leave_row();
      if (bytes_.window().empty() && !bytes_.more()) return false;
      // A row that does not end in the window is split again when there is more of it.
      while (!split()) at_end_ = !bytes_.more();
    } while (fields_.size() == 1 && fields_[0].begin == fields_[0].end);
    return true;
  }

  const std::vector<Field>& fields() const { return fields_; }
  Position place(std::size_t field) const { return place_at(fields_[field].place); }

  /// Whether the row is the last one and does not end with a line break.
  bool is_cut() const { return at_end_ && length_ == text_.size() && text_.back() != '\n'; }

  void read(std::size_t field, Cell& cell) const {
    const Field& f = fields_[field];
    cell.missing = f.begin == f.end;
    cell.text.assign(text_, f.begin, f.end - f.begin);
    if (!f.has_quotes_twice) return;
    std::size_t length = 0;
    for (std::size_t i = 0; i < cell.text.size(); ++i) {
      cell.text[length++] = cell.text[i];
      if (cell.text[i] == '"') ++i;  // the second of two
    }
    cell.text.resize(length);
  }

 private:
  void leave_row() {
    if (length_ == 0) return;
    line_ = position_in(text_.substr(0, length_), length_, {line_, 1}).line;
    bytes_.consume(length_);
    length_ = 0;
  }

  Position place_at(std::size_t offset) const { return position_in(text_, offset, {line_, 1}); }

  /// Finds the fields of the row at the front of the window. Returns false where the window ends
  /// before the row does and more of the log may follow.
  bool split() {
    text_ = bytes_.window();
    fields_.clear();
    std::size_t at = 0;
    while (true) {
      Field field;
      field.place = field.begin = at;
      if (at < text_.size() && text_[at] == '"') {
        if (!quoted_field(field, at)) return false;
      } else {
        while (at < text_.size() && text_[at] != delimiter_ && text_[at] != '\n') ++at;
        field.end = at;
        // The line ends with CRLF.
        const bool line_ends = at == text_.size() || text_[at] == '\n';
        if (line_ends && field.end > field.begin && text_[field.end - 1] == '\r') --field.end;
      }
      if (at == text_.size() && !at_end_) return false;
      fields_.push_back(field);
      if (at == text_.size() || text_[at] == '\n') break;
      ++at;  // the delimiter
    }
    length_ = std::min(at + 1, text_.size());
    return true;
  }

  /// Finds the end of the quoted field at `at`, and moves behind it. Returns false where the window
  /// ends before the field does.
  bool quoted_field(Field& field, std::size_t& at) {
    field.begin = ++at;
    while (true) {
      at = std::min(text_.find('"', at), text_.size());
      if (at + 1 >= text_.size() && !at_end_) return false;
      if (at == text_.size())
        throw error_at(bytes_.name(), place_at(field.place),
                       "this quoted field has no closing quote; the file ends inside it");
      if (at + 1 == text_.size() || text_[at + 1] != '"') break;
      field.has_quotes_twice = true;
      at += 2;
    }
    field.end = at++;
    if (at < text_.size() && text_[at] == '\r') ++at;
    if (at == text_.size() || text_[at] == '\n' || text_[at] == delimiter_) return true;
    throw error_at(bytes_.name(), place_at(at), "text after the closing quote of a field");
  }

  Bytes& bytes_;
  char delimiter_;
  std::string_view text_;  ///< the window, which begins with the row
  std::vector<Field> fields_;
  std::size_t length_ = 0;  ///< bytes of the row with its line break
  std::size_t line_ = 1;
  bool at_end_ = false;
};

/// The cells of the header, split by this delimiter. Nothing is consumed.
std::vector<std::string> header_by(std::string_view line, char delimiter) {
  std::vector<std::string> names(1);
  bool quoted = false;
  line.remove_prefix(std::min(line.find_first_not_of("\r\n"), line.size()));
  for (const char c : line) {
    if (c == '\n' && !quoted) break;
    if (c == '"' && (quoted || names.back().empty())) {
      quoted = !quoted;
    } else if (c == delimiter && !quoted) {
      names.emplace_back();
    } else if (c != '\r') {
      names.back().push_back(c);
    }
  }
  return names;
}

/// The text without the backslashes of `\.` and `\\`.
std::string unescaped(const std::string& name) {
  std::string text;
  for (const std::string& key : split_path(name)) text += key + ".";
  text.pop_back();
  return text;
}

char delimiter_of(std::string_view line, const std::vector<Wanted>& wanted) {
  char best = ',';
  std::pair<std::size_t, std::size_t> most{0, 0};
  for (const char candidate : {',', '\t', ';', '|'}) {
    const std::vector<std::string> names = header_by(line, candidate);
    std::size_t found = 0;
    for (const Wanted& w : wanted) {
      const auto is_wanted = [&](const std::string& n) {
        return n == w.name || n == unescaped(w.name);
      };
      found += std::any_of(names.begin(), names.end(), is_wanted) ? 1 : 0;
    }
    if (std::pair{found, names.size()} > most) {
      most = {found, names.size()};
      best = candidate;
    }
  }
  return best;
}

/// The numbers of the wanted columns.
std::vector<std::size_t> locate(const std::vector<std::string>& names, const Rows& header,
                                const std::vector<Wanted>& wanted, const std::string& file) {
  std::vector<std::size_t> where;
  for (const Wanted& w : wanted) {
    auto found = std::find(names.begin(), names.end(), w.name);
    if (found == names.end()) found = std::find(names.begin(), names.end(), unescaped(w.name));
    if (found == names.end()) {
      throw error_at(file, {1, 1},
                     "there is no column " + in_quotes(w.name) + "; the columns are " +
                         list(nearest_first(names, w.name)));
    }
    const auto again = std::find(found + 1, names.end(), *found);
    if (again != names.end()) {
      throw error_at(file, header.place(static_cast<std::size_t>(again - names.begin())),
                     "a second column is called " + in_quotes(*found));
    }
    where.push_back(static_cast<std::size_t>(found - names.begin()));
  }
  return where;
}

}  // namespace

void read_csv(Bytes& bytes, char delimiter, const std::vector<Wanted>& wanted,
              const std::function<void(const std::vector<std::string>&)>& on_names,
              const OnRecord& on_record, const OnBadCell& on_bad_cell) {
  while (bytes.window().find('\n') == std::string_view::npos && bytes.more()) {
  }
  // Excel says in a line before the header what separates the cells: sep=;
  if (bytes.window().substr(0, 4) == "sep=" && bytes.window().find_first_of("\r\n") == 5) {
    if (delimiter == '\0') delimiter = bytes.window()[4];
    bytes.consume(5);
  }
  Rows rows(bytes, delimiter == '\0' ? delimiter_of(bytes.window(), wanted) : delimiter);
  if (!rows.next())
    throw error_at(bytes.name(), {1, 1}, "the file is empty; a header row is needed");
  std::vector<std::string> names;
  Cell name;
  for (std::size_t i = 0; i < rows.fields().size(); ++i) {
    rows.read(i, name);
    names.push_back(name.text);
  }
  on_names(names);
  const std::vector<std::size_t> where = locate(names, rows, wanted, bytes.name());

  std::vector<Cell> record(wanted.size());
  while (rows.next()) {
    const std::size_t width = rows.fields().size();
    if (width != names.size()) {
      throw error_at(bytes.name(), rows.place(width > names.size() ? names.size() : width - 1),
                     "this row has " + counted(width, "cell") + ", the header has " +
                         std::to_string(names.size()) +
                         (width < names.size() && rows.is_cut() ? cut_off : ""));
    }
    for (std::size_t i = 0; i < where.size(); ++i) rows.read(where[i], record[i]);
    for (const BadCell& bad : on_record(record)) on_bad_cell(rows.place(where[bad.index]), bad);
  }
}

}  // namespace resolution
