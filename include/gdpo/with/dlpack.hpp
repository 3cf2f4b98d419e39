#pragma once
/// \file
/// Adapter for tensors of other libraries that come and go by DLPack, without a copy:
///
///     const gdpo::DlpackTensor rewards(managed);  // calls the deleter when it ends
///     const auto table = gdpo::view<const float, 2>(rewards, "rewards");
///     DLManagedTensor* out =
///         gdpo::to_dlpack_managed<DLManagedTensor>(gdpo::advantages(table, gdpo::groups_of(4)));
///
/// The caller states the element type and the rank, and a tensor of others is refused by its name.
/// `visit_view` takes tensors of several element types instead. Element types are float, double,
/// Float16, BFloat16, integers and bool, and classes with a LayoutOf. Elements are read as
/// `const float` and so on; without const they may be written, which a tensor has to allow.
///
/// The memory may be of the CPU or of a device; the views of the latter are for calls with
/// `cuda::On`. Work that fills the memory on a stream must be ordered before that which reads it:
/// the structs do not name a stream.
///
/// It needs the header dlpack/dlpack.h, version 0.6 or later. If another header has defined the
/// structs before, such as ATen/dlpack.h of PyTorch, it takes those. DLManagedTensorVersioned,
/// which can mark a tensor as read-only, exists from version 1.0 of DLPack on.
///
/// Errors: `invalid_input`, with the name that the caller gives the tensor.
#if !defined(DLPACK_MAJOR_VERSION) && !defined(DLPACK_VERSION)
#include <dlpack/dlpack.h>
#endif

#include <cstdint>
#include <cstring>
#include <gdpo/storage/tensor_info.hpp>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// 1 where the header of DLPack has DLManagedTensorVersioned.
#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
#define GDPO_DLPACK_VERSIONED 1
#else
#define GDPO_DLPACK_VERSIONED 0
#endif

GDPO_BEGIN_NAMESPACE

/// The memory of the CPU.
inline constexpr DLDevice dlpack_cpu{kDLCPU, 0};
/// The memory of a CUDA device.
constexpr DLDevice dlpack_cuda(int device_id = 0) { return {kDLCUDA, device_id}; }

class DlpackTensor;

