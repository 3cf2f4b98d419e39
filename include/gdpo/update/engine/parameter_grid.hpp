#pragma once
// Lists of parameter arrays as one grid of work: checked, walked in the order of memory, cut into
// units.
#include <algorithm>
#include <array>
#include <cstdint>
#include <gdpo/core/exec.hpp>
#include <gdpo/update/parameter_view.hpp>
#include <string>
#include <tuple>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

using update::ParameterView;
using ParameterList = std::vector<ParameterView>;

/// The elements that a kernel takes at once, so that they stay in the first cache, and those of a
/// unit of work.
constexpr index_t parameter_chunk = 4096, parameter_unit = 16 * parameter_chunk;

/// The name of entry i of a list in messages.
inline std::string entry_name(const char* list, std::size_t i) {
  return std::string(list) + "[" + std::to_string(i) + "]";
}

/// Checks an array of a list, and that it can be written if `written` says so. Returns the number
/// of its elements.
inline index_t check_parameter(const char* function, const char* list, std::size_t i,
                               const ParameterView& v, bool written) {
  const index_t elements =
      contract::check_extents(function, entry_name(list, i), v.rank(), v.extents());
  if (elements == 0) return 0;
  if (!v.data()) contract::fail_null(function, entry_name(list, i), v.rank(), v.extents());
  if (!written) return elements;
  if (!v.writable())
    contract::fail(function, entry_name(list, i), "a view of const elements", "one to write to");
  contract::check_apart(function, entry_name(list, i), v.rank(), v.extents(), v.strides());
  return elements;
}

/// The axes of an array, and of a second one with the same extents, in the order of the first one's
/// memory; axes that follow each other in both are one. So an array in any storage order is dense.
inline Axes axes_of(const ParameterView& a, const ParameterView* b = nullptr) {
  int order[Axes::rank] = {0, 1, 2}, kept = 0;
  for (int r = 0; r < a.rank(); ++r) {
    if (a.extents()[r] != 1) order[kept++] = r;
  }
  const auto distance = [&](int r) { return std::abs(a.strides()[r]); };
  std::stable_sort(order, order + kept, [&](int x, int y) { return distance(x) > distance(y); });
  Axes axes;
  int axis = Axes::rank;
  while (kept > 0) {
    const int r = order[--kept];
    const index_t stride[Axes::arrays] = {a.strides()[r], b ? b->strides()[r] : 0};
    const auto follows = [&](int array) {
      return stride[array] == axes.extent[axis] * axes.stride[array][axis];
    };
    if (axis < Axes::rank && follows(0) && (!b || follows(1))) {
      axes.extent[axis] *= a.extents()[r];
      continue;
    }
    axes.extent[--axis] = a.extents()[r];
    for (int array = 0; array < Axes::arrays; ++array) axes.stride[array][axis] = stride[array];
  }
  return axes;
}

/// Checks a list of arrays that are written. Returns the number of elements of each. Two arrays
/// must not begin at the same element, as those of a tied weight do, and dense ones not overlap.
inline std::vector<index_t> written_elements(const char* function, const char* list,
                                             const ParameterList& views) {
  struct Range {
    std::uintptr_t begin, end;  // the end is begin where the array is not dense
    std::size_t array;
  };
  std::vector<index_t> elements;
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < views.size(); ++i) {
    elements.push_back(check_parameter(function, list, i, views[i], true));
    if (elements[i] == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(views[i].data());
    const index_t bytes = axes_of(views[i]).dense(0) ? elements[i] * views[i].element_bytes() : 0;
    ranges.push_back({begin, begin + static_cast<std::uintptr_t>(bytes), i});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.array) < std::tie(b.begin, b.array);
  });
  for (std::size_t k = 1, last = 0; k < ranges.size(); ++k) {
    // `last` is the dense array before this one that ends last.
    const Range &range = ranges[k], &previous = ranges[k - 1];
    if (ranges[k - 1].end > ranges[last].end) last = k - 1;
    const bool dense = range.end > range.begin, overlaps = dense && range.begin < ranges[last].end;
    if (range.begin != previous.begin && !overlaps) continue;
    const std::size_t other = overlaps ? ranges[last].array : previous.array;
    contract::fail(function, entry_name(list, (std::max)(range.array, other)),
                   "memory of " + entry_name(list, (std::min)(range.array, other)) + " again",
                   "each array once, also where two layers share a weight");
  }
  return elements;
}

/// The elements of a list of arrays, cut into units: array after array, each array in units of
/// parameter_unit elements. The cut depends on the shapes alone.
class ParameterGrid {
 public:
  explicit ParameterGrid(const std::vector<index_t>& elements) : first_unit_{0} {
    for (const index_t n : elements) {
      first_unit_.push_back(first_unit_.back() + (n + parameter_unit - 1) / parameter_unit);
      elements_ += n;
    }
  }
  index_t units() const { return first_unit_.back(); }
  /// The number of the first unit of an array, and how many it has.
  index_t first_unit(std::size_t array) const { return first_unit_[array]; }
  index_t units_of(std::size_t array) const { return first_unit_[array + 1] - first_unit_[array]; }
  /// Calls f(unit, array, first, n) for each unit: the elements first .. first + n - 1 of an array.
  template <class Exec, class F>
  void for_each(const Exec& exec, const std::vector<index_t>& elements, const F& f) const {
    for_each_unit(exec, workers_for(exec, units(), elements_), units(), [&](index_t, index_t unit) {
      const auto next = std::upper_bound(first_unit_.begin(), first_unit_.end(), unit);
      const auto array = static_cast<std::size_t>(next - first_unit_.begin() - 1);
      const index_t first = (unit - first_unit_[array]) * parameter_unit;
      f(unit, array, first, (std::min)(parameter_unit, elements[array] - first));
    });
  }

 private:
  std::vector<index_t> first_unit_;
  index_t elements_ = 0;
};

/// Elements of an array as S, float or double: where they stand, or converted into a buffer.
template <class S>
class Chunk {
 public:
  Chunk(const ParameterView& v, const Axes& axes, int which)
      : view_(v),
        axes_(axes),
        which_(which),
        memory_(v.in_place() && axes.dense(which) ? static_cast<S*>(v.data()) : nullptr) {}
  /// The elements first .. first + n - 1, to be read and changed.
  S* read(index_t first, index_t n) {
    if (memory_) return memory_ + first;
    view_.read(axes_, which_, first, n, buffer_.data());
    return buffer_.data();
  }
  /// Puts the elements of the last read() back.
  void write(index_t first, index_t n) const {
    if (!memory_) view_.write(axes_, which_, first, n, buffer_.data());
  }

 private:
  const ParameterView& view_;
  const Axes& axes_;
  int which_;
  S* memory_;
  std::array<S, static_cast<std::size_t>(parameter_chunk)> buffer_;
};

/// Calls f(x, m) for each chunk of m elements of an array, as float or double. Where f returns
/// true, it has changed them, and they are put back.
template <class F>
void for_each_chunk(const ParameterView& v, index_t first, index_t n, const F& f) {
  const Axes axes = axes_of(v);
  const auto walk = [&](auto scalar) {
    Chunk<decltype(scalar)> chunk(v, axes, 0);
    for (index_t position = first; position < first + n; position += parameter_chunk) {
      const index_t m = (std::min)(parameter_chunk, first + n - position);
      if (f(chunk.read(position, m), m)) chunk.write(position, m);
    }
  };
  v.is_double() ? walk(double{}) : walk(float{});
}

}  // namespace detail
GDPO_END_NAMESPACE
