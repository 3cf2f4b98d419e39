#pragma once
// Reads the columns of a batch for policies that read its statistics: the used values group after
// group, and the moments of each group. No policy is called here, so that a program compiles this
// once for all estimators. Groups go side by side in lanes, as in side_by_side.hpp; those that do
// not are gathered one by one.
#include <gdpo/advantage/engine/lane_packs.hpp>
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

  /// Makes room.
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
  /// Where the values of group g begin, until close_gaps().
  double* place(index_t g, index_t c) const { return raw(c) + work.begins[as_size(g)]; }
  /// The values of column c in unit u; after close_gaps(), where they begin.
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

  /// Moves the values of each column together, and writes how many they are.
  void close_gaps(const GroupUnits& units, std::vector<BatchStat>& stats) const {
    for (index_t c = 0; c < columns; ++c) {
      index_t end = 0;
      for (index_t u = 0; u < units.count(); ++u) {
        const index_t first = units.begin(u), last = units.end(u), n = count(u, c),
                      begin = work.begins[as_size(first)];
        const bool gaps = n != work.begins[as_size(last)] - begin;
        if (keeps_values() && gaps) {
          double* target = raw(c) + end;
          for (index_t g = first; g < last; ++g) {
            const auto values = static_cast<index_t>(work.sizes[as_size(c * groups + g)]);
            target = std::copy_n(place(g, c), values, target);
          }
        } else if (keeps_values() && begin != end) {
          std::copy_n(raw(c) + begin, n, raw(c) + end);
        }
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
template <class T, class Groups>
class ColumnReader : LanePacks<T, Groups> {
  using Base = LanePacks<T, Groups>;
  using Base::scratch_, Base::columns_, Base::lanes_, Base::groups_, Base::reader_, Base::batch_,
      Base::work_, Base::sums_first_;
  using typename Base::Order;

 public:
  /// lanes: groups may go side by side. compares: a group of one has a rule of its own, and is an
  /// error if refuses_one.
  ColumnReader(const BatchColumns& target, const RewardBatch<T, Groups>& batch,
               const LaneReader<T, Groups>& reader, EstimatorScratch& work, GroupScratch& scratch,
               bool lanes, bool compares, bool refuses_one)
      : Base(reader, batch, work, scratch, nullptr, target.columns,
             {false, compares, false, false, !refuses_one}),
        target_(target),
        lanes_asked_(lanes),
        refuses_one_(refuses_one) {}

  /// Reads the groups first .. last - 1, which are unit u. Returns false where one is refused.
  bool read(index_t u, index_t first, index_t last) {
    complete_ = true, refused_ = false;
    if (lanes_asked_ && !work_.used_rewards.empty()) {
      read_packs(first, last);
    } else {
      for (index_t g = first; g < last; ++g) read_group(g);
    }
    const std::vector<index_t>& begins = target_.work.begins;
    for (index_t c = 0; c < columns_; ++c) {
      const double* const sizes = target_.work.sizes.data() + c * target_.groups;
      index_t& n = target_.count(u, c);
      n = complete_ ? begins[as_size(last)] - begins[as_size(first)] : 0;
      for (index_t g = first; !complete_ && g < last; ++g) n += static_cast<index_t>(sizes[g]);
    }
    return !refused_;
  }

 private:
  void read_packs(index_t first, index_t last) {
    index_t tiny = 0, *const list = scratch_.group_lists.data();
    const index_t n = this->list_groups(first, last, list, tiny);
    LanePack packs[Base::most_packs];
    this->place(packs);
    for (index_t i = 0; i < n;) {
      int count = 0;
      for (; count < Base::most_packs && i < n; ++count)
        i += this->start(packs[count], list + i, n - i);
      for (index_t block = 0; block < columns_; block += lanes_) {
        for (int s = 0; s < count; ++s) this->load(packs[s], block);
        for (int s = 0; s < count; ++s) this->find_moments(packs[s], block);
        for (int s = 0; s < count; ++s) keep(packs[s], block);
      }
      for (int s = 0; s < count; ++s) {
        for (int p = 0; packs[s].declines && p < packs[s].groups; ++p) {
          if (packs[s].declined[p]) read_group(packs[s].number[p]);
        }
      }
    }
    for (index_t i = n; i < n + tiny; ++i) read_group(list[i]);
  }

  /// Writes the values and moments of a block of columns.
  void keep(const LanePack& pack, index_t first) {
    const int columns = this->columns_from(first);
    for (int p = 0; p < pack.groups; ++p) {
      for (int j = 0; j < columns; ++j) {
        const int i = p * lanes_ + j;
        const index_t n = pack.uneven ? static_cast<index_t>(pack.count[i]) : pack.members;
        target_.keep(pack.number[p], first + j, n, n < 2 ? 0.0 : pack.m2[i], pack.mean[i],
                     pack.mean_low[i],
                     pack.equal[i] != 0 ? GroupValues::Degenerate : GroupValues::Differ);
      }
    }
    complete_ = complete_ && !pack.uneven;
    if (!target_.keeps_values()) return;
    pack.uneven ? keep_known(pack, first) : keep_runs(pack, first);
  }
  /// Writes the values of a pack without gaps.
  void keep_runs(const LanePack& pack, index_t first) const {
    index_t begin[most_lanes], lengths[most_lanes];
    const int used = pack.groups * lanes_;
    for (int i = 0; i < used; ++i) {
      const index_t c = first + i % lanes_;
      begin[i] = c * target_.stride + target_.work.begins[as_size(pack.number[i / lanes_])];
      lengths[i] = pack.members;
    }
    write_runs(pack.block, this->width(), used, pack.members, pack.members, lengths, begin,
               target_.work.raw.data());
  }
  /// Writes the values that are not NaN.
  GDPO_NOINLINE void keep_known(const LanePack& pack, index_t first) const {
    const int width = this->width();
    for (int p = 0; p < pack.groups; ++p) {
      for (int j = 0; j < this->columns_from(first); ++j) {
        double* values = target_.place(pack.number[p], first + j);
        const double* x = pack.block + p * lanes_ + j;
        for (index_t k = 0; k < pack.length[p]; ++k, x += width) {
          *values = *x;
          values += !math::is_nan(*x);
        }
      }
    }
  }

  /// Reads all columns of group g, one number at a time.
  GDPO_NOINLINE void read_group(index_t g) {
    const index_t members = batch_.groups.length(g);
    const auto row = [this, g](index_t k) { return batch_.groups.row(g, k); };
    double* const x = scratch_.column.data();
    for (index_t c = 0; c < columns_; ++c) {
      if (sums_first_) {
        reader_.weighted_sums(g, members, lanes_asked_ ? scratch_.lanes.data() : nullptr, x,
                              scratch_.magnitudes.data());
      } else {
        for (index_t k = 0; k < members; ++k)
          x[k] = reader_(row(k), work_.used_rewards[as_size(c)]);
      }
      double* const values = target_.keeps_values() ? target_.place(g, c) : scratch_.values.data();
      index_t n = 0;
      double magnitude = 0;
      for (index_t k = 0; k < members; ++k) {
        if (batch_.valid && batch_.valid(row(k)) == 0) continue;
        if (sums_first_) magnitude = (math::max)(magnitude, scratch_.magnitudes[as_size(k)]);
        if (!this->missing(x[k])) values[n++] = x[k];
      }
      GroupStat stat = group_stat(Order{}, values, n);
      if (sums_first_) detail::equate_sums(stat, reader_.terms(), magnitude);
      complete_ = complete_ && n == members;
      refused_ = refused_ || (n == 1 && refuses_one_);
      target_.keep(g, c, n, squares_of(stat), stat.mean, stat.mean_low,
                   stat.unknown      ? GroupValues::Unknown
                   : stat.degenerate ? GroupValues::Degenerate
                                     : GroupValues::Differ);
    }
  }

  const BatchColumns& target_;
  const bool lanes_asked_, refuses_one_;
  bool complete_ = true,  ///< Every row of the unit has a value in every column.
      refused_ = false;   ///< The unit has a group that is refused.
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
