#pragma once
// Advantages and returns of tokens on a device.
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/tokens/device_tokens.hpp>
#include <gdpo/value/shared/return_scan.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// A ReturnBatch in device memory, with its outputs.
template <class S>
struct DeviceReturns {
  DeviceTokens<S> rewards, values, logp, ref_logp;
  DeviceTokens<unsigned char> mask;
  DeviceColumn<double> row_rewards, bootstrap;
  DeviceColumn<index_t> offsets;
  DeviceOut<S> advantages, returns;
  index_t rows = 0, width = 0, tokens = 0;

  /// Arrays that the call does not read stay absent.
  DeviceReturns(const char* function, const ReturnBatch<S>& b, const TokenOut<S>& to_advantages,
                const TokenOut<S>& to_returns, const gdpo::detail::TokenLayout& layout,
                const gdpo::detail::ReturnReads& reads)
      : rewards(function, "batch.rewards", b.rewards),
        mask(function, "batch.mask", b.mask),
        row_rewards(function, "batch.row_rewards", b.row_rewards),
        bootstrap(function, "batch.bootstrap", b.bootstrap),
        offsets(function, "batch.offsets", layout.offsets),
        advantages(function, "advantages", to_advantages),
        returns(function, "returns", to_returns),
        rows(layout.rows),
        width(layout.width),
        tokens(layout.tokens) {
    if (rows > INT_MAX)
      contract::fail(function, "batch", contract::text(rows) + " rows", "fewer than 2^31");
    if (reads.values) values = {function, "batch.values", b.values};
    if (reads.penalized) {
      logp = {function, "batch.logp", b.logp};
      ref_logp = {function, "batch.ref_logp", b.ref_logp};
    }
  }

  /// The place of a row. The host cannot check offsets in device memory: if they decrease or exceed
  /// the number of tokens, rows become shorter, and nothing outside the arrays is read.
  GDPO_INLINE gdpo::detail::RowSpan span(index_t row) const {
    if (row >= rows) return {row, 0, 0};
    if (!offsets) return {row, row * width, width};
    const index_t first = offsets(row), last = offsets(row + 1);
    const index_t begin = first < 0 ? 0 : first > tokens ? tokens : first;
    const index_t end = last < begin ? begin : last > tokens ? tokens : last;
    return {row, begin, end - begin};
  }
  GDPO_INLINE bool valid(const gdpo::detail::RowSpan& span, index_t t) const {
    return !mask || mask.at(mask.first(span.row, span.begin), t) != 0;
  }
  GDPO_INLINE static double at(const DeviceTokens<S>& tokens, const gdpo::detail::RowSpan& row,
                               index_t t) {
    return tokens ? static_cast<double>(tokens.at(tokens.first(row.row, row.begin), t)) : 0.0;
  }
};

/// The valid tokens of a row: their number, and where the last one stands.
struct ValidTokens {
  int count = 0, last = -1;
  GDPO_INLINE void add(const ValidTokens& o) {
    count += o.count;
    last = o.last > last ? o.last : last;
  }
};

/// The scans of all rows. A row is scanned by one thread, since each step needs the step behind it.
/// A block has eight rows: all its threads read a tile of their tokens, side by side in memory,
/// into shared memory, eight threads scan it, and all threads write it.
template <bool Twice, class S, class Estimator>
struct ScanReturns {
  using Returns = std::decay_t<decltype(Estimator::returns)>;
  static constexpr int rows_a_block = 8, tile = 64, threads = 128, largest_block = threads;

  Estimator estimator;
  DeviceReturns<S> batch;
  bool penalized;

