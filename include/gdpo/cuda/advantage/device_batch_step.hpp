#pragma once
// The second normalization on a device: what advantage/shared/batch_step.hpp does on the host.
#include <gdpo/advantage/combined_moments.hpp>
#include <gdpo/cuda/advantage/group_kernel.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Writes advantages from combined values that are complete.
template <class R>
struct AdvantagesOut {
  const double* combined;
  const unsigned char* state;
  View<R, 1> out;

  GDPO_INLINE void write(index_t row, const Affine& affine) const {
    const bool zero = state && gdpo::detail::gets_zero(static_cast<RowState>(state[row]));
    out(row) = static_cast<R>(zero ? 0.0 : affine(combined[row]));
  }
};

/// Normalizes over the batch, from the sums of its windows (reward_moments.hpp). Without a mean to
/// subtract it only rescales, and `second` are sums about 0: where `first` is null, or where `raw`
/// is given and none of its flags is set. Otherwise `first` gives the mean and `second` are sums
/// about it.
template <class Order, class Renorm, class R>
struct BatchStep {
  AdvantagesOut<R> advantages;
  Renorm renorm;
  const FirstSums<Order>* first = nullptr;
  const SecondSums<Order>* second = nullptr;
  const unsigned char* raw = nullptr;
  index_t groups = 0;
  static constexpr int threads = 256;

  static std::size_t shared_bytes() { return shared_for_windows<Order>(threads); }

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    double* const room = block.template shared<double>();
    const index_t rows = advantages.out.extent[0], windows = windows_of(rows);
    const bool rescales = !first || (raw && !any_flag(block, raw, groups));
    const SecondSums<Order> sums = sums_of_windows(block, second, windows, room);
    const Moments m = rescales
                          ? sums.moments(0.0)
                          : moments_of_windows(sums_of_windows(block, first, windows, room), sums);
    const Affine affine = renorm(RenormArgs{m, rescales});
    block.each([&](int thread) {
      for (index_t i = block.index() * threads + thread; i < rows; i += block.count() * threads)
        advantages.write(i, affine);
    });
  }
};

/// Writes the moments of the combined values of a batch. Members are those of BatchStep; without
/// `second` the moments are not needed, and only zero_sum is written. One block.
template <class Order>
struct StageMoments {
  CombinedMoments* moments;
  RenormOver over;
  const FirstSums<Order>* first = nullptr;
  const SecondSums<Order>* second = nullptr;
  const unsigned char* raw = nullptr;
  index_t groups = 0, rows = 0;
  bool zero_sum = false;  // combined values of a group sum to 0, but for raw singletons
  static constexpr int threads = 256;

  static std::size_t shared_bytes() { return shared_for_windows<Order>(threads); }

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    double* const room = block.template shared<double>();
    const bool centered = zero_sum && !any_flag(block, raw, groups);
    const index_t windows = windows_of(rows);
    Moments m;
    if (second) {
      const SecondSums<Order> sums = sums_of_windows(block, second, windows, room);
      m = gdpo::detail::rescales(over, centered)
              ? sums.moments(0.0)
              : moments_of_windows(sums_of_windows(block, first, windows, room), sums);
    }
    block.each([&](int thread) {
      if (thread == 0) *moments = gdpo::detail::combined_moments(m, over, centered);
    });
  }
};

/// Writes the advantages of all rows by one affine map of their combined values.
template <class R>
struct ApplyAffine {
  AdvantagesOut<R> advantages;
  Affine affine;
  static constexpr int threads = 256;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t rows = advantages.out.extent[0];
    block.each([&](int thread) {
      for (index_t i = block.index() * threads + thread; i < rows; i += block.count() * threads)
        advantages.write(i, affine);
    });
  }
};

/// Clamps advantages that are complete.
template <class R>
struct ClipAdvantages {
  View<R, 1> out;
  Bounds bounds;
  static constexpr int threads = 256;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t rows = out.extent[0];
    block.each([&](int thread) {
      for (index_t i = block.index() * threads + thread; i < rows; i += block.count() * threads)
        out(i) = static_cast<R>(gdpo::detail::clamped(bounds, static_cast<double>(out(i))));
    });
  }
};

/// Normalizes over each group, a team of threads for each group. The grouping names the order of
/// its sums.
template <class Groups, class Renorm, class R>
struct GroupStep {
  AdvantagesOut<R> advantages;
  Renorm renorm;
  DeviceGroups<Groups> groups;
  index_t group_count = 0;
  int shift = 0;                       // a team has 1 << shift threads
  const unsigned char* raw = nullptr;  // (groups) 1: has a raw singleton; null: none has
  bool zero_sum = false;  // combined values of a group sum to 0, but for raw singletons
  static constexpr int threads = 256;
  using Order = typename Groups::Order;

  std::size_t shared_bytes() const {
    return sizeof(Affine) * static_cast<std::size_t>((threads >> shift));
  }

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Affine* const affines = block.template shared<Affine>();
    const bool centered = zero_sum && !any_flag(block, raw, group_count);
    const index_t teams = (threads >> shift);
    for (index_t first = block.index() * teams; first < group_count;
         first += block.count() * teams) {
      block.each([&](int thread) {
        const index_t g = first + (thread >> shift);
        if (g < group_count && (thread & ((1 << shift) - 1)) == 0)
          affines[(thread >> shift)] = affine(g, centered);
      });
      block.each([&](int thread) {
        const index_t g = first + (thread >> shift);
        if (g >= group_count) return;
        for (index_t p = groups.begin(g) + (thread & ((1 << shift) - 1)); p < groups.end(g);
             p += 1 << shift) {
          advantages.write(groups.row(p), affines[(thread >> shift)]);
        }
      });
    }
  }

  GDPO_INLINE Affine affine(index_t g, bool centered) const {
    const index_t begin = groups.begin(g), end = groups.end(g);
    const auto each = [&](const auto& f) {
      for (index_t p = begin; p < end; ++p) {
        const index_t row = groups.row(p);
        if (!advantages.state || advantages.state[row] == 0) f(advantages.combined[row]);
      }
    };
    gdpo::detail::ValuesSum<Order> sum;
    each([&](double x) { sum.add(x); });
    gdpo::detail::SquaresSum<Order> squares(sum);
    if (!sum.unknown) each([&](double x) { squares.add(x); });
    return renorm(RenormArgs{squares.stat(sum), centered});
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
