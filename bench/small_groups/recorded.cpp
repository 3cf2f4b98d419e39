#include "recorded.hpp"

#include <algorithm>
#include <fstream>
#include <locale>
#include <sstream>

#include "../../examples/resolution/errors.hpp"
#include "../../examples/resolution/words.hpp"

namespace small_groups {
namespace {

using resolution::UserError;

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell);
  return cells;
}

double number(const std::string& cell, const std::string& where) {
  std::istringstream in(cell);
  in.imbue(std::locale::classic());
  double value = 0;
  if (!(in >> value) || in.peek() != std::istringstream::traits_type::eof())
    throw UserError(where + resolution::in_quotes(cell) + " is not a number");
  return value;
}

}  // namespace

Log read_log(const std::string& path, const std::vector<std::string>& columns) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line))
    throw UserError(path + ": cannot be read; --data names the folder of the logs");
  const std::vector<std::string> header = cells_of(line);
  const auto position = [&](const std::string& name) {
    const auto found = std::find(header.begin(), header.end(), name);
    if (found == header.end())
      throw UserError(path + ":1: there is no column " + resolution::in_quotes(name));
    return static_cast<std::size_t>(found - header.begin());
  };
  const std::size_t group = position("group");
  std::vector<std::size_t> wanted;
  for (const std::string& name : columns) wanted.push_back(position(name));

  Log log;
  log.columns = columns.size();
  std::string group_before;
  for (std::size_t row = 0; std::getline(file, line); ++row) {
    const std::string where = path + ":" + std::to_string(row + 2) + ": ";
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() != header.size())
      throw UserError(where + "this row has " + resolution::counted(cells.size(), "cell") +
                      ", the header has " + std::to_string(header.size()));
    if (row == 0 || cells[group] != group_before) log.begins.push_back(row);
    group_before = cells[group];
    for (const std::size_t c : wanted) log.rewards.push_back(number(cells[c], where));
  }
  if (log.begins.empty()) throw UserError(path + ": there are no completions");
  log.begins.push_back(log.rewards.size() / log.columns);
  return log;
}

}  // namespace small_groups
