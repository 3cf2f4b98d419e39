#pragma once
// The loops over groups side by side in lanes that do not depend on the estimator. One pack holds
// P rows (or groups) of L rewards each: lanes p L .. p L + L - 1 are the rewards of row p. They
// are compiled once for each number of rewards, not once for each estimator.
#include <algorithm>
#include <gdpo/advantage/shared/group_units.hpp>
#include <gdpo/advantage/stat.hpp>
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

/// Combined values of members, a block of L rewards at a time. x: (members, P, L).
///
///     score (members, P)  sum over the rewards of (x - base) factor
///     largest (P)         max |score| over the members
///     bound (P)           sum over the rewards of m2 factor^2
///
/// score and bound are written if `first`, and added to otherwise. They serve estimators whose
/// base is the mean of the group, so that (x - base)^2 <= m2. With C rewards the sum of the
/// |terms| of a row is then at most sqrt(C bound), by Cauchy-Schwarz.
template <int L, int P>
GDPO_NOINLINE void add_scores(const double* x, index_t members,
                              const Split<math::Pack<L * P>>& base, const math::Pack<L * P>& factor,
                              const math::Pack<L * P>& m2, bool first, double* score,
                              double* largest, double* bound) {
  using Lanes = math::Pack<L * P>;
  using Groups = math::Pack<P>;
  const Split<Lanes> subtracted = base;  // copies stay in registers, whatever the loop stores
  const Lanes multiplied = factor;
  const Groups zero = Groups::all(0.0);
  ((first ? zero : Groups::load(bound)) + segment_sums<L>(mul(mul(factor, factor), m2)))
      .store(bound);
  Groups most = zero;
  for (index_t k = 0; k < members; ++k, score += P) {
    const Lanes terms = mul(center(Lanes::load(x + k * (L * P)), subtracted), multiplied);
    const Groups sum = (first ? zero : Groups::load(score)) + segment_sums<L>(terms);
    sum.store(score);
    most = (math::max)((math::max)(most, sum), zero - sum);
  }
  most.store(largest);
}

/// Writes score (members, P) to runs of rows: target[first[p] + k] = score[k, p] for p < groups.
template <int P>
GDPO_NOINLINE void write_runs(const double* score, index_t members, int groups,
                              const index_t* first, double* target) {
  constexpr int W = (std::min)(P, math::native_width<double>);
  index_t k = 0;
  if constexpr (W > 1) {
    constexpr std::make_integer_sequence<int, W> lanes{};
    for (; k + W <= members; k += W) {
      for (int p = 0; p < groups; p += W) {
        math::Pack<W> block[W];
        for (int i = 0; i < W; ++i) block[i] = math::Pack<W>::load(score + (k + i) * P + p);
        transpose<W / 2>(block, lanes);
        for (int i = 0; i < W && p + i < groups; ++i) block[i].store(target + first[p + i] + k);
      }
    }
  }
  for (; k < members; ++k) {
    for (int p = 0; p < groups; ++p) target[first[p] + k] = score[k * P + p];
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