  struct Row {
    gdpo::detail::Carried<double> carried;
    Decay decay;
    int length, tokens, rewarded;  ///< tokens 0: it has no step.
  };
  struct Shared {
    Row rows[rows_a_block];
    // One more than the tile, so that the eight threads that scan use different banks.
    double rewards[rows_a_block][tile + 1], values[rows_a_block][tile + 1];
    unsigned char valid[rows_a_block][tile];
  };

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Shared& shared = *block.template shared<Shared>();
    const index_t first_row = block.index() * rows_a_block;
    int longest = 0;
    for (int r = 0; r < rows_a_block; ++r) {
      const auto span = batch.span(first_row + r);
      const int length = static_cast<int>(span.length);
      longest = length > longest ? length : longest;
      const ValidTokens valid = block.template reduce<ValidTokens>([&](int thread) {
        ValidTokens mine;
        for (int t = thread; t < length; t += block.threads()) {
          if (batch.valid(span, t)) mine.add({1, t});
        }
        return mine;
      });
      block.each([&](int thread) {
        if (thread == 0) shared.rows[r] = begin(span, valid);
      });
    }
    for (int first = longest > 0 ? (longest - 1) / tile * tile : -1; first >= 0; first -= tile) {
      block.each([&](int thread) {
        for (int k = thread; k < rows_a_block * tile; k += block.threads())
          read(shared, first_row, first, k / tile, k % tile);
      });
      block.each([&](int thread) {
        if (thread < rows_a_block) scan(shared, thread, first);
      });
      block.each([&](int thread) {
        for (int k = thread; k < rows_a_block * tile; k += block.threads())
          write(shared, first_row, first, k / tile, k % tile);
      });
    }
  }

  /// A row before its last step.
  GDPO_INLINE Row begin(const gdpo::detail::RowSpan& span, const ValidTokens& valid) const {
    Row row{};
    row.length = static_cast<int>(span.length), row.tokens = valid.count;
    if (valid.count == 0) return row;
    row.rewarded = estimator.returns.steps == Steps::Row ? row.length - 1 : valid.last;
    row.decay = estimator.returns.decay(index_t{valid.count});
    row.carried =
        gdpo::detail::behind_the_end<Returns>(batch.bootstrap ? batch.bootstrap(span.row) : 0.0);
    return row;
  }
  /// Token first + t of row r into shared memory: its value, and its reward with all that belongs
  /// to it.
  GDPO_INLINE void read(Shared& shared, index_t first_row, int first, int r, int t) const {
    const Row& row = shared.rows[r];
    const int token = first + t;
    if (row.tokens == 0 || token >= row.length) return;
    const auto span = batch.span(first_row + r);
    const Steps steps = estimator.returns.steps;
    const bool valid = batch.valid(span, token);
    shared.valid[r][t] = valid;
    if (!gdpo::detail::is_step(steps, valid)) return;
    double reward = 0;
    if (gdpo::detail::carries_reward(steps, valid)) {
      reward = batch.at(batch.rewards, span, token);
      if (penalized) {
        reward = gdpo::detail::penalized<double>(estimator.penalty, reward,
                                                 batch.at(batch.logp, span, token),
                                                 batch.at(batch.ref_logp, span, token));
      }
      if (token == row.rewarded && batch.row_rewards) {
        reward =
            reward + gdpo::detail::bound(estimator.reward_clip, batch.row_rewards(span.row)).value;
      }
    }
    shared.rewards[r][t] = reward;
    shared.values[r][t] = batch.at(batch.values, span, token);
  }
  /// Scans a row's part of the tile; leaves the advantages in `rewards`, the returns in `values`.
  GDPO_INLINE void scan(Shared& shared, int r, int first) const {
    Row& row = shared.rows[r];
    if (row.tokens == 0) return;
    const Steps steps = estimator.returns.steps;
    auto carried = row.carried;
    const int left = row.length - first, tokens = left < tile ? left : tile;
    for (int t = tokens - 1; t >= 0; --t) {
      if (!gdpo::detail::is_step(steps, shared.valid[r][t] != 0)) {
        if (steps == Steps::Turns && first + t < row.rewarded) carried = {0, 0, 0};
        continue;
      }
      const double value = shared.values[r][t];
      carried = gdpo::detail::step_back<Twice>(estimator.returns, carried, shared.rewards[r][t],
                                               value, row.decay.advantages, row.decay.returns);
      shared.rewards[r][t] = carried.advantages;
      shared.values[r][t] =
          gdpo::detail::return_of<Returns>(Twice ? carried.returns : carried.advantages, value);
    }
    row.carried = carried;
  }
  GDPO_INLINE void write(const Shared& shared, index_t first_row, int first, int r, int t) const {
    const Row& row = shared.rows[r];
    const int token = first + t;
    if (token >= row.length) return;
    const auto span = batch.span(first_row + r);
    const bool counts = row.tokens > 0 && shared.valid[r][t] != 0;
    batch.advantages.at(batch.advantages.first(span.row, span.begin), token) =
        counts ? static_cast<S>(shared.rewards[r][t]) : S(0);
    if (batch.returns) {
      batch.returns.at(batch.returns.first(span.row, span.begin), token) =
          counts ? static_cast<S>(shared.values[r][t]) : S(0);
    }
  }
};

