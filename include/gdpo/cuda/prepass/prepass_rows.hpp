#pragma once
// How the kernels of pre-passes walk over tokens and rows, and where their weights go.
#include <algorithm>
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/cuda/device/tuning.hpp>
#include <gdpo/cuda/tokens/device_batch.hpp>
#include <gdpo/prepass/shared/weights.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// The advantage of a token: its own, or that of its row.
template <class S>
GDPO_INLINE double advantage_at(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) {
  if (batch.token_advantages)
    return static_cast<double>(DeviceBatch<S>::at(batch.token_advantages, span, t));
  return batch.advantages ? batch.advantages(span.row) : 0.0;
}
/// A log-prob of a token as a double.
template <class S>
GDPO_INLINE double logp_at(const DeviceTokens<S>& tokens, const RowSpan& span, index_t t) {
  return static_cast<double>(DeviceBatch<S>::at(tokens, span, t));
}

/// Where the weights of a pre-pass go, by its reach. Arrays that it does not reach are null.
template <class S>
struct WeightsOut {
  unsigned char* mask = nullptr;
  S *weights = nullptr, *kl_weights = nullptr;

  /// Gives the token at position k of the batch the weight u.
  GDPO_INLINE void operator()(index_t k, double u) const {
    if (mask && math::is_zero(u)) mask[k] = 0;
    const S w = gdpo::detail::stored_weight<S>(u);
    if (weights) weights[k] = gdpo::detail::weighed(weights[k], w);
    if (kl_weights) kl_weights[k] = gdpo::detail::weighed(kl_weights[k], w);
  }
};

/// How the tokens of all rows are shared out to blocks where each token is treated by itself: a
/// unit is every parts-th run of `threads` tokens of a row.
struct TokenUnits {
  static constexpr int threads = 256, tokens_a_thread = 8;
  index_t rows;
  index_t parts;  ///< Units of a row.

  explicit TokenUnits(const gdpo::detail::TokenLayout& layout)
      : rows(layout.rows), parts(1 + mean(layout) / (threads * tokens_a_thread)) {}
  GDPO_INLINE index_t count() const { return rows * parts; }

 private:
  static index_t mean(const gdpo::detail::TokenLayout& layout) {
    return layout.rows > 0 ? layout.tokens / layout.rows : 0;
  }
};

/// Calls f(batch, span, t) for every token of the batch, masked ones included.
template <class S, class F>
struct EachToken {
  static constexpr int largest_block = TokenUnits::threads;
  DeviceBatch<S> batch;
  TokenUnits units;
  F f;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      for (index_t unit = block.index(); unit < units.count(); unit += block.count()) {
        const RowSpan span = batch.span(unit / units.parts);
        const index_t first = unit % units.parts * block.threads() + thread;
        for (index_t t = first; t < span.length; t += units.parts * block.threads())
          f(batch, span, t);
      }
    });
  }
};
template <class Device, class S, class F>
void launch_tokens(const Device& device, const DeviceBatch<S>& batch, const TokenUnits& units,
                   const F& f) {
  const index_t most = device.tuning().blocks;
  device.launch((std::min)(units.count(), most), TokenUnits::threads, 0,
                EachToken<S, F>{batch, units, f});
}

/// Scans rows token by token, each by one thread, in the order of the host, so that sums have its
/// bits. A block has eight rows: all its threads read a tile of their tokens, side by side in
/// memory, into shared memory; eight threads scan it; all threads write it.
///
/// A scan is a struct with
///   Row, Cell                           what a row carries along, and what a token is read as
///   static constexpr bool backward      from the last token to the first
///   static constexpr bool writes        whether write() is called
///   Row begin() const                   a row before its first step
///   Cell read(batch, span, t) const     a token, by any thread
///   void step(row, cell, span, t) const    one step, by the thread of the row
///   void write(batch, span, t, cell) const    a token after its step, by any thread
///   void end(batch, span, row) const    a row behind its last step, by its thread
template <class S, class Scan>
struct ScanRows {
  static constexpr int rows_a_block = 8, tile = 64, threads = 128, largest_block = threads;
  using Row = typename Scan::Row;
  using Cell = typename Scan::Cell;
  struct Shared {
    Row rows[rows_a_block];
    // One more than the tile, so that the eight threads that scan use different banks.
    Cell cells[rows_a_block][tile + 1];
  };

