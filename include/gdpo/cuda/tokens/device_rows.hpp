#pragma once
// How losses and counts walk over rows on a device: the order of its sums, and what it finds out
// about a row before it computes terms.
#include <algorithm>
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/cuda/device/tuning.hpp>
#include <gdpo/cuda/tokens/device_batch.hpp>
#include <gdpo/stats/moments.hpp>
#include <gdpo/tokens/aggregate.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Order of summation, from tokens to the batch:
///   - A quad is four consecutive tokens of a row (of a segment). Where the loss is computed in
///     float, its tokens are added in float, in their order; where in double, one after the other
///     in double.
///   - Quad k of a row is added by thread k mod 128, in double; the threads are added as a tree
///     (cuda/device/kernel.hpp).
///   - Rows are added in their order to the tally of their run, and the runs (at most four) in
///     their order to the tally of their unit. There are at most 1024 units. The number of rows
///     alone decides which rows form a run and a unit.
///   - The units form 32 spans. A span adds its units in their order; the spans are added as a
///     tree.
/// So the bits do not depend on where rows stand, on their padding, or on the grid.
constexpr int loss_threads = 128, quad_size = 4;

/// How the rows of a batch are cut into units and runs.
class RowUnits {
 public:
  static constexpr int most_units = 1024, most_runs = loss_threads / warp;
  explicit RowUnits(index_t rows) : rows_(static_cast<int>(rows)) {
    rows_a_unit_ = rows > 0 ? divide(rows, most_units) : 1;
    rows_a_run_ = divide(rows_a_unit_, most_runs);
    units_ = divide(rows, rows_a_unit_), runs_ = divide(rows_a_unit_, rows_a_run_);
  }
  int count() const { return units_; }
  /// Units that scratch memory has room for: as many as a batch of at most these rows can form.
  /// 1024 rows form 1024 units and 1025 rows 513, so the scratch of a batch serves smaller ones.
  int reserved() const { return (std::min)(rows_, most_units); }
  /// Whether a unit has at least as many rows as the most runs.
  bool are_full() const { return rows_a_unit_ >= most_runs; }
  GDPO_INLINE int runs() const { return runs_; }
  GDPO_INLINE int begin(int unit, int run) const {
    const index_t begin = index_t{unit} * rows_a_unit_ + run * rows_a_run_;
    return begin < rows_ ? static_cast<int>(begin) : rows_;
  }
  GDPO_INLINE int end(int unit, int run) const {
    return run + 1 < runs_ ? begin(unit, run + 1) : begin(unit + 1, 0);
  }

 private:
  static int divide(index_t n, index_t by) { return static_cast<int>((n + by - 1) / by); }
  int rows_, rows_a_unit_, rows_a_run_, units_, runs_;
};

/// Threads for rows of `width` tokens (0: not known): one for every quad, in whole warps, at most
/// the 128 of the order above.
inline int threads_for(index_t width) {
  const index_t quads = (width + quad_size - 1) / quad_size, warps = (quads + warp - 1) / warp;
  return width == 0 || warps * warp >= loss_threads
             ? loss_threads
             : static_cast<int>(warps < 1 ? 1 : warps) * warp;
}
/// Threads of a kernel that gives each unit a block. Where rows are many and short, each run of the
/// unit is computed by a warp, which stands in for the threads of a block (block.teams).
struct RowThreads {
  int of_block;  ///< threads of a block
  int of_team;   ///< threads that a warp stands in for; 0: the block itself computes the rows
  RowThreads(const RowUnits& units, const gdpo::detail::TokenLayout& layout, const Tuning& tuning) {
    const bool by_warp = units.are_full() && layout.tokens <= layout.rows * tuning.warp_row;
    const int own = threads_for(layout.width);
    of_block = by_warp ? loss_threads : own, of_team = by_warp ? own : 0;
  }
};