/// How rows form units of consecutive rows, at most 1024, by the number of rows alone.
struct ReturnUnits {
  static constexpr int most = 1024;
  int rows, rows_a_unit, count;
  explicit ReturnUnits(index_t n_rows) : rows(static_cast<int>(n_rows)) {
    rows_a_unit = rows > 0 ? (rows - 1) / most + 1 : 1;
    count = rows > 0 ? (rows - 1) / rows_a_unit + 1 : 0;
  }
  GDPO_INLINE int begin(int unit) const { return unit * rows_a_unit; }
  GDPO_INLINE int end(int unit) const {
    const index_t last = index_t{unit + 1} * rows_a_unit;
    return last < rows ? static_cast<int>(last) : rows;
  }
};

/// Sums over the advantages of a row's valid tokens.
struct RowAdvantages {
  double sum = 0, square = 0, min = math::infinity, max = -math::infinity;
  int tokens = 0, nan = 0;
  GDPO_INLINE void add(const RowAdvantages& o) {
    sum += o.sum, square += o.square, tokens += o.tokens, nan |= o.nan;
    min = (math::min)(min, o.min), max = (math::max)(max, o.max);
  }
};

/// Moments of the advantages of a unit of rows: each row by two centered passes, the rows merged in
/// their order.
template <class S>
struct AdvantageMoments {
  static constexpr int threads = 128, largest_block = threads;
  DeviceReturns<S> batch;
  ReturnUnits units;
  Moments* of_units;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const int unit = static_cast<int>(block.index());
    Moments all;
    for (int row = units.begin(unit); row < units.end(unit); ++row)
      all = merge(all, of_row(block, row));
    block.each([&](int thread) {
      if (thread == 0) of_units[unit] = all;
    });
  }
  template <class Block>
  GDPO_DEVICE Moments of_row(Block& block, int row) const {
    const auto span = batch.span(row);
    const int length = static_cast<int>(span.length);
    const auto sums = [&](auto visit) {
      return block.template reduce<RowAdvantages>([&](int thread) {
        RowAdvantages mine;
        for (int t = thread; t < length; t += block.threads()) {
          if (!batch.valid(span, t)) continue;
          visit(mine, static_cast<double>(
                          batch.advantages.at(batch.advantages.first(span.row, span.begin), t)));
        }
        return mine;
      });
    };
    const RowAdvantages range = sums([](RowAdvantages& mine, double x) {
      mine.sum += x, mine.tokens += 1, mine.nan |= math::is_nan(x);
      mine.min = (math::min)(mine.min, x), mine.max = (math::max)(mine.max, x);
    });
    Moments m;
    if (range.tokens == 0) return m;
    const double weight = static_cast<double>(range.tokens);
    if (range.nan) {
      m.mean = m.mean_low = m.m2 = m.min = m.max = math::nan();
    } else if (range.min == range.max) {
      m.mean = m.min = m.max = range.min;
    } else {
      const double center = range.sum / weight;
      const RowAdvantages about = sums([center](RowAdvantages& mine, double x) {
        const double d = x - center;
        mine.sum += d, mine.square += math::mul(d, d);
      });
      m = gdpo::detail::moments_of_sums(weight, about.sum, about.square, center);
      m.min = range.min, m.max = range.max;
    }
    m.n = range.tokens, m.weight = weight;
    return m;
  }
};

/// Merges the units in their order, in spans of consecutive units, and gives the renormalization.
template <class Renorm>
struct MergeAdvantages {
  static constexpr int spans = warp, largest_block = spans;
  Renorm renorm;
  const Moments* of_units;
  int count;
  Affine* affine;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Moments* const of_span = block.template shared<Moments>();
    const int each = (count + spans - 1) / spans;
    block.each([&](int thread) {
      Moments all;
      for (int u = thread * each; u < count && u < (thread + 1) * each; ++u)
        all = merge(all, of_units[u]);
      of_span[thread] = all;
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      Moments all;
      for (int s = 0; s < spans; ++s) all = merge(all, of_span[s]);
      *affine = renorm(RenormArgs{all, false});
    });
  }
};

/// Renormalizes the advantages of a unit of rows.
template <class S>
struct ApplyToAdvantages {
  static constexpr int threads = 128, largest_block = threads;
  DeviceReturns<S> batch;
  ReturnUnits units;
  const Affine* affine;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const int unit = static_cast<int>(block.index());
    block.each([&](int thread) {
      for (int row = units.begin(unit); row < units.end(unit); ++row) {
        const auto span = batch.span(row);
        const index_t first = batch.advantages.first(span.row, span.begin);
        for (index_t t = thread; t < span.length; t += block.threads()) {
          if (!batch.valid(span, t)) continue;
          S& advantage = batch.advantages.at(first, t);
          advantage = static_cast<S>((*affine)(static_cast<double>(advantage)));
        }
      }
    });
  }
};

