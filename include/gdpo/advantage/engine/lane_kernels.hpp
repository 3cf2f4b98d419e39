#pragma once
// The loops over groups side by side in lanes that do not depend on the estimator. One pack holds
// P rows (or groups) of L rewards each: lanes p L .. p L + L - 1 are the rewards of row p. They
// are compiled once for each number of rewards, not once for each estimator.
#include <algorithm>
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
/// there otherwise.
template <int L, int P>
GDPO_NOINLINE void add_weighted(const double* x, index_t members, const math::Pack<L * P>& weights,
                                bool first, double* sums, double* magnitudes, index_t stride) {
  using Rows = math::Pack<P>;
  const Rows zero = Rows::all(0.0);
  for (index_t k = 0; k < members; ++k, sums += stride, magnitudes += stride) {
    const auto terms = mul(weights, math::Pack<L * P>::load(x + k * (L * P)));
    ((first ? zero : Rows::load(sums)) + segment_sums<L>(terms)).store(sums);
    ((first ? zero : Rows::load(magnitudes)) + segment_sums<L>(abs(terms))).store(magnitudes);
  }
}

/// The same without the rewards that are NaN. The magnitude of a row that has no other is -0.
template <int L, int P>
GDPO_NOINLINE void add_known(const double* x, index_t members, const math::Pack<L * P>& weights,
                             bool first, double* sums, double* magnitudes, index_t stride) {
  using Rows = math::Pack<P>;
  using Lanes = math::Pack<L * P>;
  const Rows zero = Rows::all(0.0), none = Rows::all(-0.0);
  const Lanes nothing = Lanes::all(0.0), no_size = Lanes::all(-0.0), multiplied = weights;
  const auto padding = multiplied == nothing;
  for (index_t k = 0; k < members; ++k, sums += stride, magnitudes += stride) {
    const Lanes value = Lanes::load(x + k * (L * P));
    const auto missing = is_nan(value);
    const Lanes terms = select(missing, nothing, mul(multiplied, value));
    const Lanes sizes = select(either(missing, padding), no_size, abs(terms) + nothing);
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
  bool skips;                          ///< The sums are without missing rewards.
  bool has_rows;                       ///< `rows` is filled in.
  /// Leaves group p to the general path.
  void decline(int p) { declined[p] = declines = true; }
  // (members, P, L) values, later terms; (members, P) scores, and the sums of their |terms| or of
  // those of the weighted sums; 0 for a row that counts and NaN for another.
  double *block, *scores, *magnitudes, *rows;
  double* rewards;         ///< The rewards that are summed.
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
  // Of each group, and 0 beyond the last: the bound of add_scores and the largest |score|; the
  // range of the scores, and the largest sum of |terms|, NaN where a score is not finite.
  alignas(64) double bound[most_side_by_side] = {}, largest[most_side_by_side] = {};
  alignas(64) double low[most_side_by_side] = {}, high[most_side_by_side] = {},
                     size[most_side_by_side] = {};
  // Of each group 1 where its scores are equal, else 0.
  alignas(64) double same_scores[most_side_by_side];
};

/// Combined values of members, a block of L rewards at a time, of a pack without gaps.
///
///     scores (members, P)  sum over the rewards of (x - base) factor
///     largest (P)          max |score| over the members
///     bound (P)            sum over the rewards of m2 factor^2
///
/// scores and bound are written if `first`, and added to otherwise. The bound serves estimators
/// whose base is the mean of the group, so that (x - base)^2 <= m2. With C rewards the sum of the
/// |terms| of a row is then at most sqrt(C bound), by Cauchy-Schwarz.
template <int L, int P>
GDPO_NOINLINE void add_scores(LanePack& pack, bool first) {
  using Lanes = math::Pack<L * P>;
  using Groups = math::Pack<P>;
  const Split<Lanes> subtracted{Lanes::load(pack.base), Lanes::load(pack.base_low)};
  const Lanes multiplied = Lanes::load(pack.factor), m2 = Lanes::load(pack.m2);
  const Groups zero = Groups::all(0.0);
  ((first ? zero : Groups::load(pack.bound)) +
   segment_sums<L>(mul(mul(multiplied, multiplied), m2)))
      .store(pack.bound);
  Groups most = zero;
  const double* x = pack.block;
  double* score = pack.scores;
  for (index_t k = 0; k < pack.members; ++k, x += L * P, score += P) {
    const Lanes terms = mul(center(Lanes::load(x), subtracted), multiplied);
    const Groups sum = (first ? zero : Groups::load(score)) + segment_sums<L>(terms);
    sum.store(score);
    most = (math::max)((math::max)(most, sum), zero - sum);
  }
  most.store(pack.largest);
}

/// Writes 0 where add_known_scores adds, for P groups.
GDPO_HOST_INLINE void clear_scores(LanePack& pack, int P) {
  std::fill_n(pack.bound, P, 0.0);
  std::fill_n(pack.scores, pack.members * P, 0.0);
  std::fill_n(pack.magnitudes, pack.members * P, 0.0);
}

/// The same of a pack in which values may be missing: they add 0. exact: also the range of the
/// scores of the members that count, and the largest sum of their |terms|, and no bound. The scores
/// begin with clear_scores.
template <int L, int P>
GDPO_NOINLINE void add_known_scores(LanePack& pack, bool exact) {
  using Lanes = math::Pack<L * P>;
  using Groups = math::Pack<P>;
  const Split<Lanes> subtracted{Lanes::load(pack.base), Lanes::load(pack.base_low)};
  const Lanes multiplied = Lanes::load(pack.factor), nothing = Lanes::all(0.0);
  const auto ignored = is_zero(multiplied);
  const Groups zero = Groups::all(0.0), limit = Groups::all(math::infinity);
  if (!exact) {
    (Groups::load(pack.bound) +
     segment_sums<L>(mul(mul(multiplied, multiplied), Lanes::load(pack.m2))))
        .store(pack.bound);
  }
  Groups most = zero, low = limit, high = -limit, size = zero, unknown = zero;
  const double* x = pack.block;
  double *score = pack.scores, *magnitude = pack.magnitudes, *row = pack.rows;
  for (index_t k = 0; k < pack.members; ++k, x += L * P, score += P, magnitude += P, row += P) {
    const Lanes value = Lanes::load(x);
    Lanes terms = mul(center(value, subtracted), multiplied);
    if (k >= pack.known) terms = select(is_nan(value), nothing, terms);
    if (exact) terms = select(ignored, nothing, terms);
    const Groups sum = Groups::load(score) + segment_sums<L>(terms);
    sum.store(score);
    if (!exact) {
      most = (math::max)((math::max)(most, sum), zero - sum);
      continue;
    }
    const Groups sizes = Groups::load(magnitude) + segment_sums<L>(math::abs(terms));
    sizes.store(magnitude);
    unknown = unknown + (sizes - sizes);
    size = (math::max)(size, sizes);
    const Groups counted = k >= pack.known ? sum + Groups::load(row) : sum;
    low = (math::min)(low, counted);
    high = (math::max)(high, counted);
  }
  most.store(pack.largest);
  low.store(pack.low);
  high.store(pack.high);
  (size + unknown).store(pack.size);
}

/// Declines the groups of the mask.
GDPO_NOINLINE inline void decline_where(LanePack& pack,
                                        const math::Mask<most_side_by_side>& groups) {
  using Groups = math::Pack<most_side_by_side>;
  double flags[most_side_by_side];
  select(groups, Groups::all(1.0), Groups::all(0.0)).store(flags);
  for (int p = 0; p < pack.groups; ++p) {
    if (flags[p] != 0) pack.decline(p);
  }
}

/// Decides by the bound which groups have equal scores; see LanePacks::decide. False: for some
/// group that the bound does not tell.
GDPO_NOINLINE inline bool decide(LanePack& pack, index_t columns) {
  using Groups = math::Pack<most_side_by_side>;
  const double least = 2 * rounding_of_sum(columns, 1.0);
  const Groups zero = Groups::all(0.0), one = Groups::all(1.0), bound = Groups::load(pack.bound),
               largest = Groups::load(pack.largest),
               limit = mul(Groups::all(least * least * static_cast<double>(columns)), bound);
  const auto equal = largest == zero, unclear = not_finite(bound),
             decided = either(either(equal, unclear), mul(largest, largest) > limit);
  select(equal, one, zero).store(pack.same_scores);
  if (any(unclear)) decline_where(pack, unclear);
  return !any(select(decided, zero, one) > zero);
}
/// The same by the exact range of the scores. CombinedRange::equal adds the |terms| in another
/// order, so that a close call is unclear. False: the bound would not have told.
GDPO_NOINLINE inline bool decide_exactly(LanePack& pack, index_t columns, bool sums_first) {
  using Groups = math::Pack<most_side_by_side>;
  const double rounding = sums_first ? 0.0 : rounding_of_sum(columns, 1.0);
  const Groups zero = Groups::all(0.0), one = Groups::all(1.0), size = Groups::load(pack.size),
               range = Groups::load(pack.high) - Groups::load(pack.low),
               tolerance = mul(Groups::all(rounding), size),
               slack = mul(Groups::all(0x1p-40), tolerance);
  const auto equal = range <= tolerance - slack, told = either(equal, range > tolerance + slack);
  select(equal, one, zero).store(pack.same_scores);
  const auto unclear = select(not_finite(size), one, select(told, zero, one)) > zero;
  if (any(unclear)) decline_where(pack, unclear);
  const auto clear = either(range > mul(Groups::all(4.0), tolerance), size == zero);
  return !any(select(clear, zero, one) > zero);
}
/// Writes exactly 0 to the scores of groups in which they are equal.
template <int P>
GDPO_NOINLINE void clear_equal(LanePack& pack) {
  using Groups = math::Pack<P>;
  const Groups zero = Groups::all(0.0);
  const auto equal = Groups::load(pack.same_scores) > zero;
  if (!any(equal)) return;
  for (index_t k = 0; k < pack.members; ++k)
    select(equal, zero, Groups::load(pack.scores + k * P)).store(pack.scores + k * P);
}

/// Whether rows of weighted sums (places) have a sum that is NaN, or a magnitude of -0.
GDPO_NOINLINE inline bool any_special_sum(const double* sums, const double* magnitudes,
                                          index_t places) {
  constexpr int P = side_by_side<1>;
  using Rows = math::Pack<P>;
  const Rows zero = Rows::all(0.0), none = Rows::all(-0.0);
  auto special = zero < zero;
  for (index_t i = 0; i < places; i += P) {
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

/// Writes the scores to runs of rows: target[first[p] + k] = score[k, p] for the members k of each
/// group p.
template <int P>
GDPO_NOINLINE void write_runs(const LanePack& pack, const index_t* first, double* target) {
  const double* const score = pack.scores;
  const int groups = pack.groups;
  constexpr int W = (std::min)(P, math::native_width<double>);
  index_t k = 0;
  if constexpr (W > 1) {
    const index_t shortest = pack.shortest;
    constexpr std::make_integer_sequence<int, W> lanes{};
    for (; k + W <= shortest; k += W) {
      for (int p = 0; p < groups; p += W) {
        math::Pack<W> block[W];
        for (int i = 0; i < W; ++i) block[i] = math::Pack<W>::load(score + (k + i) * P + p);
        transpose<W / 2>(block, lanes);
        for (int i = 0; i < W && p + i < groups; ++i) block[i].store(target + first[p + i] + k);
      }
    }
  }
  if (k == pack.members) return;
  for (int p = 0; p < groups; ++p) {
    for (index_t i = k; i < pack.length[p]; ++i) target[first[p] + i] = score[i * P + p];
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
