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
#include <map>
#include <numeric>
#include <set>
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

/// Cells that are wrong, gathered by what is wrong with them.
class BadCells {
 public:
  void add(const std::string& file, Position at, const BadCell& bad) {
    constexpr std::size_t most_kinds = 20;
    ++count_;
    const auto same = [&](const Kind& k) { return k.message == bad.message; };
    const auto known = std::find_if(kinds_.begin(), kinds_.end(), same);
    if (known != kinds_.end()) {
      ++known->count;
    } else if (kinds_.size() < most_kinds) {
      kinds_.push_back({file, at, bad.message, bad.word, 1});
    }
  }
  bool any() const { return count_ > 0; }

  /// The error that has them all.
  UserError error() const {
    const auto line = [](const Kind& k) {
      return std::string(error_at(k.file, k.first, k.message).what()) +
             (k.count == 1 ? "" : " (in " + counted(k.count, "cell") + ", the first is here)");
    };
    if (kinds_.size() == 1) return UserError(line(kinds_.front()), advice());
    std::string text = counted(count_, "cell") + " cannot be read:";
    std::size_t listed = 0;
    for (const Kind& k : kinds_) {
      text += "\n" + line(k);
      listed += k.count;
    }
    if (listed < count_) text += "\nand " + counted(count_ - listed, "cell") + " more";
    return UserError(text, advice());
  }

 private:
  struct Kind {
    std::string file;
    Position first;
    std::string message;
    std::string word;
    std::size_t count;
  };

  /// How to say that the words among them stand for a missing reward.
  std::string advice() const {
    std::string words;
    std::set<std::string> listed;
    for (const Kind& k : kinds_) {
      if (k.word.empty() || !listed.insert(k.word).second) continue;
      words += words.empty() ? "" : ",";
      for (const char c : k.word) words += c == ',' ? "\\," : std::string(1, c);
    }
    if (words.empty()) return "";
    return "Where a word stands for a missing reward, say so: --missing '" + words + "'";
  }

  std::vector<Kind> kinds_;
  std::size_t count_ = 0;
};

/// Collects records, whose cells are the batch, the group, the rewards and, where wanted, the
/// length and whether the row is valid, and makes Rollouts of them.
class Collector {
 public:
  Collector(const Columns& columns, bool several_files)
      : columns_(columns), several_files_(several_files) {
    for (const std::string& name : columns.batch) wanted_.push_back({name, false});
    for (const std::string& name : columns.group) wanted_.push_back({name, false});
    for (const std::string& name : columns.rewards) wanted_.push_back({name, true});
    if (!columns.length.empty()) wanted_.push_back({columns.length, true});
    if (!columns.valid.empty()) wanted_.push_back({columns.valid, true});
  }

  void read(std::istream& stream, const std::string& name, std::uint64_t size,
            const Reading& reading) {
    Bytes bytes(stream, name, size);
    const std::filesystem::path path(name);
    file_ = {path.parent_path().string(), path.filename().string()};
    ++files_;
    hash_ = 0;
    rows_of_batch_.clear();
    const std::size_t rows_before = rows_;
    Progress progress("reading " + printable(name, 60));
    const auto on_names = [this](const std::vector<std::string>& names) { find_steps(names); };
    const auto on_record = [&](const std::vector<Cell>& cells) {
      std::vector<BadCell> bad = add(cells);
      progress.update(++rows_ - rows_before, bytes.share());
      return bad;
    };
    const auto on_bad_cell = [&](Position at, const BadCell& bad) {
      bad_cells_.add(bytes.name(), at, bad);
    };
    const Format format =
        reading.format == Format::Auto ? recognized(name, bytes.window()) : reading.format;
    if (format == Format::Json) {
      const ListRecords found = read_json(bytes, wanted_, on_names, on_record, on_bad_cell);
      objects_ += found.objects;
      if (!found.column.empty()) list_column_ = found.column;
    } else {
      read_csv(bytes, reading.delimiter, wanted_, on_names, on_record, on_bad_cell);
    }
    if (rows_ == rows_before) throw UserError(printable(name) + ": there are no completions");
    if (!bad_cells_.any()) {
      refuse_part_of_a_group(name);
      compare_with_files_before(name, rows_ - rows_before);
    }
  }

