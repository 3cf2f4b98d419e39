#pragma once
// The kernel that makes a MismatchRow of each row: tokens side by side, sums in the host's order.
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/cuda/tokens/device_batch.hpp>
#include <gdpo/mismatch/shared/mismatch_row.hpp>
#include <new>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::MismatchRow, gdpo::detail::MismatchToken;

/// The sums of tokens, numbered in the order of the lists: those that finish() divides stand first.
struct MismatchSum {
#define GDPO_X(name, ...) name,
  enum { GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X) GDPO_MISMATCH_TOKEN_SUMS(GDPO_X) count };
#undef GDPO_X
};
/// Their extremes.
struct MismatchExtreme {
#define GDPO_X(name, ...) name,
  enum { GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X) count };
#undef GDPO_X
};
/// Their counts, the bits of a mark: those of MismatchToken, then the tokens of completion_mask
/// that the mask has dropped.
struct MismatchMark {
#define GDPO_X(name, bit) name = bit,
  enum { GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X) masked, count };
#undef GDPO_X
  static_assert(scored == 0, "the lowest bit");
};

/// A block has one row, and its warps two tasks. Three warps compute the terms of a tile of tokens.
/// Meanwhile the first warp adds those of the tile before, in the order of the tokens: each of its
/// threads has one sum; and the second one has the extremes and counts, one a thread as well.
///
/// A term of a token that is not scored is 0. Adding it changes no sum: one that began as 0 is
/// never -0.
template <class S>
struct MismatchRows {
  static constexpr int tile = 96, first_computing = 2 * warp, threads = first_computing + tile,
                       largest_block = threads, blocks_at_once = 4, at_once = 8;
  struct Tile {
    // One more than the tile, so that the threads that add use different banks.
    double terms[MismatchSum::count][tile + 1];
    std::uint32_t marks[tile];
  };
  struct Shared {
    Tile tiles[2];
    double sums[MismatchSum::count];
    PlacedNumber extremes[MismatchExtreme::count];
    index_t counts[MismatchMark::count];
    MismatchRow row;
  };
  static_assert(MismatchSum::count <= warp, "a thread for each sum");
  static_assert(int{MismatchExtreme::count} + int{MismatchMark::count} <= warp,
                "one for each of these");
  static_assert(tile % at_once == 0, "tiles are added in pieces");

