#pragma once
// The kernels of pre-passes that decide from the numbers of all tokens: TopEntropy, SecondMoment,
// Covariance and EntropyClip.
#include <gdpo/cuda/prepass/prepass_rows.hpp>
#include <gdpo/cuda/prepass/select.hpp>
#include <gdpo/prepass/covariance.hpp>
#include <gdpo/prepass/entropy_clip.hpp>
#include <gdpo/prepass/second_moment.hpp>
#include <gdpo/prepass/top_entropy.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Keys in memory, by position.
struct StoredKeys {
  const std::uint64_t* keys;
  GDPO_INLINE std::uint64_t operator()(index_t k) const { return keys[k]; }
  GDPO_INLINE bool is_empty() const { return false; }
};
/// Gives every position no key: rows whose offsets are wrong may not cover all.
struct ClearKeys {
  static constexpr int largest_block = 256;
  std::uint64_t* keys;
  index_t tokens;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      for (index_t k = block.index() * block.threads() + thread; k < tokens;
           k += block.count() * block.threads())
        keys[k] = no_key;
    });
  }
};
/// The keys of all tokens, where a token's own numbers give its key: key(batch, span, t).
template <class S, class Key>
struct WriteKeys {
  Key key;
  std::uint64_t* keys;
  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    keys[span.begin + t] = batch.valid(span, t) ? key_of(key(batch, span, t)) : no_key;
  }
};

// ---- picks: the tokens with the smallest keys ----

/// The positions of the tokens whose key is the limit: of these the first are picked.
struct KeysAtLimit {
  const std::uint64_t* keys;
  const Selected* limit;
  GDPO_INLINE std::uint64_t operator()(index_t k) const {
    return keys[k] == limit->key ? static_cast<std::uint64_t>(k) : no_key;
  }
  GDPO_INLINE bool is_empty() const { return limit->is_none || limit->rank < 0; }
};
struct RankAtLimit {
  const Selected* limit;
  GDPO_INLINE index_t operator()(index_t) const { return limit->rank; }
};
/// Gives the weights: `picked` to the tokens with the smallest keys, `rest` to the others.
template <class S>
struct PickTokens {
  const std::uint64_t* keys;
  const Selected *limit, *last;  ///< The largest key, and the last position that has it.
  double picked, rest;
  WeightsOut<S> out;
  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (!batch.valid(span, t)) return;
    const index_t k = span.begin + t;
    const std::uint64_t key = keys[k];
    const bool below = key < limit->key;
    const bool first =
        key == limit->key && !last->is_none && static_cast<std::uint64_t>(k) <= last->key;
    out(k, !limit->is_none && key != no_key && (below || first) ? picked : rest);
  }
};

// ---- TopEntropy ----

