#pragma once
// gather_rows: the rewards and groups of all ranks on each rank.
#include <array>
#include <gdpo/advantage/reward_batch.hpp>
#include <gdpo/dist/agree.hpp>
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <memory>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The groups of a rank as the numbers it sends, and the groups of all ranks made from the numbers
/// of all. Groups of consecutive rows stay whole: those of rank 0 come first, then those of rank 1.
template <class Groups>
struct GroupsMessage;
template <>
struct GroupsMessage<GroupsOf> {  // no numbers: the size is a setting
  using All = GroupsOf;
  static std::string words(const GroupsOf& groups) {
    return "groups_of(" + std::to_string(groups.size) + ")";
  }
  static std::vector<std::int64_t> numbers(const GroupsOf&, index_t) { return {}; }
  static All all(const GroupsOf& local, const std::vector<std::int64_t>&, std::vector<index_t>&) {
    return local;
  }
};
template <class Index>
struct GroupsMessage<ByOffsets<Index>> {  // the length of each group
  using All = ByOffsets<index_t>;
  static std::string words(const ByOffsets<Index>& groups) {
    return "by_offsets, expected_size " + std::to_string(groups.expected_size);
  }
  static std::vector<std::int64_t> numbers(const ByOffsets<Index>& groups, index_t rows) {
    std::vector<std::int64_t> lengths;
    for (index_t g = 0; g < groups.count(rows); ++g) lengths.push_back(groups.length(g));
    return lengths;
  }
  static All all(const ByOffsets<Index>& local, const std::vector<std::int64_t>& lengths,
                 std::vector<index_t>& offsets) {
    offsets.assign(1, 0);
    for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
    return {gdpo::view(std::as_const(offsets)), local.expected_size};
  }
};
template <>
struct GroupsMessage<ById> {  // the id of each row
  using All = ById;
  static std::string words(const ById& groups) {
    return "by_id, expected_size " + std::to_string(groups.expected_size());
  }
  static std::vector<std::int64_t> numbers(const ById& groups, index_t rows) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(rows));
    for (index_t g = 0; g < groups.count(rows); ++g) {
      for (index_t k = 0; k < groups.length(g); ++k)
        ids[static_cast<std::size_t>(groups.row(g, k))] = groups.ids()(g);
    }
    return ids;
  }
  static All all(const ById& local, const std::vector<std::int64_t>& ids, std::vector<index_t>&) {
    return by_id(ids, local.expected_size());
  }
};

/// The type of the keys where there are none.
enum class NoKey : unsigned char {};
/// What a rank sends ahead of its rows.
struct RowsHeader {
  index_t rows, rewards;
  index_t numbers;        // how many GroupsMessage has for them
  std::uint64_t columns;  // bit j: column j of the list is there
};

}  // namespace detail

namespace dist {

/// The rows of all ranks, and where the own ones are among them; made by `gather_rows`.
/// It owns its memory and is moved, not copied. One that has been moved from has no rows, and its
/// batch() throws invalid_input.
template <class T, class Groups>
class GatheredRows {
 public:
  /// Whether the groups may have rows on several ranks, as those by id may.
  static constexpr bool may_split = std::is_same_v<Groups, ById>;
  using AllGroups = typename detail::GroupsMessage<Groups>::All;  ///< Groups of all rows.

  /// All rows, for advantages_into() and everything else that takes a batch. It refers to the
  /// memory of this object, which must outlive it.
  RewardBatch<T, AllGroups> batch() const& {
    if (!groups_)
      contract::fail("gdpo::dist::GatheredRows::batch", "object", "one that has been moved from",
                     "one that holds rows");
    RewardBatch<T, AllGroups> all{gdpo::view<const T>(rewards_.get(), rows(), reward_count_),
                                  *groups_};
    for (std::size_t j = 0; j < columns_.size(); ++j) {
      const auto column = gdpo::detail::reward_columns<RewardBatch<T, AllGroups>>[j].of_batch;
      if (column_bits_ >> j & 1) all.*column = gdpo::view(columns_[j]);
    }
    return all;
  }
  RewardBatch<T, AllGroups> batch() && = delete;  ///< Deleted: it would refer to freed memory.

