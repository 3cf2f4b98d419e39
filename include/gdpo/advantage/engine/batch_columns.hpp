#pragma once
// Reads the columns of a batch for policies that read its statistics: the used values group after
// group, and the moments of each group. No policy is called here, so that a program compiles this
// once for all estimators. Where nothing is missing, groups go side by side in lanes, as in
// side_by_side.hpp; the others are gathered one by one.
#include <gdpo/advantage/engine/lane_reader.hpp>
#include <gdpo/advantage/shared/batch_step.hpp>
#include <gdpo/advantage/shared/group_rules.hpp>
#include <gdpo/advantage/shared/group_spreads.hpp>
#include <gdpo/group/borrowed.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What is known about the values of a column in a group: as GroupStat says it.
enum class GroupValues : unsigned char { Differ, Degenerate, Unknown };

/// Where the arrays of ColumnScratch stand, and what is written of them.
struct BatchColumns {
  ColumnScratch& work;
  index_t columns, groups, stride;
  BatchParts parts;

  /// Makes room. starts: where each unit of groups begins among the rows.
  BatchColumns(ColumnScratch& scratch, index_t column_count, index_t group_count, index_t rows,
               const BatchParts& needed)
      : work(scratch),
        columns(column_count),
        groups(group_count),
        stride(rows + 64),  // not a power of two, so that columns do not share lines of a cache
        parts(needed) {
    const index_t L = lanes_of(columns), padded = (columns + L - 1) / L * L;
    if (keeps_values()) work.raw.resize(as_size(padded * stride));
    if (parts.centered) work.centered.resize(as_size(columns * stride));
    work.sizes.resize(as_size(columns * groups));
    work.squares.resize(as_size(columns * groups));
    if (!parts.centered) return;
    work.means.resize(as_size(columns * groups));
    work.low_means.resize(as_size(columns * groups));
    work.states.resize(as_size(columns * groups));
  }
  bool keeps_values() const { return parts.raw || parts.nonzero || parts.centered; }
  double* raw(index_t c) const { return work.raw.data() + c * stride; }
  double* centered(index_t c) const { return work.centered.data() + c * stride; }
  /// The values of column c in unit u; before close_gaps() there are gaps between the units.
  index_t& count(index_t u, index_t c) const { return work.counts[as_size(u * columns + c)]; }

  /// Writes the moments of group g in column c.
  GDPO_HOST_INLINE void keep(index_t g, index_t c, index_t n, double squares, double mean,
                             double low, GroupValues state) const {
    const std::size_t i = as_size(c * groups + g);
    work.sizes[i] = static_cast<double>(n);
    work.squares[i] = squares;
    if (parts.centered)
      work.means[i] = mean, work.low_means[i] = low,
      work.states[i] = static_cast<unsigned char>(state);
  }
  /// The moments of group g in column c, without the range.
  GroupStat stat(index_t g, index_t c) const {
    const std::size_t i = as_size(c * groups + g);
    GroupStat s;
    s.n = static_cast<index_t>(work.sizes[i]);
    s.weight = work.sizes[i];
    s.mean = work.means[i], s.mean_low = work.low_means[i];
    s.unknown = work.states[i] == static_cast<unsigned char>(GroupValues::Unknown);
    s.degenerate = work.states[i] == static_cast<unsigned char>(GroupValues::Degenerate);
    s.m2 = s.unknown ? math::nan() : work.squares[i];
    return s;
  }

  /// Moves the values of each column together, and turns the counts into where the values of a unit
  /// begin. Writes how many values each column has.
  void close_gaps(std::vector<BatchStat>& stats) const {
    const index_t units = static_cast<index_t>(work.starts.size()) - 1;
    for (index_t c = 0; c < columns; ++c) {
      index_t end = 0;
      for (index_t u = 0; u < units; ++u) {
        const index_t n = count(u, c), start = work.starts[as_size(u)];
        if (keeps_values() && start != end) std::copy_n(raw(c) + start, n, raw(c) + end);
        count(u, c) = end;
        end += n;
      }
      stats[as_size(c)].used = end;
    }
  }
};

