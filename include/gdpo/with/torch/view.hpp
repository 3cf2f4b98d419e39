#pragma once
// Views of tensors of LibTorch, whose type, device and shape are known at run time only.
#include <ATen/core/Tensor.h>

#include <gdpo/loss.hpp>
#include <numeric>

GDPO_BEGIN_NAMESPACE

/// c10::Half has the memory layout of Float16, so it can be read and written in lanes.
template <>
struct LayoutOf<c10::Half> {
  using type = Float16;  ///< IEEE binary16.
};
/// c10::BFloat16 has the memory layout of BFloat16.
template <>
struct LayoutOf<c10::BFloat16> {
  using type = BFloat16;  ///< The upper half of a float.
};

namespace detail {

/// The dtype whose elements are of type T in memory.
template <class T>
constexpr at::ScalarType torch_dtype() {
  using L = layout_t<T>;
  constexpr bool is_signed_integer = std::is_integral_v<L> && std::is_signed_v<L>;
  if constexpr (std::is_same_v<L, float>) return at::kFloat;
  if constexpr (std::is_same_v<L, double>) return at::kDouble;
  if constexpr (std::is_same_v<L, Float16>) return at::kHalf;
  if constexpr (std::is_same_v<L, BFloat16>) return at::kBFloat16;
  if constexpr (std::is_same_v<L, bool>) return at::kBool;
  if constexpr (is_signed_integer && sizeof(L) == 1) return at::kChar;
  if constexpr (is_signed_integer && sizeof(L) == 2) return at::kShort;
  if constexpr (is_signed_integer && sizeof(L) == 4) return at::kInt;
  if constexpr (is_signed_integer && sizeof(L) == 8) return at::kLong;
  if constexpr (std::is_same_v<L, unsigned char>) return at::kByte;
  return at::ScalarType::Undefined;
}

/// Types of elements, for `visit_dtype`.
template <class... Ts>
struct DTypes {};
using TorchIntegers =
    DTypes<std::int64_t, std::int32_t, std::int16_t, std::int8_t, unsigned char, bool>;
using TorchNumbers = DTypes<float, double, Float16, BFloat16, std::int64_t, std::int32_t,
                            std::int16_t, std::int8_t, unsigned char, bool>;
using TorchNumbersToFloat = DTypes<float, Float16, BFloat16, std::int64_t, std::int32_t,
                                   std::int16_t, std::int8_t, unsigned char, bool>;
using TorchFloats = DTypes<float, double, Float16, BFloat16>;

/// The name of a dtype as a message gives it: "dtype Float".
GDPO_COLD inline std::string dtype_in_words(at::ScalarType dtype) {
  return std::string("dtype ") + c10::toString(dtype);
}
/// The shape of a tensor as a message gives it: "(2, 3)".
GDPO_COLD inline std::string shape_in_words(const at::Tensor& t) {
  std::string words = "(";
  for (std::int64_t r = 0; r < t.dim(); ++r) words += (r ? ", " : "") + std::to_string(t.size(r));
  return words + ")";
}

/// Throws unless the tensor is an array on a device of this type whose elements can be read as they
/// stand in memory.
inline void check_torch(const char* function, const contract::Text& name, const at::Tensor& t,
                        at::DeviceType device) {
  using contract::fail;
  if (!t.defined()) fail(function, name, "an undefined tensor", "a tensor with elements");
  if (t.layout() != at::kStrided)
    fail(function, name, "layout " + c10::str(t.layout()), "a dense tensor, such as to_dense()");
  if (t.device().type() != device) {
    fail(function, name, "a tensor on " + t.device().str(),
         "one on " + c10::DeviceTypeName(device, true));
  }
  if (t.is_neg())
    fail(function, name, "a tensor that is negated when it is read", "its resolve_neg()");
}

/// Calls f(T{}) with the type of the tensor's elements, one of Ts. Throws for any other dtype.
template <class F, class... Ts>
void visit_dtype(const char* function, const contract::Text& name, const at::Tensor& t,
                 DTypes<Ts...>, const F& f) {
  if (((t.scalar_type() == torch_dtype<Ts>() && (f(Ts{}), true)) || ...)) return;
  std::string dtypes;
  ((dtypes += (dtypes.empty() ? "" : " or ") + dtype_in_words(torch_dtype<Ts>())), ...);
  contract::fail(function, name, dtype_in_words(t.scalar_type()), dtypes);
}

/// Throws where two indices of a tensor may have the same element. With the axes ordered by their
/// strides, they cannot if each stride steps over all elements of the axes before it.
inline void check_no_overlap(const char* function, const contract::Text& name,
                             const at::Tensor& t) {
  if (t.numel() == 0) return;
  std::vector<std::int64_t> axes(static_cast<std::size_t>(t.dim()));
  std::iota(axes.begin(), axes.end(), std::int64_t{0});
  std::sort(axes.begin(), axes.end(),
            [&](std::int64_t a, std::int64_t b) { return t.stride(a) < t.stride(b); });
  std::int64_t last = 0;  // the offset of the last element of the axes so far
  for (const std::int64_t axis : axes) {
    if (t.size(axis) == 1) continue;
    if (t.stride(axis) <= last) {
      contract::fail(function, name,
                     "a tensor whose elements overlap, with stride " +
                         contract::text(static_cast<index_t>(t.stride(axis))) + " of axis " +
                         contract::text(static_cast<index_t>(axis)),
                     "an element of its own for each index, because it is written");
    }
    last += (t.size(axis) - 1) * t.stride(axis);
  }
}

/// The view of a tensor that is known to be of dtype T and rank Rank.
template <class T, int Rank>
View<T, Rank> view_unchecked(const at::Tensor& t) {
  View<T, Rank> v;
  v.data = static_cast<T*>(t.data_ptr());
  for (int r = 0; r < Rank; ++r) {
    v.extent[r] = static_cast<index_t>(t.size(r));
    v.stride[r] = static_cast<index_t>(t.stride(r));
  }
  return v;
}
template <class T, int Rank>
View<T, Rank> view_of_torch(const char* function, const contract::Text& name, const at::Tensor& t,
                            at::DeviceType device) {
  static_assert(Rank >= 1 && Rank <= 3, "a view has rank 1, 2 or 3");
  constexpr at::ScalarType dtype = torch_dtype<T>();
  static_assert(dtype != at::ScalarType::Undefined, "no dtype of LibTorch has elements of type T");
  check_torch(function, name, t, device);
  if (t.scalar_type() != dtype) {
    contract::fail(function, name, dtype_in_words(t.scalar_type()),
                   dtype_in_words(dtype) + ", whose elements the view has");
  }
  if (t.dim() != Rank) {
    contract::fail(function, name, "shape " + shape_in_words(t),
                   "rank " + contract::text(index_t{Rank}));
  }
  if constexpr (!std::is_const_v<T>) check_no_overlap(function, name, t);
  return view_unchecked<T, Rank>(t);
}

/// The tensor as a token array of a batch; absent if it is undefined.
template <class R, class Types>
TokenView<R> torch_tokens(const char* function, const contract::Text& name, const at::Tensor& t,
                          Types types) {
  TokenView<R> tokens;
  if (!t.defined()) return tokens;
  check_torch(function, name, t, at::kCPU);
  if (t.dim() < 1 || t.dim() > 3)
    contract::fail(function, name, "shape " + shape_in_words(t), "rank 1 (packed), 2 or 3");
  visit_dtype(function, name, t, types, [&](auto element) {
    using T = const decltype(element);
    if (t.dim() == 1) tokens = view_unchecked<T, 1>(t);
    if (t.dim() == 2) tokens = view_unchecked<T, 2>(t);
    if (t.dim() == 3) tokens = view_unchecked<T, 3>(t);
  });
  return tokens;
}
/// Log-probs and their like: numbers that are read as S, of which double is none in a float batch.
template <class S>
using TorchTokenNumbers =
    std::conditional_t<std::is_same_v<S, float>, TorchNumbersToFloat, TorchNumbers>;

/// The tensor as a column of a batch; absent if it is undefined.
inline Column column_of_torch(const char* function, const contract::Text& name,
                              const at::Tensor& t) {
  Column column;
  if (!t.defined()) return column;
  check_torch(function, name, t, at::kCPU);
  if (t.dim() < 1 || t.dim() > 2)
    contract::fail(function, name, "shape " + shape_in_words(t), "rank 1 or 2, one for each row");
  visit_dtype(function, name, t, TorchNumbers{}, [&](auto element) {
    using T = const decltype(element);
    column = t.dim() == 1 ? Column(view_unchecked<T, 1>(t)) : Column(view_unchecked<T, 2>(t));
  });
  return column;
}
inline IndexColumn index_column_of_torch(const char* function, const contract::Text& name,
                                         const at::Tensor& t) {
  IndexColumn column;
  if (!t.defined()) return column;
  check_torch(function, name, t, at::kCPU);
  if (t.dim() != 1) contract::fail(function, name, "shape " + shape_in_words(t), "rank 1");
  visit_dtype(function, name, t, TorchIntegers{},
              [&](auto element) { column = view_unchecked<const decltype(element), 1>(t); });
  return column;
}

}  // namespace detail

