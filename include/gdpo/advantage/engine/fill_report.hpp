#pragma once
// Fills in the GroupReport of a call.
#include <algorithm>
#include <cstddef>
#include <gdpo/advantage/engine/column_moments.hpp>
#include <gdpo/advantage/engine/evaluate.hpp>
#include <gdpo/advantage/engine/report_lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// One filling in of a report, except `degenerate`, which the evaluation has filled in. Where the
/// execution tag asks for lanes, groups of similar lengths go side by side; the others, and those
/// with an infinite reward, go one by one. Both give the same bits.
template <class T, class Groups>
class ReportFiller {
  using Order = typename Groups::Order;
  static constexpr index_t P = report_lanes;

 public:
  template <class Baseline, class Scale>
  ReportFiller(const RewardBatch<T, Groups>& batch,
               Evaluation<T, Groups, Baseline, Scale>& evaluation, EstimatorScratch& work,
               GroupReport& report)
      : batch_(batch),
        groups_{batch.groups},
        terms_(evaluation.terms()),
        lanes_(evaluation.lanes()),
        reader_(evaluation.reader()),
        work_(work),
        report_(report),
        memory_(evaluation.report_memory()),
        rules_{reader_.sums_first(), evaluation.one_factor, reader_.skips(),
               reader_.replaces_nan()} {}

  GDPO_NOINLINE void operator()() {
    prepare();
    describe_groups();
    describe_rewards();
    work_.centered.resize(as_size(next_sum_));
    report_.reward_sums = moments_of_rows(work_.centered);
    work_.raw.clear();
    for (const double std : report_.group_std) {
      if (!math::is_nan(std)) work_.raw.push_back(std);
    }
    report_.group_stds = moments(work_.raw);
    if (work_.combined.every_row) {
      report_.combined = moments_of_rows(work_.row_sums);
    } else {
      work_.raw.clear();
      for (index_t i = 0; i < memory_rows(); ++i) {
        if (counts(i)) work_.raw.push_back(work_.row_sums[as_size(i)]);
      }
      report_.combined = moments(work_.raw);
    }
    take_sums(memory_, work_, report_);
    derive(report_);
  }

 private:
  static Moments moments(const std::vector<double>& x) {
    return moments_of(Order{}, x.data(), nullptr, static_cast<index_t>(x.size()));
  }
  /// The same of many numbers, in two walks instead of three.
  Moments moments_of_rows(const std::vector<double>& x) {
    Moments m;
    if constexpr (std::is_same_v<Order, InRowOrder>) {
      ColumnWalk(static_cast<index_t>(x.size()), 1, work_.partial_sums)(
          x.data(), [&](index_t, const Moments& found) { m = found; });
    }
    return m.n > 0 ? m : moments(x);
  }
  index_t memory_rows() const { return batch_.rewards.extent[0]; }
  bool unused(index_t i) const { return batch_.valid && batch_.valid(i) == 0; }
  /// Whether a row counts in the statistics of sums and combined values.
  bool counts(index_t i) const {
    const RowState state = work_.state(i);
    return state == RowState::Counted || state == RowState::Lone;
  }

  void prepare() {
    const index_t rows = memory_rows(), groups = memory_.groups, rewards = memory_.rewards;
    GroupReport& r = report_;
    r.rows = rows;
    r.groups = groups;
    r.empty_groups = r.singletons = r.excluded_rewards = r.infinite_rewards = r.excluded_rows =
        r.unused_rows = r.flat_rows = 0;
    for (index_t i = 0; i < rows && !work_.combined.every_row; ++i) {
      r.unused_rows += unused(i);
      r.excluded_rows += !unused(i) && work_.state(i) == RowState::Excluded;
    }
    r.smallest_group = r.largest_group = groups > 0 ? groups_.length(0) : 0;
    for (index_t g = 0; g < groups; ++g) {
      r.smallest_group = (std::min)(r.smallest_group, groups_.length(g));
      r.largest_group = (std::max)(r.largest_group, groups_.length(g));
    }
    r.rewards.assign(as_size(rewards), RewardReport{});
    r.reward_degenerate.resize(as_size(groups * rewards));
    r.reward_group_std.resize(as_size(groups * rewards));
    r.group_std.resize(as_size(groups));
    r.group_squares.resize(as_size(groups));
    work_.centered.resize(as_size(rows));  // collects the reward sums of the batch
  }

  // ---- groups -----------------------------------------------------------------------------------