/// Four numbers of a storage type, read or written by one access.
template <class S, std::size_t Bytes = quad_size * sizeof(S)>
struct Quad;
template <class S>
struct alignas(4) Quad<S, 4> {
  S element[quad_size];
};
template <class S>
struct alignas(16) Quad<S, 16> {
  S element[quad_size];
};
template <class S>
struct Quad<S, 32> {  // two accesses of 16 bytes
  struct alignas(16) Two {
    S element[2];
  };
  Two low, high;
};
/// Reads p[0 .. 3]. `whole`: p is aligned to 16 bytes (a mask: 4) and all four may be read; else
/// the first `n` are read and the others are 0.
template <class S>
GDPO_INLINE void load_quad(const S* p, bool whole, int n, S* to) {
  if (whole) {
    if constexpr (sizeof(S) == 8) {
      const auto x = *reinterpret_cast<const Quad<S>*>(p);
      to[0] = x.low.element[0], to[1] = x.low.element[1], to[2] = x.high.element[0],
      to[3] = x.high.element[1];
    } else {
      const auto x = *reinterpret_cast<const Quad<S>*>(p);
      for (int j = 0; j < quad_size; ++j) to[j] = x.element[j];
    }
  } else {
    for (int j = 0; j < quad_size; ++j) to[j] = j < n ? p[j] : S(0);
  }
}
/// Writes p[0 .. 3], or the first `n` of them, as load_quad reads them.
template <class S>
GDPO_INLINE void store_quad(S* p, bool whole, int n, const S* from) {
  if (whole) {
    if constexpr (sizeof(S) == 8) {
      *reinterpret_cast<Quad<S>*>(p) = {{{from[0], from[1]}}, {{from[2], from[3]}}};
    } else {
      *reinterpret_cast<Quad<S>*>(p) = {{from[0], from[1], from[2], from[3]}};
    }
  } else {
    for (int j = 0; j < quad_size; ++j) {
      if (j < n) p[j] = from[j];
    }
  }
}
template <class S>
GDPO_INLINE bool is_aligned(const S* p) {
  return reinterpret_cast<std::uintptr_t>(p) % (sizeof(S) == 1 ? 4 : 16) == 0;
}

