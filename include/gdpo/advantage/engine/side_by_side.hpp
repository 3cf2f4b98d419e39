#pragma once
// The fast path: small groups evaluated side by side in lanes.
#include <algorithm>
#include <gdpo/advantage/engine/lane_packs.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What the workers of one call share: the batch, the policies and the scratch memory.
template <class T, class Groups, class Baseline, class Scale>
struct GroupCall {
  const char* function;
  const RewardBatch<T, Groups>& batch;
  const Baseline& baseline;
  const Scale& scale;
  Singleton singleton;
  const LaneReader<T, Groups>& reader;
  EstimatorScratch& work;
  GroupReport* report = nullptr;
  index_t columns;     ///< Number of columns: rewards with a weight, or 1 for their weighted sum.
  bool lanes = false;  ///< The execution tag asks for lanes: rows and groups may go side by side.

  template <class Estimator>
  GroupCall(const char* name, const RewardBatch<T, Groups>& rewards, const Estimator& e,
            const LaneReader<T, Groups>& reads, EstimatorScratch& scratch)
      : function(name),
        batch(rewards),
        baseline(e.baseline),
        scale(e.scale),
        singleton(e.singleton),
        reader(reads),
        work(scratch),
        columns(reads.sums_first() ? 1 : static_cast<index_t>(scratch.used_rewards.size())) {}
};

/// The fast path: several groups side by side in lanes, and the policies in lanes too. Groups of a
/// unit of work are taken together with others of similar length. Members that are missing leave
/// gaps in the lanes, which add nothing. It leaves to the general path of one_group.hpp the groups
/// that have a rule of their own: of one member, of values that are not finite, or to be refused.
/// Both paths give the same bits.
template <class T, class Groups, class Baseline, class Scale>
class SideBySide : LanePacks<T, Groups> {
  using Base = LanePacks<T, Groups>;
  using Base::scratch_, Base::columns_, Base::lanes_, Base::groups_, Base::traits_, Base::reader_,
      Base::sums_first_;
  static constexpr bool zero_sum = values_sum_to_zero_v<Baseline, Scale>;
  /// A policy is asked for every member.
  static constexpr bool per_member = !once_a_group_v<Baseline, Scale>;
  /// A policy reads the values of a group in ascending order.
  static constexpr bool sorts = need_scratch_v<Baseline, Scale>;

  /// Policies are called for one register of lanes after the other: of a pack with gaps, each then
  /// has few different numbers of members.
  static constexpr int N = math::native_width<double>;
  using Lanes = math::Pack<N>;

 public:
  using Base::reserve;

  SideBySide(const GroupCall<T, Groups, Baseline, Scale>& call, GroupScratch& scratch)
      : Base(call.reader, call.batch, call.work, scratch, call.report, call.columns,
             {zero_sum, compares_v<Baseline>, per_member, sorts,
              call.singleton == Singleton::Zero || call.singleton == Singleton::Exclude}),
        call_(call) {}

  /// Combines the groups first .. last - 1, those that it declines by general(g), in order.
  template <class General>
  void combine(index_t first, index_t last, const General& general) {
    index_t tiny = 0, *const list = scratch_.group_lists.data(),
            *const declined = list + scratch_.group_lists.size() / 2;
    const index_t n = this->list_groups(first, last, list, tiny);
    std::copy_n(list + n, tiny, declined);
    index_t left = tiny;
    LanePack packs[Base::most_packs];
    this->place(packs);
    for (index_t i = 0; i < n;) {
      int count = 0;
      for (; count < Base::most_packs && i < n; ++count)
        i += this->start(packs[count], list + i, n - i);
      combine_packs(packs, count);
      for (int s = 0; s < count; ++s) {
        for (int p = 0; packs[s].declines && p < packs[s].groups; ++p) {
          if (packs[s].declined[p]) declined[left++] = packs[s].number[p];
        }
      }
    }
    if (!std::is_sorted(declined, declined + left)) std::sort(declined, declined + left);
    for (index_t i = 0; i < left; ++i) general(declined[i]);
  }

