#pragma once
// What the fast path does with a pack of groups in lanes and that does not depend on the policies:
// it loads rewards, finds moments, adds scores, decides which are equal, and writes them.
#include <gdpo/advantage/engine/lane_reader.hpp>
#include <gdpo/advantage/report.hpp>
#include <gdpo/advantage/shared/group_rules.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What the engine must know about an estimator, as values: what takes them is compiled once for
/// all estimators.
struct EstimatorTraits {
  bool zero_sum,      ///< values_sum_to_zero_v
      compares,       ///< compares_v of the baseline
      per_member,     ///< The terms are computed member by member.
      sorts,          ///< A policy reads the values of a group in ascending order.
      skips_singles;  ///< A column with one value gives 0.
};

/// Keeps for the report what all members of a group have in one of `columns` columns: their factor
/// and their baseline (ReportMemory).
GDPO_HOST_INLINE void keep_for_report(EstimatorScratch& work, index_t columns, index_t g,
                                      index_t column, double factor, const Split<double>& base) {
  double* const kept = work.report.data() + 3 * (g * columns + column);
  kept[0] = factor, kept[1] = base.high, kept[2] = base.low;
}

/// The packs of one worker.
template <class T, class Groups>
class LanePacks {
 public:
  using Order = typename Groups::Order;
  using Reader = LaneReader<T, Groups>;
  /// Packs are taken through the steps in turn, so that one computes while another waits for a
  /// sum or a square root.
  static constexpr int most_packs = 2;

  LanePacks(const Reader& reader, const RewardBatch<T, Groups>& batch, EstimatorScratch& work,
            GroupScratch& scratch, GroupReport* report, index_t columns,
            const EstimatorTraits& traits)
      : reader_(reader),
        batch_(batch),
        work_(work),
        scratch_(scratch),
        report_(report),
        columns_(columns),
        traits_(traits),
        sums_first_(reader.sums_first()),
        longest_(static_cast<index_t>(scratch.column.size())),
        lanes_(lanes_of(columns)),
        groups_(rows_side_by_side(lanes_)) {}

  /// Makes room for groups of at most `members` members, `groups` of them in a unit of work.
  static void reserve(GroupScratch& scratch, std::size_t members, std::size_t groups,
                      bool sums_first, bool sorts) {
    const auto scratch_size = as_size(most_packs * member_scratch(sums_first, sorts)) * members;
    scratch.lanes.resize(scratch_size + padding);
    scratch.group_lists.resize(2 * groups);
    scratch.flagged.resize(as_size(most_packs * most_side_by_side) * members);
    scratch.flagged_scores.resize(scratch.flagged.size());
  }

 protected:
  /// Doubles for a member: values; the rewards that are summed to them, and later a policy's
  /// scratch memory; sorted values; scores, magnitudes and flags.
  static index_t member_scratch(bool sums_first, bool sorts) {
    return (1 + (sums_first || sorts) + sorts) * most_lanes + 3 * most_side_by_side;
  }
  /// Extra doubles, so that the memory can start at a cache line: full-width stores should not
  /// cross one.
  static constexpr std::size_t padding = 7;
  static double* aligned(std::vector<double>& v) {
    const auto misplaced =
        reinterpret_cast<std::uintptr_t>(v.data()) / sizeof(double) % (padding + 1);
    return v.data() + (misplaced == 0 ? 0 : padding + 1 - misplaced);
  }

  /// Lanes of a pack.
  int width() const { return lanes_ * groups_; }
  /// Columns in the block that begins with column `first`.
  int columns_from(index_t first) const {
    return static_cast<int>((std::min<index_t>)(lanes_, columns_ - first));
  }
  /// Calls f(W) with the number of lanes of a pack as an integral constant: shapes of one width
  /// share the code.
  template <class F>
  GDPO_HOST_INLINE void with_width(const F& f) const {
    constexpr int one = side_by_side<1>, two = 2 * side_by_side<2>, four = 4 * side_by_side<4>,
                  eight = 8 * side_by_side<8>;
    if (width() == one) return f(std::integral_constant<int, one>{});
    if constexpr (two != one && two != eight) {
      if (width() == two) return f(std::integral_constant<int, two>{});
    }
    if constexpr (four != one && four != two && four != eight) {
      if (width() == four) return f(std::integral_constant<int, four>{});
    }
    if constexpr (eight != one) f(std::integral_constant<int, eight>{});
  }

