#pragma once
// Views of tensors of LibTorch, whose type, device and shape are known at run time only.
#include <ATen/core/Tensor.h>

#include <gdpo/loss.hpp>
#include <gdpo/tokens/token_tensor.hpp>

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

/// The dtypes of LibTorch that the library reads, beside bool.
struct TorchDtype {
  StoredAs stored_as;
  at::ScalarType dtype;
};
inline constexpr TorchDtype torch_dtypes[] = {
    {StoredAs::Float, at::kFloat},  {StoredAs::Double, at::kDouble},
    {StoredAs::Float16, at::kHalf}, {StoredAs::BFloat16, at::kBFloat16},
    {StoredAs::Int8, at::kChar},    {StoredAs::UInt8, at::kByte},
    {StoredAs::Int16, at::kShort},  {StoredAs::Int32, at::kInt},
    {StoredAs::Int64, at::kLong}};

/// The dtype whose elements are of type T in memory.
template <class T>
constexpr at::ScalarType torch_dtype() {
  for (const TorchDtype& known : torch_dtypes)
    if (known.stored_as == stored_as<T>()) return known.dtype;
  return at::ScalarType::Undefined;
}

/// What a tensor is in memory. Throws unless it is a dense array on a device of this type whose
/// elements can be read as they stand in memory. The result refers to the tensor.
inline TensorInfo torch_info(const char* function, const contract::Text& name, const at::Tensor& t,
                             at::DeviceType device = at::kCPU) {
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
  TensorInfo info;
  info.rank = static_cast<int>(t.dim());
  info.extent = t.sizes().data(), info.stride = t.strides().data();
  info.is_bool = t.scalar_type() == at::kBool;
  if (info.is_bool) info.stored_as = StoredAs::UInt8;
  for (const TorchDtype& known : torch_dtypes)
    if (known.dtype == t.scalar_type()) info.stored_as = known.stored_as;
  if (info.stored_as == StoredAs::Other) {
    info.other = std::string("dtype ") + c10::toString(t.scalar_type());
  } else {
    info.data = t.data_ptr();
  }
  return info;
}
template <class T, int Rank>
View<T, Rank> view_of_torch(const char* function, const contract::Text& name, const at::Tensor& t,
                            at::DeviceType device) {
  static_assert(std::is_same_v<layout_t<std::remove_const_t<T>>, bool> ||
                    torch_dtype<T>() != at::ScalarType::Undefined,
                "no dtype of LibTorch has elements of type T");
  const TensorInfo info = torch_info(function, name, t, device);
  check_dtype<T>(function, name, info);
  return checked_view<T, Rank>(function, name, info);
}

/// The tensor as a token array of a batch, or as a column; absent if it is undefined.
template <class S>
TokenView<S> torch_tokens(const char* function, const contract::Text& name, const at::Tensor& t) {
  return t.defined() ? tokens_of<S>(function, name, torch_info(function, name, t)) : TokenView<S>{};
}
inline Column torch_column_of(const char* function, const contract::Text& name,
                              const at::Tensor& t) {
  return t.defined() ? column_of(function, name, torch_info(function, name, t)) : Column{};
}
inline IndexColumn torch_indices(const char* function, const contract::Text& name,
                                 const at::Tensor& t) {
  return t.defined() ? index_column_of(function, name, torch_info(function, name, t))
                     : IndexColumn{};
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
/// another dtype or rank, sparse or not on the host; and, if T is not const, for one that repeats
/// elements, as expand() makes it. Bool can also be viewed as `const unsigned char`.
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
  return detail::torch_column_of("gdpo::torch_column", name, tensor);
}
/// Deleted, because a temporary tensor may be the only one of its storage.
void torch_column(const at::Tensor&&, const contract::Text& = "") = delete;

GDPO_END_NAMESPACE
