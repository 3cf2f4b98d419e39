#pragma once
// The fast path: small groups evaluated side by side in lanes.
#include <algorithm>
#include <gdpo/advantage/engine/lane_packs.hpp>

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

/// The fast path: several groups side by side in lanes, and the policies in lanes too. Groups of a
/// unit of work are taken together with others of similar length. Members that are missing leave
/// gaps in the lanes, which add nothing. It leaves to the general path of one_group.hpp the groups
/// that have a rule of their own: of one member, of values that are not finite, or to be refused.
/// Both paths give the same bits.
template <class T, class Groups, class Baseline, class Scale, bool sums_first>
class SideBySide : LanePacks<T, Groups, sums_first> {
  using Base = LanePacks<T, Groups, sums_first>;
  using Base::scratch_, Base::columns_, Base::lanes_, Base::groups_, Base::traits_, Base::reader_;
  static constexpr bool zero_sum = values_sum_to_zero_v<Baseline, Scale>;

  /// Policies are called for one register of lanes after the other: of a pack with gaps, each then
  /// has few different numbers of members.
  static constexpr int N = math::native_width<double>;
  using Lanes = math::Pack<N>;

 public:
  using Base::reserve;

  SideBySide(const GroupCall<T, Groups, Baseline, Scale, sums_first>& call, GroupScratch& scratch)
      : Base(call.reader, call.batch, call.work, scratch, call.report, call.columns,
             {zero_sum, compares_v<Baseline>, false,
              call.singleton == Singleton::Zero || call.singleton == Singleton::Exclude}),
        call_(call) {}

  /// Combines the groups first .. last - 1, those that it declines by general(g), in order.
  template <class General>
  void combine(index_t first, index_t last, const General& general) {
    index_t small = 0, *const list = scratch_.group_lists.data(),
            *const declined = list + scratch_.group_lists.size() / 2;
    const index_t n = this->list_groups(first, last, list, small);
    std::copy_n(list + n, small, declined);
    index_t left = small;
    for (index_t i = 0; i < n;) {
      LanePack packs[Base::most_packs];
      int count = 0;
      for (; count < Base::most_packs && i < n; ++count)
        i += this->start(packs[count], list + i, n - i, count);
      combine_packs(packs, count);
      for (int s = 0; s < count; ++s) {
        for (int p = 0; p < packs[s].groups; ++p) {
          if (packs[s].declined[p]) declined[left++] = packs[s].number[p];
        }
      }
    }
    if (!std::is_sorted(declined, declined + left)) std::sort(declined, declined + left);
    for (index_t i = 0; i < left; ++i) general(declined[i]);
  }

 private:
  void combine_packs(LanePack* packs, int n) {
    for (bool exact = exact_ || !zero_sum || traits_.per_member;; exact = true) {
      for (index_t first = 0; first < columns_; first += lanes_) {
        for (int s = 0; s < n; ++s) this->load(packs[s], first);
        for (int s = 0; s < n; ++s) this->find_moments(packs[s], first);
        for (int s = 0; s < n; ++s) apply_policies(packs[s], first);
        for (int s = 0; s < n; ++s) this->add(packs[s], first, exact);
        for (int s = 0; s < n; ++s) {
          if (packs[s].unused > 0) score_unused(packs[s], first);
        }
      }
      bool decided = true;
      for (int s = 0; s < n; ++s) decided = this->decide(packs[s], exact) && decided;
      exact_ = !decided;
      if (decided || exact) break;
    }
    for (int s = 0; s < n; ++s) this->write(packs[s]);
  }

  /// Calls the policies for base and factor of every lane.
  GDPO_NOINLINE void apply_policies(LanePack& pack, index_t first) {
    const int width = this->width();
    const double fewest = compares_v<Baseline> ? 2 : 1;
    const Lanes zero = Lanes::all(0.0);
    for (int i = 0; i < width; i += N) {
      if (!pack.uneven) {
        apply_policies(pack, first, i, pack.members, nullptr);
        continue;
      }
      for (double* const x : {pack.base, pack.base_low, pack.factor}) zero.store(x + i);
      // One call for each number of members, from the largest on.
      Lanes left = -Lanes::load(pack.count + i);
      for (double least = tree_min(left); -least >= fewest; least = tree_min(left)) {
        const auto same = left == Lanes::all(least);
        apply_policies(pack, first, i, static_cast<index_t>(-least), &same);
        left = select(same, zero, left);
      }
    }
    if constexpr (!sums_first) {
      if (call_.report) this->keep_factors(pack, first);
    }
  }

  /// The same for the lanes i .. i + N - 1, as far as they have n members: those of the mask. Null:
  /// all of them.
  void apply_policies(LanePack& pack, index_t first, int i, index_t n, const math::Mask<N>* same) {
    const typename GroupLanes<N>::Stat stat{n, Lanes::load(pack.mean + i),
                                            Lanes::load(pack.mean_low + i),
                                            Lanes::load(pack.m2 + i)};
    const Lanes zero = Lanes::all(0.0);
    const GroupLanes<N> args{stat, no_batch_};
    Split<Lanes> base = split<Lanes>(call_.baseline(args));
    Lanes factor = math::constant<Lanes>(call_.scale(args));
    if constexpr (from_group_v<Baseline>)
      factor = select(Lanes::load(pack.equal + i) > zero, zero, factor);
    if constexpr (!sums_first)
      factor = mul(reader_.template lane_weights<N>(first, groups_, i), factor);
    if (same) {
      base.high = select(*same, base.high, Lanes::load(pack.base + i));
      base.low = select(*same, base.low, Lanes::load(pack.base_low + i));
      factor = select(*same, factor, Lanes::load(pack.factor + i));
    }
    base.high.store(pack.base + i);
    base.low.store(pack.base_low + i);
    factor.store(pack.factor + i);
  }

  /// Adds to the scores of the rows that are not used.
  GDPO_COLD void score_unused(LanePack& pack, index_t first) {
    this->add_unused(pack, first, [&](int i, double x) {
      const Split<double> base{pack.base[i], pack.base_low[i]};
      return term_of(center(x, base), pack.factor[i], reader_.replaces_nan());
    });
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
  bool exact_ = false;  ///< The last packs needed exact scores.
  BatchStat no_batch_{};
};

}  // namespace detail
GDPO_END_NAMESPACE