  // ---- which groups -----------------------------------------------------------------------------

  /// Writes the groups first .. last - 1 to `list`, those of similar length next to each other, and
  /// returns how many. Groups too small for lanes go to the end of the list, from `last - first`
  /// backwards.
  GDPO_NOINLINE index_t list_groups(index_t first, index_t last, index_t* list, index_t& tiny) {
    const index_t least = traits_.compares ? 2 : 1;
    index_t shortest = batch_.groups.length(first), longest = shortest, n = 0;
    for (index_t g = first; !std::is_same_v<Groups, GroupsOf> && g < last; ++g) {
      const index_t length = batch_.groups.length(g);
      shortest = (std::min)(shortest, length), longest = (std::max)(longest, length);
    }
    tiny = 0;
    same_length_ = shortest == longest && shortest >= least;
    if (same_length_) {
      for (index_t g = first; g < last; ++g) list[n++] = g;
      return n;
    }
    // A sort by counting, in up to 64 classes of length.
    int shift = 0;
    while ((longest - shortest) >> shift >= 64) ++shift;
    index_t begin[65] = {};
    for (index_t g = first; g < last; ++g) {
      const index_t length = batch_.groups.length(g);
      if (length >= least) ++begin[((length - shortest) >> shift) + 1];
    }
    for (int i = 0; i < 64; ++i) begin[i + 1] += begin[i];
    n = begin[64];
    for (index_t g = first; g < last; ++g) {
      const index_t length = batch_.groups.length(g);
      list[length >= least ? begin[(length - shortest) >> shift]++ : n + tiny++] = g;
    }
    return n;
  }

  /// Gives the packs their memory.
  void place(LanePack* packs) const {
    for (int s = 0; s < most_packs; ++s) {
      LanePack& pack = packs[s];
      pack.block =
          aligned(scratch_.lanes) + s * longest_ * member_scratch(sums_first_, traits_.sorts);
      pack.scores = pack.block + longest_ * most_lanes;
      pack.magnitudes = pack.scores + longest_ * most_side_by_side;
      pack.rows = pack.magnitudes + longest_ * most_side_by_side;
      double* const more = pack.rows + longest_ * most_side_by_side;
      pack.rewards = sums_first_ || traits_.sorts ? more : nullptr;
      pack.sorted = traits_.sorts ? more + longest_ * most_lanes : nullptr;
      pack.flagged = scratch_.flagged.data() + s * longest_ * most_side_by_side;
      pack.flagged_scores = scratch_.flagged_scores.data() + s * longest_ * most_side_by_side;
      for (int p = groups_; p < most_side_by_side; ++p)
        pack.largest[p] = pack.high[p] = math::infinity;
    }
  }

  /// Starts a pack with the first groups of the list, and returns how many they are: groups of
  /// which none is more than twice as long as another.
  index_t start(LanePack& pack, const index_t* list, index_t n) const {
    index_t shortest = batch_.groups.length(list[0]), longest = shortest;
    int p = same_length_ ? static_cast<int>((std::min<index_t>)(groups_, n)) : 0;
    for (; !same_length_ && p < groups_ && p < n; ++p) {
      const index_t length = batch_.groups.length(list[p]);
      const index_t least = (std::min)(shortest, length), most = (std::max)(longest, length);
      if (most > 2 * least + 2) break;
      shortest = least, longest = most;
    }
    pack.groups = p;
    std::fill_n(pack.declined, most_side_by_side, false);
    pack.declines = false;
    if (p == most_side_by_side) {
      std::copy_n(list, most_side_by_side, pack.number);
    } else {  // places left over repeat the first group
      for (int q = 0; q < groups_; ++q) pack.number[q] = list[q < p ? q : 0];
    }
    for (int q = 0; q < most_side_by_side; ++q) pack.length[q] = pack.counted[q] = longest;
    for (int q = 0; !same_length_ && q < groups_; ++q)
      pack.length[q] = pack.counted[q] = batch_.groups.length(pack.number[q]);
    pack.members = longest, pack.known = pack.shortest = shortest;
    find_unused(pack);
    return p;
  }

  // ---- one block of columns ---------------------------------------------------------------------

