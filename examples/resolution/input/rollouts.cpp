#include "rollouts.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "../progress.hpp"
#include "../words.hpp"
#include "batch_order.hpp"
#include "csv.hpp"
#include "json.hpp"
#include "numbers.hpp"

namespace resolution {
namespace {

/// Numbers texts in the order in which they come.
class Numbering {
 public:
  /// The number of a text, and whether it is new.
  std::pair<std::size_t, bool> number_of(const std::string& text) {
    const auto [at, is_new] = numbers_.try_emplace(text, numbers_.size());
    return {at->second, is_new};
  }

 private:
  std::unordered_map<std::string, std::size_t> numbers_;
};

bool is_blank(const Cell& cell) {
  return cell.missing || cell.text.find_first_not_of(" \t") == std::string::npos;
}

/// Collects records, whose cells are the batch, the group, the rewards and, where wanted, the
/// length, and makes Rollouts of them.
class Collector {
 public:
  explicit Collector(const Columns& columns) : columns_(columns) {
    for (const std::string& name : columns.batch) wanted_.push_back({name, false});
    for (const std::string& name : columns.group) wanted_.push_back({name, false});
    for (const std::string& name : columns.rewards) wanted_.push_back({name, true});
    if (!columns.length.empty()) wanted_.push_back({columns.length, true});
  }

  void read(std::istream& stream, const std::string& name, std::uint64_t size,
            const Reading& reading) {
    Bytes bytes(stream, name, size);
    const std::filesystem::path path(name);
    file_ = {path.parent_path().string(), path.filename().string()};
    const std::size_t rows_before = group_of_.size();
    Progress progress("reading " + printable(name, 60));
    const auto on_names = [this](const std::vector<std::string>& names) { find_steps(names); };
    const auto on_record = [&](const std::vector<Cell>& cells) {
      add(cells);
      progress.update(group_of_.size() - rows_before, bytes.share());
    };
    const Format format =
        reading.format == Format::Auto ? recognised(name, bytes.window()) : reading.format;
    if (format == Format::Json) {
      const ListRecords found = read_json(bytes, wanted_, on_names, on_record);
      objects_ += found.objects;
      if (!found.column.empty()) list_column_ = found.column;
    } else {
      read_csv(bytes, reading.delimiter, wanted_, on_names, on_record);
    }
    if (group_of_.size() == rows_before)
      throw UserError(printable(name) + ": there are no completions");
  }

  /// The log, with its rows in order. The collector is empty afterwards.
  Rollouts finish(const std::string& file) {
    if (std::all_of(rewards_.begin(), rewards_.end(), [](double r) { return std::isnan(r); })) {
      throw UserError(printable(file) + ": every value of " + list(columns_.rewards) +
                      " is missing");
    }
    Rollouts rollouts;
    rollouts.file = file;
    rollouts.reward_names = columns_.rewards;
    rollouts.length_name = columns_.length;
    rollouts.batch_columns = columns_.batch;
    if (columns_.file_is_batch)
      rollouts.batch_columns.insert(rollouts.batch_columns.begin(), "file");
    rollouts.unused_step_columns = std::move(step_columns_);
    rollouts.list_column = list_column_;
    rollouts.records = objects_;

    // Batches in their order, groups in the order of their batches, rows in that of their groups.
    const std::vector<std::size_t> batches = order_of_batches(batch_texts_);
    std::vector<std::size_t> place_of_batch(batches.size());
    const bool one_folder = std::all_of(
        batch_texts_.begin(), batch_texts_.end(),
        [this](const auto& texts) { return texts.empty() || texts[0] == batch_texts_[0][0]; });
    for (std::size_t b = 0; b < batches.size(); ++b) {
      const std::vector<std::string>& texts = batch_texts_[batches[b]];
      const std::size_t first = columns_.file_is_batch && one_folder ? 1 : 0;
      rollouts.batch_names.push_back(joined(texts, first));
      place_of_batch[batches[b]] = b;
    }
    for (std::size_t& batch : batch_of_) batch = place_of_batch[batch];
    const std::vector<std::size_t> groups =
        sorted_by(batch_of_, batches.size(), rollouts.batch_begin);
    std::vector<std::size_t> place_of(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      rollouts.group_names.push_back(std::move(group_names_[groups[g]]));
      place_of[groups[g]] = g;
    }
    for (std::size_t& group : group_of_) group = place_of[group];
    const std::vector<std::size_t> rows = sorted_by(group_of_, groups.size(), rollouts.group_begin);
    rollouts.rewards = gathered(std::move(rewards_), rows);
    if (!columns_.length.empty()) rollouts.lengths = gathered(std::move(lengths_), rows);
    return rollouts;
  }

