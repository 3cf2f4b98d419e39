#pragma once
// The kernel that adds the numbers of rows, or of parts of a batch, to a mismatch report.
#include <algorithm>
#include <cstddef>
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/mismatch/shared/mismatch_row.hpp>
#include <new>
#include <type_traits>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::MismatchRow;

/// The number of lines of each list.
#define GDPO_X(...) +1
constexpr int mismatch_counts = GDPO_MISMATCH_COUNTS(GDPO_X),
              mismatch_sums = GDPO_MISMATCH_SUMS(GDPO_X),
              mismatch_extremes = GDPO_MISMATCH_EXTREMES(GDPO_X);
#undef GDPO_X

/// Members of a MismatchRow or a MismatchReport by their place in the lists. Those of a list lie
/// side by side, because they are of one type.
template <class Of>
struct MismatchMembers {
  using Sum = std::decay_t<decltype(std::declval<Of>().log_ratio)>;
  static_assert(std::is_standard_layout_v<Of> && std::is_trivially_copyable_v<Of>);
  static_assert(offsetof(Of, means_high) - offsetof(Of, rows) ==
                    (mismatch_counts - 1) * sizeof(index_t) &&
                offsetof(Of, row_weight_square) - offsetof(Of, log_ratio) ==
                    (mismatch_sums - 1) * sizeof(Sum) &&
                offsetof(Of, row_weight_deviation) - offsetof(Of, abs_log_ratio_max) ==
                    (mismatch_extremes - 1) * sizeof(PlacedNumber));

  template <class T>
  GDPO_INLINE static T& at(Of& numbers, std::size_t first, int i) {
    return *reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(&numbers) + first +
                                 static_cast<std::size_t>(i) * sizeof(T));
  }
  template <class T>
  GDPO_INLINE static const T& at(const Of& numbers, std::size_t first, int i) {
    return *reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(&numbers) + first +
                                       static_cast<std::size_t>(i) * sizeof(T));
  }
  template <class Any>
  GDPO_INLINE static auto& count(Any& numbers, int i) {
    return at<index_t>(numbers, offsetof(Of, rows), i);
  }
  template <class Any>
  GDPO_INLINE static auto& sum(Any& numbers, int i) {
    return at<Sum>(numbers, offsetof(Of, log_ratio), i);
  }
  template <class Any>
  GDPO_INLINE static auto& extreme(Any& numbers, int i) {
    return at<PlacedNumber>(numbers, offsetof(Of, abs_log_ratio_max), i);
  }
};

/// An extreme, to be reduced.
template <gdpo::detail::mismatch_list::End end>
struct ExtremeOf {
  PlacedNumber best;
  GDPO_INLINE void add(const ExtremeOf& o) {
    best = gdpo::detail::mismatch_list::extreme_of(end, best, o.best);
  }
};

/// How the rows are cut into parts, each of which has a report of its own.
struct MismatchParts {
  static constexpr index_t rows_a_part = 4096, most = 32;
  int count;
  explicit MismatchParts(index_t rows)
      : count(static_cast<int>((std::min)(most, (std::max)(index_t{1}, rows / rows_a_part)))) {}
};

/// Adds MismatchRows, or reports of parts, to a report. A block has one number of it: a sum, in an
/// ExactSum of each thread, which are then added as a tree; a count; or an extreme. No order of
/// these changes a bit.
template <class Of>
struct AddMismatch {
  static constexpr int threads = 64, largest_block = threads,
                       numbers = mismatch_sums + mismatch_counts + mismatch_extremes;
  static constexpr std::size_t shared_bytes = threads * sizeof(ExactSum);
  const Of* items;
  index_t count;
  int parts;  ///< Reports that are written, of as many runs of the items.
  MismatchSettings settings;
  MismatchReport* reports;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    using From = MismatchMembers<Of>;
    using To = MismatchMembers<MismatchReport>;
    using gdpo::detail::mismatch_list::End;
    const index_t part = block.index() / numbers;
    const int number = static_cast<int>(block.index() % numbers);
    const index_t begin = part * count / parts, end = (part + 1) * count / parts;
    MismatchReport& report = reports[part];
    if (number < mismatch_sums) {
      ExactSum* const sums = block.template shared<ExactSum>();
      block.each([&](int thread) {
        ExactSum& sum = *new (sums + thread) ExactSum;
        for (index_t i = begin + thread; i < end; i += threads)
          sum.add(From::sum(items[i], number));
      });
      for (int n = threads / 2; n > 0; n /= 2) {
        block.each([&](int thread) {
          if (thread < n) sums[thread].add(sums[thread + n]);
        });
      }
      block.each([&](int thread) {
        for (int limb = thread; limb < ExactSum::limbs; limb += threads)
          To::sum(report, number).limb[limb] = sums[0].limb[limb];
        if (thread == 0) To::sum(report, number).special = sums[0].special;
      });
    } else if (const int which = number - mismatch_sums; which < mismatch_counts) {
      const auto all = block.template reduce<Sum<index_t>>([&](int thread) {
        Sum<index_t> mine;
        for (index_t i = begin + thread; i < end; i += threads)
          mine.value += From::count(items[i], which);
        return mine;
      });
      block.each([&](int thread) {
        if (thread != 0) return;
        To::count(report, which) = all.value;
        if (which == 0) write_settings(report);
      });
    } else if (const int extreme = which - mismatch_counts; is_least(extreme)) {
      write_extreme<End::Least>(block, begin, end, extreme, report);
    } else {
      write_extreme<End::Most>(block, begin, end, extreme, report);
    }
  }

 private:
  GDPO_INLINE static bool is_least(int extreme) {
    using gdpo::detail::mismatch_list::End;
    std::uint32_t least = 0;
    int bit = 0;
#define GDPO_X(name, end, ...) least |= (End::end == End::Least ? 1u : 0u) << bit++;
    GDPO_MISMATCH_EXTREMES(GDPO_X)
#undef GDPO_X
    return (least >> extreme & 1u) != 0;
  }
  template <gdpo::detail::mismatch_list::End which_end, class Block>
  GDPO_DEVICE void write_extreme(Block& block, index_t begin, index_t end, int extreme,
                                 MismatchReport& report) const {
    using Extreme = ExtremeOf<which_end>;
    const Extreme all = block.template reduce<Extreme>([&](int thread) {
      Extreme mine;
      for (index_t i = begin + thread; i < end; i += threads)
        mine.add({MismatchMembers<Of>::extreme(items[i], extreme)});
      return mine;
    });
    block.each([&](int thread) {
      if (thread == 0) MismatchMembers<MismatchReport>::extreme(report, extreme) = all.best;
    });
  }
  /// The settings, and 0 in the bytes behind them that mean nothing, so that equal reports have
  /// equal bytes.
  GDPO_INLINE void write_settings(MismatchReport& report) const {
    constexpr std::size_t last = offsetof(MismatchSettings, empty_rows) + sizeof(bool);
    report.settings = settings;
    auto* const bytes = reinterpret_cast<unsigned char*>(&report.settings);
    for (std::size_t b = last; b < sizeof(MismatchSettings); ++b) bytes[b] = 0;
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