  void describe_groups() {
    ReportPack<Order> pack(memory_, rules_, work_, report_);
    const bool lanes = lanes_ && memory_.lanes() > 1;
    for (index_t g = 0; g < memory_.groups;) {
      const index_t first_sum = next_sum_;
      pack.groups = 1;
      if (lanes && read(g, pack) && pack.describe()) {
        const bool asks = rules_.asks() && work_.used_rewards.size() > 1;
        for (index_t p = 0; p < pack.groups && asks; ++p) {
          if (report_.degenerate[as_size(g + p)]) continue;
          add_explained(read_group(g + p), rules_, terms_);
        }
      } else {
        next_sum_ = first_sum;
        for (index_t p = 0; p < pack.groups; ++p) describe_group(g + p);
      }
      g += pack.groups;
    }
  }

  /// The arrays of one group.
  GroupTable read_group(index_t g) {
    const index_t members = groups_.length(g);
    const GroupTable table{memory_, work_, g, members};
    for (index_t c = 0; c < memory_.rewards; ++c) {
      for (index_t k = 0; k < members; ++k) {
        const index_t i = groups_.row(g, k);
        double &given = table.given(c)[k] = math::nan(), &adjusted = table.adjusted(c)[k] = given;
        if (unused(i)) continue;
        const double value = reader_.gated(i, c);
        adjusted = reader_.after_gate(value, i, c);
        if (!math::is_inf(value)) given = value;
      }
    }
    for (index_t k = 0; k < members; ++k) {
      const index_t i = groups_.row(g, k);
      double &combined = table.combined()[k] = math::nan(), &total = table.total()[k] = combined;
      if (!counts(i)) continue;
      double magnitude;
      combined = work_.row_sums[as_size(i)];
      total = reader_.weighted_sum(i, magnitude);
    }
    return table;
  }

  /// What the report says of one group.
  GDPO_NOINLINE void describe_group(index_t g) {
    const GroupTable table = read_group(g);
    const index_t members = table.members;
    const auto std_of = [&](const std::vector<double>& x) { return std_or_nan(moments(x)); };
    for (index_t c = 0; c < memory_.rewards; ++c) {
      const bool read = reads(c);
      RewardReport& reward = report_.rewards[as_size(c)];
      double low = math::infinity, high = -math::infinity;
      work_.raw.clear();
      for (index_t k = 0; k < members; ++k) {
        const index_t i = groups_.row(g, k);
        if (unused(i)) continue;
        const double value = reader_.gated(i, c), adjusted = table.adjusted(c)[k];
        if (!math::is_nan(adjusted))
          low = (math::min)(low, adjusted), high = (math::max)(high, adjusted);
        report_.infinite_rewards += read && math::is_inf(value);
        if (math::is_nan(reader_.known(value))) {
          report_.excluded_rewards += read;
        } else {
          work_.raw.push_back(value);
        }
      }
      reward.known_groups += low <= high;
      reward.flat_groups += low == high;
      report_.reward_degenerate[as_size(g * memory_.rewards + c)] = !(low < high);
      report_.reward_group_std[as_size(g * memory_.rewards + c)] = std_of(work_.raw);
    }
    work_.raw.clear();
    typename Order::template Sum<double> squares{};
    for (index_t k = 0; k < members; ++k) {
      if (!counts(groups_.row(g, k))) continue;
      work_.raw.push_back(table.total()[k]);
      squares.add(math::mul(table.combined()[k], table.combined()[k]));
    }
    report_.singletons += work_.raw.size() == 1;
    report_.empty_groups += work_.raw.empty();
    const double std = members == 1 ? 0.0 : std_of(work_.raw);
    report_.group_std[as_size(g)] = std;
    report_.group_squares[as_size(g)] = squares.value();
    if (!math::is_nan(std) && std <= 1e-8) report_.flat_rows += members;
    for (const double sum : work_.raw) work_.centered[as_size(next_sum_++)] = sum;
    add_pairs(table);
    if (!report_.degenerate[as_size(g)] && !work_.used_rewards.empty())
      add_explained(table, rules_, terms_);
  }

  // ---- groups side by side ----------------------------------------------------------------------

