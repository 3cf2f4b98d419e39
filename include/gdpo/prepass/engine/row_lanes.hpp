#pragma once
// Loops over the tokens of a row in vector lanes, for pre-passes.
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What loops over lanes are given, to name the type V of their numbers: a pack, or a scalar for
/// the last tokens of a row, which fill no pack. Both give each token the same bits.
template <class V>
struct OfLanes {
  using type = V;
};

/// Calls f(OfLanes, t) for the tokens of a row, t being the first of the lanes.
template <class V, class F>
GDPO_INLINE void for_each_lanes(index_t length, const F& f) {
  constexpr index_t width = math::Lanes<V>::width;
  index_t t = 0;
  for (; t + width <= length; t += width) f(OfLanes<V>{}, t);
  if constexpr (width > 1) {
    for (; t < length; ++t) f(OfLanes<math::scalar_t<V>>{}, t);
  }
}

/// Counts lanes of V and scalars where something is true.
template <class V>
class LaneCount {
 public:
  template <class Mask>
  GDPO_INLINE void add(const Mask& mask) {
    if constexpr (std::is_same_v<Mask, bool>) {
      rest_ += mask;
    } else {
      lanes_.add(mask);
    }
  }
  GDPO_INLINE index_t total() const { return rest_ + lanes_.total(); }

 private:
  typename math::Lanes<V>::Count lanes_;
  index_t rest_ = 0;
};

/// Which tokens from t on are valid.
template <class V, class S>
GDPO_INLINE mask_t<V> valid_lanes(const TokenRow<S>& row, index_t t) {
  return row.mask ? math::Lanes<V>::load_mask(row.mask + t) : math::Lanes<V>::all_lanes();
}
/// The advantages of the tokens from t on.
template <class V, class S>
GDPO_INLINE V advantages_of(const TokenRow<S>& row, index_t t) {
  return row.advantages ? math::Lanes<V>::load(row.advantages + t)
                        : math::constant<V>(row.advantage);
}

/// Writes f(OfLanes, t) for the valid tokens of a row into w, and `masked` for the others.
template <class V, class S, class F>
GDPO_INLINE void write_lanes(const TokenRow<S>& row, double masked, double* w, const F& f) {
  for_each_lanes<V>(row.length, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
    using L = typename decltype(lanes)::type;
    const L value = f(lanes, t);
    math::Lanes<L>::store(
        w + t, row.mask ? L(math::select(valid_lanes<L>(row, t), value, math::constant<L>(masked)))
                        : value);
  });
}

/// Replaces the numbers in w of the valid tokens of a row by f(OfLanes, t, numbers).
template <class V, class S, class F>
GDPO_INLINE void replace_lanes(const TokenRow<S>& row, double* w, const F& f) {
  for_each_lanes<V>(row.length, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
    using L = typename decltype(lanes)::type;
    const L number = math::Lanes<L>::load(w + t), value = f(lanes, t, number);
    math::Lanes<L>::store(
        w + t, row.mask ? L(math::select(valid_lanes<L>(row, t), value, number)) : value);
  });
}

/// Adds the numbers of up to `most_prepass_rows` rows to `sums`, each row in the order of its
/// tokens.
///
/// An addition waits for the one before it, so one row alone would take the time of that wait for
/// each token. Rows side by side do not wait for each other.
inline void sum_rows_in_order(const double* const* values, const index_t* lengths, int rows,
                              double* sums) {
  index_t t = 0;
  if (rows == most_prepass_rows) {
    static_assert(most_prepass_rows == 4);
    const index_t least = (std::min)({lengths[0], lengths[1], lengths[2], lengths[3]});
    double a = sums[0], b = sums[1], c = sums[2], d = sums[3];
    for (; t < least; ++t)
      a += values[0][t], b += values[1][t], c += values[2][t], d += values[3][t];
    sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
  }
  for (int r = 0; r < rows; ++r) {
    for (index_t k = t; k < lengths[r]; ++k) sums[r] += values[r][k];
  }
}

