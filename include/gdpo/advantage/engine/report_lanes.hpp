#pragma once
// What a report says of groups side by side, one in each lane, with the bits of the loops over one
// group. It is compiled once for each order of summation, not for each estimator.
#include <gdpo/advantage/engine/reward_parts.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// One number of each group side by side.
using ReportLanes = math::Pack<report_lanes>;

template <std::size_t N>
GDPO_HOST_INLINE std::array<ReportLanes, N> added(const std::array<ReportLanes, N>& a,
                                                  const std::array<ReportLanes, N>& b) {
  std::array<ReportLanes, N> sum;
  for (std::size_t s = 0; s < N; ++s) sum[s] = a[s] + b[s];
  return sum;
}
/// The sums that sum_rows gives of the members of each lane. term(k): the N terms of member k.
template <std::size_t N, class Term>
GDPO_HOST_INLINE std::array<ReportLanes, N> sum_members(InRowOrder, index_t members,
                                                        const Term& term) {
  // Members j and j + 8 of the 16 lanes of sum_rows are added first; up to 16 members that is all.
  constexpr int half = grid_lanes / 2;
  std::array<ReportLanes, N> slots[half], zeros;
  zeros.fill(ReportLanes::all(0.0));
  const auto lane = [&](index_t j) {
    if (j >= members) return zeros;
    std::array<ReportLanes, N> sum = term(j);
    for (index_t k = j + grid_lanes; k < members; k += grid_lanes) sum = added(sum, term(k));
    return sum;
  };
  for (int j = 0; j < half; ++j) slots[j] = added(lane(j), lane(j + half));
  for (int step = half / 2; step > 0; step /= 2) {
    for (int j = 0; j < step; ++j) slots[j] = added(slots[j], slots[j + step]);
  }
  return added(zeros, slots[0]);
}
template <std::size_t N, class Term>
GDPO_HOST_INLINE std::array<ReportLanes, N> sum_members(AnyOrder, index_t members,
                                                        const Term& term) {
  std::array<TwoSum<ReportLanes>, N> sums;
  sums.fill({ReportLanes::all(0.0), ReportLanes::all(0.0)});
  for (index_t k = 0; k < members; ++k) {
    const std::array<ReportLanes, N> terms = term(k);
    for (std::size_t s = 0; s < N; ++s) sums[s].add(terms[s]);
  }
  std::array<ReportLanes, N> values;
  for (std::size_t s = 0; s < N; ++s) values[s] = sums[s].value();
  return values;
}

/// What is known of an array of members: the range of its numbers, and how many there are. NaN is
/// no number.
struct LaneRange {
  ReportLanes low, high, count;
  bool whole;  ///< Every member of every lane has a number.
  /// Whether a number is infinite.
  GDPO_HOST_INLINE bool infinite() const {
    const ReportLanes zero = ReportLanes::all(0.0);
    return any(not_finite(select(low <= high, high - low, zero)));
  }
};
/// How many numbers there are.
GDPO_NOINLINE inline ReportLanes count_lanes(const double* x, index_t members) {
  const ReportLanes zero = ReportLanes::all(0.0), one = ReportLanes::all(1.0);
  ReportLanes count = zero;
  for (index_t k = 0; k < members; ++k)
    count = count + select(is_nan(ReportLanes::load(x + k * report_lanes)), zero, one);
  return count;
}
/// The range of an array, and its sum over the members as the first pass of moments_of adds it.
template <class Order>
GDPO_NOINLINE LaneRange range_of_lanes(Order order, const double* x, index_t members,
                                       ReportLanes& sum) {
  ReportLanes low = ReportLanes::all(math::infinity), high = ReportLanes::all(-math::infinity);
  sum = sum_members<1>(order, members, [&](index_t k) {
    const ReportLanes value = ReportLanes::load(x + k * report_lanes);
    low = (math::min)(low, value), high = (math::max)(high, value);
    return std::array{value};
  })[0];
  LaneRange range{low, high, ReportLanes::all(static_cast<double>(members)), true};
  if (any(not_finite(sum))) {
    range.whole = !any(count_lanes(x, members) < range.count);
    range.count = count_lanes(x, members);
  }
  return range;
}
/// The std that std_or_nan(moments_of()) gives of each lane of an array of two or more members
/// whose every member has a number.
template <class Order>
GDPO_NOINLINE ReportLanes std_of_lanes(Order order, const double* x, index_t members,
                                       const LaneRange& range, const ReportLanes& sum) {
  using math::mul;
  const ReportLanes weight = ReportLanes::all(static_cast<double>(members)), center = sum / weight,
                    zero = ReportLanes::all(0.0);
  const auto sums = sum_members<2>(order, members, [&](index_t k) {
    const ReportLanes d = ReportLanes::load(x + k * report_lanes) - center;
    return std::array{d, mul(d, d)};
  });
  const ReportLanes m2 = sums[1] - mul(sums[0], sums[0] / weight),
                    least = select(range.low == range.high, zero, (math::max)(m2, zero));
  return sqrt(mul(least, ReportLanes::all(1.0 / static_cast<double>(members - 1))));
}

