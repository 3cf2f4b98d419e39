#pragma once
#include <gdpo/storage/stored_as.hpp>

GDPO_BEGIN_NAMESPACE

/// An optional column of per-row data of any storage type, read as R: token counts, flags, baselines as double (Column),
/// offsets as integers (IndexColumn). One indirect call a read, so it is for columns of the batch, not for its largest
/// array. Made from any rank-1 view; a null pointer: absent.
template <class R>
class ColumnOf {
 public:
  ColumnOf() = default;
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

  explicit operator bool() const { return present_; }
  index_t size() const { return extent_; }
  R operator()(index_t i) const { return read_(data_, i * stride_); }

  const void* data() const { return data_; }
  index_t stride() const { return stride_; }
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
using Column = ColumnOf<double>;
using IndexColumn = ColumnOf<index_t>;

/// Column c of an array, as a view: gdpo::column(gdpo::view(rewards), 1).
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