  /// Loads a block of rewards of the members from `first` on, or their weighted sums as the only
  /// column. Places without a row, and unused rows, are NaN.
  void load(LanePack& pack, index_t first) {
    const PackRows<Groups> rows{{batch_.groups}, pack.number, pack.length};
    if (sums_first_) {
      const bool skip = pack.skips = reader_.skips() && (suspicious_ || pack.known < pack.members);
      reader_.lane_sums(rows, pack.members, skip, pack.rewards, pack.block, pack.magnitudes);
      if (skip || reader_.changes_sums()) finish_sums(pack, rows);
    } else {
      with_lanes(lanes_, [&](auto lanes) {
        reader_.template load_lanes<decltype(lanes)::value>(rows, 0, groups_, pack.members, first,
                                                            pack.block);
      });
    }
    if (pack.known < pack.members) leave_gaps(pack);
  }

  /// Finds the moments of the columns in the lanes.
  void find_moments(LanePack& pack, index_t first) {
    const bool complete = pack.known == pack.members;
    if (complete && !suspicious_ && moments_of_all(pack)) {
      pack.uneven = false;
    } else {
      if (complete) suspicious_ = true;
      if (sums_first_ && reader_.skips() && !pack.skips) load(pack, first);
      if (suspicious_) pack.known = 0;
      moments_of_known(pack);
      judge(pack, first);
    }
    const bool asks = traits_.per_member || traits_.sorts;
    if (asks) with_width([&](auto lanes) { find_range<decltype(lanes)::value>(pack); });
    if (sums_first_) equate_sums(pack, asks);
    if (!asks) return;
    for (int i = 0; !sums_first_ && i < width(); ++i)
      pack.equal[i] = pack.min[i] == pack.max[i], pack.rounding[i] = 0;
    if (traits_.sorts) sort_values(pack, width());
  }

  /// Adds the scores of the block.
  void add(LanePack& pack, index_t first, bool exact) const {
    const bool terms = exact || pack.known < pack.members;
    if (terms) make_terms(pack, width());
    with_lanes(lanes_, [&](auto lanes) {
      constexpr int L = decltype(lanes)::value, P = side_by_side<L>;
      exact ? add_terms<L, P>(pack, first == 0) : add_scores<L, P>(pack, first == 0, terms);
    });
  }

  /// Adds to the scores of rows that are not used, whose terms are apart from those of the pack.
  /// term(lane, x) gives the term of value x of a column.
  template <class Term>
  GDPO_HOST_INLINE void add_unused(LanePack& pack, index_t first, const Term& term) const {
    for (index_t i = 0; i < pack.unused; ++i) {
      const int p = static_cast<int>(pack.flagged[i] % groups_);
      const index_t row = batch_.groups.row(pack.number[p], pack.flagged[i] / groups_);
      double terms[8] = {};
      for (int j = 0; j < columns_from(first); ++j) {
        const double x = value(row, first + j);
        if (!missing(x)) terms[j] = term(p * lanes_ + j, x);
      }
      pack.flagged_scores[i] = (first == 0 ? 0.0 : pack.flagged_scores[i]) + tree_of(terms);
    }
  }

  /// The value of a row in a column.
  GDPO_NOINLINE double value(index_t row, index_t c) const {
    if (sums_first_) {
      double magnitude;
      return reader_.weighted_sum(row, magnitude);
    } else {
      const index_t reward = work_.used_rewards[as_size(c)];
      return reader_.after_gate(reader_.gated(row, reward), row, reward);
    }
  }

  /// The statistics of the column in a lane.
  GroupStat stat_of(const LanePack& pack, int lane) const {
    GroupStat stat;
    stat.n = pack.uneven ? static_cast<index_t>(pack.count[lane]) : pack.members;
    if (stat.n == 0) return stat;
    stat.weight = static_cast<double>(stat.n);
    stat.mean = pack.mean[lane], stat.mean_low = pack.mean_low[lane], stat.m2 = pack.m2[lane];
    stat.min = pack.min[lane], stat.max = pack.max[lane];
    stat.second_min = pack.second_min[lane], stat.second_max = pack.second_max[lane];
    stat.degenerate = pack.equal[lane] != 0, stat.rounding = pack.rounding[lane];
    return stat;
  }
  /// Whether a value is missing.
  bool missing(double x) const { return reader_.skips() && math::is_nan(x); }