  /// The number of rows of all ranks.
  index_t rows() const { return static_cast<index_t>(rank_of_.size()); }
  /// Where the own rows stand in batch(), (rows of this rank).
  const std::vector<index_t>& own_rows() const& { return local_rows_; }
  const std::vector<index_t>& own_rows() && = delete;  ///< Deleted: it would refer to freed memory.
  /// The rank that each row came from, (rows).
  const std::vector<int>& rank_of() const& { return rank_of_; }
  const std::vector<int>& rank_of() && = delete;  ///< Deleted: it would refer to freed memory.
  /// 1 for each group that has rows on more than one rank, (groups).
  const std::vector<unsigned char>& split() const& { return split_; }
  const std::vector<unsigned char>& split() && = delete;  ///< Deleted, as above.
  /// How many groups have rows on more than one rank.
  index_t split_groups() const { return std::count(split_.begin(), split_.end(), 1); }
  /// The groups that have another number of rows than `size`: completions got lost, or a prompt was
  /// sampled twice.
  std::vector<index_t> incomplete_groups(index_t size) const {
    std::vector<index_t> groups;
    for (index_t g = 0; groups_ && g < groups_->count(rows()); ++g) {
      if (groups_->length(g) != size) groups.push_back(g);
    }
    return groups;
  }

  /// The entries of the own rows, in the order in which this rank has them.
  template <class R>
  std::vector<R> own(const std::vector<R>& all) const {
    std::vector<R> mine(local_rows_.size());
    own_into(gdpo::view(all), gdpo::view(mine));
    return mine;
  }
  /// The same into `out`, with one entry for each own row.
  template <class R>
  void own_into(View<R, 1> all, View<std::remove_const_t<R>, 1> out) const {
    constexpr const char* function = "gdpo::dist::GatheredRows::own_into";
    check_size(function, "all", all, rows(), "rows of all ranks");
    check_size(function, "out", out, static_cast<index_t>(local_rows_.size()), "own rows");
    contract::check_apart(function, "out", 1, out.extent, out.stride);
    for (std::size_t i = 0; i < local_rows_.size(); ++i)
      out(static_cast<index_t>(i)) = all(local_rows_[i]);
  }

  /// Makes the rows of all ranks from what they have sent; gather_rows() calls it.
  GatheredRows(const char* function, const gdpo::detail::Records& records, int rank,
               const RewardBatch<T, Groups>& local, bool has_keys) {
    using namespace gdpo::detail;
    const std::vector<RowsHeader> headers = read_headers(function, records);
    std::vector<index_t> first(headers.size() + 1, 0);  // the first row of each rank
    for (std::size_t r = 0; r < headers.size(); ++r) first[r + 1] = first[r] + headers[r].rows;
    const auto n = static_cast<std::size_t>(first.back());
    const auto width = static_cast<std::size_t>(reward_count_);

    std::vector<std::int64_t> numbers, keys(has_keys ? n : 0);
    rewards_.reset(new T[n * width]);
    rank_of_.resize(n);
    for (std::size_t j = 0; j < columns_.size(); ++j)
      columns_[j].resize(column_bits_ >> j & 1 ? n : 0);
    for (std::size_t r = 0; r < headers.size(); ++r) {
      const auto target = as_size(first[r]), count = as_size(headers[r].rows),
                 offset = numbers.size();
      RecordReader reader(records, static_cast<int>(r));
      reader.get<RowsHeader>();
      numbers.resize(offset + as_size(headers[r].numbers));
      reader.get(numbers.data() + offset, as_size(headers[r].numbers));
      if (count == 0) continue;
      if (has_keys) reader.get(keys.data() + target, count);
      for (auto& column : columns_) {
        if (!column.empty()) reader.get(column.data() + target, count);
      }
      reader.get(rewards_.get() + target * width, count * width);
      std::fill_n(rank_of_.begin() + first[r], count, static_cast<int>(r));
    }
    std::vector<index_t> place(n);  // where the rows stand, in the order in which they came
    for (std::size_t i = 0; i < n; ++i) place[i] = static_cast<index_t>(i);
    if (has_keys) sort_by_keys(function, numbers, keys, place);
    local_rows_.assign(place.begin() + first[as_size(rank)],
                       place.begin() + first[as_size(rank) + 1]);
    groups_ =
        std::make_unique<AllGroups>(GroupsMessage<Groups>::all(local.groups, numbers, offsets_));
    find_split_groups();
  }

 private:
  static std::size_t as_size(index_t i) { return static_cast<std::size_t>(i); }

  template <class V>
  static void check_size(const char* function, const char* name, const V& v, index_t needed,
                         const char* what) {
    contract::check_array(function, name, v);
    if (v.extent[0] != needed) {
      contract::fail(function, name, contract::text(v.extent[0]) + " entries",
                     contract::text(needed) + ", one for each of the " + what);
    }
  }

