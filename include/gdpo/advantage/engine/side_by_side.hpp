#pragma once
// The fast path: small groups evaluated side by side in lanes.
#include <gdpo/advantage/engine/lane_reader.hpp>
#include <gdpo/advantage/report.hpp>
#include <gdpo/advantage/shared/group_stats.hpp>
#include <gdpo/group/borrowed.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What the workers of one call share: the batch, the policies and the scratch memory.
template <class T, class Groups, class Baseline, class Scale, bool sums_first>
struct GroupCall {
  const char* function;
  const RewardBatch<T, Groups>& batch;
  const Baseline& baseline;
  const Scale& scale;
  Singleton singleton;
  const LaneReader<T, Groups, sums_first>& reader;
  EstimatorScratch& work;
  GroupReport* report = nullptr;
  index_t columns;     ///< Number of columns: rewards with a weight, or 1 for their weighted sum.
  bool lanes = false;  ///< The execution tag asks for lanes: rows and groups may go side by side.

  template <class Estimator>
  GroupCall(const char* name, const RewardBatch<T, Groups>& rewards, const Estimator& e,
            const LaneReader<T, Groups, sums_first>& reads, EstimatorScratch& scratch)
      : function(name),
        batch(rewards),
        baseline(e.baseline),
        scale(e.scale),
        singleton(e.singleton),
        reader(reads),
        work(scratch),
        columns(sums_first ? 1 : static_cast<index_t>(scratch.used_rewards.size())) {}
};

/// What the fast path did with a group.
enum class FastPath : unsigned char {
  Declined,  ///< It left the group to the general path.
  AllEqual,  ///< Its row_sums are written; they are all equal, hence 0.
  Done       ///< Its row_sums are written.
};

/// The fast path: several groups of equal size side by side in lanes, and the policies in lanes
/// too. It serves estimators with combined values that sum to 0 in a group. It takes groups in
/// which nothing is missing and no value is close to its rounding, and leaves the others to the
/// general path of one_group.hpp. Both paths give the same bits.
template <class T, class Groups, class Baseline, class Scale, bool sums_first>
class SideBySide {
 public:
  using Order = typename Groups::Order;

  /// Packs are taken through the steps in turn, so that one computes while another waits for a
  /// sum or a square root.
  static constexpr int most_packs = 2, most_groups = most_packs * most_side_by_side;

  /// Takes groups with a number below `end`.
  SideBySide(const GroupCall<T, Groups, Baseline, Scale, sums_first>& call, GroupScratch& scratch,
             index_t end)
      : call_(call),
        scratch_(aligned(scratch.lanes)),
        longest_(static_cast<index_t>(scratch.column.size())),
        end_(end),
        lanes_(lanes_of(call.columns)),
        possible_(!call.batch.valid && !call.work.used_rewards.empty()) {}

  /// Number of doubles of scratch for groups of at most `members` members.
  static std::size_t scratch_for(std::size_t members) {
    return static_cast<std::size_t>(most_packs * member_scratch) * members + padding;
  }

  /// Tries groups g, g + 1, ... of the same size and returns how many, at least one. outcome[p]
  /// says what was done with group g + p.
  index_t combine(index_t g, FastPath* outcome) {
    outcome[0] = FastPath::Declined;
    if (!possible_ || call_.batch.groups.length(g) < 2) return 1;
    if constexpr (sums_first) {
      return combine_lanes<side_by_side<1>>(g, outcome);
    } else {
      return with_lanes(lanes_, [&](auto lanes) {
        constexpr int L = decltype(lanes)::value;
        return combine_lanes<L * side_by_side<L>>(g, outcome);
      });
    }
  }

 private:
  /// Doubles for a member: values and scores, and with sums_first the magnitudes of the terms and
  /// the rewards.
  static constexpr index_t member_scratch =
      (sums_first ? 2 : 1) * most_lanes + 2 * most_side_by_side;
  /// Extra doubles, so that the memory can start at a cache line: full-width stores should not
  /// cross one.
  static constexpr std::size_t padding = 7;
  static double* aligned(std::vector<double>& v) {
    const auto misplaced =
        reinterpret_cast<std::uintptr_t>(v.data()) / sizeof(double) % (padding + 1);
    return v.data() + (misplaced == 0 ? 0 : padding + 1 - misplaced);
  }

  /// Groups g .. g + groups - 1 in one pack of W lanes: P groups of L columns. Lanes that are
  /// left over repeat group g. L is known only at run time, so that all numbers of rewards share
  /// this code.
  template <int W>
  struct Packed {
    using Lanes = math::Pack<W>;