/// How many of n numbers are not 0.
GDPO_NOINLINE inline index_t nonzero_of(const double* x, index_t n) {
  index_t count = 0;
  for (index_t i = 0; i < n; ++i) count += x[i] != 0;
  return count;
}

/// Reads groups into BatchColumns, with the scratch memory of one worker.
template <class T, class Groups, bool sums_first>
class ColumnReader {
  using Order = typename Groups::Order;

 public:
  /// lanes: groups may go side by side. refuses_one: a group with one used value is an error.
  ColumnReader(const BatchColumns& columns, const RewardBatch<T, Groups>& batch,
               const LaneReader<T, Groups, sums_first>& reader, const EstimatorScratch& work,
               GroupScratch& scratch, bool lanes, bool refuses_one)
      : columns_(columns),
        batch_(batch),
        reader_(reader),
        work_(work),
        scratch_(scratch),
        lanes_(lanes && !batch.valid && !work.used_rewards.empty()),
        seq_(!lanes),
        refuses_one_(refuses_one) {}

  /// Reads the groups first .. last - 1, which are unit u. Returns false where one is refused.
  bool read(index_t u, index_t first, index_t last) {
    start_ = columns_.work.starts[as_size(u)];
    counts_ = columns_.columns > 0 ? &columns_.count(u, 0) : nullptr;
    std::fill_n(counts_, columns_.columns, index_t{0});
    refused_ = false;
    for (index_t g = first, n = 1; g < last; g += n) n = read_groups(g, last);
    return !refused_;
  }

 private:
  /// Reads groups from g on, and returns how many.
  index_t read_groups(index_t g, index_t last) {
    const index_t members = batch_.groups.length(g);
    if (!lanes_ || members < 2) return read_group(g), 1;
    return with_lanes(lanes_of(columns_.columns), [&](auto lanes) {
      constexpr int L = decltype(lanes)::value, P = side_by_side<L>;
      index_t n = 1;
      while (n < P && g + n < last && batch_.groups.length(g + n) == members) ++n;
      if constexpr (L == 1 || !sums_first) {
        if (read_packed<L, P>(g, static_cast<int>(n), members)) return n;
      }
      for (index_t p = 0; p < n; ++p) read_group(g + p);
      return n;
    });
  }

  /// Reads the groups g .. g + groups - 1 of `members` members each. False: a value is missing or
  /// infinite, or sums are close to their rounding.
  template <int L, int P>
  GDPO_NOINLINE bool read_packed(index_t g, int groups, index_t members) {
    constexpr int W = L * P;
    const auto row = [borrowed = BorrowedGroups<Groups>{batch_.groups}, g, groups](
                         int p, index_t k) { return borrowed.row(g + (p < groups ? p : 0), k); };
    double *block = scratch_.lanes.data(), *magnitudes = block + members * W,
           *rewards = magnitudes + members * W;
    typename GroupLanes<W>::Stat stat;
    math::Mask<W> equal;
    for (index_t first = 0; first < columns_.columns; first += L) {
      if constexpr (sums_first) {
        reader_.lane_sums(row, members, rewards, block, magnitudes);
        for (index_t i = 0; reader_.changes_sums() && i < members * W; ++i)
          block[i] =
              reader_.changed_sum(row(static_cast<int>(i % W), i / W), block[i], magnitudes[i]);
      } else {
        reader_.template load_lanes<L, P>(row, members, first, block);
      }
      if (!lane_stat<Order, W>(Order{}, block, members, stat, equal)) return false;
      if constexpr (sums_first) {
        if (!sums_clearly_differ(equal, stat, magnitudes, reader_.terms())) return false;
      }
      keep_packed<L, P>(g, groups, first, block, stat, equal);
    }
    for (index_t c = 0; c < columns_.columns; ++c) counts_[c] += groups * members;
    return true;
  }