template <class S>
struct EntropyKey {
  GDPO_INLINE double operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    return logp_at(batch.entropies, span, t);
  }
};
/// The rank of the entropy below the threshold.
struct EntropyRank {
  prepass::TopEntropy pass;
  GDPO_INLINE index_t operator()(index_t count) const {
    return static_cast<index_t>(pass.place_of(static_cast<double>(count)));
  }
};
struct SmallestKey {
  std::uint64_t key = no_key;
  GDPO_INLINE void add(const SmallestKey& o) { key = o.key < key ? o.key : key; }
};
/// The smallest key above the selected one, of each unit.
struct NextKey {
  static constexpr int threads = SelectUnits::threads, largest_block = threads;
  const std::uint64_t* keys;
  SelectUnits units;
  const Selected* below;
  std::uint64_t* of_units;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const SmallestKey smallest = block.template reduce<SmallestKey>([&](int thread) {
      SmallestKey mine;
      units.each(block.index(), thread, [&](index_t k) {
        if (keys[k] > below->key) mine.add({keys[k]});
      });
      return mine;
    });
    block.each([&](int thread) {
      if (thread == 0) of_units[block.index()] = smallest.key;
    });
  }
};
/// The threshold, from the selected entropy and the next one. `below` null: that of the pass.
struct EntropyLimit {
  static constexpr int threads = SelectUnits::threads, largest_block = threads;
  prepass::TopEntropy pass;
  const Selected* below;
  const std::uint64_t* of_units;
  int units;
  double* limit;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const SmallestKey next = block.template reduce<SmallestKey>([&](int thread) {
      SmallestKey mine;
      for (int u = thread; u < units; u += block.threads()) mine.add({of_units[u]});
      return mine;
    });
    block.each([&](int thread) {
      if (thread == 0) *limit = below ? limit_of(next.key) : pass.threshold;
    });
  }

 private:
  GDPO_INLINE double limit_of(std::uint64_t next) const {
    if (below->is_none) return math::infinity;
    const double low = number_of(below->key);
    const double place = pass.place_of(static_cast<double>(below->count));
    const double fraction = place - static_cast<double>(static_cast<index_t>(place));
    const bool repeats = below->rank + 1 < below->equal;
    if (fraction <= 0 || (!repeats && next == no_key)) return low;
    return prepass::TopEntropy::between(low, repeats ? low : number_of(next), fraction);
  }
};
template <class S>
struct KeepEntropy {
  const double* limit;
  WeightsOut<S> out;
  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (!batch.valid(span, t)) return;
    out(span.begin + t, prepass::TopEntropy::weight_of(logp_at(batch.entropies, span, t), *limit));
  }
};

// ---- SecondMoment ----

template <class S>
struct MomentKey {
  gdpo::detail::PairOf<DeviceTokens<S>> pair;
  GDPO_INLINE double operator()(const DeviceBatch<S>&, const RowSpan& span, index_t t) const {
    return prepass::SecondMoment::moment_of(
        pair.of([&](const DeviceTokens<S>& a) { return DeviceBatch<S>::at(a, span, t); }));
  }
};
/// The last key of the largest set of smallest keys whose mean is below the threshold. The means
/// grow with the set, so each digit is that of the first bucket with which the mean is too large.
struct ByMean {
  static constexpr bool with_sums = true;
  prepass::SecondMoment pass;
  GDPO_INLINE void choose(Selected& s, const Buckets<true>& buckets, int shift) const {
    if (s.count == 0 && !s.is_none) {
      s.count = buckets.keys();
      s.is_none = s.count == 0;
    }
    if (s.is_none) return;
    int last = 0, chosen = -1;
    GDPO_UNROLL
    for (int d = 0; d < digits; ++d) last = buckets.count[d] > 0 ? d : last;
    GDPO_UNROLL
    for (int d = 0; d < digits; ++d) {
      if (chosen >= 0) continue;
      const index_t n = s.below + buckets.count[d];
      const double sum = s.sum + buckets.sum[d];
      if (d == last || (buckets.count[d] > 0 && !pass.stays(sum, static_cast<double>(n)))) {
        chosen = d, s.equal = buckets.count[d];
      } else {
        s.below = n, s.sum = sum;
      }
    }
    s.key |= static_cast<std::uint64_t>(chosen) << shift;
    if (shift == 0) s.rank = stay_of(s) - 1;
  }

 private:
  /// How many of the tokens whose key is the last one stay.
  GDPO_INLINE index_t stay_of(const Selected& s) const {
    const double m = number_of(s.key);
    index_t stay = 0, more = s.equal + 1;  // `stay` fit, and `more` do not
    while (more - stay > 1) {
      const index_t middle = stay + (more - stay) / 2;
      const auto n = static_cast<double>(middle);
      (pass.stays(math::fma(n, m, s.sum), static_cast<double>(s.below) + n) ? stay : more) = middle;
    }
    return stay == 0 && s.below == 0 ? 1 : stay;
  }
};

// ---- Covariance ----

/// The sums of a row, and how many of its tokens are valid.
struct CovarianceRow {
  prepass::Covariance::Sums sums;
  index_t valid = 0;
};
template <class S>
struct CovarianceSums {
  static constexpr bool backward = false, writes = false;
  CovarianceRow* of_rows;

