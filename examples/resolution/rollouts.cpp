#include "rollouts.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <unordered_map>

#include "csv.hpp"
#include "jsonl.hpp"
#include "numbers.hpp"
#include "progress.hpp"
#include "words.hpp"

namespace resolution {
namespace {

/// Turns records, whose cells are the group, the rewards and, where wanted, the length, into rows
/// of Rollouts.
class Collector {
 public:
  Collector(Rollouts& rollouts, const Columns& columns) : rollouts_(rollouts), columns_(columns) {
    rollouts_.reward_names = columns.rewards;
    rollouts_.length_name = columns.length;
  }

  std::vector<std::string> wanted() const {
    std::vector<std::string> names{columns_.group};
    names.insert(names.end(), columns_.rewards.begin(), columns_.rewards.end());
    if (!columns_.length.empty()) names.push_back(columns_.length);
    return names;
  }

  void add(const std::vector<Cell>& cells) {
    const std::int64_t group = group_id(cells[0]);
    for (std::size_t k = 0; k < columns_.rewards.size(); ++k)
      rollouts_.rewards.push_back(reward(cells, k + 1));
    if (!columns_.length.empty()) rollouts_.lengths.push_back(length(cells, cells.size() - 1));
    rollouts_.members[static_cast<std::size_t>(group)].push_back(rollouts_.rows());
    rollouts_.group_of.push_back(group);
    progress_.update(rollouts_.rows());
  }

 private:
  std::int64_t group_id(const Cell& cell) {
    if (cell.kind == Cell::Kind::Missing ||
        cell.text.find_first_not_of(" \t") == std::string::npos) {
      throw BadCell{0, "the group " + in_quotes(columns_.group) + " is empty"};
    }
    const auto [at, is_new] = ids_.try_emplace(cell.text, static_cast<std::int64_t>(ids_.size()));
    if (is_new) {
      rollouts_.group_names.push_back(cell.text);
      rollouts_.members.emplace_back();
    }
    return at->second;
  }

  double reward(const std::vector<Cell>& cells, std::size_t index) const {
    const Cell& cell = cells[index];
    if (cell.kind == Cell::Kind::Missing || spells_missing(cell.text))
      return std::numeric_limits<double>::quiet_NaN();
    const auto value = parse_number(cell.text);
    if (!value) {
      throw BadCell{index, in_quotes(cell.text) + " in " + in_quotes(columns_.rewards[index - 1]) +
                               " is not a finite number"};
    }
    return *value;
  }

  double length(const std::vector<Cell>& cells, std::size_t index) const {
    const Cell& cell = cells[index];
    const auto value = cell.kind == Cell::Kind::Missing ? std::nullopt : parse_number(cell.text);
    if (!value || *value < 0) {
      throw BadCell{index, (cell.text.empty() ? "an empty cell" : in_quotes(cell.text)) + " in " +
                               in_quotes(columns_.length) + " is not a length (a number from 0)"};
    }
    return std::max(1.0, *value);  // an empty completion still has its end token
  }

  Rollouts& rollouts_;
  Columns columns_;
  std::unordered_map<std::string, std::int64_t> ids_;
  Progress progress_{"reading completions"};
};

}  // namespace

Rollouts read_rollouts(std::istream& stream, const std::string& name, Format format,
                       const Columns& columns) {
  if (format == Format::Auto) {
    const int first = stream.peek();
    format = first == '{' ? Format::Jsonl : Format::Csv;
  }
  Rollouts rollouts;
  rollouts.file = name;
  Collector collector(rollouts, columns);
  const Source source{stream, name};
  const auto add = [&collector](const std::vector<Cell>& cells) { collector.add(cells); };
  if (format == Format::Jsonl) {
    read_jsonl(source, collector.wanted(), add);
  } else {
    read_csv(source, collector.wanted(), add);
  }
  if (rollouts.rows() == 0) throw UserError(name + ": there are no completions");
  return rollouts;
}

Rollouts read_rollouts_file(const std::string& path, Format format, const Columns& columns) {
  if (path.empty() || path == "-")
    return read_rollouts(std::cin, "standard input", format, columns);
  if (std::filesystem::is_directory(path)) throw UserError(path + ": is a directory, not a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(path + ": cannot be opened");
  if (format == Format::Auto) {
    const std::string extension = std::filesystem::path(path).extension().string();
    if (extension == ".csv") format = Format::Csv;
    if (extension == ".jsonl" || extension == ".ndjson") format = Format::Jsonl;
  }
  Rollouts rollouts = read_rollouts(file, path, format, columns);
  rollouts.file = std::filesystem::path(path).filename().string();
  return rollouts;
}

}  // namespace resolution
