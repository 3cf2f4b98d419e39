#pragma once
// Sums over the tokens of a row, as each thread of a block holds its part of them.
#include <climits>
#include <gdpo/loss/engine/tally.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// One thread's part of the sums over a row's tokens: Terms::Totals and the ranges, packed into
/// arrays that have room only for what the composition measures, because a thread has few
/// registers.
template <class Terms, class Shape, class Metrics>
struct ThreadTotals {
  using C = typename Terms::C;
  using Totals = typename Terms::Totals;
  /// How many of the quantities first .. end - 1 are kept. That is also the place of quantity
  /// `end`.
  GDPO_DEVICE static constexpr int kept(int first, int end) {
    int n = 0;
    for (int q = first; q < end; ++q) n += Terms::template adds<Shape>(q);
    return n;
  }
  static constexpr int first_count = gdpo::detail::measured;
  static constexpr int i_inputs = kept(0, gdpo::detail::token_sums), i_kl_loss = i_inputs + 1,
                       i_shared = i_kl_loss + Terms::has_kl, sums = i_shared + Terms::shares;
  static constexpr int i_advantages = kept(first_count, first_count + gdpo::detail::token_counts),
                       counts = i_advantages + 1;
  /// Whether a quantity has a smallest or a largest value here, and how many of the quantities
  /// before `end` have one. That is also the place of quantity `end`.
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
  static constexpr int mins = mins_before(gdpo::detail::measured),
                       maxs = maxs_before(gdpo::detail::measured);

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
#define GDPO_X(name, ...)                                               \
  if constexpr (Terms::template adds<Shape>(gdpo::detail::of_##name)) { \
    constexpr int i = kept(0, gdpo::detail::of_##name);                 \
    sum[i] += static_cast<double>(s.name);                              \
  }
    GDPO_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                                               \
  if constexpr (Terms::template adds<Shape>(gdpo::detail::of_##name)) { \
    constexpr int i = kept(first_count, gdpo::detail::of_##name);       \
    count[i] += static_cast<int>(s.name.total());                       \
  }
    GDPO_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
    sum[i_inputs] += static_cast<double>(s.inputs);
    if constexpr (Terms::has_kl) sum[i_kl_loss] += static_cast<double>(s.kl_loss);
    if constexpr (Terms::shares) sum[i_shared] += static_cast<double>(s.shared);
    if constexpr (!Shape::plain) count[i_advantages] += static_cast<int>(s.advantages.total());
  }
  /// Takes over the ranges of this thread's tokens.
  GDPO_INLINE void take(const typename Terms::Ranges& r) {
    (void)r;
#define GDPO_X(name, ...)                                   \
  if constexpr (has_min(gdpo::detail::of_##name)) {         \
    constexpr int i = mins_before(gdpo::detail::of_##name); \
    min[i] = r.min[gdpo::detail::of_##name];                \
  }                                                         \
  if constexpr (has_max(gdpo::detail::of_##name)) {         \
    constexpr int i = maxs_before(gdpo::detail::of_##name); \
    max[i] = r.max[gdpo::detail::of_##name];                \
  }
    GDPO_TOKEN_SUMS(GDPO_X)
    GDPO_ROW_SUMS(GDPO_X)
#undef GDPO_X
  }
  /// Adds the ranges to those of a run.
  GDPO_INLINE void add_ranges_to(gdpo::detail::Tally& tally) const {
    (void)tally;
#define GDPO_X(name, ...)                                   \
  if constexpr (has_min(gdpo::detail::of_##name)) {         \
    constexpr int i = mins_before(gdpo::detail::of_##name); \
    double& to = tally.min[gdpo::detail::of_##name];        \
    to = (math::min)(to, static_cast<double>(min[i]));      \
  }                                                         \
  if constexpr (has_max(gdpo::detail::of_##name)) {         \
    constexpr int i = maxs_before(gdpo::detail::of_##name); \
    double& to = tally.max[gdpo::detail::of_##name];        \
    to = (math::max)(to, static_cast<double>(max[i]));      \
  }
    GDPO_TOKEN_SUMS(GDPO_X)
    GDPO_ROW_SUMS(GDPO_X)
#undef GDPO_X
  }
  /// The sums by name.
  GDPO_INLINE Totals totals() const {
    Totals t;
#define GDPO_X(name, ...)                                               \
  if constexpr (Terms::template adds<Shape>(gdpo::detail::of_##name)) { \
    constexpr int i = kept(0, gdpo::detail::of_##name);                 \
    t.name = sum[i];                                                    \
  }
    GDPO_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                                               \
  if constexpr (Terms::template adds<Shape>(gdpo::detail::of_##name)) { \
    constexpr int i = kept(first_count, gdpo::detail::of_##name);       \
    t.name = count[i];                                                  \
  }
    GDPO_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
    t.inputs = sum[i_inputs];
    if constexpr (Terms::has_kl) t.kl_loss = sum[i_kl_loss];
    if constexpr (Terms::shares) t.shared = sum[i_shared];
    if constexpr (!Shape::plain) t.advantages = count[i_advantages];
    return t;
  }
};

/// One input at the tokens of a segment: how often it is not finite, and where first. Also which
/// results (1 or 0) are NaN because of any input of the segment.
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
