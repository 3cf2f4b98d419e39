// The operators without PyTorch. The same object files that PyTorch loads are linked with this one,
// which defines the C functions of PyTorch's stable ABI that they call, for arrays of plain memory
// on the CPU, and a door of C functions, gdpo_arrays_*, by which Python (gdpo/_arrays.py) calls an
// operator on such arrays. Nothing else of this library is visible (arrays.map), so that PyTorch in
// the same process keeps its own functions of these names.
#include <pthread.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/stableivalue_conversions.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <gdpo/with/thread_pool.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

/// An array: memory, perhaps of somebody else, and how its elements lie in it. Strides are in
/// elements and may be negative.
struct AtenTensorOpaque {
  std::shared_ptr<void> owned;  ///< the memory, where it is the array's own
  void* data = nullptr;
  std::int32_t dtype = 0;
  std::vector<std::int64_t> sizes, strides;
};
struct StableListOpaque {
  std::vector<StableIValue> items;
};
struct StringOpaque {
  std::string text;
};

namespace {

using torch::headeronly::ScalarType;
using Boxed = void (*)(StableIValue*, std::uint64_t, std::uint64_t);

/// What register.cpp says when this library is loaded. It is made when the first asks, because the
/// order in which files of a library are initialized is not known.
struct Registry {
  std::string schemas;  ///< one a line
  std::map<std::string, Boxed> operators;
};
Registry& registry() {
  static Registry& only = *new Registry;
  return only;
}

/// The threads of all calls: a pool that is made when it is first needed, and made anew in a
/// process that was forked, which has none of the threads. Nothing waits for them at the end of the
/// process.
class Threads {
 public:
  static Threads& all() {
    static Threads& only = *new Threads;
    return only;
  }
  int number() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return number_;
  }
  void set_number(int number) {
    std::shared_ptr<gdpo::ThreadPool> before;  // ends when no call uses it, outside of the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    if (number != number_) before.swap(pool_);
    number_ = number;
  }
  std::shared_ptr<gdpo::ThreadPool> pool() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!pool_) pool_ = std::make_shared<gdpo::ThreadPool>(number_);
    return pool_;
  }

 private:
  Threads() {
    // As OpenMP does: a list has the number of the outermost level first.
    const char* given = std::getenv("OMP_NUM_THREADS");
    number_ = given ? std::atoi(given) : 0;
    if (number_ < 1) number_ = static_cast<int>(std::thread::hardware_concurrency());
    if (number_ < 1) number_ = 1;
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                   [] {
                     // The pool's threads and what they hold are gone: nobody ends it.
                     new std::shared_ptr<gdpo::ThreadPool>(std::move(all().pool_));
                     all().mutex_.unlock();
                   });
  }

  std::mutex mutex_;
  std::shared_ptr<gdpo::ThreadPool> pool_;
  int number_;
};

std::size_t element_size(std::int32_t dtype) {
  switch (static_cast<ScalarType>(dtype)) {
    case ScalarType::Double:
    case ScalarType::Long:
    case ScalarType::UInt64:
    case ScalarType::ComplexFloat:
      return 8;
    case ScalarType::Float:
    case ScalarType::Int:
    case ScalarType::UInt32:
      return 4;
    case ScalarType::BFloat16:
    case ScalarType::Half:
    case ScalarType::Short:
    case ScalarType::UInt16:
      return 2;
    case ScalarType::ComplexDouble:
      return 16;
    default:
      return 1;
  }
}

/// What f returns; failure if it throws, which is memory that is not there.
template <class F>
AOTITorchError guarded(const F& f) {
  try {
    f();
    return AOTI_TORCH_SUCCESS;
  } catch (...) {
    return AOTI_TORCH_FAILURE;
  }
}

}  // namespace