namespace detail {

/// The code of bool, which old headers do not name.
inline constexpr std::uint8_t dlpack_bool = 6;

/// What a DLTensor calls elements of type T.
template <class T>
constexpr DLDataType dlpack_dtype() {
  using L = layout_t<T>;
  static_assert(gdpo::stored_as<L>() != StoredAs::Other,
                "DLPack has no name for this element type: use float, double, Float16, BFloat16, "
                "an integer or bool");
  constexpr auto bits = static_cast<std::uint8_t>(8 * sizeof(L));
  if constexpr (std::is_same_v<L, bool>) {
    return {dlpack_bool, bits, 1};
  } else if constexpr (std::is_integral_v<L>) {
    return {std::is_signed_v<L> ? std::uint8_t{kDLInt} : std::uint8_t{kDLUInt}, bits, 1};
  } else {
    return {std::is_same_v<L, BFloat16> ? std::uint8_t{kDLBfloat} : std::uint8_t{kDLFloat}, bits,
            1};
  }
}
/// The element type of a dtype that the library reads; Other for those that it does not.
template <class... Ts>
StoredAs element_type(DLDataType dtype, ElementTypes<Ts...>) {
  StoredAs type = StoredAs::Other;
  const auto compare = [&](StoredAs known, DLDataType name) {
    if (dtype.code == name.code && dtype.bits == name.bits && dtype.lanes == 1) type = known;
  };
  (compare(stored_as<Ts>(), dlpack_dtype<Ts>()), ...);
  return type;
}

/// A dtype in words, such as "complex64".
GDPO_COLD inline std::string dlpack_words(DLDataType dtype) {
  const std::string bits = std::to_string(dtype.bits);
  std::string words;
  switch (dtype.code) {
    case kDLInt:
      words = "int" + bits;
      break;
    case kDLUInt:
      words = "uint" + bits;
      break;
    case kDLFloat:
      words = "float" + bits;
      break;
    case kDLBfloat:
      words = "bfloat" + bits;
      break;
    case kDLComplex:
      words = "complex" + bits;
      break;
    case dlpack_bool:
      words = "bool of " + bits + " bits";
      break;
    default:
      words = "a dtype with code " + std::to_string(dtype.code) + " and " + bits + " bits";
  }
  if (dtype.lanes != 1) words += " in " + std::to_string(dtype.lanes) + " lanes";
  return words;
}

/// The number of a device type. A tensor may have a type that this header does not name, so the
/// number is not read as the enumeration.
inline int dlpack_type_of(const DLDevice& device) {
  int type;
  static_assert(sizeof type == sizeof device.device_type, "an enumeration of DLPack has 4 bytes");
  std::memcpy(&type, &device.device_type, sizeof type);
  return type;
}
GDPO_COLD inline std::string dlpack_words(const DLDevice& device) {
  const std::string id = std::to_string(device.device_id);
  switch (dlpack_type_of(device)) {
    case kDLCPU:
      return "the CPU";
    case kDLCUDA:
      return "CUDA device " + id;
    case kDLCUDAHost:
      return "pinned host memory of CUDA";
    case kDLCUDAManaged:
      return "managed memory of CUDA";
    default:
      return "device " + id + " of type " + std::to_string(dlpack_type_of(device));
  }
}
/// Whether code of a device reads and writes memory by its pointer.
inline bool dlpack_reaches(const DLDevice& device, const DLDevice& memory) {
  const int device_type = dlpack_type_of(device), memory_type = dlpack_type_of(memory);
  if (device_type == kDLCPU &&
      (memory_type == kDLCPU || memory_type == kDLCUDAHost || memory_type == kDLROCMHost))
    return true;
  if ((device_type == kDLCPU || device_type == kDLCUDA) && memory_type == kDLCUDAManaged)
    return true;
  return device_type == memory_type && device.device_id == memory.device_id;
}

/// A tensor, in whichever struct it came, and whether its elements must not be written.
struct DlpackSource {
  const DLTensor& tensor;
  bool read_only;
};
inline DlpackSource dlpack_source(const char*, const char*, const DLTensor& tensor) {
  return {tensor, false};
}
template <class Managed>
void check_dlpack_pointer(const char* function, const char* name, const Managed* managed) {
  if (!managed) contract::fail(function, name, "a null pointer", "a managed tensor");
}
inline DlpackSource dlpack_source(const char* function, const char* name,
                                  const DLManagedTensor* managed) {
  check_dlpack_pointer(function, name, managed);
  return {managed->dl_tensor, false};
}
#if GDPO_DLPACK_VERSIONED
/// Of a tensor with another major version only the version and the deleter may be touched.
inline DlpackSource dlpack_source(const char* function, const char* name,
                                  const DLManagedTensorVersioned* managed) {
  check_dlpack_pointer(function, name, managed);
  if (managed->version.major != DLPACK_MAJOR_VERSION) {
    contract::fail(function, name,
                   "a tensor of DLPack " + std::to_string(managed->version.major) + "." +
                       std::to_string(managed->version.minor),
                   "one of DLPack " + std::to_string(DLPACK_MAJOR_VERSION));
  }
  return {managed->dl_tensor, (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0};
}
#endif
inline DlpackSource dlpack_source(const char* function, const char* name,
                                  const DlpackTensor& tensor);

/// Throws unless every distance between two elements, in bytes, is a number of index_t. Elements
/// that an axis does not step to do not count, so the stride of an axis of one element may be
/// anything.
template <class T, int Rank>
void check_dlpack_strides(const char* function, const char* name, const View<T, Rank>& v) {
  std::uint64_t room =
      static_cast<std::uint64_t>((std::numeric_limits<index_t>::max)()) / sizeof(T);
  for (int r = 0; r < Rank; ++r) {
    if (v.extent[r] <= 1) continue;
    const auto steps = static_cast<std::uint64_t>(v.extent[r] - 1);
    const auto stride = static_cast<std::uint64_t>(v.stride[r]);
    const std::uint64_t distance = v.stride[r] < 0 ? 0 - stride : stride;
    if (distance > room / steps) {
      contract::fail(function, name, "strides " + contract::shape(Rank, v.stride),
                     "elements at most 2^63 - 1 bytes apart");
    }
    room -= distance * steps;
  }
}
/// What a tensor is in memory. Throws unless code of the device reaches it. The result refers to
/// the tensor.
inline TensorInfo dlpack_info(const char* function, const char* name, const DlpackSource& source,
                              const DLDevice& device) {
  const DLTensor& tensor = source.tensor;
  if (tensor.ndim > 0 && !tensor.shape) contract::fail(function, name, "a null pointer", "a shape");
  if (!dlpack_reaches(device, tensor.device))
    contract::fail(function, name, dlpack_words(tensor.device), dlpack_words(device));
  if (tensor.byte_offset > (std::numeric_limits<std::uintptr_t>::max)() -
                               reinterpret_cast<std::uintptr_t>(tensor.data)) {
    contract::fail(function, name, "a byte_offset of " + std::to_string(tensor.byte_offset),
                   "one within the memory");
  }
  TensorInfo info;
  if (tensor.data) info.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  info.is_bool = tensor.dtype.code == dlpack_bool;
  info.stored_as = element_type(
      tensor.dtype,
      ElementTypes<bool, float, double, BFloat16, Float16, std::int8_t, std::uint8_t, std::int16_t,
                   std::uint16_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t>{});
  if (info.stored_as == StoredAs::Other) info.other = dlpack_words(tensor.dtype);
  info.read_only = source.read_only;
  info.rank = tensor.ndim, info.extent = tensor.shape, info.stride = tensor.strides;
  return info;
}
/// The view of a tensor whose dtype has been checked.
template <class T, int Rank>
View<T, Rank> view_of_dlpack(const char* function, const char* name, const TensorInfo& info) {
  const View<T, Rank> v = checked_view<T, Rank>(function, name, info);
  for (const index_t extent : v.extent)
    if (extent == 0) return v;
  check_dlpack_strides(function, name, v);
  const auto beyond = static_cast<index_t>(reinterpret_cast<std::uintptr_t>(v.data) % alignof(T));
  if (beyond != 0) {
    contract::fail(function, name,
                   "data " + contract::text(beyond) + " bytes beyond an element's boundary",
                   "data at a multiple of " + contract::text(index_t{alignof(T)}) + " bytes");
  }
  return v;
}

/// The same for a tensor whose dtype has not been checked.
template <class T, int Rank>
View<T, Rank> checked_view_of_dlpack(const char* name, const DlpackSource& source,
                                     const DLDevice& device) {
  constexpr const char* function = "gdpo::view";
  const TensorInfo info = dlpack_info(function, name, source, device);
  check_dtype<T>(function, name, info);
  return view_of_dlpack<T, Rank>(function, name, info);
}

}  // namespace detail

/// A managed tensor that the program has received. It calls the deleter once, when it ends or is
/// assigned to; a deleter may be null. It is moved and not copied.
class DlpackTensor {
 public:
  /// No tensor.
  DlpackTensor() = default;
  /// Takes the tensor over. Throws `invalid_input` for a null pointer.
  explicit DlpackTensor(DLManagedTensor* managed) : DlpackTensor() { take(managed); }
#if GDPO_DLPACK_VERSIONED
  /// Takes the tensor over. Throws `invalid_input` for a null pointer, and for another major
  /// version of DLPack, after it has called the deleter.
  explicit DlpackTensor(DLManagedTensorVersioned* managed) : DlpackTensor() { take(managed); }
#endif
  /// Takes over the tensor of another, which has none then.
  DlpackTensor(DlpackTensor&& other) noexcept { swap(other); }
  /// Calls the deleter of this tensor and takes over that of another, which has none then.
  DlpackTensor& operator=(DlpackTensor&& other) noexcept {
    DlpackTensor temporary(std::move(other));
    swap(temporary);
    return *this;
  }
  /// Calls the deleter.
  ~DlpackTensor() {
    if (end_) end_(managed_);
  }

