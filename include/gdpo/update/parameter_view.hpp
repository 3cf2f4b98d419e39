#pragma once
// ParameterView: one parameter or gradient array of any rank and strides.
#include <algorithm>
#include <gdpo/lanes/load_store.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The axes of one array, or of two that are walked side by side, in the order of the walk: the
/// last axis is the innermost.
struct Axes {
  static constexpr int arrays = 2, rank = 3;
  index_t extent[rank] = {1, 1, 1};
  index_t stride[arrays][rank] = {};

  /// Whether the elements of an array stand one after the other.
  bool dense(int array) const {
    index_t next = 1;
    for (int r = rank; r-- > 0;) {
      if (extent[r] > 1 && stride[array][r] != next) return false;
      next *= extent[r];
    }
    return true;
  }
  /// Calls f(position in the walk, offset in the array, elements, distance) for each part of the
  /// elements first .. first + n - 1 that lies along the innermost axis.
  template <class F>
  void for_each_run(int array, index_t first, index_t n, const F& f) const {
    const index_t* s = stride[array];
    for (index_t position = first; position < first + n;) {
      const index_t k = position % extent[2], row = position / extent[2];
      const index_t length = (std::min)(extent[2] - k, first + n - position);
      f(position - first, row / extent[1] * s[0] + row % extent[1] * s[1] + k * s[2], length, s[2]);
      position += length;
    }
  }
};

/// Converts n elements that stand `distance` apart to float or double.
template <class T>
void read_run(const T* source, index_t distance, index_t n, result_t<T>* target) {
  using S = result_t<T>;
  index_t i = 0;
  if constexpr (std::is_same_v<S, float>) {
    using V = math::Native<float>;
    constexpr int width = math::Lanes<V>::width;
    if (distance == 1) {
      for (; i + width <= n; i += width)
        math::Lanes<V>::store(target + i, math::load_lanes<V>(source + i));
    }
  }
  for (; i < n; ++i) target[i] = static_cast<S>(load(source[i * distance]));
}
/// Writes n results to elements that stand `distance` apart, each rounded to the nearest T.
template <class T>
void write_run(T* target, index_t distance, index_t n, const result_t<T>* source) {
  index_t i = 0;
  if constexpr (std::is_same_v<result_t<T>, float>) {
    using V = math::Native<float>;
    constexpr int width = math::Lanes<V>::width;
    if (distance == 1) {
      for (; i + width <= n; i += width)
        math::store_lanes(target + i, math::Lanes<V>::load(source + i));
    }
  }
  for (; i < n; ++i) store(target[i * distance], source[i]);
}

}  // namespace detail

namespace update {

/// How the ranks hold a parameter or its gradient.
enum class Held {
  Sharded,    ///< Each rank holds other elements: its shard (FSDP, ZeRO).
  Replicated  ///< Each rank holds all elements, with the same numbers (DDP).
};

/// One array of parameters or of their gradients: of any floating-point storage (float, double, the
/// 16-bit floats, Eigen's and other classes that `Storage` knows), rank 1 to 3, any strides.
///
///     std::vector<gdpo::update::ParameterView> gradients{gdpo::view(weight_grad),
///                                                        gdpo::view(bias_grad)};
///
/// It refers to the caller's memory. Arrays of different types stand in one list, because the type
/// of the elements is behind two functions, which convert some thousand of them a call; a dense
/// array of float or double is read where it stands.
class ParameterView {
 public:
  /// The array of a view. A view of const elements can be read only.
  template <class T, int Rank>
  ParameterView(View<T, Rank> array, Held held = Held::Sharded)
      : data_(const_cast<std::remove_const_t<T>*>(array.data)),
        rank_(Rank),
        held_(held),
        writable_(!std::is_const_v<T>),
        is_double_(std::is_same_v<result_t<T>, double>),
        in_place_(std::is_same_v<std::remove_const_t<T>, result_t<T>>),
        element_bytes_(sizeof(T)),
        read_(&read_elements<std::remove_const_t<T>>),
        write_(&write_elements<std::remove_const_t<T>>) {
    static_assert(!std::is_integral_v<T>, "parameters and gradients are floating-point numbers");
    for (int r = 0; r < Rank; ++r) extent_[r] = array.extent[r], stride_[r] = array.stride[r];
  }

  int rank() const { return rank_; }                  ///< 1, 2 or 3.
  const index_t* extents() const { return extent_; }  ///< Elements along each axis.
  const index_t* strides() const { return stride_; }  ///< Distances along each axis, in elements.
  /// Where the element with all indices 0 stands.
  void* data() const { return data_; }
  Held held() const { return held_; }            ///< Said when the view was made.
  bool writable() const { return writable_; }    ///< False for a view of const elements.
  bool is_double() const { return is_double_; }  ///< Computed with as double; float otherwise.
  /// Whether the elements are stored as they are computed with.
  bool in_place() const { return in_place_; }
  index_t element_bytes() const { return element_bytes_; }  ///< Bytes of an element in memory.

  /// Converts the elements first .. first + n - 1 of a walk along `axes`, of which this is array
  /// `which`, to float or double.
  void read(const detail::Axes& axes, int which, index_t first, index_t n, void* target) const {
    read_(data_, axes, which, first, n, target);
  }
  /// Writes as many results back, each rounded to the nearest, ties to even.
  void write(const detail::Axes& axes, int which, index_t first, index_t n,
             const void* source) const {
    write_(data_, axes, which, first, n, source);
  }

 private:
  template <class T>
  static void read_elements(const void* data, const detail::Axes& axes, int which, index_t first,
                            index_t n, void* target) {
    axes.for_each_run(which, first, n,
                      [&](index_t position, index_t offset, index_t m, index_t step) {
                        detail::read_run(static_cast<const T*>(data) + offset, step, m,
                                         static_cast<result_t<T>*>(target) + position);
                      });
  }
  template <class T>
  static void write_elements(void* data, const detail::Axes& axes, int which, index_t first,
                             index_t n, const void* source) {
    axes.for_each_run(which, first, n,
                      [&](index_t position, index_t offset, index_t m, index_t step) {
                        detail::write_run(static_cast<T*>(data) + offset, step, m,
                                          static_cast<const result_t<T>*>(source) + position);
                      });
  }
  void* data_;
  int rank_;
  index_t extent_[3] = {1, 1, 1}, stride_[3] = {0, 0, 0};
  Held held_;
  bool writable_, is_double_, in_place_;
  index_t element_bytes_;
  void (*read_)(const void*, const detail::Axes&, int, index_t, index_t, void*);
  void (*write_)(void*, const detail::Axes&, int, index_t, index_t, const void*);
};

/// The view of an array that every rank holds in full, for a list beside shards.
template <class T, int Rank>
ParameterView replicated(View<T, Rank> array) {
  return {array, Held::Replicated};
}

}  // namespace update
GDPO_END_NAMESPACE
