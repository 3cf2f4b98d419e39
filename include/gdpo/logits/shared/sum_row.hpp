#pragma once
// The sums of a row of logits in one read of memory, which is what limits the speed.
#include <algorithm>
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/lanes/load_store.hpp>
#include <gdpo/logits/row.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The order of summation. Entry i of a block belongs to logical lane i mod 16, whatever the
/// register. In each lane the 4 entries of a chunk are added as a tree, the 8 chunks of a run one
/// after the other, and the 8 runs of a block one after the other. The 16 lanes are then added in
/// double as a tree, and the blocks in double one after the other. A term passes through at most
/// 2 + 8 + 8 = 18 roundings in S, so long rows lose hardly any digits.
constexpr int logit_lanes = math::logical_lanes, logit_chunk = 4 * logit_lanes;
constexpr index_t logit_run = 8 * logit_chunk, logit_block = 8 * logit_run;
/// The reference m of a row starts as the maximum of its first logit_probe entries. A block whose
/// maximum exceeds m by more than logit_excess (in z) is summed again with its own maximum as m. A
/// smaller excess costs no digits, and few rows have more than one such block.
constexpr index_t logit_probe = 256;
constexpr double logit_excess = 4;

/// The scalar in which logits of T are computed: double for double, else float.
template <class T>
using logit_scalar_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// -inf, made from bits so that -ffinite-math-only does not assume it away.
template <class S>
GDPO_INLINE S minus_infinity() {
  return static_cast<S>(math::from_bits(std::uint64_t{0xfff0000000000000u}));
}

/// Calls f(entries) for every chunk of 64 entries. The last chunk is a copy, padded with -inf, so f
/// takes a pointer to T or to S.
GDPO_CALLS_ANY
template <class S, class T, class F>
GDPO_INLINE void for_each_chunk(const T* x, index_t n, const F& f) {
  index_t i = 0;
  for (; i + logit_chunk <= n; i += logit_chunk) f(x + i);
  if (i == n) return;
  S tail[logit_chunk];
  for (int j = 0; j < logit_chunk; ++j) {
    tail[j] = i + j < n ? static_cast<S>(load(x[i + j])) : minus_infinity<S>();
  }
  f(static_cast<const S*>(tail));
}

/// The 16 logical lanes in registers of V.
template <class V>
struct LogitLanes {
  using S = math::scalar_t<V>;
  static constexpr int width = math::Lanes<V>::width, registers = logit_lanes / width;
  V lane[registers];

  explicit GDPO_INLINE LogitLanes(S x) {
    for (int k = 0; k < registers; ++k) lane[k] = math::constant<V>(static_cast<double>(x));
  }
  GDPO_INLINE void add(const LogitLanes& o) {
    for (int k = 0; k < registers; ++k) lane[k] = lane[k] + o.lane[k];
  }
  /// Stores the 16 lanes in order.
  GDPO_INLINE void store(S* out) const {
    for (int k = 0; k < registers; ++k) math::store_lanes(out + k * width, lane[k]);
  }
  double sum() const {
    S lanes[logit_lanes];
    store(lanes);
    return tree_sum(math::Pack<logit_lanes>::load(lanes));
  }
  S maximum() const {
    S lanes[logit_lanes];
    store(lanes);
    S most = lanes[0];
    for (const S x : lanes) most = (math::max)(most, x);
    return most;
  }
};

/// top = the maximum of top and the 64 entries of a chunk, lane by lane. If an entry is NaN, any
/// result will do: the sums of its row are NaN.
template <class V, class T>
GDPO_INLINE void add_maximum(LogitLanes<V>& top, const T* x) {
  using math::load_lanes;
  for (int k = 0; k < top.registers; ++k, x += top.width) {
    const V low = (math::max)(load_lanes<V>(x), load_lanes<V>(x + logit_lanes));
    const V high =
        (math::max)(load_lanes<V>(x + 2 * logit_lanes), load_lanes<V>(x + 3 * logit_lanes));
    top.lane[k] = (math::max)((math::max)(low, high), top.lane[k]);
  }
}

/// The largest of n entries; -inf for n = 0. With a NaN among them as add_maximum.
template <class V, class T>
math::scalar_t<V> maximum_of(const T* x, index_t n) {
  using S = math::scalar_t<V>;
  LogitLanes<V> top(minus_infinity<S>());
  for_each_chunk<S>(x, n, [&](const auto* chunk) { add_maximum(top, chunk); });
  return top.maximum();
}