  /// Whether there is a tensor.
  explicit operator bool() const { return tensor_ != nullptr; }
  /// Whether the elements must not be written.
  bool read_only() const { return read_only_; }
  /// The tensor, which lives as long as this object. Throws `invalid_input` where there is none.
  const DLTensor& tensor() const& {
    if (!tensor_) contract::fail("gdpo::DlpackTensor", "tensor", "none", "a managed tensor");
    return *tensor_;
  }
  /// Deleted, because the tensor would end with the temporary.
  const DLTensor& tensor() const&& = delete;

 private:
  // The constructors delegate, so the destructor runs even if this throws, and calls the deleter.
  template <class Managed>
  void take(Managed* managed) {
    if (managed) managed_ = managed, end_ = [](void* m) { end(static_cast<Managed*>(m)); };
    const detail::DlpackSource source =
        detail::dlpack_source("gdpo::DlpackTensor", "managed", managed);
    tensor_ = &source.tensor, read_only_ = source.read_only;
  }
  template <class Managed>
  static void end(Managed* managed) {
    if (managed->deleter) managed->deleter(managed);
  }
  void swap(DlpackTensor& other) noexcept {
    std::swap(managed_, other.managed_), std::swap(end_, other.end_);
    std::swap(tensor_, other.tensor_), std::swap(read_only_, other.read_only_);
  }