extern "C" {

// ---- the functions of PyTorch's stable ABI ----

std::uint64_t aoti_torch_abi_version() { return TORCH_TARGET_VERSION; }
std::int32_t aoti_torch_device_type_cpu() { return 0; }

#define GDPO_DTYPE(name, type) \
  std::int32_t aoti_torch_dtype_##name() { return static_cast<std::int32_t>(ScalarType::type); }
GDPO_DTYPE(bool, Bool)
GDPO_DTYPE(uint8, Byte)
GDPO_DTYPE(int8, Char)
GDPO_DTYPE(int16, Short)
GDPO_DTYPE(int32, Int)
GDPO_DTYPE(int64, Long)
GDPO_DTYPE(uint16, UInt16)
GDPO_DTYPE(uint32, UInt32)
GDPO_DTYPE(uint64, UInt64)
GDPO_DTYPE(bfloat16, BFloat16)
GDPO_DTYPE(float16, Half)
GDPO_DTYPE(float32, Float)
GDPO_DTYPE(float64, Double)
GDPO_DTYPE(float8_e4m3fn, Float8_e4m3fn)
GDPO_DTYPE(float8_e4m3fnuz, Float8_e4m3fnuz)
GDPO_DTYPE(float8_e5m2, Float8_e5m2)
GDPO_DTYPE(float8_e5m2fnuz, Float8_e5m2fnuz)
GDPO_DTYPE(complex32, ComplexHalf)
GDPO_DTYPE(complex64, ComplexFloat)
GDPO_DTYPE(complex128, ComplexDouble)
#undef GDPO_DTYPE

AOTITorchError aoti_torch_library_init_def(const char*, const char*, std::uint32_t,
                                           TorchLibraryHandle* library) {
  *library = nullptr;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_library_init_impl(const char*, const char*, const char*, std::uint32_t,
                                            TorchLibraryHandle* library) {
  *library = nullptr;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_library_init_fragment(const char*, const char*, std::uint32_t,
                                                TorchLibraryHandle* library) {
  *library = nullptr;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_delete_library_object(TorchLibraryHandle) { return AOTI_TORCH_SUCCESS; }
AOTITorchError aoti_torch_library_def(TorchLibraryHandle, const char* schema) {
  return guarded([&] { (registry().schemas += schema) += '\n'; });
}
AOTITorchError torch_library_impl(TorchLibraryHandle, const char* name, Boxed call, std::uint64_t) {
  return guarded([&] { registry().operators[name] = call; });
}

AOTITorchError aoti_torch_empty_strided(std::int64_t rank, const std::int64_t* sizes,
                                        const std::int64_t* strides, std::int32_t dtype,
                                        std::int32_t, std::int32_t, AtenTensorHandle* array) {
  return guarded([&] {
    auto made = std::make_unique<AtenTensorOpaque>();
    made->dtype = dtype;
    made->sizes.assign(sizes, sizes + rank), made->strides.assign(strides, strides + rank);
    std::size_t elements = 1;
    for (std::int64_t r = 0; r < rank; ++r) {
      if (sizes[r] == 0) elements = 0;
      if (elements != 0) elements += static_cast<std::size_t>((sizes[r] - 1) * strides[r]);
    }
    constexpr std::size_t line = 64;  // of the cache
    const std::size_t bytes = (std::max<std::size_t>)(elements * element_size(dtype), 1);
    made->data = std::aligned_alloc(line, (bytes + line - 1) / line * line);
    if (!made->data) throw std::bad_alloc();
    made->owned = std::shared_ptr<void>(made->data, std::free);
    *array = made.release();
  });
}
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle array, AtenTensorHandle* other) {
  return guarded([&] { *other = new AtenTensorOpaque(*array); });
}
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle array) {
  delete array;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle array, void** data) {
  *data = array->data;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_get_const_data_ptr(AtenTensorHandle array, const void** data) {
  *data = array->data;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle array, std::int32_t* dtype) {
  *dtype = array->dtype;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle, std::int32_t* type) {
  *type = aoti_torch_device_type_cpu();
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle, std::int32_t* index) {
  *index = -1;  // as PyTorch has it for the CPU
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_dim(AtenTensorHandle array, std::int64_t* rank) {
  *rank = static_cast<std::int64_t>(array->sizes.size());
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_numel(AtenTensorHandle array, std::int64_t* elements) {
  *elements = 1;
  for (const std::int64_t size : array->sizes) *elements *= size;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle array, std::int64_t** sizes) {
  *sizes = array->sizes.data();
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_strides(AtenTensorHandle array, std::int64_t** strides) {
  *strides = array->strides.data();
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_size(AtenTensorHandle array, std::int64_t axis, std::int64_t* size) {
  const auto rank = static_cast<std::int64_t>(array->sizes.size());
  if (axis < -rank || axis >= rank) return AOTI_TORCH_FAILURE;
  *size = array->sizes[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)];
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_stride(AtenTensorHandle array, std::int64_t axis,
                                     std::int64_t* stride) {
  const auto rank = static_cast<std::int64_t>(array->sizes.size());
  if (axis < -rank || axis >= rank) return AOTI_TORCH_FAILURE;
  *stride = array->strides[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)];
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_is_contiguous(AtenTensorHandle array, bool* contiguous) {
  std::int64_t dense = 1, elements = 1;
  for (const std::int64_t size : array->sizes) elements *= size;
  *contiguous = true;
  for (std::size_t r = array->sizes.size(); elements != 0 && r-- > 0;) {
    if (array->sizes[r] == 1) continue;
    if (array->strides[r] != dense) *contiguous = false;
    dense *= array->sizes[r];
  }
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError torch_new_list_reserve_size(std::size_t size, StableListHandle* list) {
  return guarded([&] {
    auto made = std::make_unique<StableListOpaque>();
    made->items.reserve(size);
    *list = made.release();
  });
}
AOTITorchError torch_list_push_back(StableListHandle list, StableIValue item) {
  return guarded([&] { list->items.push_back(item); });
}
AOTITorchError torch_list_size(StableListHandle list, std::size_t* size) {
  *size = list->items.size();
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_list_get_item(StableListHandle list, std::size_t index, StableIValue* item) {
  *item = list->items[index];
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_delete_list(StableListHandle list) {
  delete list;
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError torch_new_string_handle(const char* text, std::size_t size, StringHandle* string) {
  return guarded([&] { *string = new StringOpaque{std::string(text, size)}; });
}
AOTITorchError torch_delete_string(StringHandle string) {
  delete string;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_string_length(StringHandle string, std::size_t* size) {
  *size = string->text.size();
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_string_c_str(StringHandle string, const char** text) {
  *text = string->text.c_str();
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError torch_get_num_threads(std::uint32_t* number) {
  *number = static_cast<std::uint32_t>(Threads::all().number());
  return AOTI_TORCH_SUCCESS;
}
// Each thread takes one range, as those of PyTorch do. A range that throws ends the program; those
// of the operators do not (core/exec.hpp).
AOTITorchError torch_parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                                  ParallelFunc call, void* context) {
  return guarded([&] {
    const std::int64_t n = end - begin;
    if (n <= 0) return;
    const std::int64_t most = (n + grain - 1) / (std::max<std::int64_t>)(grain, 1);
    const std::int64_t ranges = (std::min<std::int64_t>)(Threads::all().number(), most);
    if (ranges <= 1) return call(begin, end, context);
    const auto pool = Threads::all().pool();
    pool->for_each(ranges, [&](gdpo::index_t i) {
      call(begin + n * i / ranges, begin + n * (i + 1) / ranges, context);
    });
  });
}

// ---- the door ----
// Values are those of the stable ABI: numbers as their bytes, others as handles. An operator takes
// what it is given, and its caller what it returns; of what a value holds, nothing is copied.

#define GDPO_DOOR __attribute__((visibility("default")))

/// The schemas of all operators, one a line.
GDPO_DOOR const char* gdpo_arrays_schemas() { return registry().schemas.c_str(); }

/// An array of memory that the caller keeps until the array is gone. Strides are in elements.
GDPO_DOOR AtenTensorHandle gdpo_arrays_array(void* data, std::int32_t dtype, std::int64_t rank,
                                             const std::int64_t* sizes,
                                             const std::int64_t* strides) {
  auto* array = new (std::nothrow) AtenTensorOpaque;
  if (!array) return nullptr;
  array->data = data, array->dtype = dtype;
  array->sizes.assign(sizes, sizes + rank), array->strides.assign(strides, strides + rank);
  return array;
}
/// What an array is; whether the memory is its own.
GDPO_DOOR bool gdpo_arrays_read(AtenTensorHandle array, void** data, std::int32_t* dtype,
                                std::int64_t* rank, const std::int64_t** sizes,
                                const std::int64_t** strides) {
  *data = array->data, *dtype = array->dtype;
  *rank = static_cast<std::int64_t>(array->sizes.size());
  *sizes = array->sizes.data(), *strides = array->strides.data();
  return array->owned != nullptr;
}
/// Ends an array; its memory too, where it is its own and no other array's.
GDPO_DOOR void gdpo_arrays_free(AtenTensorHandle array) { delete array; }

GDPO_DOOR StringHandle gdpo_arrays_string(const char* text, std::size_t size) {
  return new StringOpaque{std::string(text, size)};
}
GDPO_DOOR const char* gdpo_arrays_text(StringHandle string, std::size_t* size) {
  *size = string->text.size();
  return string->text.data();
}
GDPO_DOOR void gdpo_arrays_free_string(StringHandle string) { delete string; }

GDPO_DOOR StableListHandle gdpo_arrays_list(const StableIValue* items, std::size_t size) {
  return new StableListOpaque{std::vector<StableIValue>(items, items + size)};
}
GDPO_DOOR const StableIValue* gdpo_arrays_items(StableListHandle list, std::size_t* size) {
  *size = list->items.size();
  return list->items.data();
}
/// Ends a list, but not what it holds.
GDPO_DOOR void gdpo_arrays_free_list(StableListHandle list) { delete list; }

/// A value for an argument that may be absent; that of an absent one is 0.
GDPO_DOOR StableIValue* gdpo_arrays_some(StableIValue value) { return new StableIValue(value); }

/// The operator of that name; null for none.
GDPO_DOOR Boxed gdpo_arrays_operator(const char* name) {
  const auto found = registry().operators.find(name);
  return found == registry().operators.end() ? nullptr : found->second;
}
/// Calls an operator on a stack of its arguments, whose begin its results replace. Null, or what it
/// threw, a string.
GDPO_DOOR StringHandle gdpo_arrays_call(Boxed call, StableIValue* stack, std::uint64_t arguments,
                                        std::uint64_t results) {
  try {
    call(stack, arguments, results);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return new StringOpaque{"out of memory"};
  } catch (const std::exception& error) {
    return new StringOpaque{error.what()};
  } catch (...) {
    return new StringOpaque{"gdpo: an exception of an unknown type"};
  }
}

GDPO_DOOR int gdpo_arrays_threads() { return Threads::all().number(); }
/// Calls that are at work keep the threads that they have.
GDPO_DOOR void gdpo_arrays_set_threads(int number) { Threads::all().set_number(number); }

}  // extern "C"