    index_t g, members;
    int groups;
    // (K, P, L) values and (K, P) scores; with sums_first also (K, P) sums of |terms| and the
    // rewards that are summed. K: members.
    double *block, *scores, *magnitudes, *rewards;
    double bound[most_side_by_side];    // (P) bound of add_scores
    double largest[most_side_by_side];  // (P) largest |score|
    typename GroupLanes<W>::Stat stat;
    math::Mask<W> equal;
    Split<Lanes> base;
    Lanes factor;

    void start(index_t first, int count, index_t size, double* scratch) {
      g = first, groups = count, members = size;
      block = scratch;
      scores = block + members * most_lanes;
      magnitudes = scores + members * most_side_by_side;
      rewards = magnitudes + members * most_side_by_side;
    }
  };

  /// Calls f(std::integral_constant<int, L>) for the number L of columns of a group that packs of
  /// W lanes hold in this call.
  template <int W, class F>
  GDPO_HOST_INLINE void with_columns(const F& f) const {
    with_lanes(lanes_, [&](auto lanes) {
      constexpr int L = decltype(lanes)::value;
      if constexpr (L * side_by_side<L> == W && (L == 1 || !sums_first)) f(lanes);
    });
  }

  /// Tries the groups from g on that fit, together and then each by itself; returns how many.
  template <int W>
  index_t combine_lanes(index_t g, FastPath* outcome) {
    const int most = most_packs * W / lanes_;
    int groups = 1;
    const index_t members = call_.batch.groups.length(g);
    while (groups < most && g + groups < end_ && call_.batch.groups.length(g + groups) == members)
      ++groups;
    if (combine_groups<W>(g, groups, outcome)) return groups;
    for (int p = 0; p < groups; ++p) {
      if (groups == 1 || !combine_groups<W>(g + p, 1, outcome + p)) outcome[p] = FastPath::Declined;
    }
    return groups;
  }

  /// Combines all of the groups and returns true, or returns false.
  template <int W>
  GDPO_NOINLINE bool combine_groups(index_t g, int groups, FastPath* outcome) {
    const int P = W / lanes_, n = (groups + P - 1) / P;
    Packed<W> packs[most_packs];
    for (int s = 0; s < n; ++s) {
      packs[s].start(g + s * P, (std::min)(P, groups - s * P), call_.batch.groups.length(g),
                     scratch_ + s * longest_ * member_scratch);
    }
    for (index_t first = 0; first < call_.columns; first += lanes_) {
      for (int s = 0; s < n; ++s) load(packs[s], first);
      for (int s = 0; s < n; ++s) {
        Packed<W>& pack = packs[s];
        if (!lane_stat<Order, W>(Order{}, pack.block, pack.members, pack.stat, pack.equal))
          return false;
      }
      for (int s = 0; s < n; ++s) {
        if (!apply_policies(packs[s], first)) return false;
      }
      for (int s = 0; s < n; ++s) {
        Packed<W>& pack = packs[s];
        with_columns<W>([&](auto lanes) {
          constexpr int L = decltype(lanes)::value;
          add_scores<L, W / L>(pack.block, pack.members, pack.base, pack.factor, pack.stat.m2,
                               first == 0, pack.scores, pack.largest, pack.bound);
        });
      }
    }
    for (int s = 0; s < n; ++s) {
      if (!clear(packs[s], outcome + s * P)) return false;
    }
    for (int s = 0; s < n; ++s) write(packs[s]);
    return true;
  }

  /// Loads a block of rewards of the members from `first` on, or their weighted sums as the only
  /// column.
  template <int W>
  void load(Packed<W>& pack, index_t first) {
    const auto row = [borrowed = BorrowedGroups<Groups>{call_.batch.groups}, g = pack.g,
                      groups = pack.groups](int p, index_t k) {
      return borrowed.row(g + (p < groups ? p : 0), k);
    };
    if constexpr (sums_first) {
      call_.reader.lane_sums(row, pack.members, pack.rewards, pack.block, pack.magnitudes);
      for (index_t i = 0; call_.reader.changes_sums() && i < pack.members * W; ++i) {
        const index_t row_index = row(static_cast<int>(i % W), i / W);
        pack.block[i] = call_.reader.changed_sum(row_index, pack.block[i], pack.magnitudes[i]);
      }
    } else {
      with_columns<W>([&](auto lanes) {
        constexpr int L = decltype(lanes)::value;
        call_.reader.template load_lanes<L, W / L>(row, pack.members, first, pack.block);
      });
    }
  }

