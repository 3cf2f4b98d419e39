#pragma once
#include <gdpo/storage/stored_as.hpp>

GDPO_BEGIN_NAMESPACE

/// An optional column of one number a row, stored in any type and read as R.
///
/// Column reads doubles (token counts, flags, advantages), IndexColumn reads integers (offsets). It
/// is made from any view of rank 1 and refers to the caller's memory. Each read is an indirect
/// call, so it serves the columns of a batch and not its arrays of tokens.
template <class R>
class ColumnOf {
 public:
  /// An absent column.
  ColumnOf() = default;
  /// The column that `values` refers to; it is absent if the pointer of the view is null.
  template <class T>
  ColumnOf(View<T, 1> values)
      : data_(values.data),
        extent_(values.extent[0]),
        stride_(values.stride[0]),
        present_(values.data != nullptr),
        stored_as_(gdpo::stored_as<T>()),
        read_(&read<T>) {
    static_assert(std::is_floating_point_v<R> || std::is_integral_v<T>,
                  "this column is of integers (int32 or int64)");
  }

  /// Whether the column is there.
  explicit operator bool() const { return present_; }
  /// The number of rows.
  index_t size() const { return extent_; }
  /// The number of row i, which is not checked against size().
  R operator()(index_t i) const { return read_(data_, i * stride_); }

  /// Where the number of row 0 stands.
  const void* data() const { return data_; }
  /// The distance from one row to the next, in elements.
  index_t stride() const { return stride_; }
  /// The type of an element in memory.
  StoredAs stored_as() const { return stored_as_; }

 private:
  template <class T>
  static R read(const void* data, index_t i) {
    if constexpr (std::is_floating_point_v<R>) {
      return load(static_cast<const T*>(data)[i]);
    } else {
      return static_cast<R>(static_cast<const T*>(data)[i]);
    }
  }
  const void* data_ = nullptr;
  index_t extent_ = 0, stride_ = 0;
  bool present_ = false;
  StoredAs stored_as_ = StoredAs::Other;
  R (*read_)(const void*, index_t) = nullptr;
};
/// A column that is read as double; it may be stored as any type.
using Column = ColumnOf<double>;
/// A column of integers; it must be stored as integers.
using IndexColumn = ColumnOf<index_t>;

/// Column c of an array of rank 2, as a view.
///
/// A column that the array does not have throws invalid_input.
///
///     gdpo::column(gdpo::view(rewards, rows, 3), 1)  // the second of three rewards
template <class T>
View<T, 1> column(View<T, 2> array, index_t c) {
  if (c < 0 || c >= array.extent[1]) {
    contract::fail("gdpo::column", "c", contract::text(c),
                   "one of " + contract::text(array.extent[1]) + " columns");
  }
  return {array.data ? array.data + c * array.stride[1] : nullptr,
          {array.extent[0]},
          {array.stride[0]}};
}

GDPO_END_NAMESPACE
