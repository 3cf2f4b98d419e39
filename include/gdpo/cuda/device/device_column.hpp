#pragma once
// A column of the caller as kernels read it. A Column reads through a pointer to a function of the
// host, which a device cannot call; this one names the stored type (StoredAs) instead.
#include <gdpo/storage/column.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

inline void check_stored(const char* function, const contract::Text& name, StoredAs type) {
  if (type != StoredAs::Other) return;
  contract::fail(function, name, "an array of a class",
                 "numbers that a device can read: float, double, 16-bit floats or integers "
                 "(gdpo::LayoutOf says what a class is in memory)");
}

/// A Column (ColumnOf<R>) in device memory, read as R.
template <class R>
struct DeviceColumn {
  const void* data = nullptr;
  index_t stride = 0;
  StoredAs type = StoredAs::Other;

  DeviceColumn() = default;
  DeviceColumn(const char* function, const char* name, const ColumnOf<R>& column) {
    if (!column) return;
    data = column.data(), stride = column.stride(), type = column.stored_as();
    check_stored(function, name, type);
    if (column.gap() != 0) {
      contract::fail(function, name, "(prompts, completions) with gaps between the prompts",
                     "rows at one distance from each other, because a device reads it");
    }
  }
  GDPO_INLINE explicit operator bool() const { return data != nullptr; }
  GDPO_INLINE R operator()(index_t i) const { return load_stored<R>(data, type, i * stride); }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
