#pragma once

#include <istream>
#include <string>
#include <utility>
#include <vector>

#include "formats.hpp"

namespace resolution {

/// The names of the columns that are read.
struct Columns {
  /// Rows of one batch that agree in all of them are a group; none: `group_size` says what one is.
  std::vector<std::string> group;
  std::vector<std::string> rewards;
  std::string length;              ///< empty where no column has lengths
  std::vector<std::string> batch;  ///< rows that agree in all of them are a batch; none: one batch
  bool file_is_batch = false;      ///< rows of different files are different batches
  /// Where `group` is empty: so many rows of a batch that follow each other in a file are a group.
  std::size_t group_size = 0;
  /// A row in which this column is 0 or false, as padding is, is left out; empty: there is none.
  std::string valid{};
  /// Words that stand for a missing reward or length, beside the usual ones (spells_missing()).
  std::vector<std::string> missing{};
};

/// How a log is written.
struct Reading {
  Format format = Format::Auto;
  char delimiter = '\0';  ///< of CSV; 0: found out from the header
};

/// Consecutive rows, groups or batches: begin .. end - 1.
struct Range {
  std::size_t begin;
  std::size_t end;
  std::size_t size() const { return end - begin; }
};

/// A log of rollouts: N completions with C rewards each. The rows of a batch stand together, and in
/// it the rows of a group. Batches stand in the order of their numbers (order_of_batches()), groups
/// of a batch and rows of a group in that of the log.
struct Rollouts {
  std::string file;  ///< name of the file without its folder, or "3 files, the first is a.jsonl"
  std::vector<std::string> reward_names;
  std::vector<double> rewards;             ///< (N, C) row-major; NaN where missing
  std::vector<std::size_t> group_begin;    ///< (groups + 1) first row of each group, then N
  std::vector<std::string> group_names;    ///< (groups) as in the log, printable and cut
  std::vector<std::size_t> batch_begin;    ///< (batches + 1) first group of each batch, then groups
  std::vector<std::string> batch_names;    ///< (batches)
  std::vector<std::string> batch_columns;  ///< empty: the whole log is one batch
  /// Columns of the log that look as if they told training steps or runs apart, and are not used.
  std::vector<std::string> unused_step_columns;
  /// Where JSON objects held several completions of one group: the column of numbers that was a
  /// list, and the number of objects. Else empty.
  std::string list_column;
  std::size_t records = 0;
  std::string length_name;
  /// (N) length, at least 1; NaN in a row that has neither rewards nor a length; empty without a
  /// length column.
  std::vector<double> lengths;
  std::size_t group_size = 0;     ///< Columns::group_size
  std::size_t left_out = 0;       ///< rows that Columns::valid left out, which are not among the N
  std::size_t shared_groups = 0;  ///< groups with rows of several files
  /// Files whose rows are, cell for cell, those of a file before: each with that file.
  std::vector<std::pair<std::string, std::string>> repeated_files;

  std::size_t rows() const { return group_begin.back(); }
  std::size_t reward_count() const { return reward_names.size(); }
  std::size_t groups() const { return group_names.size(); }
  std::size_t batches() const { return batch_names.size(); }
  /// The rows of a group.
  Range rows_of(std::size_t group) const { return {group_begin[group], group_begin[group + 1]}; }
  /// The groups of a batch.
  Range groups_of(std::size_t batch) const { return {batch_begin[batch], batch_begin[batch + 1]}; }
  /// The rows of a batch.
  Range rows_of_batch(std::size_t batch) const {
    return {group_begin[batch_begin[batch]], group_begin[batch_begin[batch + 1]]};
  }
  double reward(std::size_t row, std::size_t k) const { return rewards[row * reward_count() + k]; }
  /// The name of a group for messages, with that of its batch where there are several.
  std::string group_name(std::size_t group) const;
};

/// Reads a log from a stream that messages call `name`. A group is told by any text or number; its
/// rows need not stand together. A reward that is empty or a word such as null or NaN is missing.
///
/// Throws UserError for what the readers refuse, for a file without completions and for one in
/// which every reward is missing. Cells that are wrong are collected to the end of the log, and one
/// UserError has them, with lines and columns: a reward that is no number, an empty group or batch
/// cell, a negative length, and an empty one where the row has a reward. With `group_size`, a file
/// whose batch ends inside a group is refused.
Rollouts read_rollouts(std::istream& stream, const std::string& name, const Reading& reading,
                       const Columns& columns);

/// The same from files, one behind the other, or from standard input where there is no path. A path
/// "-" is standard input. Throws UserError where two paths are one file.
Rollouts read_rollouts_files(const std::vector<std::string>& paths, const Reading& reading,
                             const Columns& columns);

}  // namespace resolution