  /// Keeps the factors and baselines of the pack for the report.
  GDPO_COLD void keep_factors(const LanePack& pack, index_t first) const {
    for (int p = 0; p < pack.groups; ++p) {
      for (int j = 0; j < columns_from(first); ++j) {
        const int i = p * lanes_ + j;
        keep_for_report(work_, columns_, pack.number[p], first + j, pack.factor[i],
                        {pack.base[i], pack.base_low[i]});
      }
    }
  }

  // ---- all columns ------------------------------------------------------------------------------

  /// Decides of each group whether its combined values are equal, and declines those of which it
  /// cannot tell. Without `exact` they must be all 0, or one of them clearly above the rounding of
  /// its terms (see add_scores for the bound); since they sum to 0, they then differ. False: some
  /// group needs the exact scores.
  bool decide(LanePack& pack, bool exact) const {
    if (!exact) return detail::decide(pack, columns_);
    if (pack.known < pack.members) flag_rows(pack);
    find_score_range(pack, groups_);
    return decide_exactly(pack, columns_, sums_first_);
  }

  /// Writes the scores to row_sums, and the states of rows that do not count.
  void write(LanePack& pack) {
    for (int p = 0; report_ && p < pack.groups; ++p) {
      if (!pack.declined[p])
        report_->degenerate[as_size(pack.number[p])] = pack.same_scores[p] != 0;
    }
    if (traits_.zero_sum && pack.ties) clear_equal(pack, groups_);
    const BorrowedGroups<Groups> borrowed{batch_.groups};
    double* row_sums = work_.row_sums.data();
    if (index_t begin[most_side_by_side]; find_runs(pack, begin)) {
      write_runs(pack.scores, groups_, pack.groups, pack.shortest, pack.members, pack.length, begin,
                 row_sums);
    } else {
      for (int p = 0; p < pack.groups; ++p) {
        for (index_t k = 0; k < pack.length[p]; ++k)
          row_sums[borrowed.row(pack.number[p], k)] = pack.scores[k * groups_ + p];
      }
    }
    if (pack.flags > 0) write_flagged(pack);
  }

  const Reader& reader_;
  const RewardBatch<T, Groups>& batch_;
  EstimatorScratch& work_;
  GroupScratch& scratch_;
  GroupReport* report_;
  index_t columns_;  ///< Of the call.
  EstimatorTraits traits_;
  bool sums_first_;  ///< A column is the weighted sum of the rewards.
  index_t longest_;
  int lanes_,                 ///< L, the columns of a group in a pack.
      groups_;                ///< P, the groups of a pack.
  bool same_length_ = false,  ///< All groups of the unit have one length.
      suspicious_ = false;    ///< Rewards were missing in the last pack.

 private:
  /// Flags the rows that are not used, and the places without a row.
  void find_unused(LanePack& pack) const {
    pack.flags = 0;
    if (batch_.valid) {
      const auto is_valid = reader_.is_valid();
      const BorrowedGroups<Groups> borrowed{batch_.groups};
      for (int p = 0; p < pack.groups; ++p) {
        const index_t g = pack.number[p], length = pack.length[p], before = pack.flags;
        index_t n = before;
        for (index_t k = 0; k < length; ++k) {
          if (!is_valid(borrowed.row(g, k))) pack.flagged[n++] = k * groups_ + p;
        }
        pack.flags = n, pack.counted[p] -= n - before;
        if (pack.counted[p] < (traits_.compares ? 2 : 1)) pack.decline(p);
      }
      if (pack.flags > 0) pack.known = 0;
    }
    pack.unused = pack.flags;
  }
  /// Fills in pack.rows.
  void flag_rows(LanePack& pack) const {
    std::fill_n(pack.rows, pack.members * groups_, 0.0);
    const double nan = math::nan();
    for (int p = 0; p < groups_; ++p) {
      for (index_t k = pack.length[p]; k < pack.members; ++k) pack.rows[k * groups_ + p] = nan;
    }
    for (index_t i = 0; i < pack.flags; ++i) pack.rows[pack.flagged[i]] = nan;
  }
  /// Writes NaN where no row is, or none that is used.
  GDPO_NOINLINE void leave_gaps(LanePack& pack) const {
    const double nan = math::nan();
    for (int p = 0; p < groups_; ++p) {
      for (index_t k = pack.length[p]; k < pack.members; ++k) {
        std::fill_n(pack.block + (k * groups_ + p) * lanes_, lanes_, nan);
        if (sums_first_) pack.magnitudes[k * groups_ + p] = 0;
      }
    }
    for (index_t i = 0; i < pack.flags; ++i) {
      std::fill_n(pack.block + pack.flagged[i] * lanes_, lanes_, nan);
      if (sums_first_) pack.magnitudes[pack.flagged[i]] = 0;
    }
  }