  using Row = CovarianceRow;
  struct Cell {
    double advantage, logp;
    bool valid;
  };
  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (!batch.valid(span, t)) return {0, 0, false};
    return {advantage_at(batch, span, t), logp_at(batch.logp, span, t), true};
  }
  GDPO_INLINE void step(Row& row, const Cell& cell, const RowSpan&, index_t) const {
    if (cell.valid) row.sums.add(cell.advantage, cell.logp), row.valid += 1;
  }
  GDPO_INLINE void write(const DeviceBatch<S>&, const RowSpan&, index_t, const Cell&) const {}
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan& span, const Row& row) const {
    of_rows[span.row] = row;
  }
};
/// The sums of the batch, and how many valid tokens stand before each row.
struct CovarianceOfRows {
  using Of = CovarianceRow;
  using Total = CovarianceRow;
  index_t* before;
  prepass::Covariance::Sums* sums;
  GDPO_INLINE void add(Total& total, index_t row, const Of& of_row) const {
    before[row] = total.valid;
    total.valid += of_row.valid, total.sums.merge(of_row.sums);
  }
  GDPO_INLINE void write(const Total& total) const { *sums = total.sums; }
};
/// The key of each token, by its place among the valid ones.
template <class S>
struct CovarianceKeys {
  static constexpr bool backward = false, writes = true;
  prepass::Covariance pass;
  const prepass::Covariance::Sums* sums;
  const index_t* before;
  std::uint64_t* keys;

  struct Row {
    index_t valid = 0;
  };
  struct Cell {
    index_t place;  ///< Among the valid tokens of the row, from 1; 0: it is not valid.
  };
  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    return {batch.valid(span, t)};
  }
  GDPO_INLINE void step(Row& row, Cell& cell, const RowSpan&, index_t) const {
    row.valid += cell.place;
    if (cell.place > 0) cell.place = row.valid;
  }
  GDPO_INLINE void write(const DeviceBatch<S>& batch, const RowSpan& span, index_t t,
                         const Cell& cell) const {
    std::uint64_t& key = keys[span.begin + t];
    key = no_key;
    if (cell.place == 0) return;
    const double logp = logp_at(batch.logp, span, t);
    const double x = batch.old_logp ? logp - logp_at(batch.old_logp, span, t) : 0.0;
    key = key_of(
        pass.key_of(*sums, advantage_at(batch, span, t), logp, x, before[span.row] + cell.place));
  }
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan&, const Row&) const {}
};
/// The rank of the last pick of a pass that picks a share of the n tokens of its sums.
template <class Pass, class Sums>
struct ShareRank {
  Pass pass;
  const Sums* sums;
  GDPO_INLINE index_t operator()(index_t count) const {
    const index_t picks = pass.picks(sums->n);
    return (picks < count ? picks : count) - 1;
  }
};
using CovarianceRank = ShareRank<prepass::Covariance, prepass::Covariance::Sums>;

// ---- EntropyClip ----

/// The measure of each token. A structure with the arrays that it reads.
template <class S>
struct EntropyMeasure {
  DeviceTokens<S> logp, entropies, tags;  ///< `tags` is absent where they are not the center.

  EntropyMeasure(const prepass::EntropyClip& pass, const DeviceBatch<S>& batch)
      : logp(pass.policy == Against::Rollout ? batch.rollout_logp
             : batch.old_logp                ? batch.old_logp
                                             : batch.logp),
        entropies(batch.entropies),
        tags(pass.center == EntropyCenter::Tags ? batch.tags : DeviceTokens<S>{}) {}
  GDPO_INLINE double operator()(const RowSpan& span, index_t t) const {
    return prepass::EntropyClip::measure_of(logp_at(logp, span, t), logp_at(entropies, span, t),
                                            tags ? logp_at(tags, span, t) : 0.0);
  }
};
/// What both scans of the measure read.
struct EntropyCell {
  double d;
  bool valid;
};
/// Its sums in each row.
template <class S>
struct EntropySums {
  static constexpr bool backward = false, writes = false;
  EntropyMeasure<S> measure;
  prepass::EntropyClip::Sums* of_rows;

