#pragma once
// Tensors of PyTorch's stable ABI as views, columns and arrays of tokens; PyTorch's threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <gdpo/core/exec.hpp>
#include <gdpo/tokens/token_batch.hpp>
#include <optional>
#include <tuple>

// Calls a C function of PyTorch and throws what it reports. 2.10 has another name for this.
#if defined(STABLE_TORCH_ERROR_CODE_CHECK)
#define GDPO_TORCH_CALL(call) STABLE_TORCH_ERROR_CODE_CHECK(call)
#else
#define GDPO_TORCH_CALL(call) TORCH_ERROR_CODE_CHECK(call)
#endif

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
/// An argument that may be left out.
using Array = std::optional<Tensor>;

/// The threads of PyTorch as an executor for `gdpo::parallel`. Inside of a parallel region of
/// PyTorch all work runs on the calling thread.
struct Threads {
  /// torch.get_num_threads().
  int concurrency() const { return static_cast<int>(torch::stable::get_num_threads()); }
  /// Calls f(0) ... f(n - 1), each once, and returns when all have returned.
  template <class F>
  void for_each(index_t n, const F& f) const {
    torch::stable::parallel_for(0, n, 1, [&f](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) f(static_cast<index_t>(i));
    });
  }
};

namespace detail {

/// The call of an operator: its name, for messages, and the device that its tensors must be on.
struct Call {
  const char* function;
  std::int32_t device_type, device_index;  ///< as the functions of the ABI number devices

  /// An operator whose tensors are on the CPU.
  Call(const char* name) : Call(name, aoti_torch_device_type_cpu(), 0) {}
  /// An operator whose tensors are on that device.
  Call(const char* name, std::int32_t type, std::int32_t index)
      : function(name), device_type(type), device_index(index) {}

  bool on_cpu() const { return device_type == aoti_torch_device_type_cpu(); }
  /// Whether a tensor is on the device of this call.
  bool has(const Tensor& tensor) const {
    if (on_cpu()) return tensor.is_cpu();
    return !tensor.is_cpu() && tensor.get_device_index() == device_index;
  }
  [[noreturn]] void fail(const char* name, const contract::Text& given,
                         const contract::Text& needed) const {
    contract::fail(function, name, given, needed);
  }
};

/// Calls f(a null pointer to the element type) for the dtype of a tensor of floating-point numbers.
/// `needed` says which dtypes the caller takes.
template <class F>
auto with_real(const Call& call, const char* name, const Tensor& tensor, const F& f,
               const char* needed = "float64, float32, bfloat16 or float16") {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return f(static_cast<const float*>(nullptr));
    case ScalarType::Double:
      return f(static_cast<const double*>(nullptr));
    case ScalarType::BFloat16:
      return f(static_cast<const BFloat16*>(nullptr));
    case ScalarType::Half:
      return f(static_cast<const Float16*>(nullptr));
    default:
      call.fail(name, torch::headeronly::toString(tensor.scalar_type()), needed);
  }
}
/// The same for a tensor of any numbers; bool is read as bytes.
template <class F>
auto with_element(const Call& call, const char* name, const Tensor& tensor, const F& f) {
  switch (tensor.scalar_type()) {
    case ScalarType::Bool:
    case ScalarType::Byte:
      return f(static_cast<const unsigned char*>(nullptr));
    case ScalarType::Char:
      return f(static_cast<const signed char*>(nullptr));
    case ScalarType::Short:
      return f(static_cast<const std::int16_t*>(nullptr));
    case ScalarType::Int:
      return f(static_cast<const std::int32_t*>(nullptr));
    case ScalarType::Long:
      return f(static_cast<const std::int64_t*>(nullptr));
    default:
      return with_real(call, name, tensor, f,
                       "float64, float32, bfloat16, float16, bool, uint8 or a signed integer");
  }
}

/// The tensor as a view of that rank, which has been checked.
template <class T, int Rank>
View<const T, Rank> view_of(const Tensor& tensor) {
  View<const T, Rank> v{static_cast<const T*>(tensor.const_data_ptr()), {}, {}};
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  for (int r = 0; r < Rank; ++r) {
    v.extent[r] = static_cast<index_t>(sizes[static_cast<std::size_t>(r)]);
    v.stride[r] = static_cast<index_t>(strides[static_cast<std::size_t>(r)]);
  }
  return v;
}

/// A tensor that an operator has made, to be written.
template <class T, int Rank>
View<T, Rank> new_view(const Tensor& tensor) {
  const View<const T, Rank> v = view_of<T, Rank>(tensor);
  View<T, Rank> out{static_cast<T*>(tensor.mutable_data_ptr()), {}, {}};
  for (int r = 0; r < Rank; ++r) out.extent[r] = v.extent[r], out.stride[r] = v.stride[r];
  return out;
}