  /// Reads how many rows each rank has, and refuses ranks with rows of different kinds. A rank
  /// without rows is not compared.
  std::vector<gdpo::detail::RowsHeader> read_headers(const char* function,
                                                     const gdpo::detail::Records& records) {
    using namespace gdpo::detail;
    std::vector<RowsHeader> headers;
    std::size_t first = 0;
    bool has_reference = false;
    for (int r = 0; r < records.ranks(); ++r) {
      headers.push_back(RecordReader(records, r).get<RowsHeader>());
      const RowsHeader &header = headers.back(), &reference = headers[first];
      if (header.rows == 0) continue;
      if (!has_reference) first = headers.size() - 1, has_reference = true;
      if (header.rewards != headers[first].rewards) {
        fail_between(function, "rewards", std::to_string(reference.rewards) + " rewards", first,
                     std::to_string(header.rewards), headers.size() - 1,
                     "the same rewards on all ranks");
      }
      if (header.columns != headers[first].columns) {
        fail_between(function, "batch", column_names(reference.columns), first,
                     column_names(header.columns), headers.size() - 1,
                     "the same columns on all ranks that have rows");
      }
    }
    reward_count_ = headers[first].rewards, column_bits_ = headers[first].columns;
    return headers;
  }
  static std::string column_names(std::uint64_t bits) {
    std::string names;
    for (std::size_t j = 0; j < gdpo::detail::reward_column_count; ++j) {
      if (bits >> j & 1) {
        names += (names.empty() ? "" : ", ") +
                 std::string(gdpo::detail::reward_columns<RewardBatch<T, Groups>>[j].name);
      }
    }
    return names.empty() ? "no columns" : names;
  }

  /// Puts the rows in the order of (group, key), and writes into `place` where each of them went.
  void sort_by_keys(const char* function, std::vector<std::int64_t>& ids,
                    const std::vector<std::int64_t>& keys, std::vector<index_t>& place) {
    std::vector<std::size_t> order(keys.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return keys[a] != keys[b] ? keys[a] < keys[b] : a < b;
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (keys[order[i]] != keys[order[i - 1]]) continue;
      contract::fail(function, "keys",
                     "the key " + std::to_string(keys[order[i]]) + " for a row of rank " +
                         std::to_string(rank_of_[order[i - 1]]) + " and one of rank " +
                         std::to_string(rank_of_[order[i]]),
                     "a key of its own for every row of all ranks");
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return ids[a] < ids[b]; });
    const auto arrange = [&](auto& values) {
      auto sorted = values;
      for (std::size_t i = 0; i < values.size(); ++i) sorted[i] = values[order[i]];
      values = std::move(sorted);
    };
    arrange(ids), arrange(rank_of_);
    for (auto& column : columns_) arrange(column);
    const auto width = static_cast<std::size_t>(reward_count_);
    std::unique_ptr<T[]> sorted(new T[order.size() * width]);
    for (std::size_t i = 0; i < order.size(); ++i) {
      place[order[i]] = static_cast<index_t>(i);
      std::copy_n(rewards_.get() + order[i] * width, width, sorted.get() + i * width);
    }
    rewards_ = std::move(sorted);
  }

  void find_split_groups() {
    split_.assign(as_size(groups_->count(rows())), 0);
    for (index_t g = 0; g < groups_->count(rows()); ++g) {
      for (index_t k = 1; k < groups_->length(g); ++k) {
        if (rank_of_[as_size(groups_->row(g, k))] != rank_of_[as_size(groups_->row(g, 0))])
          split_[as_size(g)] = 1;
      }
    }
  }

  index_t reward_count_ = 0;
  std::uint64_t column_bits_ = 0;  // bit j: column j of the list is there
  std::unique_ptr<T[]> rewards_;
  std::array<std::vector<double>, gdpo::detail::reward_column_count> columns_;
  std::vector<int> rank_of_;
  std::vector<index_t> local_rows_, offsets_;
  std::vector<unsigned char> split_;
  std::unique_ptr<AllGroups> groups_;  // those by offsets refer to offsets_
};