  /// Makes of weighted sums in lanes what RewardRules::weighted_sum gives.
  GDPO_NOINLINE void finish_sums(LanePack& pack, const PackRows<Groups>& rows) const {
    if (!reader_.changes_sums() && !reader_.rejects_infinite() &&
        !any_special_sum(pack.block, pack.magnitudes, pack.members * groups_))
      return;
    for (int p = 0; p < pack.groups; ++p) {
      const auto row = rows.of(p);
      for (index_t k = 0; k < pack.length[p]; ++k) {
        double &sum = pack.block[k * groups_ + p], &magnitude = pack.magnitudes[k * groups_ + p];
        const bool without_reward = math::bits_of(magnitude) == math::bits_of(-0.0);
        if (without_reward) magnitude = 0;
        if (without_reward && reader_.excludes(row(k))) {
          sum = math::nan();
        } else if (reader_.rejects_infinite() && math::is_inf(magnitude)) {
          sum = math::infinity;  // a bound would hide it
        } else {
          sum = reader_.changed_sum(row(k), sum, magnitude);
        }
      }
    }
  }

  /// lane_stat of a pack without gaps. False: a sum is not finite.
  bool moments_of_all(LanePack& pack) const {
    bool finite = false;
    with_width([&](auto lanes) {
      constexpr int W = decltype(lanes)::value;
      typename GroupLanes<W>::Stat stat;
      math::Mask<W> equal;
      finite = lane_stat<Order, W>(Order{}, pack.block, pack.members, stat, equal);
      if (finite) keep<W>(pack, stat, equal);
    });
    return finite;
  }
  GDPO_NOINLINE void moments_of_known(LanePack& pack) const {
    with_width([&](auto lanes) {
      constexpr int W = decltype(lanes)::value;
      typename GroupLanes<W>::Stat stat;
      math::Pack<W> count;
      math::Mask<W> equal;
      lane_stat_of_known<Order, W>(Order{}, pack.block, pack.members, pack.known, stat, count,
                                   equal);
      keep<W>(pack, stat, equal);
      count.store(pack.count);
    });
  }
  template <int W>
  static GDPO_HOST_INLINE void keep(LanePack& pack, const typename GroupLanes<W>::Stat& stat,
                                    const math::Mask<W>& equal) {
    stat.mean.store(pack.mean), stat.mean_low.store(pack.mean_low), stat.m2.store(pack.m2);
    select(equal, math::Pack<W>::all(1.0), math::Pack<W>::all(0.0)).store(pack.equal);
  }