 private:
  void add(const std::vector<Cell>& cells) {
    group_of_.push_back(group_of(cells));
    const std::size_t first = columns_.batch.size() + columns_.group.size();
    for (std::size_t k = 0; k < columns_.rewards.size(); ++k)
      rewards_.push_back(reward(cells, first + k));
    if (!columns_.length.empty()) lengths_.push_back(length(cells, cells.size() - 1));
  }

  /// The number of the row's group. A group lies inside its batch: the same texts in another batch
  /// are another group.
  std::size_t group_of(const std::vector<Cell>& cells) {
    const std::size_t batch_cells = columns_.batch.size();
    key_.clear();
    append_key(cells, 0, batch_cells, "batch");
    if (columns_.file_is_batch) {
      for (const std::string& text : file_) append_key(text);
    }
    const auto [batch, is_new_batch] = batches_.number_of(key_);
    if (is_new_batch) {
      batch_texts_.emplace_back();
      if (columns_.file_is_batch) batch_texts_.back() = file_;
      for (std::size_t i = 0; i < batch_cells; ++i) batch_texts_.back().push_back(cells[i].text);
    }
    key_ = std::to_string(batch) + ":";
    append_key(cells, batch_cells, batch_cells + columns_.group.size(), "group");
    const auto [group, is_new_group] = groups_.number_of(key_);
    if (is_new_group) {
      batch_of_.push_back(batch);
      std::vector<std::string> texts;
      for (std::size_t i = 0; i < columns_.group.size(); ++i)
        texts.push_back(cells[batch_cells + i].text);
      group_names_.push_back(joined(texts, 0));
    }
    return group;
  }

  /// Appends the texts of cells to the key, each with its length, so that no two lists of texts
  /// have the same key.
  void append_key(const std::vector<Cell>& cells, std::size_t from, std::size_t to,
                  const char* what) {
    for (std::size_t i = from; i < to; ++i) {
      if (is_blank(cells[i])) {
        throw BadCell{i,
                      "the " + std::string(what) + " " + in_quotes(wanted_[i].name) + " is empty"};
      }
      append_key(cells[i].text);
    }
  }
  void append_key(const std::string& text) {
    key_ += std::to_string(text.size());
    key_ += ':';
    key_ += text;
  }

  /// Texts from number `first` on as a name, "a / b", printable and cut to what a report can show.
  static std::string joined(const std::vector<std::string>& texts, std::size_t first) {
    constexpr std::size_t most = 60;
    std::string name;
    for (std::size_t i = first; i < texts.size(); ++i)
      name += (i == first ? "" : " / ") + printable(shortened(texts[i], most));
    return shortened(name, most);
  }

  double reward(const std::vector<Cell>& cells, std::size_t index) const {
    const Cell& cell = cells[index];
    if (cell.missing) return std::numeric_limits<double>::quiet_NaN();
    if (const auto value = parse_number(cell.text)) return *value;
    if (spells_missing(cell.text)) return std::numeric_limits<double>::quiet_NaN();
    throw BadCell{index, in_quotes(cell.text) + " in " + in_quotes(wanted_[index].name) +
                             " is not a finite number" + advice(cell.text)};
  }

  /// What to do about a reward that is no number, where that can be told.
  static std::string advice(std::string text) {
    const std::size_t comma = text.find(',');
    if (comma != std::string::npos && parse_number(text.replace(comma, 1, ".")))
      return "; decimals are written with a point";
    if (spells_infinity(text))
      return "; leave the cell empty, or write null, where there is no reward";
    return "";
  }

  double length(const std::vector<Cell>& cells, std::size_t index) const {
    const Cell& cell = cells[index];
    const auto value = cell.missing ? std::nullopt : parse_number(cell.text);
    if (!value || *value < 0) {
      throw BadCell{index, (cell.missing ? "an empty cell" : in_quotes(cell.text)) + " in " +
                               in_quotes(columns_.length) + " is not a length (a number from 0)"};
    }
    return std::max(1.0, *value);  // an empty completion still has its end token
  }