  DeviceBatch<S> batch;  ///< Its old_logp is that of the batch or else logp.
  MismatchSettings settings;
  index_t first_row;
  MismatchRow* of_rows;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Shared& shared = *block.template shared<Shared>();
    const RowSpan span = batch.span(block.index());
    const index_t tiles = (span.length + tile - 1) / tile;
    block.each([&](int thread) {
      if (thread < MismatchSum::count) shared.sums[thread] = 0;
      const int other = thread - warp;
      if (other >= 0 && other < MismatchExtreme::count) shared.extremes[other] = {};
      const int counted = other - MismatchExtreme::count;
      if (counted >= 0 && counted < MismatchMark::count) shared.counts[counted] = 0;
    });
    for (index_t k = 0; k <= tiles; ++k) {
      block.each([&](int thread) {
        if (thread >= first_computing) {
          if (k < tiles) compute(shared.tiles[k % 2], span, k * tile, thread - first_computing);
        } else if (k > 0) {
          const index_t first = (k - 1) * tile, left = span.length - first;
          const int n = static_cast<int>(left < tile ? left : tile);
          if (thread < warp) {
            add(shared, shared.tiles[(k - 1) % 2], n, thread);
          } else {
            look(shared, shared.tiles[(k - 1) % 2], span.row, first, n, thread - warp);
          }
        }
      });
    }
    block.each([&](int thread) {
      if (thread == 0) finish(shared, span.row);
    });
    block.each([&](int thread) {
      constexpr int words = sizeof(MismatchRow) / sizeof(std::uint64_t);
      static_assert(sizeof(MismatchRow) % sizeof(std::uint64_t) == 0);
      const auto* const source = reinterpret_cast<const unsigned char*>(&shared.row);
      auto* const target = reinterpret_cast<unsigned char*>(of_rows + span.row);
      for (int w = thread; w < words; w += block.threads())
        std::memcpy(target + 8 * w, source + 8 * w, sizeof(std::uint64_t));
    });
  }

 private:
  /// The terms of token first + i. Behind the end of the row they are 0.
  GDPO_INLINE void compute(Tile& target, const RowSpan& span, index_t first, int i) const {
    const index_t t = first + i;
    MismatchToken<double> token;
    bool masked = false;
    if (t < span.length) {
      if (batch.valid(span, t)) {
        const auto number = [&](const DeviceTokens<S>& tokens) {
          return static_cast<double>(DeviceBatch<S>::at(tokens, span, t));
        };
        const bool has_weights = static_cast<bool>(batch.weights);
        token = MismatchToken<double>(settings, true, number(batch.old_logp),
                                      number(batch.rollout_logp));
        token.js = token.divergence(token.cosh);
        token.weigh(settings, has_weights ? number(batch.weights) : 1.0, has_weights);
      } else if (batch.completion_mask) {
        masked = DeviceBatch<S>::at(batch.completion_mask, span, t) != 0;
      }
    }
#define GDPO_X(name, ...) target.terms[MismatchSum::name][i] = token.name;
    GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
    GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
    std::uint32_t marks = static_cast<std::uint32_t>(masked) << MismatchMark::masked;
#define GDPO_X(name, ...) marks |= static_cast<std::uint32_t>(token.name) << MismatchMark::name;
    GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
    target.marks[i] = marks;
  }
  /// Adds the first n terms of a tile to a sum.
  GDPO_INLINE static void add(Shared& shared, const Tile& from, int n, int sum) {
    if (sum >= MismatchSum::count) return;
    const double* const terms = from.terms[sum];
    double total = shared.sums[sum];
    GDPO_ROLLED
    for (int i = 0; i < n; i += at_once) {
      double piece[at_once];
      GDPO_UNROLL
      for (int j = 0; j < at_once; ++j) piece[j] = terms[i + j];
      GDPO_UNROLL
      for (int j = 0; j < at_once; ++j) total += piece[j];
    }
    shared.sums[sum] = total;
  }
  /// Looks at the first n tokens of a tile for an extreme or a count.
  GDPO_INLINE void look(Shared& shared, const Tile& from, index_t row, index_t first, int n,
                        int which) const {
    const int bit = which - MismatchExtreme::count;
    if (bit >= MismatchMark::count) return;
    if (bit >= 0) {
      index_t count = shared.counts[bit];
      for (int i = 0; i < n; ++i) count += from.marks[i] >> bit & 1u;
      shared.counts[bit] = count;
      return;
    }
    int sum = 0;
    bool least = false;
#define GDPO_X(name, end, of)           \
  if (which == MismatchExtreme::name) { \
    sum = MismatchSum::of;              \
    least = End::end == End::Least;     \
  }
    GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X)
#undef GDPO_X
    const double* const terms = from.terms[sum];
    PlacedNumber best = shared.extremes[which];
    for (int i = 0; i < n; ++i) {
      if ((from.marks[i] & 1u) == 0) continue;
      const double x = terms[i];
      if (best.row < 0 || (least ? x < best.value : x > best.value))
        best.value = x, best.row = first_row + row, best.token = first + i;
    }
    shared.extremes[which] = best;
  }
  GDPO_INLINE void finish(Shared& shared, index_t row) const {
    MismatchRow& sums = *new (&shared.row) MismatchRow;
#define GDPO_X(name, ...) sums.name = shared.sums[MismatchSum::name];
    GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
    GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) sums.name = shared.extremes[MismatchExtreme::name];
    GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) sums.name = shared.counts[MismatchMark::name];
    GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
    sums.finish(settings, first_row + row, shared.counts[MismatchMark::masked]);
  }
  using End = gdpo::detail::mismatch_list::End;
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
