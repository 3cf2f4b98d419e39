#pragma once
// Token arrays of the caller: TokenView, which a call reads, and TokenOut, which it writes.
#include <gdpo/lanes/load_store.hpp>
#include <gdpo/storage/column.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// Extents and strides of a token array of rank 1 (packed), 2 or 3 (padded). Rank 0: no array, or
/// one number a row (Repeated), of which extent[0] is the number of rows.
struct TokenShape {
  int rank = 0;
  bool repeats = false;  // one number a row
  index_t extent[3] = {}, stride[3] = {};

  TokenShape() = default;
  /// One number a row, for each of its tokens.
  static TokenShape repeated(index_t rows, index_t stride) {
    TokenShape shape;
    shape.repeats = true, shape.extent[0] = rows, shape.stride[0] = stride;
    return shape;
  }
  template <class T, int Rank>
  TokenShape(const View<T, Rank>& v, bool present) : rank(present ? Rank : 0) {
    for (int r = 0; r < rank; ++r) extent[r] = v.extent[r], stride[r] = v.stride[r];
  }
  /// Number of elements from one token of a row to the next.
  GDPO_INLINE index_t step() const { return rank == 0 ? 0 : stride[rank - 1]; }
  /// Offset of the first token of row `row`, in elements. In a packed array that is token `begin`.
  GDPO_INLINE index_t first(index_t row, index_t begin) const {
    return rank == 1   ? begin * stride[0]
           : rank != 3 ? row * stride[0]
                       : row / extent[1] * stride[0] + row % extent[1] * stride[1];
  }
};

}  // namespace detail

/// One number a row, which stands for each token of that row, padded or packed.
template <class T>
struct Repeated {
  View<T, 1> rows;  ///< (B) The numbers.
};

/// The numbers of rows, each for all tokens of its row, in place of an array of tokens.
///
///     batch.values = gdpo::repeated(gdpo::view(baselines));  // (B), one for each row
///
/// A ReturnBatch takes it for every array of tokens; other batches refuse it.
template <class T>
Repeated<T> repeated(View<T, 1> rows) {
  return {rows};
}

/// An input array with one number per token, of any storage type, read as S.
///
/// It is made from a view of rank 1 (packed tokens), 2 (B, T) or 3 (B, G, T) with any strides. The
/// elements may be float, double, 16-bit floats, integers or bool, but double needs S = double. If
/// the tokens of a row are contiguous and of type S, they are read in place; others are converted
/// one row at a time. A view with a null pointer is an absent array, or one without elements.
template <class S>
class TokenView {
 public:
  TokenView() = default;
  /// From a view. It is not explicit, so that `batch.logp = gdpo::view(...)` works.
  template <class T, int Rank>
  TokenView(View<T, Rank> v)
      : data_(v.data),
        shape_(v, present(v)),
        direct_(reads_directly<T>),
        stored_as_(gdpo::stored_as<T>()),
        convert_(&convert<T>) {
    static_assert(!(std::is_same_v<S, float> && std::is_same_v<std::remove_const_t<T>, double>),
                  "a token array of double needs a gdpo::TokenBatch<double>");
    static_assert(
        !std::is_integral_v<S> || std::is_same_v<S, unsigned char> || std::is_integral_v<T>,
        "segments are integers (int32 or int64)");
  }
  /// From one number a row. It is not explicit, as the other is not.
  template <class T>
  TokenView(const Repeated<T>& v) : TokenView(v.rows) {
    shape_ = v.rows.data || v.rows.extent[0] == 0
                 ? detail::TokenShape::repeated(v.rows.extent[0], v.rows.stride[0])
                 : detail::TokenShape{};
  }

  /// Whether there is an array with elements.
  explicit operator bool() const { return data_ != nullptr; }
  /// 1 for packed tokens, 2 or 3 for padded ones, 0 for no array and for one number a row.
  int rank() const { return shape_.rank; }
  /// Extent of an axis, 0 to rank() - 1; the last one is tokens.
  index_t extent(int axis) const { return shape_.extent[axis]; }
  /// The first element, of the type that stored_as() says.
  const void* data() const { return data_; }
  /// How an element is stored.
  StoredAs stored_as() const { return stored_as_; }
  /// Extents and strides.
  const detail::TokenShape& shape() const { return shape_; }
  /// The same packed array with n tokens; those that the memory does not have must not be read.
  TokenView with_tokens(index_t n) const {
    TokenView longer = *this;
    if (rank() == 1) longer.shape_.extent[0] = n;
    return longer;
  }