  using Row = prepass::EntropyClip::Sums;
  using Cell = EntropyCell;
  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (!batch.valid(span, t)) return {0, false};
    return {measure(span, t), true};
  }
  GDPO_INLINE void step(Row& row, const Cell& cell, const RowSpan&, index_t) const {
    if (cell.valid) row.add(cell.d);
  }
  GDPO_INLINE void write(const DeviceBatch<S>&, const RowSpan&, index_t, const Cell&) const {}
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan& span, const Row& row) const {
    of_rows[span.row] = row;
  }
};
/// Those of the batch, and what follows from them.
struct EntropyOfRows {
  using Of = prepass::EntropyClip::Sums;
  using Total = Of;
  prepass::EntropyClip pass;
  prepass::EntropyClip::Spread* spread;
  GDPO_INLINE void add(Total& total, index_t, const Of& of_row) const { total.merge(of_row); }
  GDPO_INLINE void write(const Total& total) const { *spread = pass.spread_of(total); }
};
/// Its squares in each row.
struct EntropySquare {
  double sum = 0;
};
template <class S>
struct EntropySquares {
  static constexpr bool backward = false, writes = false;
  EntropyMeasure<S> measure;
  const prepass::EntropyClip::Spread* spread;
  EntropySquare* of_rows;

  using Row = EntropySquare;
  using Cell = EntropyCell;
  GDPO_INLINE Row begin() const { return {}; }
  GDPO_INLINE Cell read(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (!batch.valid(span, t)) return {0, false};
    return {prepass::EntropyClip::square_of(measure(span, t), *spread), true};
  }
  GDPO_INLINE void step(Row& row, const Cell& cell, const RowSpan&, index_t) const {
    if (cell.valid) row.sum += cell.d;
  }
  GDPO_INLINE void write(const DeviceBatch<S>&, const RowSpan&, index_t, const Cell&) const {}
  GDPO_INLINE void end(const DeviceBatch<S>&, const RowSpan& span, const Row& row) const {
    of_rows[span.row] = row;
  }
};
struct EntropySquaresOfRows {
  using Of = EntropySquare;
  using Total = Of;
  prepass::EntropyClip::Spread* spread;
  GDPO_INLINE void add(Total& total, index_t, const Of& of_row) const { total.sum += of_row.sum; }
  GDPO_INLINE void write(const Total& total) const {
    if (spread->n > 0) spread->variance = total.sum / spread->n;
  }
};
/// The key of each token that may be dropped for A < 0.
template <class S>
struct EntropyClipKey {
  prepass::EntropyClip pass;
  EntropyMeasure<S> measure;
  const prepass::EntropyClip::Spread* spread;

  /// As EntropyClip::key_of.
  GDPO_INLINE double key(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    return pass.key_of(measure(span, t) - spread->center, pass.bound_of(*spread),
                       advantage_at(batch, span, t));
  }
  GDPO_INLINE double operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    const double k = key(batch, span, t);
    return k == -math::infinity ? math::nan() : k;
  }
};
/// The rank of the last token that is dropped for A < 0.
using EntropyClipRank = ShareRank<prepass::EntropyClip, prepass::EntropyClip::Spread>;
/// Drops the tokens with A = 0 that are below the bound.
template <class S>
struct DropZeroAdvantage {
  EntropyClipKey<S> key;
  WeightsOut<S> out;
  GDPO_INLINE void operator()(const DeviceBatch<S>& batch, const RowSpan& span, index_t t) const {
    if (!batch.valid(span, t)) return;
    if (key.key(batch, span, t) == -math::infinity) out(span.begin + t, 0.0);
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