  /// Remembers which columns look as if they told training steps apart, unless they are read. Where
  /// batches are told apart already, a column of runs may still be missing.
  void find_steps(const std::vector<std::string>& names) {
    const bool has_batches = !columns_.batch.empty() || columns_.file_is_batch;
    if (!step_columns_.empty()) return;
    for (const std::string& name : names) {
      std::string last = name.substr(name.find_last_of("./") + 1);
      for (char& c : last) c = lower(c);
      const bool is_step =
          last == "step" || last == "global_step" || last == "iteration" || last == "epoch";
      const auto is_name = [&](const Wanted& w) { return w.name == name; };
      if (((is_step && !has_batches) || last == "run") &&
          std::none_of(wanted_.begin(), wanted_.end(), is_name))
        step_columns_.push_back(name);
    }
  }

  /// The numbers of entries sorted by their key, which is below `keys`; entries with the same key
  /// keep their order. `begin` becomes the place of the first entry of each key, then the end.
  static std::vector<std::size_t> sorted_by(const std::vector<std::size_t>& key, std::size_t keys,
                                            std::vector<std::size_t>& begin) {
    begin.assign(keys + 1, 0);
    for (const std::size_t k : key) ++begin[k + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<std::size_t> next(begin.begin(), begin.end() - 1);
    std::vector<std::size_t> sorted(key.size());
    for (std::size_t i = 0; i < key.size(); ++i) sorted[next[key[i]]++] = i;
    return sorted;
  }

  /// The rows of a matrix, stored row by row, in this order.
  static std::vector<double> gathered(std::vector<double> values,
                                      const std::vector<std::size_t>& rows) {
    if (std::is_sorted(rows.begin(), rows.end())) return values;
    const std::size_t width = values.size() / rows.size();
    std::vector<double> out;
    out.reserve(values.size());
    for (const std::size_t row : rows) {
      const auto at = values.begin() + static_cast<std::ptrdiff_t>(row * width);
      out.insert(out.end(), at, at + static_cast<std::ptrdiff_t>(width));
    }
    return out;
  }

  Columns columns_;
  std::vector<Wanted> wanted_;
  Numbering batches_;
  Numbering groups_;
  std::string key_;
  std::vector<std::string> file_;  ///< folder and name of the file that is read now
  std::vector<std::vector<std::string>> batch_texts_;  ///< (batches) what tells each apart
  std::vector<std::string> group_names_;
  std::vector<std::size_t> batch_of_;  ///< (groups)
  std::vector<std::size_t> group_of_;  ///< (rows)
  std::vector<double> rewards_;
  std::vector<double> lengths_;
  std::vector<std::string> step_columns_;
  std::string list_column_;
  std::size_t objects_ = 0;
};

void read_file(Collector& collector, const std::string& path, const Reading& reading) {
  if (path == "-") return collector.read(std::cin, standard_input, 0, reading);
  if (std::filesystem::is_directory(path))
    throw UserError(printable(path) + ": is a directory, not a file; name the files in it");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(printable(path) + ": cannot be opened: " + std::strerror(errno));
  std::error_code no_size;
  const auto size = std::filesystem::file_size(path, no_size);
  collector.read(file, path, no_size ? 0 : size, reading);
}

}  // namespace

std::string Rollouts::group_name(std::size_t group) const {
  if (batches() == 1) return group_names[group];
  const auto after = std::upper_bound(batch_begin.begin(), batch_begin.end(), group);
  return group_names[group] + " of batch " +
         batch_names[static_cast<std::size_t>(after - batch_begin.begin()) - 1];
}

Rollouts read_rollouts(std::istream& stream, const std::string& name, const Reading& reading,
                       const Columns& columns) {
  Collector collector(columns);
  collector.read(stream, name, 0, reading);
  return collector.finish(name);
}

Rollouts read_rollouts_files(const std::vector<std::string>& paths, const Reading& reading,
                             const Columns& columns) {
  Collector collector(columns);
  if (paths.empty()) read_file(collector, "-", reading);
  for (const std::string& path : paths) read_file(collector, path, reading);
  if (paths.empty() || paths == std::vector<std::string>{"-"})
    return collector.finish(standard_input);
  const std::string first = std::filesystem::path(paths.front()).filename().string();
  return collector.finish(
      paths.size() == 1 ? first : std::to_string(paths.size()) + " files, the first is " + first);
}

}  // namespace resolution