 private:
  void combine_packs(LanePack* packs, int n) {
    for (bool exact = exact_ || !zero_sum || per_member;; exact = true) {
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

  /// Calls the policies for base and factor of every lane: of a pack without gaps for all lanes at
  /// once.
  GDPO_NOINLINE void apply_policies(LanePack& pack, index_t first) {
    if constexpr (per_member) {
      apply_by_register(pack, first);
    } else if (pack.uneven) {
      apply_by_register(pack, first);
    } else {
      this->with_width([&](auto lanes) {
        apply_to_groups<decltype(lanes)::value>(pack, first, 0, pack.members, nullptr);
      });
    }
    if (call_.report && !sums_first_) this->keep_factors(pack, first);
  }
  /// The same for one register of lanes after the other.
  GDPO_NOINLINE void apply_by_register(LanePack& pack, index_t first) {
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
      for (double least = tree_min(left); - least >= fewest; least = tree_min(left)) {
        const auto same = left == Lanes::all(least);
        apply_policies(pack, first, i, static_cast<index_t>(-least), &same);
        left = select(same, zero, left);
      }
    }
  }

  /// The same for the lanes i .. i + N - 1, as far as they have n members: those of the mask. Null:
  /// all of them.
  void apply_policies(LanePack& pack, index_t first, int i, index_t n, const math::Mask<N>* same) {
    if constexpr (per_member) {
      apply_to_members(pack, first, i, n, same);
    } else {
      apply_to_groups<N>(pack, first, i, n, same);
    }
  }
  template <int M>
  void apply_to_groups(LanePack& pack, index_t first, int i, index_t n, const math::Mask<M>* same) {
    using All = math::Pack<M>;
    const auto stat = stat_lanes<M>(pack, i, n);
    const All zero = All::all(0.0);
    Split<All> base = split<All>(call_.baseline(of_baseline<M>(pack, stat, first, i)));
    All factor = math::constant<All>(call_.scale(of_scale<M>(pack, stat, first, i)));
    if constexpr (from_group_v<Baseline>)
      factor = select(All::load(pack.equal + i) > zero, zero, factor);
    if (!sums_first_) factor = mul(reader_.template lane_weights<M>(first, groups_, i), factor);
    if (same) {
      base.high = select(*same, base.high, All::load(pack.base + i));
      base.low = select(*same, base.low, All::load(pack.base_low + i));
      factor = select(*same, factor, All::load(pack.factor + i));
    }
    base.high.store(pack.base + i);
    base.low.store(pack.base_low + i);
    factor.store(pack.factor + i);
  }

  /// The same where a policy is asked for every member: it makes terms of the values in the block,
  /// which are then added with the factor 1.
  void apply_to_members(LanePack& pack, index_t first, int i, index_t n,
                        const math::Mask<N>* same) {
    const Lanes zero = Lanes::all(0.0), one = Lanes::all(1.0);
    const auto stat = stat_lanes<N>(pack, i, n);
    Split<Lanes> base{zero, zero};
    Lanes scale = zero, weight = one;
    if constexpr (one_a_group_v<Baseline>)
      base = split<Lanes>(call_.baseline(of_baseline<N>(pack, stat, first, i)));
    if constexpr (one_a_group_v<Scale>)
      scale = math::constant<Lanes>(call_.scale(of_scale<N>(pack, stat, first, i)));
    if (!sums_first_) weight = reader_.template lane_weights<N>(first, groups_, i);
    const index_t stride = this->width();
    const double *base_numbers = numbers_of<Baseline>(call_.work.columns.of_baseline, first, i),
                 *scale_numbers = numbers_of<Scale>(call_.work.columns.of_scale, first, i);
    double* x = pack.block + i;
    for (index_t k = 0; k < pack.members; ++k, x += stride) {
      const Lanes value = Lanes::load(x);
      MemberLanes<N> member{stat, no_batch_, value, zero, base_numbers, stride};
      if constexpr (!one_a_group_v<Baseline>) base = split<Lanes>(call_.baseline(member));
      member.centered = center(value, base);
      member.of_batch = scale_numbers;
      if constexpr (!one_a_group_v<Scale>) scale = math::constant<Lanes>(call_.scale(member));
      Lanes factor = scale;
      if constexpr (from_group_v<Baseline>) factor = select(stat.degenerate, zero, factor);
      factor = mul(weight, factor);
      const auto nothing = math::either(is_nan(value), is_zero(factor));
      const Lanes term = select(nothing, zero, mul(member.centered, factor));
      (same ? select(*same, term, value) : term).store(x);
    }
    (same ? select(*same, one, Lanes::load(pack.factor + i)) : one).store(pack.factor + i);
    zero.store(pack.base + i), zero.store(pack.base_low + i);
  }

  /// The moments in the lanes i .. i + M - 1, of n members.
  template <int M>
  auto stat_lanes(const LanePack& pack, int i, index_t n) const {
    using All = math::Pack<M>;
    std::conditional_t<per_member || sorts, typename MemberLanes<M>::Stat,
                       typename GroupLanes<M>::Stat>
        stat;
    stat.n = n, stat.mean = All::load(pack.mean + i);
    stat.mean_low = All::load(pack.mean_low + i), stat.m2 = All::load(pack.m2 + i);
    if constexpr (per_member || sorts) {
      stat.min = All::load(pack.min + i), stat.max = All::load(pack.max + i);
      stat.second_min = All::load(pack.second_min + i);
      stat.second_max = All::load(pack.second_max + i);
      stat.rounding = All::load(pack.rounding + i);
      stat.degenerate = All::load(pack.equal + i) > All::all(0.0);
    }
    return stat;
  }
  /// What the policies see in these lanes of the block that begins with column `first`.
  template <int M, class Stat>
  auto of_baseline(const LanePack& pack, const Stat& stat, index_t first, int i) const {
    return args_of<M, Baseline>(pack, stat, call_.work.columns.of_baseline, first, i);
  }
  template <int M, class Stat>
  auto of_scale(const LanePack& pack, const Stat& stat, index_t first, int i) const {
    return args_of<M, Scale>(pack, stat, call_.work.columns.of_scale, first, i);
  }
  /// numbers: what the policy takes from the batch, spread over lanes.
  template <int M, class P, class Stat>
  auto args_of(const LanePack& pack, const Stat& stat, const std::vector<double>& numbers,
               index_t first, int i) const {
    const index_t stride = this->width();
    if constexpr (per_group_values_v<P>) {
      static_cast<void>(numbers), static_cast<void>(first);
      return GroupValueLanes<M>{stat,
                                no_batch_,
                                {pack.sorted + i, {stat.n}, stride},
                                {pack.rewards + i, {stat.n}, stride}};
    } else {
      static_cast<void>(pack);
      return GroupLanes<M>{stat, no_batch_, numbers_of<P>(numbers, first, i), stride};
    }
  }
  /// The numbers of the lanes from i on; null where there are none.
  template <class P>
  const double* numbers_of(const std::vector<double>& numbers, index_t first, int i) const {
    if constexpr (has_of_batch_v<P>) {
      if (!numbers.empty()) return numbers.data() + first * groups_ * numbers_in_v<P> + i;
    }
    return nullptr;
  }

  /// Adds to the scores of the rows that are not used.
  GDPO_COLD void score_unused(LanePack& pack, index_t first) {
    this->add_unused(pack, first, [&](int i, double x) {
      if constexpr (per_member) {
        const GroupStat stat = this->stat_of(pack, i);
        const Rule rule = rule_of<Baseline>(stat, call_.singleton);
        MemberArgs args{{stat, call_.work.batch_stats[as_size(first + i % lanes_)]}};
        args.value = x;
        if constexpr (sorts) {
          for (index_t k = 0; k < stat.n; ++k)
            scratch_.values[as_size(k)] = pack.sorted[k * this->width() + i];
          args.values = gdpo::view(scratch_.values.data(), stat.n);
        }
        const double weight =
            sums_first_ ? 1.0 : call_.work.reward_weights[as_size(first + i % lanes_)];
        const Split<double> base = base_of(call_.baseline, rule, args, scratch_.policies.data());
        const double above = center(x, base);
        const double factor = factor_of(call_.scale, rule, args, above, scratch_.policies.data());
        return term_of(above, math::mul(weight, factor), reader_.replaces_nan());
      } else {
        const Split<double> base{pack.base[i], pack.base_low[i]};
        return term_of(center(x, base), pack.factor[i], reader_.replaces_nan());
      }
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

  const GroupCall<T, Groups, Baseline, Scale>& call_;
  bool exact_ = false;  ///< The last packs needed exact scores.
  BatchStat no_batch_{};
};

}  // namespace detail
GDPO_END_NAMESPACE