  /// Reads groups from g on into the arrays of a pack, as many as fit without filling up more than
  /// half of it. False: a row that counts has a NaN, or no reward is read.
  GDPO_NOINLINE bool read(index_t g, ReportPack<Order>& pack) {
    index_t groups = 0, longest = 0, rows = 0;
    for (; groups < P && g + groups < memory_.groups; ++groups) {
      const index_t length = groups_.length(g + groups), longer = (std::max)(longest, length);
      if (longer > 32 && longer * (groups + 1) > 2 * (rows + length)) break;
      pack.lengths[groups] = pack.used[groups] = length;
      longest = longer, rows += length;
    }
    pack.g = g, pack.groups = groups, pack.members = longest;
    for (index_t p = groups; p < P; ++p) pack.lengths[p] = pack.lengths[0];
    if (longest == 0 || work_.used_rewards.empty()) return false;
    pack.full = !batch_.valid && work_.combined.every_row;
    for (index_t p = 0; p < P; ++p) pack.full = pack.full && pack.lengths[p] == longest;
    pack.adjusts = reader_.adjusts();
    index_t first[P];
    const bool runs = pack.full && find_runs(pack, first);
    if (runs) {
      read_rewards(pack, [&](index_t p, index_t k) { return first[p] + k; });
      read_runs(work_.row_sums.data(), first, report_lanes, longest, pack.combined());
    } else {
      read_rewards(pack, [&](index_t p, index_t k) { return row(pack, p, k); });
      if (!read_combined(pack)) return false;
    }
    pack.add_up();
    return write_sums(pack);
  }
  /// The row of a member; beyond the end of a shorter group some row.
  GDPO_HOST_INLINE index_t row(const ReportPack<Order>& pack, index_t p, index_t k) const {
    return k < pack.lengths[p] ? groups_.row(p < pack.groups ? pack.g + p : pack.g, k) : 0;
  }
  /// Whether the rows of each group are consecutive, and where they begin.
  bool find_runs(const ReportPack<Order>& pack, index_t* first) const {
    bool runs = true;
    for (index_t p = 0; p < P; ++p) {
      first[p] = row(pack, p, 0);
      for (index_t k = 1; k < pack.members; ++k) runs = runs && row(pack, p, k) == first[p] + k;
    }
    return runs;
  }
  /// Reads the rewards of the rows row_of(p, k). Where they are as stored, blocks of W columns of W
  /// groups are loaded row by row and turned.
  template <class Row>
  void read_rewards(ReportPack<Order>& pack, const Row& row_of) {
    index_t c = 0;
    if (!pack.adjusts && reader_.gives_stored() && batch_.rewards.stride[1] == 1) {
      if constexpr (math::native_width<double> >= 4) c = read_blocks<4>(pack, c, row_of);
      if constexpr (math::native_width<double> >= 2) c = read_blocks<2>(pack, c, row_of);
    }
    for (; c < memory_.rewards; ++c) read_column(pack, c, row_of);
    if (!pack.full) leave_out(pack);
  }
  template <int W, class Row>
  index_t read_blocks(const ReportPack<Order>& pack, index_t c, const Row& row_of) {
    const View<const T, 2> rewards = batch_.rewards;
    const index_t members = pack.members;
    for (; c + W <= memory_.rewards; c += W) {
      for (index_t p = 0; p < P; p += W) {
        double* target = pack.given(c) + p;
        for (index_t k = 0; k < members; ++k, target += P) {
          math::Pack<W> block[W];
          for (int j = 0; j < W; ++j) block[j] = math::Pack<W>::load(&rewards(row_of(p + j, k), c));
          transpose<W / 2>(block, std::make_integer_sequence<int, W>{});
          for (int j = 0; j < W; ++j) block[j].store(target + j * members * P);
        }
      }
    }
    return c;
  }
  template <class Row>
  void read_column(const ReportPack<Order>& pack, index_t c, const Row& row_of) {
    for (index_t p = 0; p < P; ++p) {
      double *given = pack.given(c) + p, *adjusted = pack.adjusted(c) + p;
      for (index_t k = 0; k < pack.members; ++k, given += P, adjusted += P) {
        const index_t i = row_of(p, k);
        const double value = reader_.gated(i, c);
        if (pack.adjusts) *adjusted = reader_.after_gate(value, i, c);
        *given = value;
      }
    }
  }
  /// Overwrites with NaN what is not there: members of shorter groups, and rows that are not used.
  void leave_out(ReportPack<Order>& pack) {
    for (index_t p = 0; p < P; ++p) {
      pack.used[p] = 0;
      for (index_t k = 0; k < pack.members; ++k) {
        if (k < pack.lengths[p] && !unused(row(pack, p, k))) {
          ++pack.used[p];
          continue;
        }
        for (index_t c = 0; c < memory_.rewards; ++c)
          pack.given(c)[k * P + p] = pack.adjusted(c)[k * P + p] = math::nan();
      }
    }
  }
  /// Reads the combined values of the rows that count. False: one of them is NaN.
  bool read_combined(const ReportPack<Order>& pack) {
    bool known = true;
    for (index_t p = 0; p < P; ++p) {
      for (index_t k = 0; k < pack.members; ++k) {
        const index_t i = row(pack, p, k);
        double& combined = pack.combined()[k * P + p] = math::nan();
        if (!(k < pack.lengths[p] && counts(i))) continue;
        combined = work_.row_sums[as_size(i)];
        known = known && !math::is_nan(combined);
      }
    }
    return known;
  }
  /// Writes the weighted sums of the rows that count to their place among those of the batch.
  /// False: one of them is NaN.
  bool write_sums(const ReportPack<Order>& pack) {
    bool known = true;
    double magnitude = 0;
    for (index_t p = 0; reader_.changes_sums() && p < P; ++p) {
      for (index_t k = 0; k < pack.lengths[p]; ++k) {
        double& total = pack.total()[k * P + p];
        if (!math::is_nan(total)) total = reader_.changed_sum(row(pack, p, k), total, magnitude);
      }
    }
    if (pack.full) {
      index_t first[P];
      for (index_t p = 0; p < pack.groups; ++p) first[p] = next_sum_ + p * pack.members;
      write_runs(pack.total(), report_lanes, static_cast<int>(pack.groups), pack.members,
                 pack.members, pack.lengths, first, work_.centered.data());
      next_sum_ += pack.groups * pack.members;
      return true;
    }
    for (index_t p = 0; p < pack.groups; ++p) {
      for (index_t k = 0; k < pack.lengths[p]; ++k) {
        if (math::is_nan(pack.combined()[k * P + p])) continue;
        const double total = work_.centered[as_size(next_sum_++)] = pack.total()[k * P + p];
        known = known && !math::is_nan(total);
      }
    }
    return known;
  }