/// A view of a tensor in the memory of the host, with its strides; no element is copied.
///
///     gdpo::view<const float, 2>(logp, "logp")
///     gdpo::view<const gdpo::BFloat16, 3>(logits)  // or const c10::BFloat16
///
/// The tensor, or another one of its storage, must outlive the view. What is written through a view
/// is not known to autograd: write to tensors that it does not record.
///
/// Errors: `invalid_input`, which names the tensor by `name`, for an undefined tensor, one of
/// another dtype or rank, sparse or not on the host; and, if T is not const, for one whose elements
/// overlap, as expand() makes it.
template <class T, int Rank>
View<T, Rank> view(const at::Tensor& tensor, const contract::Text& name = "tensor") {
  return detail::view_of_torch<T, Rank>("gdpo::view", name, tensor, at::kCPU);
}
/// Deleted, because a temporary tensor may be the only one of its storage.
template <class T, int Rank>
void view(const at::Tensor&&, const contract::Text& = "") = delete;

/// The same of a tensor on a CUDA device, for the calls of gdpo/cuda.hpp.
template <class T, int Rank>
View<T, Rank> device_view(const at::Tensor& tensor, const contract::Text& name = "tensor") {
  return detail::view_of_torch<T, Rank>("gdpo::device_view", name, tensor, at::kCUDA);
}
/// Deleted, because a temporary tensor may be the only one of its storage.
template <class T, int Rank>
void device_view(const at::Tensor&&, const contract::Text& = "") = delete;

/// A tensor as an optional column of a RewardBatch or TokenBatch, of any dtype, on the host: (N) or
/// (prompts, completions). An undefined tensor gives an absent column.
///
///     batch.tokens = gdpo::torch_column(lengths, "lengths");
///
/// Errors: as of `view`.
inline Column torch_column(const at::Tensor& tensor, const contract::Text& name = "tensor") {
  return detail::column_of_torch("gdpo::torch_column", name, tensor);
}
/// Deleted, because a temporary tensor may be the only one of its storage.
void torch_column(const at::Tensor&&, const contract::Text& = "") = delete;

GDPO_END_NAMESPACE