  void* managed_ = nullptr;
  void (*end_)(void*) = nullptr;
  const DLTensor* tensor_ = nullptr;
  bool read_only_ = false;
};

namespace detail {

inline DlpackSource dlpack_source(const char* function, const char* name,
                                  const DlpackTensor& tensor) {
  if (!tensor) contract::fail(function, name, "no tensor", "a managed tensor");
  return {tensor.tensor(), tensor.read_only()};
}

}  // namespace detail

/// The view of a tensor with elements of type T, `Rank` axes, and the tensor's own strides. Its
/// memory must outlive the view.
///
/// Null strides mean dense rows, the last axis fastest, as DLPack before 1.2 allows. A tensor of
/// bool can also be viewed as `const unsigned char`. A `const T` takes any strides; where elements
/// may be written, each index needs one of its own, as in every slice of a dense array.
///
/// name: what messages call the tensor. device: who reads the memory, dlpack_cpu or dlpack_cuda(i).
/// Pinned memory counts as the CPU's, managed memory as the CPU's and every CUDA device's.
///
/// Errors: `invalid_input` for another dtype, number of axes or device, negative extents, null
/// data where there are elements, strides or an offset beyond all memory, data that are not
/// aligned, and for a T without const also for repeated elements and a tensor for reading only.
template <class T, int Rank>
View<T, Rank> view(const DLTensor& tensor, const char* name = "tensor",
                   DLDevice device = dlpack_cpu) {
  return detail::checked_view_of_dlpack<T, Rank>(name, {tensor, false}, device);
}
/// The same of a managed tensor, which stays the caller's. Throws `invalid_input` for a null
/// pointer, too.
template <class T, int Rank>
View<T, Rank> view(const DLManagedTensor* managed, const char* name = "tensor",
                   DLDevice device = dlpack_cpu) {
  return detail::checked_view_of_dlpack<T, Rank>(
      name, detail::dlpack_source("gdpo::view", name, managed), device);
}
#if GDPO_DLPACK_VERSIONED
/// The same of a managed tensor that has a version and a read-only flag. Throws `invalid_input` for
/// a null pointer and another major version of DLPack, too.
template <class T, int Rank>
View<T, Rank> view(const DLManagedTensorVersioned* managed, const char* name = "tensor",
                   DLDevice device = dlpack_cpu) {
  return detail::checked_view_of_dlpack<T, Rank>(
      name, detail::dlpack_source("gdpo::view", name, managed), device);
}
#endif
/// The same of a tensor with its owner, which must outlive the view.
template <class T, int Rank>
View<T, Rank> view(const DlpackTensor& tensor, const char* name = "tensor",
                   DLDevice device = dlpack_cpu) {
  return detail::checked_view_of_dlpack<T, Rank>(
      name, detail::dlpack_source("gdpo::view", name, tensor), device);
}
/// Deleted, because the memory would end with the temporary.
template <class T, int Rank>
View<T, Rank> view(const DlpackTensor&&, const char* = "", DLDevice = dlpack_cpu) = delete;

namespace detail {

template <int Rank, class First, class... Types, class F>
std::invoke_result_t<F&, View<First, Rank>> visit_dlpack(F& f, const char* name,
                                                         const DlpackSource& source,
                                                         const DLDevice& device) {
  using Result = std::invoke_result_t<F&, View<First, Rank>>;
  static_assert(Rank >= 1 && Rank <= 3, "a view has rank 1, 2 or 3");
  static_assert((std::is_same_v<std::invoke_result_t<F&, View<Types, Rank>>, Result> && ...),
                "gdpo::visit_view: the function must return the same type for every element type");
  constexpr const char* function = "gdpo::visit_view";
  const TensorInfo info = dlpack_info(function, name, source, device);
  check_dtype<First, Types...>(function, name, info);
  return visit_checked<First, Types...>(info, [&](auto* element) -> Result {
    using T = std::remove_pointer_t<decltype(element)>;
    return f(view_of_dlpack<T, Rank>(function, name, info));
  });
}

}  // namespace detail

/// Calls f with the view of a tensor whose element type is known only at run time, and returns what
/// f returns. Types are the admitted element types, const or not; the first that the tensor has is
/// taken. Without Types all that the library reads are admitted: float, double, BFloat16, Float16,
/// bytes with bool, and signed integers, each const.
///
///     const auto a = gdpo::visit_view<2, const float, const double>(
///         rewards, [&](auto v) { return mean_reward(v); }, "rewards");
///
/// tensor: a DLTensor, a pointer to a managed tensor, or a DlpackTensor. name and device: as in
/// `view`. Errors: those of `view`; for another dtype the message lists the admitted ones.
template <int Rank, class... Types, class Tensor, class F>
decltype(auto) visit_view(const Tensor& tensor, F&& f, const char* name = "tensor",
                          DLDevice device = dlpack_cpu) {
  const detail::DlpackSource source = detail::dlpack_source("gdpo::visit_view", name, tensor);
  if constexpr (sizeof...(Types) > 0) {
    return detail::visit_dlpack<Rank, Types...>(f, name, source, device);
  } else {
    return detail::visit_dlpack<Rank, const float, const double, const BFloat16, const Float16,
                                const unsigned char, const signed char, const std::int16_t,
                                const std::int32_t, const std::int64_t>(f, name, source, device);
  }
}

/// A view in the form of DLPack: it holds the shape and the strides that a DLTensor points to. It
/// does not own the elements. Made by `to_dlpack`.
class DlpackView {
 public:
  /// A view of elements, which may be const if the receiver does not write them.
  template <class T, int Rank>
  DlpackView(View<T, Rank> v, DLDevice device)
      : data_(const_cast<std::remove_const_t<T>*>(v.data)),
        dtype_(detail::dlpack_dtype<T>()),
        device_(device),
        rank_(Rank) {
    for (int r = 0; r < Rank; ++r) shape_[r] = v.extent[r], strides_[r] = v.stride[r];
  }
  /// The tensor, which points into this object and must not outlive it.
  DLTensor tensor() const& {
    DLTensor t;
    t.data = data_, t.byte_offset = 0, t.dtype = dtype_, t.device = device_;
    t.ndim = rank_, t.shape = shape_, t.strides = strides_;
    return t;
  }
  /// Deleted, because shape and strides would end with the temporary.
  DLTensor tensor() const&& = delete;