/// Scratch arrays of a call with a renormalization.
struct ReturnsMemory {
  Moments* units;
  Affine* affine;
  explicit ReturnsMemory(ScratchCursor& cursor)
      : units(cursor.take<Moments>(ReturnUnits::most)), affine(cursor.take<Affine>(1)) {}
};

}  // namespace detail

/// Bytes of Scratch that advantages_and_returns_into(device, batch, ...) needs: the same for every
/// batch, and none without a renormalization.
template <class Estimator, class S>
std::size_t scratch_bytes(const Estimator& estimator, const ReturnBatch<S>&) {
  static_assert(is_token_advantage_v<Estimator>,
                "the estimator is a gdpo::TokenAdvantage, or has its members");
  if (estimator.renorm.over == RenormOver::None) return 0;
  detail::ScratchCursor cursor;
  const detail::ReturnsMemory memory(cursor);
  static_cast<void>(memory);
  return cursor.bytes();
}

}  // namespace cuda

/// Computes the advantages and the returns of all tokens of a batch on a device.
///
///     gdpo::advantages_and_returns_into(gdpo::cuda::On{stream}, batch, estimator, advantages,
///                                       returns, scratch);
///
/// Arguments and results are as on the host (value/advantages_and_returns.hpp), with device
/// pointers in all views; `scratch` has cuda::scratch_bytes(estimator, batch) bytes and may be {}
/// without a renormalization. One launch, or four with a renormalization; nothing waits.
///
/// Without a renormalization the outputs have the host's bits (K3 in the penalty: those of a host
/// with FMA). With one, the moments are those of the rows, merged in row order instead of by blocks
/// of 4096 values: mean and standard deviation agree with the host's within 2^-44 relative. Equal
/// advantages give exactly 0.
///
/// Errors: invalid_input as on the host, before anything is enqueued; cuda::error where a launch
/// fails. Offsets are in device memory and not checked: those that decrease make rows shorter.
template <class Device, class S, class Estimator,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void advantages_and_returns_into(const Device& device, const ReturnBatch<S>& batch,
                                 const Estimator& estimator,
                                 const std::common_type_t<TokenOut<S>>& advantages,
                                 const std::common_type_t<TokenOut<S>>& returns,
                                 const cuda::Scratch& scratch) {
  static_assert(is_token_advantage_v<Estimator>,
                "the estimator is a gdpo::TokenAdvantage, or has its members: returns, penalty, "
                "reward_clip, renorm");
  constexpr const char* function = "gdpo::advantages_and_returns_into";
  detail::check_fields(function, "", estimator);
  const auto layout =
      detail::return_layout(function, batch, advantages, returns, detail::ReadsArrays::No);
  const auto reads = detail::check_returns(function, estimator, batch, advantages, returns, layout);
  const cuda::detail::DeviceReturns<S> on(function, batch, advantages, returns, layout, reads);
  cuda::detail::check_scratch(function, scratch, cuda::scratch_bytes(estimator, batch));
  if (layout.tokens == 0) return;
  const auto scan = [&](auto kernel) {
    using Kernel = decltype(kernel);
    device.launch((on.rows + Kernel::rows_a_block - 1) / Kernel::rows_a_block, Kernel::threads,
                  sizeof(typename Kernel::Shared), kernel);
  };
  if (reads.twice) {
    scan(cuda::detail::ScanReturns<true, S, Estimator>{estimator, on, reads.penalized});
  } else {
    scan(cuda::detail::ScanReturns<false, S, Estimator>{estimator, on, reads.penalized});
  }
  if (estimator.renorm.over != RenormOver::None) {
    cuda::detail::ScratchCursor cursor(scratch);
    const cuda::detail::ReturnsMemory memory(cursor);
    const cuda::detail::ReturnUnits units(on.rows);
    using Sums = cuda::detail::AdvantageMoments<S>;
    using Merge = cuda::detail::MergeAdvantages<std::decay_t<decltype(Estimator::renorm)>>;
    using Apply = cuda::detail::ApplyToAdvantages<S>;
    device.launch(units.count, Sums::threads, 0, Sums{on, units, memory.units});
    device.launch(1, Merge::spans, Merge::spans * sizeof(Moments),
                  Merge{estimator.renorm, memory.units, units.count, memory.affine});
    device.launch(units.count, Apply::threads, 0, Apply{on, units, memory.affine});
  }
}

GDPO_END_NAMESPACE
