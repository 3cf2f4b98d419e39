#pragma once
// The loops over groups side by side in lanes that do not depend on the estimator. One pack holds
// P rows (or groups) of L rewards each: lanes p L .. p L + L - 1 are the rewards of row p. They
// are compiled once for each number of rewards, not once for each estimator.
#include <algorithm>
#include <gdpo/advantage/order_values.hpp>
#include <gdpo/advantage/shared/group_stats.hpp>
#include <gdpo/advantage/shared/group_units.hpp>
#include <gdpo/lanes/segment_sums.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// How many rows of L rewards go side by side: four registers' worth of lanes, which are enough
/// independent sums to hide the latency of an addition.
constexpr int rows_side_by_side(int L) {
  return (std::max)(1, (std::min)(most_side_by_side, 4 * GDPO_LANE_BYTES / (8 * L)));
}
template <int L>
constexpr int side_by_side = rows_side_by_side(L);
/// The most lanes of a pack.
constexpr int most_lanes = (std::max)(8, 4 * GDPO_LANE_BYTES / 8);

/// L, the number of lanes that `rewards` rewards take. More than 8 rewards go in blocks of 8.
GDPO_HOST_INLINE int lanes_of(index_t rewards) {
  return rewards > 4 ? 8 : rewards > 2 ? 4 : rewards == 2 ? 2 : 1;
}