/// Whether x has a NaN or +inf that the sums may lose. Normally the sums show it. Only if the
/// compiler assumes that there are none (-ffinite-math-only) are the entries read again for it.
template <class T>
bool hides_non_finite([[maybe_unused]] const T* x, [[maybe_unused]] index_t n) {
  bool any = false;
  if constexpr (GDPO_FINITE_MATH) {
    for (index_t i = 0; i < n; ++i) {
      const double value = load(x[i]);
      any = any || math::is_nan(value) || (math::is_inf(value) && value > 0);
    }
  }
  return any;
}

/// d = (x - reference) inverse, with inverse = 1 / temperature. It is not below the bound where
/// math::exp_bounded is 0, so that an x of -inf has probability exactly 0.
template <class V>
GDPO_INLINE V distance(const V& x, const V& reference, const V& inverse) {
  constexpr int exponent = std::numeric_limits<math::scalar_t<V>>::max_exponent - 1;
  return (math::max)(math::mul(x - reference, inverse),
                     math::constant<V>(-exponent * 0.693147180559945309));
}
/// The sums of a block and its largest entry.
template <class S>
struct BlockSums {
  PowerSums sums;
  S maximum;
};

/// The sums of n entries, at most logit_block, with d from the given reference. The caller drops
/// them if the maximum exceeds the reference by much: exp_bounded takes no large arguments.
template <class V, class T, class S = math::scalar_t<V>>
BlockSums<S> sum_block(const T* x, index_t n, S reference, S inverse) {
  using math::fma;
  const V m = math::constant<V>(static_cast<double>(reference)),
          scale = math::constant<V>(static_cast<double>(inverse));
  LogitLanes<V> sum(S(0)), weighted(S(0)), top(minus_infinity<S>());
  for (index_t begin = 0; begin < n; begin += logit_run) {
    LogitLanes<V> run(S(0)), run_weighted(S(0));
    for_each_chunk<S>(x + begin, (std::min)(logit_run, n - begin), [&](const auto* chunk) {
      add_maximum(top, chunk);
      for (int k = 0; k < top.registers; ++k, chunk += top.width) {
        const auto get = [&](int j) {
          return distance(math::load_lanes<V>(chunk + j * logit_lanes), m, scale);
        };
        const V a = get(0), b = get(1), c = get(2), d = get(3);
        const V ea = math::exp_bounded(a), eb = math::exp_bounded(b), ec = math::exp_bounded(c),
                ed = math::exp_bounded(d);
        run.lane[k] = run.lane[k] + ((ea + eb) + (ec + ed));
        run_weighted.lane[k] =
            run_weighted.lane[k] + fma(d, ed, fma(c, ec, fma(b, eb, math::mul(a, ea))));
      }
    });
    sum.add(run);
    weighted.add(run_weighted);
  }
  return {{sum.sum(), weighted.sum()}, top.maximum()};
}

/// The LogitRow of a row, without its target. V is the type to compute in; every V of the same
/// scalar gives the same bits.
template <class V, class T>
LogitRow sum_row(const T* x, index_t n, double temperature) {
  using S = math::scalar_t<V>;
  const double z_of_x = 1 / temperature;
  const S inverse = static_cast<S>(z_of_x);
  S m = minus_infinity<S>();
  for (index_t i = 0; i < n && math::is_inf(m) && m < 0; i += logit_probe) {
    m = maximum_of<V>(x + i, (std::min)(logit_probe, n - i));
  }
  if (math::is_inf(m) && m < 0) m = 0;  // every entry is -inf or NaN

  PowerSums sums;
  for (index_t i = 0; i < n; i += logit_block) {
    const index_t length = (std::min)(logit_block, n - i);
    BlockSums<S> block = sum_block<V>(x + i, length, m, inverse);
    const double rise =
        math::mul(static_cast<double>(block.maximum) - static_cast<double>(m), z_of_x);
    if (rise > logit_excess) {
      sums = rescaled(sums, -rise, std::exp(-rise));
      m = block.maximum;
      block = sum_block<V>(x + i, length, m, inverse);
    }
    sums.add(block.sums);
    if (hides_non_finite(x + i, length)) sums.sum = math::nan();
  }

  LogitRow row;
  if (math::is_zero(sums.sum)) return row;
  row.max = math::mul(static_cast<double>(m), z_of_x);
  row.sum = sums.sum;
  row.weighted = sums.weighted;
  return row;
}

}  // namespace detail
GDPO_END_NAMESPACE
