#pragma once
// Token arrays of the caller as kernels read and write them: TokenView and TokenOut with the stored
// type in place of a pointer to a function of the host.
#include <climits>
#include <gdpo/cuda/device/device_column.hpp>
#include <gdpo/tokens/token_view.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Where the tokens of a row stand, all distances in elements. It is TokenShape without a 64-bit
/// division, for which a GPU has no instruction.
struct DeviceShape {
  index_t step = 1;      ///< from a token of a row to the next
  index_t of_token = 0;  ///< of a packed array: from a token of the batch to the next, else 0
  index_t of_row = 0;    ///< from a row to the next, within a group; 0 if packed
  index_t of_group = 0;  ///< what each group adds to rows x of_row
  /// Rows of a group, of a rank-3 array where of_group is not 0; else 0.
  unsigned rows_a_group = 0;

  DeviceShape() = default;
  DeviceShape(const char* function, const contract::Text& name,
              const gdpo::detail::TokenShape& shape)
      : step(shape.step()) {
    index_t rows = 0;
    if (shape.rank == 1) {
      of_token = shape.stride[0];
    } else if (shape.rank == 2 || shape.repeats) {
      of_row = shape.stride[0];
    } else if (shape.rank == 3) {
      of_row = shape.stride[1];
      of_group = shape.stride[0] - shape.extent[1] * shape.stride[1];
      if (of_group != 0)
        rows_a_group = static_cast<unsigned>(shape.extent[1]),
        rows = shape.extent[0] * shape.extent[1];
    }
    const index_t width = shape.rank > 1 ? shape.extent[shape.rank - 1] : 0;
    if (rows > INT_MAX || width > INT_MAX) {
      contract::fail(function, name, contract::shape(shape.rank, shape.extent),
                     "fewer than 2^31 rows, and as many tokens in a row");
    }
  }
  /// Where the first token of `row` stands. `begin`: its place among the tokens of a packed batch.
  GDPO_INLINE index_t first(index_t row, index_t begin) const {
    const index_t groups = rows_a_group ? static_cast<unsigned>(row) / rows_a_group : 0u;
    return begin * of_token + row * of_row + groups * of_group;
  }
};

/// A TokenView in device memory, read as S. A mask is read as unsigned char, 1 where the stored
/// number is not 0.
template <class S>
struct DeviceTokens {
  const void* data = nullptr;
  DeviceShape shape;
  StoredAs type = StoredAs::Other;

  DeviceTokens() = default;
  DeviceTokens(const char* function, const char* name, const TokenView<S>& tokens) {
    if (!tokens) return;
    data = tokens.data(), shape = DeviceShape(function, name, tokens.shape()),
    type = tokens.stored_as();
    check_stored(function, name, type);
  }
  GDPO_INLINE explicit operator bool() const { return data != nullptr; }
  GDPO_INLINE index_t first(index_t row, index_t begin) const { return shape.first(row, begin); }
  /// Token t of the row whose first token stands at `first`.
  GDPO_INLINE S at(index_t first, index_t t) const {
    const index_t i = first + t * shape.step;
    if constexpr (std::is_same_v<S, unsigned char>) {
      return !math::is_zero(load_stored<double>(data, type, i));
    } else {
      return load_stored<S>(data, type, i);
    }
  }
};

/// A TokenOut in device memory.
template <class S>
struct DeviceOut {
  S* data = nullptr;
  DeviceShape shape;

  DeviceOut() = default;
  DeviceOut(const char* function, const char* name, const TokenOut<S>& out) : data(out.data()) {
    if (data) shape = DeviceShape(function, name, out.shape());
  }
  GDPO_INLINE explicit operator bool() const { return data != nullptr; }
  GDPO_INLINE index_t first(index_t row, index_t begin) const { return shape.first(row, begin); }
  GDPO_INLINE S& at(index_t first, index_t t) const { return data[first + t * shape.step]; }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