  /// Calls the policies for base and factor of every lane. False: sums are too close to their
  /// rounding.
  template <int W>
  bool apply_policies(Packed<W>& pack, index_t first) {
    using Lanes = math::Pack<W>;
    if constexpr (sums_first) {
      if (!sums_clearly_differ(pack.equal, pack.stat, pack.magnitudes, call_.reader.terms()))
        return false;
    }
    const ColumnScratch& columns = call_.work.columns;
    pack.base =
        split<Lanes>(call_.baseline(args_of(pack, call_.baseline, columns.of_baseline, first)));
    pack.factor = select(
        pack.equal, Lanes::all(0.0),
        math::constant<Lanes>(call_.scale(args_of(pack, call_.scale, columns.of_scale, first))));
    if constexpr (!sums_first) {
      pack.factor = mul(call_.reader.template lane_weights<W>(first, W / lanes_), pack.factor);
      if (call_.report) keep_factors(pack, first);
    }
    return true;
  }

  /// What a policy sees of the block of columns from `first` on. of_batch: its numbers in lanes.
  template <int W, class P>
  GroupLanes<W> args_of(const Packed<W>& pack, const P&, const std::vector<double>& of_batch,
                        index_t first) const {
    if constexpr (has_of_batch_v<P>) {
      if (!of_batch.empty())
        return {pack.stat, no_batch_, of_batch.data() + first * (W / lanes_) * numbers_in_v<P>};
    }
    return {pack.stat, no_batch_};
  }

  /// Writes the factors of the pack to the report's scratch.
  template <int W>
  void keep_factors(const Packed<W>& pack, index_t first) const {
    double factors[W];
    pack.factor.store(factors);
    write_factors(factors, pack.g, pack.groups, first);
  }
  GDPO_COLD void write_factors(const double* factors, index_t g, int groups, index_t first) const {
    for (int p = 0; p < groups; ++p) {
      for (index_t j = 0; j < lanes_ && first + j < call_.columns; ++j)
        call_.work.report[static_cast<std::size_t>((g + p) * call_.columns + first + j)] =
            factors[p * lanes_ + j];
    }
  }

  /// Sets `outcome` for each group of the pack. Its combined values must be all 0, or one of them
  /// clearly above the rounding of its terms (see add_scores for the bound); since they sum to 0,
  /// they then differ. Any other group is left to the general path, which overwrites what is
  /// written for it here. Only that group is: with two members it may be every other one. False:
  /// some value is not finite.
  template <int W>
  bool clear(const Packed<W>& pack, FastPath* outcome) const {
    const double tolerance = 2 * rounding_of_sum(call_.columns, 1.0),
                 columns = static_cast<double>(call_.columns);
    for (int p = 0; p < pack.groups; ++p) {
      const double largest = pack.largest[p], bound = pack.bound[p];
      if (math::not_finite(bound)) return false;
      const bool clear_of_rounding = largest * largest > tolerance * tolerance * columns * bound;
      outcome[p] = largest == 0        ? FastPath::AllEqual
                   : clear_of_rounding ? FastPath::Done
                                       : FastPath::Declined;
    }
    return true;
  }

  /// Writes the scores to row_sums.
  template <int W>
  void write(const Packed<W>& pack) {
    const BorrowedGroups<Groups> borrowed{call_.batch.groups};
    const int P = W / lanes_;
    double* row_sums = call_.work.row_sums.data();
    index_t first[most_side_by_side];
    bool runs = true;  // the rows of each group are consecutive
    for (int p = 0; p < pack.groups; ++p) {
      first[p] = borrowed.row(pack.g + p, 0);
      for (index_t k = 1; k < pack.members; ++k)
        runs = runs && borrowed.row(pack.g + p, k) == first[p] + k;
    }
    if (runs) {
      with_columns<W>([&](auto lanes) {
        write_runs<W / decltype(lanes)::value>(pack.scores, pack.members, pack.groups, first,
                                               row_sums);
      });
      return;
    }
    for (int p = 0; p < pack.groups; ++p) {
      for (index_t k = 0; k < pack.members; ++k)
        row_sums[borrowed.row(pack.g + p, k)] = pack.scores[k * P + p];
    }
  }

  /// What a baseline returns, as a Split.
  template <class V, class Base>
  static GDPO_INLINE Split<V> split(const Base& base) {
    if constexpr (std::is_same_v<Base, Split<V>>) {
      return base;
    } else {
      return {math::constant<V>(base), math::constant<V>(0.0)};
    }
  }

  const GroupCall<T, Groups, Baseline, Scale, sums_first>& call_;
  double* scratch_;
  index_t longest_, end_;
  int lanes_;      ///< L, the columns of a group in a pack.
  bool possible_;  ///< The batch has no column `valid`, and some reward has a weight.
  BatchStat no_batch_{};
};

}  // namespace detail
GDPO_END_NAMESPACE