/// Calls f(std::integral_constant<int, L>) for an L that lanes_of has given.
template <class F>
GDPO_HOST_INLINE auto with_lanes(int L, const F& f) {
  switch (L) {
    case 8:
      return f(std::integral_constant<int, 8>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    default:
      return f(std::integral_constant<int, 1>{});
  }
}

/// The mask of the first `lanes` lanes.
template <int L>
GDPO_HOST_INLINE math::Mask<L> first_lanes(index_t lanes) {
  double place[L];
  for (int j = 0; j < L; ++j) place[j] = j;
  return math::Pack<L>::load(place) < math::Pack<L>::all(static_cast<double>(lanes));
}

/// Weighted sums of rows, and the sums of their |terms|. x: (members, P, L). For member k of row
/// p they are written to sums and magnitudes at k stride + p if `first`, and added to what is
/// there otherwise. skip: without the rewards that are NaN; the magnitude of a row that has no
/// other is then -0.
template <int L, int P>
GDPO_NOINLINE void add_weighted(const double* x, index_t members, const math::Pack<L * P>& weights,
                                bool skip, bool first, double* sums, double* magnitudes,
                                index_t stride) {
  using Rows = math::Pack<P>;
  using Lanes = math::Pack<L * P>;
  // By bits, because -ffast-math takes -0 for 0.
  const Rows zero = Rows::all(0.0),
             none = Rows::all(math::from_bits(static_cast<std::uint64_t>(skip) << 63));
  const Lanes nothing = Lanes::all(0.0), no_size = Lanes::all(-0.0), multiplied = weights;
  const auto padding = multiplied == nothing;
  for (index_t k = 0; k < members; ++k, sums += stride, magnitudes += stride) {
    const Lanes value = Lanes::load(x + k * (L * P));
    Lanes terms = mul(multiplied, value), sizes = abs(terms);
    if (skip) {
      const auto missing = is_nan(value);
      terms = select(missing, nothing, terms);
      sizes = select(either(missing, padding), no_size, sizes + nothing);
    }
    ((first ? zero : Rows::load(sums)) + segment_sums<L>(terms)).store(sums);
    ((first ? none : Rows::load(magnitudes)) + segment_sums<L>(sizes)).store(magnitudes);
  }
}

/// Groups side by side in lanes, and what is known about them: P groups of L columns each. Lane p L
/// + j is column j of group p. Lanes of groups that are left over repeat the first one. A place is
/// k P + p, that of member k of group p.
struct LanePack {
  int groups;
  index_t members,  ///< Of the longest group.
      shortest,     ///< Members of the shortest.
      known;        ///< So many first members of every group have all values.
  index_t number[most_side_by_side], length[most_side_by_side];
  index_t counted[most_side_by_side];  ///< The members that count: used, and with a reward.
  bool declined[most_side_by_side];    ///< The group is left to the general path.
  bool declines;                       ///< Some group is.
  bool uneven;                         ///< The lanes do not all have `members` values.
  bool ties;                           ///< Some group has equal scores.
  bool skips;                          ///< The sums are without missing rewards.
  /// Leaves group p to the general path.
  void decline(int p) { declined[p] = declines = true; }
  // (members, P, L) values, later terms; (members, P) scores, and the sums of their |terms| or of
  // those of the weighted sums; 0 for a row that counts and NaN for another.
  double *block, *scores, *magnitudes, *rows;
  double* rewards;         ///< The rewards that are summed; later scratch memory of a policy.
  double* sorted;          ///< (members, P, L) the values in ascending order.
  index_t* flagged;        ///< The places of rows that do not count, first those that are not used.
  index_t flags,           ///< How many those are.
      unused;              ///< How many of them are not used.
  double* flagged_scores;  ///< The scores of rows that are not used.
  // Arrays begin at a cache line, so that whole registers do not cross one.
  // Of each lane: the number of values if `uneven`, their moments, 1 where they are all equal (else
  // 0), and the bound of GroupStat::rounding.
  alignas(64) double count[most_lanes], mean[most_lanes], mean_low[most_lanes], m2[most_lanes],
      equal[most_lanes], rounding[most_lanes];
  alignas(64) double min[most_lanes], max[most_lanes], second_min[most_lanes],
      second_max[most_lanes];
  // What the policies give.
  alignas(64) double base[most_lanes], base_low[most_lanes], factor[most_lanes];
  // Of each group: the bound of add_scores and the largest |score|; the range of the scores, and
  // the largest sum of |terms|, infinite where one is not finite. Beyond the last group `largest`
  // and `high` are infinite and the others 0, so that no scores seem equal there.
  alignas(64) double bound[most_side_by_side] = {}, largest[most_side_by_side] = {};
  alignas(64) double low[most_side_by_side] = {}, high[most_side_by_side] = {},
                     size[most_side_by_side] = {};
  // Of each group 1 where its scores are equal, else 0.
  alignas(64) double same_scores[most_side_by_side];
};

/// Combined values of members, a block of L rewards at a time, of a pack without gaps.
///
///     scores (members, P)  sum over the rewards of (x - base) factor; with `terms` of the block,
///                          of which make_terms has made terms
///     largest (P)          max |score| over the members
///     bound (P)            sum over the rewards of m2 factor^2
///
/// scores and bound are written if `first`, and added to otherwise. The bound serves estimators
/// whose base is the mean of the group, so that (x - base)^2 <= m2. With C rewards the sum of the
/// |terms| of a row is then at most sqrt(C bound), by Cauchy-Schwarz.
template <int L, int P>
GDPO_NOINLINE void add_scores(LanePack& pack, bool first, bool terms) {
  using Lanes = math::Pack<L * P>;
  using Groups = math::Pack<P>;
  const Split<Lanes> base{Lanes::load(pack.base), Lanes::load(pack.base_low)};
  const Lanes factor = Lanes::load(pack.factor), m2 = Lanes::load(pack.m2);
  const Groups zero = Groups::all(0.0);
  ((first ? zero : Groups::load(pack.bound)) + segment_sums<L>(mul(mul(factor, factor), m2)))
      .store(pack.bound);
  const Lanes nothing = Lanes::all(0.0), one = Lanes::all(1.0);
  const Split<Lanes> subtracted = terms ? Split<Lanes>{nothing, nothing} : base;
  const Lanes multiplied = terms ? one : factor;
  Groups most = zero;
  const double* x = pack.block;
  double* score = pack.scores;
  for (index_t k = 0; k < pack.members; ++k, x += L * P, score += P) {
    const Lanes added = mul(center(Lanes::load(x), subtracted), multiplied);
    const Groups sum = (first ? zero : Groups::load(score)) + segment_sums<L>(added);
    sum.store(score);
    most = (math::max)((math::max)(most, sum), zero - sum);
  }
  most.store(pack.largest);
}

/// Makes terms (x - base) factor of the values in the block, `width` lanes of them: 0 for a value
/// that is missing, and where the factor is 0.
GDPO_NOINLINE inline void make_terms(LanePack& pack, int width) {
  constexpr int N = math::native_width<double>;
  using Lanes = math::Pack<N>;
  const Lanes zero = Lanes::all(0.0);
  for (int i = 0; i < width; i += N) {
    const Split<Lanes> base{Lanes::load(pack.base + i), Lanes::load(pack.base_low + i)};
    const Lanes factor = Lanes::load(pack.factor + i);
    const auto ignored = is_zero(factor);
    double* x = pack.block + i;
    for (index_t k = 0; k < pack.members; ++k, x += width) {
      const Lanes value = Lanes::load(x);
      select(either(ignored, is_nan(value)), zero, mul(center(value, base), factor)).store(x);
    }
  }
}

/// Adds a block of terms to the scores, and the |terms| to the magnitudes.
template <int L, int P>
GDPO_HOST_INLINE void add_terms(LanePack& pack, bool first) {
  add_weighted<L, P>(pack.block, pack.members, math::Pack<L * P>::all(1.0), false, first,
                     pack.scores, pack.magnitudes, P);
}

/// Places of a pack are taken in blocks of most_side_by_side, one register after the other. Place i
/// is of group i mod P. Here the last places are repeated up to a whole block, and their number is
/// returned.
GDPO_HOST_INLINE index_t fill_block(const LanePack& pack, int P, double* x) {
  const index_t n = pack.members * P,
                whole = (n + most_side_by_side - 1) / most_side_by_side * most_side_by_side;
  for (index_t i = n; i < whole; ++i) x[i] = x[i - P];
  return whole;
}

/// The range of the scores of the members that count, and the largest sum of their |terms|, of P
/// groups.
GDPO_NOINLINE inline void find_score_range(LanePack& pack, int P) {
  constexpr int N = math::native_width<double>, all = most_side_by_side;
  using Lanes = math::Pack<N>;
  const Lanes zero = Lanes::all(0.0), most = Lanes::all(math::infinity), least = -most;
  const bool gaps = pack.known < pack.members;
  double* const rows = gaps ? pack.rows : pack.scores;
  index_t places = 0;
  for (double* const x : {pack.scores, pack.magnitudes, rows}) places = fill_block(pack, P, x);
  for (int i = 0; i < all; i += N) {
    Lanes low = most, high = least, size = zero;
    auto infinite = zero < zero;
    for (index_t place = i; place < places; place += all) {
      const Lanes sum = Lanes::load(pack.scores + place),
                  sizes = Lanes::load(pack.magnitudes + place);
      infinite = either(infinite, not_finite(sizes));
      size = (math::max)(size, sizes);
      if (gaps) {  // -ffast-math lets min and max take a NaN for any number
        const auto ignored = is_nan(Lanes::load(rows + place));
        low = (math::min)(low, select(ignored, most, sum));
        high = (math::max)(high, select(ignored, least, sum));
      } else {
        low = (math::min)(low, sum), high = (math::max)(high, sum);
      }
    }
    low.store(pack.low + i), high.store(pack.high + i);
    select(infinite, most, size).store(pack.size + i);
  }
  for (int i = P; i < all; ++i) {
    double &low = pack.low[i & (P - 1)], &high = pack.high[i & (P - 1)],
           &size = pack.size[i & (P - 1)];
    low = (math::min)(low, pack.low[i]), high = (math::max)(high, pack.high[i]);
    size = (math::max)(size, pack.size[i]);
    pack.low[i] = pack.size[i] = 0, pack.high[i] = math::infinity;
  }
}

/// Decides by the bound which groups have equal scores; see LanePacks::decide. False: for some
/// group that the bound does not tell.
GDPO_NOINLINE inline bool decide(LanePack& pack, index_t columns) {
  constexpr int N = math::native_width<double>;
  using Groups = math::Pack<N>;
  const double least = 2 * rounding_of_sum(columns, 1.0);
  const Groups zero = Groups::all(0.0), one = Groups::all(1.0),
               square = Groups::all(least * least * static_cast<double>(columns));
  Groups open = zero;
  auto ties = zero < zero, infinite = ties;
  for (int i = 0; i < most_side_by_side; i += N) {
    const Groups bound = Groups::load(pack.bound + i), largest = Groups::load(pack.largest + i);
    const auto equal = largest == zero, unclear = not_finite(bound),
               decided = either(equal, mul(largest, largest) > mul(square, bound));
    select(equal, one, zero).store(pack.same_scores + i);
    ties = either(ties, equal), infinite = either(infinite, unclear);
    open = open + select(either(decided, unclear), zero, one);
  }
  pack.ties = any(ties);
  for (int p = 0; any(infinite) && p < pack.groups; ++p) {
    if (math::not_finite(pack.bound[p])) pack.decline(p);
  }
  return !any(open > zero);
}
/// The same by the exact range of the scores. CombinedRange::equal adds the |terms| in another
/// order, so that a close call is unclear. False: the bound would not have told.
GDPO_NOINLINE inline bool decide_exactly(LanePack& pack, index_t columns, bool sums_first) {
  constexpr int N = math::native_width<double>;
  using Groups = math::Pack<N>;
  const Groups zero = Groups::all(0.0), one = Groups::all(1.0),
               rounding = Groups::all(sums_first ? 0.0 : rounding_of_sum(columns, 1.0));
  double unclear[most_side_by_side];
  Groups open = zero, declined = zero;
  auto ties = zero < zero;
  for (int i = 0; i < most_side_by_side; i += N) {
    const Groups size = Groups::load(pack.size + i),
                 range = Groups::load(pack.high + i) - Groups::load(pack.low + i),
                 tolerance = mul(rounding, size), slack = mul(Groups::all(0x1p-40), tolerance);
    const auto equal = range <= tolerance - slack, told = either(equal, range > tolerance + slack),
               clear = either(range > mul(Groups::all(4.0), tolerance), size == zero);
    const Groups flag = select(not_finite(size), one, select(told, zero, one));
    select(equal, one, zero).store(pack.same_scores + i);
    flag.store(unclear + i);
    ties = either(ties, equal), declined = declined + flag;
    open = open + select(clear, zero, one);
  }
  pack.ties = any(ties);
  for (int p = 0; any(declined > zero) && p < pack.groups; ++p) {
    if (unclear[p] != 0) pack.decline(p);
  }
  return !any(open > zero);
}
/// Writes exactly 0 to the scores of groups, P in the pack, in which they are equal.
GDPO_NOINLINE inline void clear_equal(LanePack& pack, int P) {
  constexpr int N = math::native_width<double>, all = most_side_by_side;
  using Lanes = math::Pack<N>;
  const Lanes zero = Lanes::all(0.0);
  const index_t places = pack.members * P;
  for (int i = P; i < all; ++i) pack.same_scores[i] = pack.same_scores[i - P];
  for (int i = 0; i < all; i += N) {
    const auto equal = Lanes::load(pack.same_scores + i) > zero;
    if (!any(equal)) continue;
    for (index_t place = i; place < places; place += all)
      select(equal, zero, Lanes::load(pack.scores + place)).store(pack.scores + place);
  }
}

/// Whether rows of weighted sums (places) have a sum that is NaN, or a magnitude of -0.
GDPO_NOINLINE inline bool any_special_sum(const double* sums, const double* magnitudes,
                                          index_t places) {
  constexpr int N = math::native_width<double>;
  static_assert(side_by_side<1> % N == 0, "places are whole registers");
  using Rows = math::Pack<N>;
  const Rows zero = Rows::all(0.0), none = Rows::all(-0.0);
  auto special = zero < zero;
  for (index_t i = 0; i < places; i += N) {
    const Rows difference = collect_differences(zero, Rows::load(magnitudes + i), none);
    special = either(special, either(is_nan(Rows::load(sums + i)), has_no_bit(difference)));
  }
  return any(special);
}

/// Whether a pack with gaps has a lane whose moments are not finite or that has fewer than two
/// values, or a group that lacks a value in every column. `missing` is set where any lane lacks
/// one.
GDPO_NOINLINE inline bool has_special_lanes(const LanePack& pack, int L, int P, bool& missing) {
  constexpr int N = math::native_width<double>;
  using Lanes = math::Pack<N>;
  const Lanes zero = Lanes::all(0.0), one = Lanes::all(1.0), two = Lanes::all(2.0);
  double gaps[most_lanes];
  for (int p = 0; p < P; ++p) std::fill_n(gaps + p * L, L, static_cast<double>(pack.counted[p]));
  auto special = zero < zero, gap = special;
  for (int i = 0; i < L * P; i += N) {
    const Lanes count = Lanes::load(pack.count + i);
    const auto lacks = count < Lanes::load(gaps + i);
    const auto infinite =
        either(not_finite(Lanes::load(pack.mean + i)), not_finite(Lanes::load(pack.m2 + i)));
    special = either(special, either(infinite, count < two));
    gap = either(gap, lacks);
    select(lacks, one, zero).store(gaps + i);
  }
  missing = any(gap);
  bool lacks_all = false;
  for (int p = 0; missing && p < P; ++p) {
    double lacks = 0;
    for (int j = 0; j < L; ++j) lacks += gaps[p * L + j];
    lacks_all = lacks_all || lacks == L;
  }
  return any(special) || lacks_all;
}

/// The range of the values of each lane that are not NaN, and the second largest and smallest.
template <int W>
GDPO_NOINLINE void find_range(LanePack& pack) {
  using Lanes = math::Pack<W>;
  const Lanes least = Lanes::all(-math::infinity), most = Lanes::all(math::infinity);
  Lanes min = most, max = least, second_min = most, second_max = least;
  for (index_t k = 0; k < pack.members; ++k) {
    const Lanes value = Lanes::load(pack.block + k * W);
    const auto missing = is_nan(value);
    const Lanes low = select(missing, most, value), high = select(missing, least, value);
    second_max = (math::max)(second_max, (math::min)(max, high));
    second_min = (math::min)(second_min, (math::max)(min, low));
    max = (math::max)(max, high);
    min = (math::min)(min, low);
  }
  min.store(pack.min), max.store(pack.max);
  second_min.store(pack.second_min), second_max.store(pack.second_max);
}

/// Sorts the values of the pack, `width` lanes of them. Those that are missing come last.
GDPO_NOINLINE inline void sort_values(LanePack& pack, int width) {
  constexpr int N = math::native_width<double>;
  using Lanes = math::Pack<N>;
  const Lanes last = Lanes::all(math::infinity);
  for (index_t i = 0; i < pack.members * width; i += N) {
    const Lanes value = Lanes::load(pack.block + i);
    select(is_nan(value), last, value).store(pack.sorted + i);
  }
  for (int i = 0; i < width; i += N) sort_register(pack.sorted + i, pack.members, width);
}

/// Writes the columns of x, (members, stride), to runs: target[first[i] + k] = x[k, i] for k <
/// lengths[i]. `shortest` and `longest` are the range of these lengths.
template <int W>
GDPO_NOINLINE void write_columns(const double* x, int stride, int columns, index_t shortest,
                                 index_t longest, const index_t* lengths, const index_t* first,
                                 double* target) {
  index_t k = 0;
  if constexpr (W > 1) {
    constexpr std::make_integer_sequence<int, W> lanes{};
    for (; stride % W == 0 && k + W <= shortest; k += W) {
      for (int i = 0; i < columns; i += W) {
        math::Pack<W> block[W];
        const double* source = x + k * stride + i;
        for (int j = 0; j < W; ++j, source += stride) block[j] = math::Pack<W>::load(source);
        transpose<W / 2>(block, lanes);
        const bool whole = i + W <= columns;
        for (int j = 0; j < W && (whole || i + j < columns); ++j)
          block[j].store(target + first[i + j] + k);
      }
    }
  }
  if (k == longest) return;
  for (int i = 0; i < columns; ++i) {
    for (index_t rest = k; rest < lengths[i]; ++rest)
      target[first[i] + rest] = x[rest * stride + i];
  }
}
/// The same in packs as wide as the columns allow.
GDPO_HOST_INLINE void write_runs(const double* x, int stride, int columns, index_t shortest,
                                 index_t longest, const index_t* lengths, const index_t* first,
                                 double* target) {
  constexpr int N = math::native_width<double>;
  const auto write = stride < N ? write_columns<(std::max)(1, N / 2)> : write_columns<N>;
  write(x, stride, columns, shortest, longest, lengths, first, target);
}

}  // namespace detail
GDPO_END_NAMESPACE