/// Tokens of a row that the mask lets through, tokens of its completion, and a place before which
/// none of the former stands: the first of them, or up to 15 tokens earlier.
struct RowLengths {
  int tokens = 0, completion = 0, first = INT_MAX;
  GDPO_INLINE void add(const RowLengths& o) {
    tokens += o.tokens, completion += o.completion;
    first = o.first < first ? o.first : first;
  }
  /// Adds n valid tokens, the first of which stands at t or close behind it. A thread adds from
  /// the left to the right.
  GDPO_INLINE void add_tokens(int n, int t) {
    if (n > 0 && first == INT_MAX) first = t;
    tokens += n;
  }
};
/// How many of 4 bytes are not 0.
GDPO_INLINE int nonzero_bytes(std::uint32_t x) {
  // The sum sets the high bit of a byte whose low 7 bits are not 0; no byte carries into the next.
  // The product adds the four bits into the highest byte.
  const std::uint32_t high = (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
  return static_cast<int>((high >> 7) * 0x01010101u >> 24);
}
/// The lengths of a row, known to all threads. Masks of bytes are read 16 at a time.
template <class S, class Block>
GDPO_DEVICE RowLengths count_row(Block& block, const DeviceBatch<S>& batch, const RowSpan& span) {
  const int length = static_cast<int>(span.length);
  if (!batch.mask && !batch.completion_mask) return {length, length, 0};
  return block.template reduce<RowLengths>([&](int thread) {
    RowLengths mine;
    const bool bytes = batch.mask && !batch.completion_mask && batch.mask.type == StoredAs::UInt8 &&
                       batch.mask.shape.step == 1;
    if (bytes) {
      constexpr int at_once = 16;
      const auto* mask = static_cast<const unsigned char*>(batch.mask.data) +
                         batch.mask.first(span.row, span.begin);
      const bool aligned = reinterpret_cast<std::uintptr_t>(mask) % at_once == 0;
      for (int t = thread * at_once; t < length; t += block.threads() * at_once) {
        if (aligned && t + at_once <= length) {
          const auto words = *reinterpret_cast<const Quad<std::uint32_t>*>(mask + t);
          for (int j = 0; j < quad_size; ++j) mine.add_tokens(nonzero_bytes(words.element[j]), t);
        } else {
          const int end = t + at_once < length ? t + at_once : length;
          for (int i = t; i < end; ++i) mine.add_tokens(mask[i] != 0, i);
        }
      }
      mine.completion = mine.tokens;
      return mine;
    }
    for (index_t t = thread; t < span.length; t += block.threads()) {
      const bool valid = batch.valid(span, t);
      mine.add_tokens(valid, static_cast<int>(t));
      mine.completion +=
          batch.completion_mask ? DeviceBatch<S>::at(batch.completion_mask, span, t) != 0 : valid;
    }
    return mine;
  });
}

/// f(t) for the tokens of this thread's quads, in their order. of_row: the length of the row.
template <class Block, class F>
GDPO_INLINE void in_quads(const Block& block, index_t of_row, int thread, const F& f) {
  const int length = static_cast<int>(of_row);
  for (int first = thread * quad_size; first < length; first += block.threads() * quad_size) {
    for (int t = first; t < length && t < first + quad_size; ++t) f(t);
  }
}

/// Sums over the advantages of a row's tokens. nan: 1 if one of them is NaN.
struct AdvantageSums {
  double sum = 0, square = 0, min = math::infinity, max = -math::infinity;
  int nan = 0, unused = 0;
  GDPO_INLINE void add(const AdvantageSums& o) {
    sum += o.sum, square += o.square, nan |= o.nan;
    min = (math::min)(min, o.min), max = (math::max)(max, o.max);
  }
};

/// Moments of the advantages at the valid tokens of a row. Where tokens have no advantages of their
/// own, each has `of_row`, the row's.
template <bool of_tokens = true, class Block, class S>
GDPO_DEVICE Moments advantages_of(Block& block, const DeviceBatch<S>& batch, const RowSpan& span,
                                  int tokens, double of_row) {
  Moments m;
  if (tokens == 0) return m;
  m.n = tokens;
  m.weight = static_cast<double>(tokens);
  m.mean = m.min = m.max = of_row;
  if (!of_tokens || !batch.token_advantages) return m;
  const auto for_each_valid = [&](int thread, const auto& f) {
    in_quads(block, span.length, thread, [&](index_t t) {
      if (batch.valid(span, t))
        f(static_cast<double>(DeviceBatch<S>::at(batch.token_advantages, span, t)));
    });
  };
  const AdvantageSums first = block.template reduce<AdvantageSums>([&](int thread) {
    AdvantageSums mine;
    for_each_valid(thread, [&](double a) {
      mine.sum += a;
      mine.nan |= math::is_nan(a);
      mine.min = (math::min)(mine.min, a), mine.max = (math::max)(mine.max, a);
    });
    return mine;
  });
  if (first.nan) {
    m.mean = m.mean_low = m.m2 = m.min = m.max = math::nan();
    return m;
  }
  m.min = first.min, m.max = first.max;
  const double center = m.min == m.max ? m.min : first.sum / m.weight;
  m.mean = center;
  if (m.min == m.max) return m;
  const AdvantageSums about = block.template reduce<AdvantageSums>([&](int thread) {
    AdvantageSums mine;
    for_each_valid(thread, [&](double a) {
      const double d = a - center;
      mine.sum += d, mine.square += math::mul(d, d);
    });
    return mine;
  });
  Moments exact = gdpo::detail::moments_of_sums(m.weight, about.sum, about.square, center);
  exact.n = m.n, exact.min = m.min, exact.max = m.max;
  return exact;
}

/// What an aggregate is given of a row with `tokens` valid tokens.
template <class S>
GDPO_INLINE AggregateArgs args_of(const DeviceBatch<S>& batch, index_t row, index_t tokens,
                                  const Normalizer& divisor) {
  return {{tokens, batch.width, batch.group_tokens ? batch.group_tokens(row) : 0.0}, divisor};
}
/// The weight W_i of a row with `tokens` valid tokens.
template <class Loss, class S>
GDPO_DEVICE double weight_of(const Loss& loss, const DeviceBatch<S>& batch, index_t row,
                             index_t tokens, const DeviceNormalizer& normalizer) {
  if (tokens == 0) return 0;
  const Normalizer divisor = normalizer();
  const double weight = loss.aggregate(args_of(batch, row, tokens, divisor));
  return batch.row_weights ? math::mul(weight, batch.row_weights(row)) : weight;
}
/// The advantage of a row; 0 where the tokens have advantages of their own.
template <class S>
GDPO_INLINE double advantage_of(const DeviceBatch<S>& batch, index_t row) {
  return batch.advantages && !batch.token_advantages ? batch.advantages(row) : 0.0;
}

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