 private:
  void* data_;
  DLDataType dtype_;
  DLDevice device_;
  int rank_;
  // A DLTensor points to these without const, but they must not be written.
  mutable std::int64_t shape_[3] = {}, strides_[3] = {};
};

/// A view as a tensor of DLPack, which the caller lends to a function:
///
///     const auto lent = gdpo::to_dlpack(gdpo::view(logp.data(), rows, width));
///     DLTensor tensor = lent.tensor();
///
/// Elements are not copied. Bool is written as bool, which libraries before DLPack 0.8 do not
/// know; view it as unsigned char for these. A view of const elements does not compile, because a
/// DLTensor cannot be marked as read-only. Errors: `invalid_input` for negative or overflowing
/// extents and a null pointer where there are elements.
template <class T, int Rank>
DlpackView to_dlpack(View<T, Rank> v, DLDevice device = dlpack_cpu) {
  static_assert(!std::is_const_v<T>,
                "a DLTensor cannot say that it is for reading only: give a view of elements that "
                "are not const, or use to_dlpack_managed<DLManagedTensorVersioned>");
  contract::check_array("gdpo::to_dlpack", "view", v);
  return {v, device};
}

namespace detail {

/// A managed tensor with all that it needs.
template <class Managed, class Owner>
struct DlpackContext {
  Owner owner;
  DlpackView lent;
  Managed managed;
  static void end(Managed* self) { delete static_cast<DlpackContext*>(self->manager_ctx); }
};

template <class Managed, class T, int Rank>
constexpr void check_managed() {
#if GDPO_DLPACK_VERSIONED
  constexpr bool versioned = std::is_same_v<Managed, DLManagedTensorVersioned>;
#else
  constexpr bool versioned = false;
#endif
  static_assert(versioned || std::is_same_v<Managed, DLManagedTensor>,
                "to_dlpack_managed makes a DLManagedTensor or a DLManagedTensorVersioned");
  static_assert(versioned || !std::is_const_v<T>,
                "a DLManagedTensor cannot say that it is for reading only: give a view of elements "
                "that are not const, or use to_dlpack_managed<DLManagedTensorVersioned>");
}

/// Makes the managed tensor; the arguments have been checked.
template <class Managed, class Owner, class T, int Rank>
std::unique_ptr<DlpackContext<Managed, Owner>> dlpack_context(Owner&& owner, View<T, Rank> v,
                                                              DLDevice device) {
  using Context = DlpackContext<Managed, Owner>;
  std::unique_ptr<Context> context(new Context{std::move(owner), {v, device}, {}});
  Managed& managed = context->managed;
#if GDPO_DLPACK_VERSIONED
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed.flags = std::is_const_v<T> ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
  }
#endif
  managed.dl_tensor = context->lent.tensor();
  managed.manager_ctx = context.get();
  managed.deleter = &Context::end;
  return context;
}

template <class C, class = void>
constexpr bool is_dlpack_owner_v = false;
template <class C>
constexpr bool
    is_dlpack_owner_v<C, std::void_t<decltype(std::declval<C&>().data(), std::declval<C&>().size(),
                                              *std::declval<C&>().data())>> = true;

}  // namespace detail