/// Gathers the rows of all ranks: rewards, groups and every column of the batch.
///
///     const auto all = gdpo::dist::gather_rows(comm, batch, gdpo::view(keys));
///     const auto every = gdpo::advantages(gdpo::simd, all.batch(), estimator, &report);
///     const std::vector<float> mine = all.own(every);
///
/// Every rank then computes the advantages of all rows and keeps its own. So every estimator is
/// exact over ranks, also where it reads the whole batch, and so is its report. The rows are small:
/// sizeof(T) for each reward, and 8 bytes each for the id, the key and every column.
///
/// batch: the rows of this rank, also none. With by_id the ids are those of all ranks: a group may
/// have rows on any of them. (Leave its expected_size out where prompts are split, because by_id()
/// checks it on the own rows; GatheredRows::incomplete_groups() tells it of all.) With groups_of
/// and by_offsets a group is whole on one rank, and all ranks have groups_of the same size; the
/// groups of rank 0 come first.
///
/// keys: (rows of this rank) a number for each row, read as a signed one of 64 bits, such as its
/// number in the sampler; only beside by_id. With keys the rows stand in the order of (group, key),
/// so the result has the bits of one call over the rows in that order, by_id, however they were
/// spread over ranks. Without keys they stand in the order of the ranks: every rank gets the same
/// bits, but another spread of the rows may give others.
///
/// Errors, the same on all ranks: invalid_input for a batch that does not fit on some rank, for
/// ranks with different rewards, columns, types or kinds of groups, and for two rows of one key.
/// Two messages: 64 bytes, then the rows, each rank's filled up to those of the rank with the most.
template <class Comm, class T, class Groups, class Key>
GatheredRows<T, Groups> gather_rows(const Comm& comm, const RewardBatch<T, Groups>& batch,
                                    View<Key, 1> keys) {
  using namespace gdpo::detail;
  constexpr const char* function = "gdpo::dist::gather_rows";
  static_assert(is_host_grouping_v<Groups>, "gather_rows takes groups_of, by_offsets or by_id");
  static_assert(std::is_integral_v<Key> || std::is_same_v<std::remove_const_t<Key>, NoKey>,
                "keys are integers");
  static_assert(std::is_same_v<Groups, ById> || !std::is_integral_v<Key>,
                "keys stand beside groups by id; other groups have an order of their own");
  static_assert(std::is_trivially_copyable_v<T>, "rewards travel as bytes");
  const index_t rows = batch.rewards.extent[0], reward_count = batch.rewards.extent[1];
  constexpr bool has_keys = std::is_integral_v<Key>;
  const Records records = exchange(function, comm, [&](Contribution& mine) {
    contract::check_array(function, "rewards", batch.rewards);
    batch.groups.check(function, rows);
    const std::vector<std::int64_t> numbers = GroupsMessage<Groups>::numbers(batch.groups, rows);
    RowsHeader header{rows, reward_count, static_cast<index_t>(numbers.size()), 0};
    check_column_sizes(function, batch);
    for (std::size_t j = 0; j < reward_column_count; ++j) {
      if (batch.*reward_columns<RewardBatch<T, Groups>>[j].of_batch)
        header.columns |= std::uint64_t{1} << j;
    }
    if constexpr (has_keys) {
      contract::check_array(function, "keys", keys);
      contract::check_entries(function, "keys", keys.extent[0], rows);
    }
    mine.settings = "rewards of " + type_name<T>() + ", " +
                    GroupsMessage<Groups>::words(batch.groups) +
                    (has_keys ? ", keys" : ", no keys");
    mine.put(&header, 1);
    mine.put(numbers.data(), numbers.size());
    if constexpr (has_keys) {
      for (index_t i = 0; i < rows; ++i) {
        const auto key = static_cast<std::int64_t>(keys(i));
        mine.put(&key, 1);
      }
    }
    for (const auto& entry : reward_columns<RewardBatch<T, Groups>>) {
      const Column& column = batch.*entry.of_batch;
      for (index_t i = 0; column && i < rows; ++i) {
        const double value = column(i);
        mine.put(&value, 1);
      }
    }
    for (index_t i = 0; i < rows; ++i) {
      for (index_t c = 0; c < reward_count; ++c) mine.put(&batch.rewards(i, c), 1);
    }
  });
  return GatheredRows<T, Groups>(function, records, comm.rank(), batch, has_keys);
}
/// The same for rows without keys.
template <class Comm, class T, class Groups>
GatheredRows<T, Groups> gather_rows(const Comm& comm, const RewardBatch<T, Groups>& batch) {
  return gather_rows(comm, batch, View<const gdpo::detail::NoKey, 1>{});
}

}  // namespace dist
GDPO_END_NAMESPACE