  /// The log, with its rows in order. The collector is empty afterwards.
  Rollouts finish(const std::string& file) {
    if (bad_cells_.any()) throw bad_cells_.error();
    if (group_of_.empty()) {
      throw UserError(printable(file) + ": " + in_quotes(columns_.valid) +
                      " is 0 in every row, so there are no completions");
    }
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
    rollouts.group_size = columns_.group_size;
    rollouts.left_out = left_out_;
    rollouts.repeated_files = std::move(repeated_files_);
    rollouts.shared_groups =
        static_cast<std::size_t>(std::count(file_of_group_.begin(), file_of_group_.end(), several));

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
  /// Adds a row, unless cells of it are wrong, which it returns.
  std::vector<BadCell> add(const std::vector<Cell>& cells) {
    std::vector<BadCell> bad;
    if (several_files_) {
      for (const Cell& cell : cells) hash_ = hash_ * 0x9E3779B97F4A7C15U + hash_of(cell);
    }
    const std::size_t columns_before = columns_.batch.size() + columns_.group.size();
    for (std::size_t i = 0; i < columns_before; ++i) {
      if (!is_blank(cells[i])) continue;
      const char* what = i < columns_.batch.size() ? "batch" : "group";
      bad.push_back(
          {i, std::string("the ") + what + " " + in_quotes(wanted_[i].name) + " is empty", ""});
    }
    const bool valid = columns_.valid.empty() || is_valid(cells, cells.size() - 1, bad);
    const std::size_t reward_count = columns_.rewards.size();
    const std::size_t rewards_before = rewards_.size();
    const std::size_t lengths_before = lengths_.size();
    if (valid) {
      bool any = false;
      for (std::size_t k = 0; k < reward_count; ++k) {
        rewards_.push_back(reward(cells, columns_before + k, bad));
        any = any || !std::isnan(rewards_.back());
      }
      if (!columns_.length.empty())
        lengths_.push_back(length(cells, columns_before + reward_count, any, bad));
    }
    if (!bad.empty()) {
      rewards_.resize(rewards_before);
      lengths_.resize(lengths_before);
      return bad;
    }
    const std::size_t batch = batch_of(cells);
    const std::size_t place = columns_.group_size == 0 ? 0 : place_in_batch(batch);
    if (!valid) {
      ++left_out_;
      return bad;
    }
    const std::size_t group = group_of(cells, batch, place);
    group_of_.push_back(group);
    if (file_of_group_[group] != files_) file_of_group_[group] = several;
    return bad;
  }

  static std::uint64_t hash_of(const Cell& cell) {
    return cell.missing ? 1 : std::hash<std::string>()(cell.text);
  }

  /// The number of the row's batch.
  std::size_t batch_of(const std::vector<Cell>& cells) {
    const std::size_t batch_cells = columns_.batch.size();
    key_.clear();
    append_key(cells, 0, batch_cells);
    if (columns_.file_is_batch) {
      for (const std::string& text : file_) append_key(text);
    }
    const auto [batch, is_new_batch] = batches_.number_of(key_);
    if (is_new_batch) {
      batch_texts_.emplace_back();
      if (columns_.file_is_batch) batch_texts_.back() = file_;
      for (std::size_t i = 0; i < batch_cells; ++i) batch_texts_.back().push_back(cells[i].text);
    }
    return batch;
  }

  /// The place of the row among those of its batch in its file.
  std::size_t place_in_batch(std::size_t batch) {
    if (rows_of_batch_.size() <= batch) rows_of_batch_.resize(batch + 1, 0);
    return rows_of_batch_[batch]++;
  }

  /// The number of the row's group. A group lies inside its batch: the same texts in another batch
  /// are another group.
  std::size_t group_of(const std::vector<Cell>& cells, std::size_t batch, std::size_t place) {
    const std::size_t first = columns_.batch.size();
    key_ = std::to_string(batch) + ":";
    if (columns_.group_size > 0) {
      key_ += std::to_string(files_) + ":" + std::to_string(place / columns_.group_size);
    } else {
      append_key(cells, first, first + columns_.group.size());
    }
    const auto [group, is_new_group] = groups_.number_of(key_);
    if (is_new_group) {
      batch_of_.push_back(batch);
      file_of_group_.push_back(files_);
      std::vector<std::string> texts;
      for (std::size_t i = 0; i < columns_.group.size(); ++i)
        texts.push_back(cells[first + i].text);
      if (columns_.group_size > 0) {
        groups_in_batch_.resize(std::max(groups_in_batch_.size(), batch + 1), 0);
        texts.push_back(std::to_string(++groups_in_batch_[batch]));
      }
      group_names_.push_back(joined(texts, 0));
    }
    return group;
  }

  /// Appends the texts of cells to the key, each with its length, so that no two lists of texts
  /// have the same key.
  void append_key(const std::vector<Cell>& cells, std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) append_key(cells[i].text);
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

  static constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

  bool is_missing(const Cell& cell) const {
    return cell.missing || std::any_of(columns_.missing.begin(), columns_.missing.end(),
                                       [&](const auto& w) { return same_word(w, cell.text); });
  }

  /// What a message calls the content of a cell.
  static std::string content(const Cell& cell) {
    return cell.missing ? "an empty cell" : in_quotes(cell.text);
  }

  double reward(const std::vector<Cell>& cells, std::size_t index,
                std::vector<BadCell>& bad) const {
    const Cell& cell = cells[index];
    if (is_missing(cell)) return no_value;
    if (const auto value = parse_number(cell.text)) return *value;
    if (spells_missing(cell.text)) return no_value;
    const std::string next = advice(cell.text);
    bad.push_back({index,
                   in_quotes(cell.text) + " in " + in_quotes(wanted_[index].name) +
                       " is not a finite number" + next,
                   is_word(cell.text) ? cell.text : ""});
    return no_value;
  }

  /// Whether a text may be a word for a missing reward that was not told: a short one that begins
  /// with a letter, and that a command line can show.
  static bool is_word(const std::string& text) {
    constexpr std::size_t longest = 32;
    const char first = text.empty() ? '\0' : lower(text[0]);
    return text.size() <= longest && text == printable(text) && first >= 'a' && first <= 'z' &&
           text.find_first_of("'\\") == std::string::npos;
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

  /// The length of a completion. One without any reward counts in nothing and may lack it.
  double length(const std::vector<Cell>& cells, std::size_t index, bool has_reward,
                std::vector<BadCell>& bad) const {
    const Cell& cell = cells[index];
    if (!has_reward && (is_missing(cell) || spells_missing(cell.text))) return no_value;
    const auto value = cell.missing ? std::nullopt : parse_number(cell.text);
    if (value && *value >= 0) return std::max(1.0, *value);  // an empty one has its end token
    bad.push_back({index,
                   content(cell) + " in " + in_quotes(columns_.length) +
                       " is not a length (a number from 0)" +
                       (cell.missing ? "; only a completion without any reward may lack it" : ""),
                   ""});
    return no_value;
  }

  bool is_valid(const std::vector<Cell>& cells, std::size_t index,
                std::vector<BadCell>& bad) const {
    const Cell& cell = cells[index];
    const auto value = cell.missing ? std::nullopt : parse_number(cell.text);
    if (value) return *value != 0;
    bad.push_back({index,
                   content(cell) + " in " + in_quotes(columns_.valid) +
                       " is neither a number nor true or false",
                   ""});
    return true;
  }

  /// Where groups are told by their size: throws UserError if a batch ends inside one.
  void refuse_part_of_a_group(const std::string& name) const {
    for (std::size_t batch = 0; batch < rows_of_batch_.size(); ++batch) {
      if (rows_of_batch_[batch] % columns_.group_size == 0) continue;
      const bool one = batch_texts_[batch].empty();
      throw UserError(printable(name) + ": " + counted(rows_of_batch_[batch], "row") +
                      (one ? "" : " of batch " + in_quotes(joined(batch_texts_[batch], 0))) +
                      ", which are no groups of --group-size " +
                      std::to_string(columns_.group_size) +
                      "; needed: a multiple of it in each file" + (one ? "" : " and batch"));
    }
  }

  /// Finds out whether the file that was read holds the same rows as one before.
  void compare_with_files_before(const std::string& name, std::size_t rows) {
    if (!several_files_) return;
    const auto [first, is_new] = files_by_rows_.try_emplace({rows, hash_}, printable(name));
    if (!is_new) repeated_files_.emplace_back(printable(name), first->second);
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

  static constexpr std::size_t several = 0;  ///< no number of a file

  Columns columns_;
  bool several_files_;
  std::vector<Wanted> wanted_;
  BadCells bad_cells_;
  std::size_t rows_ = 0;      ///< of all files, with those that are left out or wrong
  std::size_t left_out_ = 0;  ///< that `valid` left out
  std::size_t files_ = 0;     ///< number of the file that is read now, from 1
  std::uint64_t hash_ = 0;    ///< of the cells of this file
  std::map<std::pair<std::size_t, std::uint64_t>, std::string> files_by_rows_;
  std::vector<std::pair<std::string, std::string>> repeated_files_;
  Numbering batches_;
  Numbering groups_;
  std::string key_;
  std::vector<std::string> file_;  ///< folder and name of the file that is read now
  std::vector<std::vector<std::string>> batch_texts_;  ///< (batches) what tells each apart
  std::vector<std::string> group_names_;
  std::vector<std::size_t> batch_of_;         ///< (groups)
  std::vector<std::size_t> file_of_group_;    ///< (groups) its file, or `several`
  std::vector<std::size_t> rows_of_batch_;    ///< (batches) with group_size: rows in this file
  std::vector<std::size_t> groups_in_batch_;  ///< (batches) with group_size: groups so far
  std::vector<std::size_t> group_of_;         ///< (rows)
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
  Collector collector(columns, false);
  collector.read(stream, name, 0, reading);
  return collector.finish(name);
}

Rollouts read_rollouts_files(const std::vector<std::string>& paths, const Reading& reading,
                             const Columns& columns) {
  std::set<std::string> names;
  for (const std::string& path : paths) {
    std::error_code unknown;  // a file that cannot be opened is named when it is read
    if (names.insert(std::filesystem::weakly_canonical(path, unknown).string()).second) continue;
    throw UserError(printable(path) +
                    ": is given twice, so that each of its completions would count twice");
  }
  Collector collector(columns, paths.size() > 1);
  if (paths.empty()) read_file(collector, "-", reading);
  for (const std::string& path : paths) read_file(collector, path, reading);
  if (paths.empty() || paths == std::vector<std::string>{"-"})
    return collector.finish(standard_input);
  const std::string first = std::filesystem::path(paths.front()).filename().string();
  return collector.finish(
      paths.size() == 1 ? first : std::to_string(paths.size()) + " files, the first is " + first);
}

}  // namespace resolution
