#pragma once
// Sums over the tokens of a row, as each thread of a block holds its part of them.
#include <climits>
#include <gdpo/loss/shared/loss_tally.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::with_places;

/// One thread's part of the sums over a row's tokens: Terms::Totals and the ranges, packed into
/// arrays that have room only for what the composition measures, because a thread has few
/// registers.
template <class Terms, class Shape, class Metrics>
struct ThreadTotals {
  using C = typename Terms::C;
  using Totals = typename Terms::Totals;
  /// How many of the metrics first .. end - 1 are kept. That is also the place of metric `end`.
  GDPO_DEVICE static constexpr int kept(int first, int end) {
    int n = 0;
    for (int q = first; q < end; ++q) n += Terms::template adds<Shape>(q);
    return n;
  }
  static constexpr int token_sums = gdpo::detail::token_sums, measured = gdpo::detail::measured,
                       token_counts = gdpo::detail::token_counts;
  static constexpr int i_inputs = kept(0, token_sums), i_kl_loss = i_inputs + 1,
                       i_shared = i_kl_loss + Terms::has_kl, sums = i_shared + Terms::shares;
  static constexpr int i_advantages = kept(measured, measured + token_counts),
                       counts = i_advantages + 1;
  /// Whether a metric has a smallest or a largest value here, and how many of the metrics before
  /// `end` have one. That is also the place of metric `end`.
  GDPO_DEVICE static constexpr bool has_min(int q) {
    return Metrics::everything && Terms::template adds<Shape>(q) && gdpo::detail::keeps_min(q);
  }
  GDPO_DEVICE static constexpr bool has_max(int q) {
    return Metrics::everything && Terms::template adds<Shape>(q) && gdpo::detail::keeps_max(q);
  }
  GDPO_DEVICE static constexpr int mins_before(int end) {
    int n = 0;
    for (int q = 0; q < end; ++q) n += has_min(q);
    return n;
  }
  GDPO_DEVICE static constexpr int maxs_before(int end) {
    int n = 0;
    for (int q = 0; q < end; ++q) n += has_max(q);
    return n;
  }
  static constexpr int mins = mins_before(measured), maxs = maxs_before(measured);

  template <int q>
  static constexpr bool adds = Terms::template adds_v<Shape, q>;
  template <int q>
  static constexpr bool lowers = has_min(q);
  template <int q>
  static constexpr bool raises = has_max(q);
  // Where those that are kept stand: numbers, shares (k is a place among them), and ends of ranges.
  template <int q>
  static constexpr int sum_at = kept(0, q);
  template <int k>
  static constexpr int count_at = kept(measured, measured + k);
  template <int q>
  static constexpr int min_at = has_min(q) ? mins_before(q) : 0;
  template <int q>
  static constexpr int max_at = has_max(q) ? maxs_before(q) : 0;

  double sum[sums] = {};
  int count[counts] = {};
  C min[mins > 0 ? mins : 1], max[maxs > 0 ? maxs : 1];

  GDPO_INLINE ThreadTotals() {
    for (C& x : min) x = math::constant<C>(math::infinity);
    for (C& x : max) x = math::constant<C>(-math::infinity);
  }
  GDPO_INLINE void add(const ThreadTotals& o) {
    for (int i = 0; i < sums; ++i) sum[i] += o.sum[i];
    for (int i = 0; i < counts; ++i) count[i] += o.count[i];
    for (int i = 0; i < mins; ++i) min[i] = (math::min)(min[i], o.min[i]);
    for (int i = 0; i < maxs; ++i) max[i] = (math::max)(max[i], o.max[i]);
  }
  /// Adds the sums of a quad, in double from here on.
  GDPO_INLINE void add(const typename Terms::Sums& s) {
    with_places<token_sums>([&](auto... q) {
      ((adds<q> ? void(sum[sum_at<q>] += static_cast<double>(s.sum[q])) : void()), ...);
    });
    with_places<token_counts>([&](auto... k) {
      ((adds<measured + k> ? void(count[count_at<k>] += static_cast<int>(s.count[k].total()))
                           : void()),
       ...);
    });
    sum[i_inputs] += static_cast<double>(s.sum[Terms::inputs]);
    if constexpr (Terms::has_kl) sum[i_kl_loss] += static_cast<double>(s.sum[Terms::kl_loss]);
    if constexpr (Terms::shares) sum[i_shared] += static_cast<double>(s.sum[Terms::shared]);
    if constexpr (!Shape::plain)
      count[i_advantages] += static_cast<int>(s.count[Terms::advantages].total());
  }
  /// Takes over the ranges of this thread's tokens.
  GDPO_INLINE void take(const typename Terms::Ranges& r) {
    if constexpr (Metrics::everything) {
      with_places<measured>([&](auto... q) {
        ((lowers<q> ? void(min[min_at<q>] = r.min[q]) : void()), ...);
        ((raises<q> ? void(max[max_at<q>] = r.max[q]) : void()), ...);
      });
    }
  }
  /// Adds the ranges to those of a run.
  GDPO_INLINE void add_ranges_to(gdpo::detail::Tally& tally) const {
    const auto lower = [](double& to, C x) { to = (math::min)(to, static_cast<double>(x)); };
    const auto raise = [](double& to, C x) { to = (math::max)(to, static_cast<double>(x)); };
    with_places<measured>([&](auto... q) {
      ((lowers<q> ? lower(tally.min[q], min[min_at<q>]) : void()), ...);
      ((raises<q> ? raise(tally.max[q], max[max_at<q>]) : void()), ...);
    });
  }
  /// The sums by place.
  GDPO_INLINE Totals totals() const {
    Totals t;
    with_places<token_sums>(
        [&](auto... q) { ((adds<q> ? void(t.sum[q] = sum[sum_at<q>]) : void()), ...); });
    with_places<token_counts>([&](auto... k) {
      ((adds<measured + k> ? void(t.count[k] = count[count_at<k>]) : void()), ...);
    });
    t.sum[Terms::inputs] = sum[i_inputs];
    if constexpr (Terms::has_kl) t.sum[Terms::kl_loss] = sum[i_kl_loss];
    if constexpr (Terms::shares) t.sum[Terms::shared] = sum[i_shared];
    if constexpr (!Shape::plain) t.count[Terms::advantages] = count[i_advantages];
    return t;
  }
};

/// One input at the tokens of a segment: how often it is not finite, and where first. Also which
/// results (1 or 0) are NaN because of any input of the segment.
struct NonFiniteScan {
  int count = 0, first = INT_MAX;
  int surrogate = 0, kl = 0, kl_loss = 0, gradient = 0;

  GDPO_INLINE void add(const NonFiniteScan& o) {
    count += o.count, first = o.first < first ? o.first : first;
    surrogate |= o.surrogate, kl |= o.kl, kl_loss |= o.kl_loss, gradient |= o.gradient;
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