/// Throws unless the tensor is on the CPU and has a rank from `least` to `most`.
inline void check(const Call& call, const char* name, const Tensor& tensor, int least, int most,
                  const char* shape) {
  if (!call.has(tensor)) {
    call.fail(name, "a tensor on another device",
              call.on_cpu() ? "one on the CPU" : "one on the device of the others");
  }
  if (tensor.dim() < least || tensor.dim() > most) {
    call.fail(name, "a tensor of rank " + std::to_string(static_cast<long long>(tensor.dim())),
              shape);
  }
}

/// An array with one number for each token, read as S.
template <class S>
TokenView<S> tokens(const Call& call, const char* name, const Array& array) {
  if (!array) return {};
  check(call, name, *array, 1, 3,
        "rank 1 (packed tokens), 2 (rows, tokens) or 3 (prompts, completions, tokens)");
  return with_element(call, name, *array, [&](auto* element) -> TokenView<S> {
    using T = std::decay_t<decltype(*element)>;
    if constexpr (std::is_same_v<S, float> && std::is_same_v<T, double>) {
      call.fail(name, "float64", "float32 or narrower, as batch.logp is");
    } else if constexpr (std::is_same_v<S, std::int64_t> && !std::is_integral_v<T>) {
      call.fail(name, "numbers with a fraction", "integers");
    } else {
      if (array->dim() == 1) return view_of<T, 1>(*array);
      if (array->dim() == 2) return view_of<T, 2>(*array);
      return view_of<T, 3>(*array);
    }
  });
}

/// A column with one number for each row.
inline Column column(const Call& call, const char* name, const Array& array) {
  if (!array) return {};
  check(call, name, *array, 1, 2, "rank 1 (rows) or 2 (prompts, completions)");
  return with_element(call, name, *array, [&](auto* element) -> Column {
    using T = std::decay_t<decltype(*element)>;
    if (array->dim() == 1) return view_of<T, 1>(*array);
    return view_of<T, 2>(*array);
  });
}

/// Calls f(view) with a tensor of rank 1 that holds integers of 32 or 64 bits.
template <class F>
auto with_integers(const Call& call, const char* name, const Tensor& tensor, const F& f) {
  check(call, name, tensor, 1, 1, "rank 1");
  if (tensor.scalar_type() == ScalarType::Int) return f(view_of<std::int32_t, 1>(tensor));
  if (tensor.scalar_type() == ScalarType::Long) return f(view_of<std::int64_t, 1>(tensor));
  call.fail(name, torch::headeronly::toString(tensor.scalar_type()), "int32 or int64");
}

/// A new dense tensor on the device of the call, not filled in. It calls the C function of the ABI,
/// because torch::stable::empty goes through the dispatcher: a small loss took a fifth more time
/// with it.
inline Tensor new_tensor(const Call& call, const std::vector<std::int64_t>& size, ScalarType type) {
  std::vector<std::int64_t> strides(size.size(), 1);
  for (std::size_t r = size.size(); r-- > 1;)
    strides[r - 1] = strides[r] * (std::max<std::int64_t>)(size[r], 1);
  AtenTensorHandle handle = nullptr;
  GDPO_TORCH_CALL(aoti_torch_empty_strided(
      static_cast<std::int64_t>(size.size()), size.data(), strides.data(),
      torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(type)), call.device_type,
      call.device_index, &handle));
  return Tensor(handle);
}
/// A new float64 tensor on the CPU.
inline Tensor doubles(const std::vector<std::int64_t>& size) {
  return new_tensor("gdpo", size, ScalarType::Double);
}
/// The numbers of a dense float64 tensor on the device of the call, of that rank and last extent.
inline const double* doubles_in(const Call& call, const char* name, const Tensor& tensor,
                                std::int64_t rank, std::int64_t last,
                                const contract::Text& needed) {
  if (!call.has(tensor) || tensor.dim() != rank || tensor.size(rank - 1) != last ||
      tensor.scalar_type() != ScalarType::Double || !tensor.is_contiguous()) {
    call.fail(name, "another tensor", needed);
  }
  return static_cast<const double*>(tensor.const_data_ptr());
}
inline double* data_of(const Tensor& tensor) {
  return static_cast<double*>(tensor.mutable_data_ptr());
}

/// A new tensor with the shape of another, without its last `less` axes.
inline Tensor new_like(const Call& call, const Tensor& tensor, int less, ScalarType type) {
  const auto sizes = tensor.sizes();
  return new_tensor(call, std::vector<std::int64_t>(sizes.begin(), sizes.end() - less), type);
}
/// A tensor of rank 1, 2 or 3 that an operator has made, as an array of tokens to be written.
template <class S>
TokenOut<S> tokens_out(const Tensor& tensor) {
  if (tensor.dim() == 1) return new_view<S, 1>(tensor);
  if (tensor.dim() == 2) return new_view<S, 2>(tensor);
  return new_view<S, 3>(tensor);
}

}  // namespace detail

}  // namespace torch_stable
GDPO_END_NAMESPACE