/// center_numbers() of each lane. masked: members may be NaN.
template <bool masked>
GDPO_NOINLINE void center_lanes(const double* x, index_t members, const LaneRange& range,
                                double* out) {
  const ReportLanes zero = ReportLanes::all(0.0), low = range.low;
  TwoSum<ReportLanes> sum{zero, zero};
  for (index_t k = 0; k < members * report_lanes; k += report_lanes) {
    const ReportLanes above = ReportLanes::load(x + k) - low;
    above.store(out + k);
    sum.add(masked ? select(is_nan(above), zero, above) : above);
  }
  const ReportLanes mean = sum.value() / range.count;
  for (index_t k = 0; k < members * report_lanes; k += report_lanes)
    (ReportLanes::load(out + k) - mean).store(out + k);
}
/// sum_of_products() of each lane.
template <bool masked>
GDPO_NOINLINE ReportLanes products_of_lanes(const double* x, const double* y, index_t members) {
  const ReportLanes zero = ReportLanes::all(0.0);
  TwoSum<ReportLanes> sum{zero, zero};
  for (index_t k = 0; k < members * report_lanes; k += report_lanes) {
    const ReportLanes product = mul(ReportLanes::load(x + k), ReportLanes::load(y + k));
    sum.add(masked ? select(is_nan(product), zero, product) : product);
  }
  return sum.value();
}
inline void center_lanes(const double* x, index_t members, const LaneRange& range, double* out) {
  range.whole ? center_lanes<false>(x, members, range, out)
              : center_lanes<true>(x, members, range, out);
}

/// Copies runs of numbers to lanes: lanes[k, p] = runs[first[p] + k], (members, report_lanes), for
/// p < groups. write_runs is the way back.
GDPO_NOINLINE inline void read_runs(const double* runs, const index_t* first, int groups,
                                    index_t members, double* lanes) {
  constexpr int P = report_lanes, W = math::native_width<double>;
  index_t k = 0;
  if constexpr (W > 1) {
    constexpr std::make_integer_sequence<int, W> places{};
    for (; k + W <= members; k += W) {
      for (int p = 0; p < groups; p += W) {
        math::Pack<W> block[W];
        for (int j = 0; j < W; ++j)
          block[j] = math::Pack<W>::load(runs + first[(std::min)(p + j, groups - 1)] + k);
        transpose<W / 2>(block, places);
        for (int j = 0; j < W; ++j) block[j].store(lanes + (k + j) * P + p);
      }
    }
  }
  for (; k < members; ++k) {
    for (int p = 0; p < groups; ++p) lanes[k * P + p] = runs[first[p] + k];
  }
}

/// Groups side by side, as the driver of a report has read them into the memory. Lanes beyond
/// `groups` repeat a group.
template <class Order>
class ReportPack {
 public:
  index_t g = 0, groups = 0, members = 0;  ///< The first group; how many; those of the longest.
  index_t lengths[report_lanes] = {};      ///< Members of each group, those not used included.
  index_t used[report_lanes] = {};         ///< Members of each group that are used.
  bool adjusts = false;                    ///< adjusted(c) is an array of its own.
  bool full = false;                       ///< Every row counts, and the groups have equal lengths.

