#pragma once
// What the threads of a block add up over the tokens of a row.
#include <climits>
#include <gdpo/loss/engine/tally.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// What the threads of a block add up over the tokens of a row: Totals, with the ranges, and no more than the composition measures.
template <class Terms, class Shape, class Metrics>
struct ThreadTotals {
  using C = typename Terms::C;
  using Totals = typename Terms::Totals;
  static constexpr int i_surrogate = 0, i_odd = 1, i_kl = 2, i_kl_loss = i_kl + Terms::has_kl,
                       i_k1 = i_kl_loss + Terms::has_kl, i_k3 = i_k1 + Metrics::means, i_shared = i_k3 + Metrics::means,
                       i_entropy = i_shared + Terms::shares, sums = i_entropy + !Shape::plain;
  static constexpr int i_low = 0, i_high = i_low + Metrics::means, i_outside = i_high + Metrics::means,
                       i_dual = i_outside + Metrics::everything, i_bounded = i_dual + Metrics::everything,
                       i_kl_bounded = i_bounded + Metrics::everything,
                       i_advantages = i_kl_bounded + Metrics::everything, counts = i_advantages + 1;
  static constexpr int ranges = Metrics::everything ? gdpo::detail::measured : 0, room = ranges > 0 ? ranges : 1;

  double sum[sums] = {};
  int count[counts] = {};
  C min[room], max[room];

  GDPO_INLINE ThreadTotals() {
    for (int q = 0; q < room; ++q) {
      min[q] = math::constant<C>(math::infinity), max[q] = math::constant<C>(-math::infinity);
    }
  }
  GDPO_INLINE void add(const ThreadTotals& o) {
    for (int i = 0; i < sums; ++i) sum[i] += o.sum[i];
    for (int i = 0; i < counts; ++i) count[i] += o.count[i];
    for (int q = 0; q < ranges; ++q) {
      min[q] = (math::min)(min[q], o.min[q]), max[q] = (math::max)(max[q], o.max[q]);
    }
  }
  /// A four's sums, in double from here on.
  GDPO_INLINE void add(const typename Terms::Sums& s) {
    const auto in = [&](int i, C x) { sum[i] += static_cast<double>(x); };
    in(i_surrogate, s.surrogate), in(i_odd, s.odd);
    if constexpr (Terms::has_kl) in(i_kl, s.kl), in(i_kl_loss, s.kl_loss);
    if constexpr (Metrics::means) in(i_k1, s.k1), in(i_k3, s.k3);
    if constexpr (Terms::shares) in(i_shared, s.shared);
    if constexpr (!Shape::plain) in(i_entropy, s.entropy);
    const auto of = [&](int i, const typename Terms::Count& n) { count[i] += static_cast<int>(n.total()); };
    if constexpr (Metrics::means) of(i_low, s.low), of(i_high, s.high);
    if constexpr (Metrics::everything) {
      of(i_outside, s.outside), of(i_dual, s.dual), of(i_bounded, s.bounded), of(i_kl_bounded, s.kl_bounded);
    }
    if constexpr (!Shape::plain) of(i_advantages, s.advantages);
  }
  GDPO_INLINE void take(const typename Terms::Ranges& r) {
    if constexpr (Metrics::everything) {
      for (int q = 0; q < ranges; ++q) min[q] = r.min[q], max[q] = r.max[q];
    }
  }
  GDPO_INLINE Totals totals() const {
    Totals t;
    t.surrogate = sum[i_surrogate], t.odd = sum[i_odd];
    if constexpr (Terms::has_kl) t.kl = sum[i_kl], t.kl_loss = sum[i_kl_loss];
    if constexpr (Metrics::means) t.k1 = sum[i_k1], t.k3 = sum[i_k3];
    if constexpr (Terms::shares) t.shared = sum[i_shared];
    if constexpr (!Shape::plain) t.entropy = sum[i_entropy], t.advantages = count[i_advantages];
    if constexpr (Metrics::means) t.low = count[i_low], t.high = count[i_high];
    if constexpr (Metrics::everything) {
      t.outside = count[i_outside], t.dual = count[i_dual], t.bounded = count[i_bounded];
      t.kl_bounded = count[i_kl_bounded];
    }
    return t;
  }
};

/// One input at the tokens of a segment: how often it is not finite, where first, and what the segment's inputs spoil.
struct Census {
  int count = 0, first = INT_MAX;
  int surrogate = 0, kl = 0, kl_loss = 0, unused = 0;

  GDPO_INLINE void add(const Census& o) {
    count += o.count, first = o.first < first ? o.first : first;
    surrogate |= o.surrogate, kl |= o.kl, kl_loss |= o.kl_loss;
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
