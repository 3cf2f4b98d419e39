#include "csv.hpp"

#include <algorithm>

#include "words.hpp"

namespace resolution {
namespace {

/// A cell and where it begins, for messages.
struct PlacedCell : Cell {
  Position at;
};

/// Splits a stream into rows of cells and keeps track of its position.
class Rows {
 public:
  explicit Rows(const Source& source) : buffer_(*source.stream.rdbuf()), name_(source.name) {
    skip_byte_order_mark();
  }

  /// The next row that is not blank; false at the end.
  bool next(std::vector<PlacedCell>& row) {
    do {
      if (peek() == end) return false;
      row.clear();
      do row.push_back(cell());
      while (take_if(','));
      end_of_line();
    } while (row.size() == 1 && row[0].kind == Cell::Kind::Missing);
    return true;
  }

 private:
  using traits = std::char_traits<char>;
  static constexpr traits::int_type end = traits::eof();

  traits::int_type peek() { return buffer_.sgetc(); }

  char take() {
    const char c = traits::to_char_type(buffer_.sbumpc());
    if (c == '\n') {
      ++at_.line;
      at_.column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) {
      ++at_.column;  // once per character: the later bytes of a UTF-8 character are 10xxxxxx
    }
    return c;
  }

  bool take_if(char c) {
    if (peek() != traits::to_int_type(c)) return false;
    take();
    return true;
  }

  void skip_byte_order_mark() {
    if (peek() != traits::to_int_type('\xEF')) return;
    for (const char mark : {'\xEF', '\xBB', '\xBF'}) {
      if (!take_if(mark)) throw error_at(name_, {1, 1}, "this is not UTF-8 text");
    }
    at_ = {1, 1};
  }

  PlacedCell cell() {
    PlacedCell cell;
    cell.at = at_;
    if (take_if('"')) {
      quoted_field(cell);
    } else {
      while (!at_delimiter()) cell.text.push_back(take());
      // The line ends with CRLF.
      if (!cell.text.empty() && cell.text.back() == '\r') cell.text.pop_back();
    }
    if (cell.text.empty()) cell.kind = Cell::Kind::Missing;
    return cell;
  }

  void quoted_field(PlacedCell& cell) {
    while (true) {
      if (peek() == end) throw error_at(name_, cell.at, "this quoted field has no closing quote");
      if (!take_if('"')) {
        cell.text.push_back(take());
      } else if (take_if('"')) {
        cell.text.push_back('"');
      } else {
        break;
      }
    }
    take_if('\r');
    if (!at_delimiter()) throw error_at(name_, at_, "text after the closing quote of a field");
  }

  bool at_delimiter() {
    const auto c = peek();
    return c == end || c == traits::to_int_type(',') || c == traits::to_int_type('\n');
  }

  void end_of_line() { take_if('\n'); }

  std::streambuf& buffer_;
  std::string name_;
  Position at_{1, 1};
};

/// The column numbers of the wanted columns.
std::vector<std::size_t> locate(const std::vector<PlacedCell>& header,
                                const std::vector<std::string>& wanted, const std::string& file) {
  std::vector<std::string> names(header.size());
  std::transform(header.begin(), header.end(), names.begin(),
                 [](const PlacedCell& cell) { return cell.text; });
  std::vector<std::size_t> where;
  for (const std::string& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw error_at(file, {1, 1},
                     "there is no column " + in_quotes(name) + "; the columns are " + list(names));
    }
    const auto again = std::find(found + 1, names.end(), name);
    if (again != names.end()) {
      throw error_at(file, header[static_cast<std::size_t>(again - names.begin())].at,
                     "a second column is called " + in_quotes(name));
    }
    where.push_back(static_cast<std::size_t>(found - names.begin()));
  }
  return where;
}

}  // namespace

void read_csv(const Source& source, const std::vector<std::string>& wanted,
              const OnRecord& on_record) {
  Rows rows(source);
  std::vector<PlacedCell> row;
  if (!rows.next(row))
    throw error_at(source.name, {1, 1}, "the file is empty; a header row is needed");
  const std::size_t width = row.size();
  const std::vector<std::size_t> where = locate(row, wanted, source.name);

  std::vector<Cell> record(wanted.size());
  while (rows.next(row)) {
    if (row.size() != width) {
      throw error_at(source.name, row.size() > width ? row[width].at : row.back().at,
                     "this row has " + counted(row.size(), "cell") + ", the header has " +
                         std::to_string(width));
    }
    for (std::size_t i = 0; i < where.size(); ++i) record[i] = row[where[i]];
    try {
      on_record(record);
    } catch (const BadCell& bad) {
      throw error_at(source.name, row[where[bad.index]].at, bad.message);
    }
  }
}

}  // namespace resolution