  DeviceBatch<S> batch;
  Scan scan;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Shared& shared = *block.template shared<Shared>();
    const index_t first_row = block.index() * rows_a_block;
    index_t longest = 0;
    for (int r = 0; r < rows_a_block; ++r) {
      const index_t length = span_of(first_row + r).length;
      longest = length > longest ? length : longest;
    }
    block.each([&](int thread) {
      if (thread < rows_a_block) shared.rows[thread] = scan.begin();
    });
    const index_t tiles = (longest + tile - 1) / tile;
    for (index_t k = 0; k < tiles; ++k) {
      const index_t first = (Scan::backward ? tiles - 1 - k : k) * tile;
      block.each([&](int thread) {
        for (int c = thread; c < rows_a_block * tile; c += block.threads()) {
          const RowSpan span = span_of(first_row + c / tile);
          const index_t t = first + c % tile;
          if (t < span.length) shared.cells[c / tile][c % tile] = scan.read(batch, span, t);
        }
      });
      block.each([&](int thread) {
        if (thread >= rows_a_block) return;
        const RowSpan span = span_of(first_row + thread);
        const index_t left = span.length - first;
        const int n = static_cast<int>(left < tile ? left : tile);
        Row row = shared.rows[thread];
        for (int j = 0; j < n; ++j) {
          const int at = Scan::backward ? n - 1 - j : j;
          scan.step(row, shared.cells[thread][at], span, first + at);
        }
        shared.rows[thread] = row;
      });
      if constexpr (Scan::writes) {
        block.each([&](int thread) {
          for (int c = thread; c < rows_a_block * tile; c += block.threads()) {
            const RowSpan span = span_of(first_row + c / tile);
            const index_t t = first + c % tile;
            if (t < span.length) scan.write(batch, span, t, shared.cells[c / tile][c % tile]);
          }
        });
      }
    }
    block.each([&](int thread) {
      if (thread < rows_a_block && first_row + thread < batch.rows)
        scan.end(batch, span_of(first_row + thread), shared.rows[thread]);
    });
  }

 private:
  GDPO_INLINE RowSpan span_of(index_t row) const {
    return row < batch.rows ? batch.span(row) : RowSpan{row, 0, 0};
  }
};
template <class Device, class S, class Scan>
void launch_scan(const Device& device, const DeviceBatch<S>& batch, const Scan& scan) {
  using Kernel = ScanRows<S, Scan>;
  device.launch((batch.rows + Kernel::rows_a_block - 1) / Kernel::rows_a_block, Kernel::threads,
                sizeof(typename Kernel::Shared), Kernel{batch, scan});
}

/// Adds rows in their order, in one block: thread 0 calls f.add(total, row, of_rows[row]) for each
/// row, which all threads have read, and f.write(total) at the end. Of and Total are the types.
template <class F>
struct AddRows {
  static constexpr int tile = 256, threads = 256, largest_block = threads;
  using Of = typename F::Of;
  using Total = typename F::Total;
  struct Shared {
    Total total;
    Of rows[tile];
  };
  const Of* of_rows;
  index_t rows;
  F f;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Shared& shared = *block.template shared<Shared>();
    block.each([&](int thread) {
      if (thread == 0) shared.total = Total{};
    });
    for (index_t first = 0; first < rows; first += tile) {
      const index_t left = rows - first;
      const int n = static_cast<int>(left < tile ? left : tile);
      block.each([&](int thread) {
        for (int i = thread; i < n; i += block.threads()) shared.rows[i] = of_rows[first + i];
      });
      block.each([&](int thread) {
        if (thread != 0) return;
        Total total = shared.total;
        for (int i = 0; i < n; ++i) f.add(total, first + i, shared.rows[i]);
        shared.total = total;
      });
    }
    block.each([&](int thread) {
      if (thread == 0) f.write(shared.total);
    });
  }
};
template <class Device, class F>
void launch_add_rows(const Device& device, const typename F::Of* of_rows, index_t rows,
                     const F& f) {
  using Kernel = AddRows<F>;
  device.launch(1, Kernel::threads, sizeof(typename Kernel::Shared), Kernel{of_rows, rows, f});
}

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
