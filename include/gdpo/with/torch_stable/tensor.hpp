#pragma once
// Tensors of PyTorch's stable ABI as views, columns and arrays of tokens; PyTorch's threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <gdpo/core/exec.hpp>
#include <gdpo/tokens/token_batch.hpp>
#include <gdpo/tokens/token_tensor.hpp>
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

using gdpo::detail::TensorInfo;

/// How the ABI calls an element type; Other for one that the library does not read.
inline StoredAs element_type(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return StoredAs::Float;
    case ScalarType::Double:
      return StoredAs::Double;
    case ScalarType::BFloat16:
      return StoredAs::BFloat16;
    case ScalarType::Half:
      return StoredAs::Float16;
    case ScalarType::Bool:
    case ScalarType::Byte:
      return StoredAs::UInt8;
    case ScalarType::Char:
      return StoredAs::Int8;
    case ScalarType::Short:
      return StoredAs::Int16;
    case ScalarType::Int:
      return StoredAs::Int32;
    case ScalarType::Long:
      return StoredAs::Int64;
    default:
      return StoredAs::Other;
  }
}

/// What a tensor is in memory, for reading. The result refers to the tensor.
inline TensorInfo info_of(const Tensor& tensor) {
  TensorInfo info;
  const ScalarType type = tensor.scalar_type();
  info.stored_as = element_type(type), info.is_bool = type == ScalarType::Bool;
  info.rank = static_cast<int>(tensor.dim()), info.read_only = true;
  info.extent = tensor.sizes().data(), info.stride = tensor.strides().data();
  if (info.stored_as == StoredAs::Other) {
    info.other = std::string("dtype ") + torch::headeronly::toString(type);
  } else {
    info.data = const_cast<void*>(tensor.const_data_ptr());
  }
  return info;
}
/// The same. Throws unless the tensor is on the device of the call.
inline TensorInfo info_of(const Call& call, const char* name, const Tensor& tensor) {
  if (!call.has(tensor)) {
    call.fail(name, "a tensor on another device",
              call.on_cpu() ? "one on the CPU" : "one on the device of the others");
  }
  return info_of(tensor);
}
/// The same of a tensor that an operator has made or changes in place.
inline TensorInfo written(const Tensor& tensor) {
  TensorInfo info = info_of(tensor);
  info.data = tensor.mutable_data_ptr(), info.read_only = false;
  return info;
}
/// Such a tensor as a view.
template <class T, int Rank>
View<T, Rank> new_view(const Tensor& tensor) {
  return gdpo::detail::view_of<T, Rank>(written(tensor));
}
/// Such a tensor as an array of tokens.
template <class S>
TokenOut<S> tokens_out(const Tensor& tensor) {
  return gdpo::detail::tokens_out<S>(written(tensor));
}

/// A table over the vocabulary, such as logits.
inline TensorInfo table_info(const Call& call, const char* name, const Tensor& tensor) {
  TensorInfo info = info_of(call, name, tensor);
  gdpo::detail::check_rank(call.function, name, info, 2, 3,
                           "(tokens, vocabulary) or (rows, tokens, vocabulary)");
  return info;
}

/// An array with one number for each token, read as S; absent if there is no tensor.
template <class S>
TokenView<S> tokens(const Call& call, const char* name, const Array& array) {
  if (!array) return {};
  return gdpo::detail::tokens_of<S>(call.function, name, info_of(call, name, *array));
}
/// A column with one number for each row.
inline Column column(const Call& call, const char* name, const Array& array) {
  if (!array) return {};
  return gdpo::detail::column_of(call.function, name, info_of(call, name, *array));
}
/// A column of integers.
inline IndexColumn index_column(const Call& call, const char* name, const Array& array) {
  if (!array) return {};
  return gdpo::detail::index_column_of(call.function, name, info_of(call, name, *array));
}

/// What make(line) gives. Each thread keeps what the last line gave, because reading a line takes
/// longer than the work on a small batch. `make` is a lambda, whose type tells apart what is kept.
template <class Make>
const auto& remembered(const std::string& line, const Make& make) {
  struct Kept {
    std::string line;
    decltype(make(line)) value;
  };
  thread_local std::optional<Kept> kept;
  if (!kept || kept->line != line) kept = Kept{line, make(line)};
  return kept->value;
}

/// The integers of a tensor of rank 1 on the CPU.
inline std::vector<index_t> indices(const Call& call, const char* name, const Tensor& tensor) {
  const IndexColumn column = index_column(call, name, tensor);
  std::vector<index_t> numbers(static_cast<std::size_t>(column.size()));
  if (tensor.scalar_type() == ScalarType::Long && tensor.is_contiguous()) {
    std::copy_n(static_cast<const std::int64_t*>(tensor.const_data_ptr()), numbers.size(),
                numbers.begin());
  } else {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = column(static_cast<index_t>(i));
  }
  return numbers;
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

}  // namespace detail

}  // namespace torch_stable
GDPO_END_NAMESPACE