  /// Whether rows are read in place, without conversion.
  bool in_place() const { return direct_ && shape_.step() == 1; }
  /// Whether row() of every row is data() + by_row * row + by_begin * begin, which is then told.
  bool is_linear(index_t& by_row, index_t& by_begin) const {
    const detail::TokenShape& s = shape_;
    if (!in_place() || (s.rank == 3 && s.stride[0] != s.extent[1] * s.stride[1])) return false;
    by_begin = s.rank == 1, by_row = s.rank == 1 ? 0 : s.stride[s.rank - 2];
    return true;
  }
  /// `n` tokens of row `row` of a padded array, or from token `begin` of a packed one. If they have
  /// to be converted, they are written to `scratch`, which holds at least n.
  const S* row(index_t row, index_t begin, index_t n, S* scratch) const {
    const index_t stride = shape_.step(), first = shape_.first(row, begin);
    if (direct_ && stride == 1) return static_cast<const S*>(data_) + first;
    convert_(data_, first, stride, n, scratch);
    return scratch;
  }
  /// Token t of a row, converted if need be. `row` and `begin` are those of row().
  GDPO_HOST_INLINE S at(index_t row, index_t begin, index_t t) const {
    S value;
    convert_(data_, shape_.first(row, begin) + t * shape_.step(), 0, 1, &value);
    return value;
  }

 private:
  template <class T, int Rank>
  static bool present(const View<T, Rank>& v) {
    bool empty = false;  // an array without elements may have a null pointer
    for (const index_t extent : v.extent) empty = empty || extent == 0;
    return v.data || empty;
  }
  template <class T>
  static constexpr bool reads_directly = std::is_same_v<std::remove_const_t<T>, S> ||
                                         (std::is_same_v<S, unsigned char> &&
                                          std::is_integral_v<T> && sizeof(T) == 1);
  template <class T>
  static void convert(const void* data, index_t first, index_t stride, index_t n, S* out) {
    const T* in = static_cast<const T*>(data) + first;
    index_t t = 0;
    if constexpr (std::is_same_v<S, float> && sizeof(T) == 2 && !std::is_integral_v<T>) {
      // Compilers do not find the instructions that convert 16-bit floats.
      using V = math::Native<float>;
      constexpr index_t width = math::Lanes<V>::width;
      for (; stride == 1 && t + width <= n; t += width, in += width)
        math::Lanes<V>::store(out + t, math::load_lanes<V>(in));
    }
    for (; t < n; ++t, in += stride) {
      if constexpr (std::is_floating_point_v<S>) {
        out[t] = static_cast<S>(load(*in));
      } else if constexpr (std::is_same_v<S, unsigned char>) {
        out[t] = math::is_zero(load(*in)) ? 0 : 1;
      } else {
        out[t] = static_cast<S>(*in);
      }
    }
  }
  const void* data_ = nullptr;
  detail::TokenShape shape_;
  bool direct_ = false;
  StoredAs stored_as_ = StoredAs::Other;
  void (*convert_)(const void*, index_t, index_t, index_t, S*) = nullptr;
};

/// The output array of a gradient: a writable view of the batch's shape, with elements of type S.
///
/// Made by default, it means that no gradient is wanted.
template <class S>
class TokenOut {
 public:
  TokenOut() = default;
  /// From a view of rank 1, 2 or 3 with any strides.
  template <class T, int Rank>
  TokenOut(View<T, Rank> v) : data_(v.data), shape_(v, v.data != nullptr) {
    static_assert(!std::is_const_v<T>, "the gradient is written: its view must not be of const");
    static_assert(std::is_same_v<std::remove_const_t<T>, S>,
                  "the gradient has the scalar of the batch: float for a TokenBatch<float>, double "
                  "for <double>");
  }
  /// Whether a gradient is wanted.
  explicit operator bool() const { return data_ != nullptr; }
  /// 1 for packed tokens, 2 or 3 for padded ones, 0 for none.
  int rank() const { return shape_.rank; }
  /// Extent of an axis, 0 to rank() - 1; the last one is tokens.
  index_t extent(int axis) const { return shape_.extent[axis]; }
  /// Whether the tokens of a row are next to each other in memory.
  bool contiguous() const { return shape_.step() == 1; }
  /// The first element.
  S* data() const { return data_; }
  /// Extents and strides.
  const detail::TokenShape& shape() const { return shape_; }
  /// `n` tokens of row `row` of a padded array, or from token `begin` of a packed one.
  View<S, 1> row(index_t row, index_t begin, index_t n) const {
    return {data_ + shape_.first(row, begin), {n}, {shape_.step()}};
  }

 private:
  S* data_ = nullptr;
  detail::TokenShape shape_;
};

namespace detail {

/// Throws unless each token of an array that a call writes has an element of its own.
template <class S>
void check_apart(const char* function, const contract::Text& name, const TokenOut<S>& v) {
  if (v) contract::check_apart(function, name, v.rank(), v.shape().extent, v.shape().stride);
}

}  // namespace detail

GDPO_END_NAMESPACE