/// A view as a managed tensor, whose receiver calls the deleter. That lets go of `owner`, which
/// keeps the elements alive.
///
/// Managed is DLManagedTensor or DLManagedTensorVersioned. A view of const elements makes a
/// read-only tensor; it does not compile with the former, which has no flag for that. Errors:
/// `invalid_input` for a shared pointer that owns nothing, and those of `to_dlpack`.
template <class Managed, class T, int Rank>
Managed* to_dlpack_managed(std::shared_ptr<const void> owner, View<T, Rank> v,
                           DLDevice device = dlpack_cpu) {
  constexpr const char* function = "gdpo::to_dlpack_managed";
  detail::check_managed<Managed, T, Rank>();
  contract::check_array(function, "view", v);
  if (owner.use_count() == 0) {
    contract::fail(function, "owner", "a null pointer", "what keeps the elements alive");
  }
  return &detail::dlpack_context<Managed>(std::move(owner), v, device).release()->managed;
}

/// The same for elements of a container, such as a std::vector or an Array of Eigen, which is moved
/// into the tensor. It must keep its elements where they are when it is moved.
///
///     Eigen::ArrayXXf a(rows, 2);
///     auto* tensor = gdpo::to_dlpack_managed<DLManagedTensor>(std::move(a), gdpo::view(a));
///
/// Errors: `invalid_input` for a view of elements that the container does not have and for a
/// container whose elements move with it, and those of `to_dlpack`.
template <class Managed, class Container, class T, int Rank,
          std::enable_if_t<detail::is_dlpack_owner_v<Container> &&
                               !std::is_convertible_v<Container, std::shared_ptr<const void>>,
                           int> = 0>
Managed* to_dlpack_managed(Container&& container, View<T, Rank> v, DLDevice device = dlpack_cpu) {
  constexpr const char* function = "gdpo::to_dlpack_managed";
  static_assert(!std::is_lvalue_reference_v<Container> && !std::is_const_v<Container>,
                "the tensor takes the container over: write std::move(container)");
  detail::check_managed<Managed, T, Rank>();
  if (contract::check_array(function, "view", v) > 0) {
    detail::check_dlpack_strides(function, "view", v);
    index_t first = 0, last = 0;
    for (int r = 0; r < Rank; ++r)
      (v.stride[r] < 0 ? first : last) += (v.extent[r] - 1) * v.stride[r];
    // Both distances are below 2^63 bytes; addresses are compared as numbers, which wrap.
    const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
    const std::uintptr_t begin = address(container.data()),
                         size = static_cast<std::uintptr_t>(container.size()) *
                                sizeof(*container.data()),
                         offset = address(v.data) - begin,
                         bytes_before = static_cast<std::uintptr_t>(-first) * sizeof(T),
                         bytes_after = (static_cast<std::uintptr_t>(last) + 1) * sizeof(T);
    if (bytes_before > offset || offset > size || bytes_after > size - offset) {
      contract::fail(function, "view", "elements outside of the container",
                     "elements of the container");
    }
  }
  const void* const begin = container.data();
  auto context = detail::dlpack_context<Managed>(std::move(container), v, device);
  if (v.data && static_cast<const void*>(context->owner.data()) != begin) {
    contract::fail(function, "container", "one whose elements move with it",
                   "one that keeps them in their place, such as std::vector");
  }
  return &context.release()->managed;
}

/// The same for all elements of a vector, as a tensor with one axis.
///
///     auto* tensor = gdpo::to_dlpack_managed<DLManagedTensor>(gdpo::advantages(rewards, groups));
template <class Managed, class T, class Allocator>
Managed* to_dlpack_managed(std::vector<T, Allocator>&& vector, DLDevice device = dlpack_cpu) {
  return to_dlpack_managed<Managed>(std::move(vector), gdpo::view(vector), device);
}

GDPO_END_NAMESPACE