/// Calls use(sum, n) for each row of a batch in their order, with the sum of its numbers in the
/// order of its tokens. write(row, numbers) writes them, 0 where a token does not count, and
/// returns how many count.
template <class S, class Write, class Use>
void sum_batch_rows(const PrepassRows<S>& rows, const Write& write, const Use& use) {
  const index_t at_once = prepass_rows_at_once(rows.layout().longest);
  for (index_t first = 0; first < rows.size(); first += at_once) {
    const int n = static_cast<int>((std::min)(at_once, rows.size() - first));
    double* numbers[most_prepass_rows];
    double sums[most_prepass_rows] = {};
    index_t lengths[most_prepass_rows], counts[most_prepass_rows];
    for (int r = 0; r < n; ++r) {
      const TokenRow<S> row = rows.at_once(first + r, r);
      numbers[r] = rows.numbers(r), lengths[r] = row.length;
      counts[r] = write(row, numbers[r]);
    }
    sum_rows_in_order(numbers, lengths, n, sums);
    for (int r = 0; r < n; ++r) use(sums[r], counts[r]);
  }
}

/// Calls the members of a pre-pass that write row by row, for its operator().
template <class S, class Pass>
BatchDecision write_by_rows(const Pass& pass, const PrepassArgs<S>& args) {
  using V = math::Native<double>;
  const PrepassRows<S>& rows = args.rows;
  BatchDecision of_batch;
  pass.template begin<V>(rows, of_batch);
  for (index_t i = 0; i < rows.size(); ++i) {
    const TokenRow<S> row = rows(i);
    double* const w = args.weights_of(i);
    RowWeights weights{};
    pass.template write_rows<V>(of_batch, &row, 1, &w, &weights);
    if (weights.each) continue;
    for (index_t t = 0; t < row.length; ++t) w[t] = row.valid(t) ? weights.valid : weights.masked;
  }
  return of_batch;
}

/// Calls f(r) for each of n rows, whose weights it writes into w[r], in a pre-pass without numbers
/// that rows share.
template <class F>
GDPO_INLINE void each_row(int n, double* const* w, RowWeights* weights, const F& f) {
  for (int r = 0; r < n; ++r) {
    f(r);
    weights[r] = {w[r], 1, 1};
  }
}

/// The bytes of a mask as 0 or 1.
inline void normalize_mask(const unsigned char* from, unsigned char* to, index_t n) {
  index_t t = 0;
#if GDPO_LANE_BYTES > 0
  typedef unsigned char Bytes __attribute__((vector_size(16)));
  for (; t + 16 <= n; t += 16) {
    Bytes bytes;
    std::memcpy(&bytes, from + t, sizeof bytes);
    bytes = reinterpret_cast<Bytes>(bytes != 0) & 1;
    std::memcpy(to + t, &bytes, sizeof bytes);
  }
#endif
  for (; t < n; ++t) to[t] = from[t] != 0;
}

/// Sets the bytes of the lanes to 0 where the mask is true.
template <class V>
GDPO_INLINE void clear_bytes(unsigned char* bytes, const mask_t<V>& mask) {
  constexpr int width = math::Lanes<V>::width;
  if constexpr (width == 1) {
    if (mask) *bytes = 0;
#if GDPO_LANE_BYTES >= 64
  } else if constexpr (width == 8) {
    __m128i kept = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
    kept = _mm_maskz_mov_epi8(static_cast<__mmask16>(~mask.v & 0xff), kept);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(bytes), kept);
#endif
  } else {
    if (!math::any(mask)) return;
    double cleared[width];
    math::Lanes<V>::store(cleared,
                          V(math::select(mask, math::constant<V>(1.0), math::constant<V>(0.0))));
    for (int j = 0; j < width; ++j) {
      if (cleared[j] > 0) bytes[j] = 0;
    }
  }
}

/// Sets the bytes to 0 where a weight is 0.
template <class V>
void drop_zeros(const double* weights, unsigned char* bytes, index_t n) {
  for_each_lanes<V>(n, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
    using L = typename decltype(lanes)::type;
    clear_bytes<L>(bytes + t, math::is_zero(L(math::Lanes<L>::load(weights + t))));
  });
}

}  // namespace detail
GDPO_END_NAMESPACE