  ReportPack(const ReportMemory& memory, const PartRules& rules, EstimatorScratch& work,
             GroupReport& report)
      : memory_(memory), rules_(rules), work_(work), report_(report) {}

  double* given(index_t c) const { return array(c); }
  double* adjusted(index_t c) const { return array(adjusts ? memory_.rewards + c : c); }
  double* combined() const { return array(3 * memory_.rewards); }
  double* total() const { return array(3 * memory_.rewards + 1); }
  /// More memory, three times.
  double* more(index_t i) const { return array(3 * memory_.rewards + 2 + i); }

  /// Writes to total() the weighted sums of the members that have a combined value, as
  /// RewardRules::weighted_sum adds them.
  GDPO_NOINLINE void add_up() const {
    const ReportLanes zero = ReportLanes::all(0.0), nan = ReportLanes::all(math::nan());
    const auto n = static_cast<index_t>(work_.used_rewards.size());
    for (index_t k = 0; k < members * P; k += P) {
      ReportLanes sum = zero;
      for (index_t j = 0; j < n; j += 8) {
        ReportLanes t[8] = {zero, zero, zero, zero, zero, zero, zero, zero};
        for (index_t i = 0; i < (std::min<index_t>)(8, n - j); ++i) {
          const ReportLanes x = ReportLanes::load(adjusted(used_reward(j + i)) + k);
          t[i] = mul(ReportLanes::all(work_.reward_weights[as_size(j + i)]), x);
          if (rules_.skips) t[i] = select(is_nan(x), zero, t[i]);
        }
        sum = sum + (((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7])));
      }
      select(is_nan(ReportLanes::load(combined() + k)), nan, sum).store(total() + k);
    }
  }

  /// Writes what the report says of these groups and returns true. Where a number is infinite, or
  /// a row that counts has a NaN, it writes nothing and returns false.
  GDPO_NOINLINE bool describe() {
    constexpr Order order{};
    const index_t rewards = memory_.rewards;
    for (index_t i = 0; i < rewards + 2; ++i) {
      const double* const x = i < rewards ? given(i) : i == rewards ? total() : combined();
      if (!describe_range(order, x, i)) return false;
      if (i < rewards && adjusts && !describe_range(order, adjusted(i), rewards + 2 + i))
        return false;
    }
    if (full && !(range(rewards).whole && range(rewards + 1).whole)) return false;
    for (index_t c = 0; c < rewards; ++c) write_reward(c);
    write_sums();
    if (rewards > 1) add_pairs_of_lanes();
    if (!work_.used_rewards.empty() && !(several() && rules_.asks())) add_explained_of_lanes();
    return true;
  }

 private:
  static constexpr int P = report_lanes;
  bool several() const { return work_.used_rewards.size() > 1; }
  double* array(index_t i) const { return memory_.array(work_, 0) + i * members * P; }
  double* centered(index_t c) const { return array(2 * memory_.rewards + c); }
  double* note(index_t i) const { return memory_.note(work_, as_size(i)); }

  // ---- notes: (3) of each array: low, high, count; then the sums of the first passes ------------

  index_t first_sum() const { return 3 * (2 * memory_.rewards + 2); }
  index_t range_note(index_t i) const { return 3 * i; }
  index_t note_of_adjusted(index_t c) const { return adjusts ? memory_.rewards + 2 + c : c; }
  LaneRange range(index_t i) const {
    const double* const x = note(range_note(i));
    LaneRange range{ReportLanes::load(x), ReportLanes::load(x + P), ReportLanes::load(x + 2 * P),
                    true};
    range.whole = !any(range.count < ReportLanes::all(static_cast<double>(members)));
    return range;
  }
  bool describe_range(Order order, const double* x, index_t i) {
    ReportLanes sum;
    const LaneRange range = range_of_lanes(order, x, members, sum);
    double* const to = note(range_note(i));
    range.low.store(to), range.high.store(to + P), range.count.store(to + 2 * P);
    if (i < memory_.rewards + 2) sum.store(note(first_sum() + i));
    return !range.infinite();
  }

  // ---- each reward, and the sums ----------------------------------------------------------------

  /// The std of each group in an array, NaN below two numbers.
  void write_stds(const double* x, index_t i, double* std) {
    const LaneRange known = range(i);
    if (members > 1)
      std_of_lanes(Order{}, x, members, known, ReportLanes::load(note(first_sum() + i))).store(std);
    for (index_t p = 0; p < groups; ++p) {
      const auto n = static_cast<index_t>(note(range_note(i) + 2)[p]);
      if (n == members && members > 1) continue;
      // Numbers are added as if the missing ones were not there.
      double* const numbers = more(0);
      index_t next = 0;
      for (index_t k = 0; k < members; ++k) {
        if (!math::is_nan(x[k * P + p])) numbers[next++] = x[k * P + p];
      }
      std[p] = std_or_nan(moments_of(Order{}, numbers, nullptr, n));
    }
  }

  void write_reward(index_t c) {
    double std[P];
    write_stds(given(c), c, std);
    const double* const x = note(range_note(note_of_adjusted(c)));
    RewardReport& reward = report_.rewards[as_size(c)];
    const std::size_t rewards = as_size(memory_.rewards);
    unsigned char* degenerate =
        report_.reward_degenerate.data() + as_size(g) * rewards + as_size(c);
    double* target = report_.reward_group_std.data() + as_size(g) * rewards + as_size(c);
    for (index_t p = 0; p < groups; ++p, degenerate += rewards, target += rewards) {
      const double low = x[p], high = x[P + p];
      reward.known_groups += low <= high;
      reward.flat_groups += low == high;
      *degenerate = !(low < high);
      *target = std[p];
    }
    if (range(c).whole) return;
    bool read = false;
    for (const index_t other : work_.used_rewards) read = read || other == c;
    const double* const counts = note(range_note(c) + 2);
    for (index_t p = 0; read && p < groups; ++p)
      report_.excluded_rewards += used[p] - static_cast<index_t>(counts[p]);
  }

  void write_sums() {
    double std[P], squares[P];
    const index_t place = memory_.rewards;
    write_stds(total(), place, std);
    typename Order::template Sum<ReportLanes> sum{ReportLanes::all(0.0)};
    const ReportLanes zero = ReportLanes::all(0.0);
    for (index_t k = 0; k < members * P; k += P) {
      const ReportLanes value = ReportLanes::load(combined() + k);
      sum.add(select(is_nan(ReportLanes::load(total() + k)), zero, mul(value, value)));
    }
    sum.value().store(squares);
    const double* const counts = note(range_note(place) + 2);
    for (index_t p = 0; p < groups; ++p) {
      report_.singletons += counts[p] == 1;
      report_.empty_groups += counts[p] == 0;
      const double spread = lengths[p] == 1 ? 0.0 : std[p];
      report_.group_std[as_size(g + p)] = spread;
      report_.group_squares[as_size(g + p)] = squares[p];
      if (!math::is_nan(spread) && spread <= 1e-8) report_.flat_rows += lengths[p];
    }
  }

  // ---- several rewards --------------------------------------------------------------------------

  ReportLanes active() const {
    double flags[P];
    for (int p = 0; p < P; ++p) flags[p] = p < groups;
    return ReportLanes::load(flags);
  }
  /// Adds to a sum over groups in each lane that `mask` selects.
  void add(std::size_t i, const math::Mask<P>& mask, const ReportLanes& x) {
    double* const memory = memory_.lane_sum(work_, i);
    TwoSum<ReportLanes> sum{ReportLanes::load(memory), ReportLanes::load(memory + P)};
    sum.add(select(mask, x, ReportLanes::all(0.0)));
    sum.sum.store(memory), sum.error.store(memory + P);
  }

  void add_pairs_of_lanes() {
    const index_t rewards = memory_.rewards;
    const auto mask = ReportLanes::all(0.0) < active();
    double* const squares = note(first_sum() + rewards + 2);
    for (index_t a = 0; a < rewards; ++a) {
      const LaneRange known = range(a);
      if (!known.whole) continue;
      center_lanes<false>(given(a), members, known, centered(a));
      products_of_lanes<false>(centered(a), centered(a), members).store(squares + a * P);
    }
    std::size_t pair = 0;
    for (index_t a = 0; a < rewards; ++a) {
      const LaneRange of_a = range(a);
      for (index_t b = a + 1; b < rewards; ++b, pair += 3) {
        const LaneRange of_b = range(b);
        if (!of_a.whole || !of_b.whole) {
          add_masked_pair(pair, given(a), given(b), mask);
          continue;
        }
        add(pair, mask, products_of_lanes<false>(centered(a), centered(b), members));
        add(pair + 1, mask, ReportLanes::load(squares + a * P));
        add(pair + 2, mask, ReportLanes::load(squares + b * P));
      }
    }
  }
  /// The members with both rewards.
  GDPO_NOINLINE void add_masked_pair(std::size_t pair, const double* a, const double* b,
                                     const math::Mask<P>& mask) {
    const ReportLanes nan = ReportLanes::all(math::nan()), zero = ReportLanes::all(0.0),
                      one = ReportLanes::all(1.0);
    LaneRange of_a{ReportLanes::all(math::infinity), ReportLanes::all(-math::infinity), zero,
                   false},
        of_b = of_a;
    double *x = more(0), *y = more(1);
    for (index_t k = 0; k < members * P; k += P) {
      const ReportLanes value_a = ReportLanes::load(a + k), value_b = ReportLanes::load(b + k);
      const auto missing = either(is_nan(value_a), is_nan(value_b));
      const ReportLanes both_a = select(missing, nan, value_a),
                        both_b = select(missing, nan, value_b);
      of_a.low = (math::min)(of_a.low, both_a), of_a.high = (math::max)(of_a.high, both_a);
      of_b.low = (math::min)(of_b.low, both_b), of_b.high = (math::max)(of_b.high, both_b);
      of_a.count = of_a.count + select(missing, zero, one);
      both_a.store(x + k), both_b.store(y + k);
    }
    of_b.count = of_a.count;
    center_lanes<true>(x, members, of_a, x), center_lanes<true>(y, members, of_b, y);
    add(pair, mask, products_of_lanes<true>(x, y, members));
    add(pair + 1, mask, products_of_lanes<true>(x, x, members));
    add(pair + 2, mask, products_of_lanes<true>(y, y, members));
  }

  void add_explained_of_lanes() {
    const auto n = static_cast<index_t>(work_.used_rewards.size());
    const ReportLanes zero = ReportLanes::all(0.0);
    double flags[P];
    for (index_t p = 0; p < P; ++p)
      flags[p] = p < groups && report_.degenerate[as_size(g + p)] == 0;
    auto counts = zero < ReportLanes::load(flags);
    if (!any(counts)) return;
    const LaneRange of_combined = range(memory_.rewards + 1), of_total = range(memory_.rewards);
    bool whole = of_combined.whole;
    for (index_t j = 0; several() && j < n; ++j)
      whole = whole && range(note_of_adjusted(used_reward(j))).whole;
    auto by_factor = ReportLanes::all(0.0) < ReportLanes::all(1.0);
    if (!whole && several()) read_missing(by_factor, counts);

    double *const s = more(0), *const t = rules_.sums_first ? more(1) : s;
    center_lanes(combined(), members, of_combined, s);
    const ReportLanes squares = products(whole, s, s);
    ReportLanes spread = squares;
    if (rules_.sums_first) {
      center_lanes(total(), members, of_total, t);
      spread = products(whole, t, t);
    }
    counts = both(counts, both(zero < squares, zero < spread));
    counts = both(counts, both(squares < ReportLanes::all(math::infinity),
                               spread < ReportLanes::all(math::infinity)));
    add(memory_.explained_sum(n), counts, squares);
    for (index_t j = 0; several() && j < n; ++j) {
      const index_t c = used_reward(j);
      const ReportLanes factor = kept(j, 0);
      const double* part = centered(c);
      LaneRange known = range(note_of_adjusted(c));
      if (!whole || adjusts) {
        double* const own = more(2);
        if (!whole) known = parts(by_factor, j, own);
        center_lanes(whole ? adjusted(c) : own, members, known, own);
        part = own;
      }
      const ReportLanes product =
          mul(select(by_factor, factor, ReportLanes::all(1.0)), products(whole, part, t));
      add(memory_.explained_sum(j), counts, mul(squares, product / spread));
    }
  }
  ReportLanes products(bool whole, const double* x, const double* y) {
    return whole ? products_of_lanes<false>(x, y, members) : products_of_lanes<true>(x, y, members);
  }
  index_t used_reward(index_t j) const { return work_.used_rewards[as_size(j)]; }
  /// What the engine has kept of column j of each group: with sums_first its weight.
  ReportLanes kept(index_t j, index_t i) const {
    if (rules_.sums_first) return ReportLanes::all(work_.reward_weights[as_size(j)]);
    double numbers[P];
    for (index_t p = 0; p < P; ++p) numbers[p] = memory_.kept(work_, p < groups ? g + p : g, j)[i];
    return ReportLanes::load(numbers);
  }
  /// Leaves out of by_factor the groups in which a member that counts lacks a reward, and out of
  /// `counts` those that have no shares for it.
  GDPO_NOINLINE void read_missing(math::Mask<P>& by_factor, math::Mask<P>& counts) const {
    const ReportLanes zero = ReportLanes::all(0.0), one = ReportLanes::all(1.0);
    ReportLanes lacks = zero;
    for (index_t j = 0; j < static_cast<index_t>(work_.used_rewards.size()); ++j) {
      const double *x = adjusted(used_reward(j)), *s = combined();
      for (index_t k = 0; k < members * P; k += P) {
        const ReportLanes counted = select(is_nan(ReportLanes::load(s + k)), zero, one);
        lacks = (math::max)(lacks, select(is_nan(ReportLanes::load(x + k)), counted, zero));
      }
    }
    if (!rules_.sums_first) by_factor = lacks < one;
    if (!rules_.skips) counts = both(counts, lacks < one);
  }
  /// The parts of column j where a reward may be missing.
  GDPO_NOINLINE LaneRange parts(const math::Mask<P>& by_factor, index_t j, double* out) const {
    const ReportLanes zero = ReportLanes::all(0.0), one = ReportLanes::all(1.0),
                      nan = ReportLanes::all(math::nan()), factor = kept(j, 0);
    const Split<ReportLanes> baseline{kept(j, 1), kept(j, 2)};
    const auto no_factor = is_zero(factor);
    LaneRange range{ReportLanes::all(math::infinity), ReportLanes::all(-math::infinity), zero,
                    false};
    const double *x = adjusted(used_reward(j)), *s = combined();
    for (index_t k = 0; k < members * P; k += P) {
      const ReportLanes value = ReportLanes::load(x + k);
      const auto missing = is_nan(value), absent = is_nan(ReportLanes::load(s + k));
      ReportLanes term = select(no_factor, zero, mul(center(value, baseline), factor)) + zero;
      if (rules_.replaces_nan) term = select(is_nan(term), zero, term);
      const ReportLanes part =
          select(absent, nan, select(missing, zero, select(by_factor, value, term)));
      range.low = (math::min)(range.low, part), range.high = (math::max)(range.high, part);
      range.count = range.count + select(is_nan(part), zero, one);
      part.store(out + k);
    }
    return range;
  }

  const ReportMemory& memory_;
  const PartRules& rules_;
  EstimatorScratch& work_;
  GroupReport& report_;
};

}  // namespace detail
GDPO_END_NAMESPACE
