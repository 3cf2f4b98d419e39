#pragma once
// Column: an optional array of one number a row, stored in any type.
#include <gdpo/storage/stored_as.hpp>

GDPO_BEGIN_NAMESPACE

/// An optional column of one number a row, stored in any type and read as R.
///
/// Column reads doubles (token counts, flags, advantages), IndexColumn reads integers (offsets). It
/// is made from a view of rank 1, or of rank 2, (prompts, completions), whose rows are those of the
/// first prompt, then those of the second, and so on. Views have any strides; the column refers to
/// the caller's memory. Each read is an indirect call, so it serves the columns of a batch and not
/// its arrays of tokens.
template <class R>
class ColumnOf {
 public:
  /// An absent column.
  ColumnOf() = default;
  /// The column that `values` refers to; it is absent if the pointer of the view is null.
  template <class T>
  ColumnOf(View<T, 1> values)
      : data_(values.data),
        rank_(1),
        extent_{values.extent[0], 1},
        stride_{values.stride[0], 0},
        size_(values.extent[0]),
        stored_as_(gdpo::stored_as<T>()),
        read_(&read<T>),
        copy_(&copy<T>) {
    check_type<T>();
  }
  /// The column of all rows of (prompts, completions). Throws invalid_input for extents below 0.
  template <class T, class S = R, std::enable_if_t<std::is_floating_point_v<S>, int> = 0>
  ColumnOf(View<T, 2> values)
      : data_(values.data),
        rank_(2),
        extent_{values.extent[0], values.extent[1]},
        stride_{values.stride[1], 0},
        size_(contract::check_extents("gdpo::Column", "values", 2, values.extent)),
        stored_as_(gdpo::stored_as<T>()),
        read_(&read<T>),
        copy_(&copy<T>) {
    check_type<T>();
    if (extent_[1] == 1) stride_[0] = values.stride[0];
    if (extent_[0] <= 1 || values.stride[0] == extent_[1] * stride_[0]) return;
    stride_[1] = values.stride[0] - extent_[1] * stride_[0];
    read_ = &read_of_two<T>;
  }

  /// Whether the column is there.
  explicit operator bool() const { return data_ != nullptr; }
  /// The number of rows.
  index_t size() const { return size_; }
  /// The number of row i, which is not checked against size().
  R operator()(index_t i) const { return read_(*this, i); }

  /// Writes the numbers of rows first .. first + n - 1 to `numbers`, by one indirect call for all.
  void copy_rows(index_t first, index_t n, R* numbers) const { copy_(*this, first, n, numbers); }

  /// 1, or 2 for a column of (prompts, completions).
  int rank() const { return rank_; }
  /// The extents of the view that the column was made from, rank() of them.
  const index_t* extents() const { return extent_; }
  /// Where the number of row 0 stands.
  const void* data() const { return data_; }
  /// The distance from one row to the next, in elements.
  index_t stride() const { return stride_[0]; }
  /// What is added to that distance from the last completion of a prompt to the next prompt.
  index_t gap() const { return stride_[1]; }
  /// The type of an element in memory.
  StoredAs stored_as() const { return stored_as_; }

 private:
  template <class T>
  static constexpr void check_type() {
    static_assert(std::is_floating_point_v<R> || std::is_integral_v<T>,
                  "this column is of integers (int32 or int64)");
  }
  template <class T>
  static R at(const void* data, index_t i) {
    if constexpr (std::is_floating_point_v<R>) {
      return load(static_cast<const T*>(data)[i]);
    } else {
      return static_cast<R>(static_cast<const T*>(data)[i]);
    }
  }
  template <class T>
  static R read(const ColumnOf& c, index_t i) {
    return at<T>(c.data_, i * c.stride_[0]);
  }
  template <class T>
  static R read_of_two(const ColumnOf& c, index_t i) {
    return at<T>(c.data_, i * c.stride_[0] + i / c.extent_[1] * c.stride_[1]);
  }
  template <class T>
  static void copy(const ColumnOf& c, index_t first, index_t n, R* numbers) {
    if (c.stride_[0] == 1 && c.stride_[1] == 0) {  // a loop that compilers turn into vectors
      const T* const stored = static_cast<const T*>(c.data_) + first;
      for (index_t i = 0; i < n; ++i) numbers[i] = at<T>(stored, i);
    } else {
      for (index_t i = 0; i < n; ++i) numbers[i] = c.read_(c, first + i);
    }
  }
  const void* data_ = nullptr;
  int rank_ = 0;
  index_t extent_[2] = {}, stride_[2] = {}, size_ = 0;
  StoredAs stored_as_ = StoredAs::Other;
  R (*read_)(const ColumnOf&, index_t) = nullptr;
  void (*copy_)(const ColumnOf&, index_t, index_t, R*) = nullptr;
};
/// A column that is read as double; it may be stored as any type.
using Column = ColumnOf<double>;
/// A column of integers; it must be stored as integers.
using IndexColumn = ColumnOf<index_t>;

namespace detail {

/// Throws unless a column that has rows is there. It is for columns that a call always reads.
template <class R>
void check_column(const char* function, const char* name, const ColumnOf<R>& column) {
  const index_t rows = column.size();
  contract::check_extents(function, name, 1, &rows);
  if (rows > 0 && !column) contract::fail_null(function, name, 1, &rows);
}

}  // namespace detail

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