  // ---- rewards over the batch -------------------------------------------------------------------

  bool reads(index_t c) const {
    for (const index_t used : work_.used_rewards) {
      if (used == c) return true;
    }
    return false;
  }

  /// Fills in the moments of each reward.
  void describe_rewards() {
    const View<const T, 2> rewards = batch_.rewards;
    std::vector<RewardReport>& reports = report_.rewards;
    if constexpr (std::is_same_v<Order, InRowOrder>) {
      if (!batch_.valid && reader_.gives_stored() && rewards.stride[1] == 1 &&
          rewards.stride[0] == memory_.rewards && in_order()) {
        ColumnWalk walk(rewards.extent[0], memory_.rewards, work_.raw);
        walk(rewards.data, [&](index_t c, const Moments& m) { reports[as_size(c)].values = m; });
      }
    }
    for (index_t c = 0; c < memory_.rewards; ++c) {
      if (reports[as_size(c)].values.n > 0) continue;
      work_.raw.resize(as_size(memory_rows()));
      double* next = work_.raw.data();
      for (index_t g = 0; g < memory_.groups; ++g) {
        for (index_t k = 0; k < groups_.length(g); ++k) {
          const index_t i = groups_.row(g, k);
          if (unused(i)) continue;
          const double value = reader_.gated(i, c);
          *next = value;
          next += !math::is_nan(reader_.known(value));
        }
      }
      reports[as_size(c)].values =
          moments_of(Order{}, work_.raw.data(), nullptr, next - work_.raw.data());
    }
  }
  /// Whether the groups are runs of rows, one after the other.
  bool in_order() const {
    index_t next = 0;
    for (index_t g = 0; g < memory_.groups; ++g) {
      for (index_t k = 0; k < groups_.length(g); ++k) {
        if (groups_.row(g, k) != next++) return false;
      }
    }
    return next == memory_rows();
  }

  const RewardBatch<T, Groups>& batch_;
  const BorrowedGroups<Groups> groups_;
  const GroupTerms terms_;
  const bool lanes_;
  const LaneReader<T, Groups>& reader_;
  EstimatorScratch& work_;
  GroupReport& report_;
  const ReportMemory memory_;
  const PartRules rules_;
  index_t next_sum_ = 0;
};

/// Fills in the report of a call, if it has one. A call whose report is nullptr by its type
/// compiles nothing of it.
template <class T, class Groups, class Evaluation>
void fill_report(const RewardBatch<T, Groups>& batch, Evaluation& evaluation,
                 EstimatorScratch& work, GroupReport* report) {
  if (report) ReportFiller<T, Groups>(batch, evaluation, work, *report)();
}
template <class T, class Groups, class Evaluation>
void fill_report(const RewardBatch<T, Groups>&, Evaluation&, EstimatorScratch&, std::nullptr_t) {}

}  // namespace detail
GDPO_END_NAMESPACE