  /// Declines the groups of a pack with gaps that the rules of lanes do not serve: values that are
  /// not finite, or missing where none may be, or a column with one value that has a rule of its
  /// own. After the first block it looks for rows without a reward.
  GDPO_NOINLINE void judge(LanePack& pack, index_t first) {
    bool missing = false;
    const unsigned refused = !reader_.skips(), single = traits_.compares && !traits_.skips_singles;
    const int columns = columns_from(first);
    pack.uneven = true;
    if (reader_.skips() && columns == lanes_) {
      const bool special = has_special_lanes(pack, lanes_, groups_, missing);
      if (!missing) suspicious_ = false;
      if (!special) return;
      missing = false;
    }
    for (int p = 0; p < pack.groups; ++p) {
      const double used = static_cast<double>(pack.counted[p]);
      double most = 0;
      unsigned gaps = 0, declined = 0;  // without branches, which would often be predicted wrong
      for (int i = p * lanes_; i < p * lanes_ + columns; ++i) {
        const double n = pack.count[i];
        most = (math::max)(most, n);
        const unsigned gap = n < used,
                       infinite = static_cast<unsigned>(math::not_finite(pack.mean[i])) |
                                  static_cast<unsigned>(math::not_finite(pack.m2[i]));
        gaps |= gap;
        declined |=
            (gap & refused) | (infinite & (n > 0 ? 1u : 0u)) | ((n == 1 ? 1u : 0u) & single);
      }
      missing = missing || gaps != 0;
      if (declined) pack.decline(p);
      if (first == 0 && most < used && !declined) find_excluded(pack, p);
    }
    if (!missing) suspicious_ = false;
  }
  /// Flags the used rows of a group that have no reward, if they do not count.
  GDPO_COLD void find_excluded(LanePack& pack, int p) const {
    for (index_t k = 0; k < pack.length[p]; ++k) {
      const index_t place = k * groups_ + p;
      if (!math::is_nan(pack.block[place * lanes_])) continue;
      const index_t row = batch_.groups.row(pack.number[p], k);
      if (!reader_.used(row) || !is_excluded(row)) continue;
      pack.flagged[pack.flags++] = place, --pack.counted[p];
    }
    if (pack.counted[p] < (traits_.compares ? 2 : 1)) pack.decline(p);
  }
  /// Whether the row is excluded because it has no reward.
  bool is_excluded(index_t row) const {
    for (index_t c = 0; c < columns_; ++c) {
      if (!missing(value(row, c))) return false;
    }
    return reader_.excludes(row);
  }
  /// equate_sums of group_rules.hpp. max - min <= t implies m2 <= n t^2, so a larger m2 proves a
  /// difference; twice that bound leaves room for the rounding of m2. Only if it does not, the
  /// range is asked for, unless it is known.
  GDPO_NOINLINE void equate_sums(LanePack& pack, bool range_known) const {
    constexpr int P = side_by_side<1>;
    auto most = math::Pack<P>::all(0.0);
    for (index_t k = 0; k < pack.members; ++k)
      most = (math::max)(most, math::Pack<P>::load(pack.magnitudes + k * P));
    most.store(pack.rounding);
    bool clear = true;
    for (int p = 0; p < P; ++p) {
      if (math::not_finite(pack.rounding[p])) pack.decline(p);
      const double t = pack.rounding[p] = rounding_of_sum(reader_.terms(), pack.rounding[p]);
      const double n = pack.uneven ? pack.count[p] : static_cast<double>(pack.members);
      clear = clear && (pack.equal[p] != 0 || pack.m2[p] > 2 * n * t * t);
    }
    if (clear) return;
    if (!range_known) find_range<P>(pack);
    for (int p = 0; p < P; ++p) {
      if (pack.equal[p] != 0 || !(pack.max[p] - pack.min[p] <= pack.rounding[p])) continue;
      pack.equal[p] = 1, pack.m2[p] = 0;
    }
  }

  /// Writes the first row of each group, and returns whether the rows of each are consecutive.
  bool find_runs(const LanePack& pack, index_t* begin) const {
    const BorrowedGroups<Groups> borrowed{batch_.groups};
    bool runs = true;
    for (int p = 0; p < pack.groups; ++p) {
      const index_t g = pack.number[p], row = begin[p] = borrowed.row(g, 0);
      for (index_t k = 1; !is_consecutive_v<Groups> && k < pack.length[p]; ++k)
        runs = runs && borrowed.row(g, k) == row + k;
    }
    return runs;
  }

  /// Writes states and combined values of the rows that do not count.
  GDPO_COLD void write_flagged(LanePack& pack) const {
    for (index_t i = 0; i < pack.flags; ++i) {
      const int p = static_cast<int>(pack.flagged[i] % groups_);
      if (pack.declined[p]) continue;
      const index_t row = batch_.groups.row(pack.number[p], pack.flagged[i] / groups_);
      const bool used = reader_.used(row),
                 excluded = used || reader_.excludes_unused() || is_excluded(row);
      work_.row_sums[as_size(row)] =
          excluded ? 0.0 : combined_of(pack.flagged_scores[i], reader_.replaces_nan());
      work_.row_state[as_size(row)] =
          static_cast<unsigned char>(excluded ? RowState::Excluded : RowState::Unused);
      scratch_.cases.uncounted_row = true;
    }
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