  /// Writes the values and moments of packed groups.
  template <int L, int P>
  void keep_packed(index_t g, int groups, index_t first, const double* block,
                   const typename GroupLanes<L * P>::Stat& stat,
                   const math::Mask<L * P>& equal) const {
    constexpr int W = L * P;
    double squares[W], mean[W], low[W], differ[W];
    stat.m2.store(squares);
    stat.mean.store(mean);
    stat.mean_low.store(low);
    select(equal, math::Pack<W>::all(0.0), math::Pack<W>::all(1.0)).store(differ);
    const index_t members = stat.n, lanes = (std::min<index_t>)(L, columns_.columns - first);
    index_t target[W];
    for (int p = 0; p < groups; ++p) {
      for (int j = 0; j < L; ++j) {
        const int i = p * L + j;
        const index_t c = first + j;
        target[i] = c * columns_.stride + start_ + (j < lanes ? counts_[c] : 0) + p * members;
        if (j >= lanes) continue;
        columns_.keep(g + p, c, members, squares[i], mean[i], low[i],
                      differ[i] != 0 ? GroupValues::Differ : GroupValues::Degenerate);
      }
    }
    if (columns_.keeps_values())
      write_runs<W>(block, members, groups * L, target, columns_.work.raw.data());
  }

  /// Reads all columns of group g, one number at a time.
  GDPO_NOINLINE void read_group(index_t g) {
    const index_t members = batch_.groups.length(g);
    const auto row = [this, g](index_t k) { return batch_.groups.row(g, k); };
    double* const x = scratch_.column.data();
    for (index_t c = 0; c < columns_.columns; ++c) {
      if constexpr (sums_first) {
        reader_.weighted_sums(row, members, seq_ ? nullptr : scratch_.lanes.data(), x,
                              scratch_.magnitudes.data());
      } else {
        for (index_t k = 0; k < members; ++k)
          x[k] = reader_(row(k), work_.used_rewards[as_size(c)]);
      }
      double* const values =
          columns_.keeps_values() ? columns_.raw(c) + start_ + counts_[c] : scratch_.values.data();
      index_t n = 0;
      double magnitude = 0;
      for (index_t k = 0; k < members; ++k) {
        if (batch_.valid && batch_.valid(row(k)) == 0) continue;
        if (sums_first) magnitude = (math::max)(magnitude, scratch_.magnitudes[as_size(k)]);
        if (!reader_.skips() || !math::is_nan(x[k])) values[n++] = x[k];
      }
      GroupStat stat = group_stat(Order{}, values, n);
      if (sums_first) equate_sums(stat, reader_.terms(), magnitude);
      counts_[c] += n;
      refused_ = refused_ || (n == 1 && refuses_one_);
      columns_.keep(g, c, n, squares_of(stat), stat.mean, stat.mean_low,
                    stat.unknown      ? GroupValues::Unknown
                    : stat.degenerate ? GroupValues::Degenerate
                                      : GroupValues::Differ);
    }
  }

  const BatchColumns& columns_;
  const RewardBatch<T, Groups>& batch_;
  const LaneReader<T, Groups, sums_first>& reader_;
  const EstimatorScratch& work_;
  GroupScratch& scratch_;
  const bool lanes_, seq_, refuses_one_;
  // The unit at hand.
  index_t start_ = 0;
  index_t* counts_ = nullptr;
  bool refused_ = false;
};

/// Repeats numbers of columns for packs of groups: for each block of L columns and each of the
/// `count` numbers of a column, L lanes for every row that goes side by side. numbers: (columns,
/// count).
GDPO_NOINLINE inline void spread_numbers(const double* numbers, int count, index_t columns, int L,
                                         std::vector<double>& lanes) {
  const int W = L * rows_side_by_side(L);
  lanes.clear();
  for (index_t first = 0; first < columns; first += L) {
    for (int i = 0; i < count; ++i) {
      for (int lane = 0; lane < W; ++lane) {
        const index_t c = first + lane % L;
        lanes.push_back(c < columns ? numbers[c * count + i] : 0.0);
      }
    }
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
