// labels: sanitizers
// Tensors of DLPack as views and views as tensors: every element type, strides, devices, who may
// write, who ends what, and the words of each refusal. The executable gdpo_dlpack_1_tests compiles
// this file with the structs of DLPack 1.0, gdpo_tests with those of the system's header.
#if defined(GDPO_TEST_DLPACK_1)
#include "support/dlpack_1.hpp"
#endif
#include <array>
#include <cstdint>
#include <gdpo/advantages.hpp>
#include <gdpo/with/dlpack.hpp>
#include <memory>
#include <numeric>
#include <set>
#include <tuple>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace {

using gdpo::index_t;
constexpr std::int64_t lowest = (std::numeric_limits<std::int64_t>::min)();
constexpr std::int64_t highest = (std::numeric_limits<std::int64_t>::max)();

constexpr DLDataType type(int code, int bits, int lanes = 1) {
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits),
          static_cast<std::uint16_t>(lanes)};
}
DLDevice device(int number, int id = 0) {
  DLDevice d{};
  static_assert(sizeof d.device_type == sizeof number);
  std::memcpy(&d.device_type, &number, sizeof number);
  d.device_id = id;
  return d;
}

#if GDPO_DLPACK_VERSIONED
using ManagedTensors = std::tuple<DLManagedTensor, DLManagedTensorVersioned>;
#else
using ManagedTensors = std::tuple<DLManagedTensor>;
#endif

// A tensor with memory for its shape and strides.
struct Made {
  std::vector<std::int64_t> shape, strides;
  DLTensor tensor{};
  Made(void* data, DLDataType dtype, std::vector<std::int64_t> its_shape,
       std::vector<std::int64_t> its_strides = {})
      : shape(std::move(its_shape)), strides(std::move(its_strides)) {
    tensor.data = data, tensor.dtype = dtype, tensor.device = gdpo::dlpack_cpu;
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.shape = shape.data(), tensor.strides = strides.empty() ? nullptr : strides.data();
  }
  Made(const Made&) = delete;
  operator const DLTensor&() const { return tensor; }
};

// A managed tensor that counts how often its deleter was called.
template <class Managed>
struct Counted {
  Made made;
  Managed managed{};
  int ends = 0;
  explicit Counted(std::vector<float>& values)
      : made(values.data(), type(kDLFloat, 32), {static_cast<std::int64_t>(values.size())}) {
    managed.dl_tensor = made.tensor, managed.manager_ctx = &ends;
    managed.deleter = [](Managed* self) { ++*static_cast<int*>(self->manager_ctx); };
#if GDPO_DLPACK_VERSIONED
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>)
      managed.version = {DLPACK_MAJOR_VERSION, 7};
#endif
  }
};

template <class T, int Rank>
std::vector<double> values_of(const gdpo::View<T, Rank>& v) {
  std::vector<double> values;
  for (index_t i = 0; i < v.extent[0]; ++i) {
    if constexpr (Rank == 1) {
      values.push_back(gdpo::load(v(i)));
    } else {
      for (index_t j = 0; j < v.extent[1]; ++j) {
        if constexpr (Rank == 2) {
          values.push_back(gdpo::load(v(i, j)));
        } else {
          for (index_t k = 0; k < v.extent[2]; ++k) values.push_back(gdpo::load(v(i, j, k)));
        }
      }
    }
  }
  return values;
}

// Views T as the dtype, and refuses it as a dtype with another code, width or number of lanes.
template <class T>
void check_type(DLDataType dtype, T first, T second, std::vector<double> expected,
                const char* name) {
  T data[] = {first, second};
  INFO(name);
  CHECK(values_of(gdpo::view<const T, 1>(Made(data, dtype, {2}))) == expected);
  const auto writable = gdpo::view<T, 1>(Made(data, dtype, {2}));
  CHECK(writable.data == data);
  static_assert(std::is_same_v<decltype(writable), const gdpo::View<T, 1>>);
  for (const DLDataType other :
       {type(dtype.code == kDLComplex - 1 ? 0 : dtype.code + 1, dtype.bits),
        type(dtype.code, 2 * dtype.bits), type(dtype.code, dtype.bits, 2), type(99, dtype.bits)}) {
    if (std::is_same_v<T, std::int8_t> || std::is_same_v<T, unsigned char>) continue;
    CHECK_THROWS_AS((gdpo::view<T, 1>(Made(data, other, {2}))), gdpo::invalid_input);
  }
  const auto lent = gdpo::to_dlpack(gdpo::view(data, 2));
  const DLTensor back = lent.tensor();
  CHECK(back.dtype.code == dtype.code);
  CHECK(back.dtype.bits == dtype.bits);
  CHECK(back.dtype.lanes == 1);
  CHECK(message_of([&] { gdpo::view<T, 1>(Made(data, type(kDLComplex, 64), {2}), "x"); }) ==
        "gdpo::view: x: given complex64; needed: " + std::string(name));
}

template <class T, int Rank = 1>
std::string refusal(const Made& made, DLDevice by = gdpo::dlpack_cpu) {
  const std::string message = message_of([&] { gdpo::view<T, Rank>(made.tensor, "logp", by); });
  const std::string begin = "gdpo::view: logp: ";
  return message.compare(0, begin.size(), begin) == 0 ? message.substr(begin.size()) : message;
}

}  // namespace

TEST_CASE("DLPack: every element type comes and goes", "[dlpack]") {
  check_type<float>(type(kDLFloat, 32), 0.5f, -2, {0.5, -2}, "float32");
  check_type<double>(type(kDLFloat, 64), 0.25, 3, {0.25, 3}, "float64");
  check_type<gdpo::Float16>(type(kDLFloat, 16), {0x3c00}, {0xc000}, {1, -2}, "float16");
  check_type<gdpo::BFloat16>(type(kDLBfloat, 16), {0x3f80}, {0xc000}, {1, -2}, "bfloat16");
  check_type<bool>(type(6, 8), true, false, {1, 0}, "bool");
  check_type<unsigned char>(type(kDLUInt, 8), 200, 1, {200, 1}, "uint8");
  check_type<std::int8_t>(type(kDLInt, 8), -3, 1, {-3, 1}, "int8");
  check_type<std::int16_t>(type(kDLInt, 16), -300, 1, {-300, 1}, "int16");
  check_type<std::uint16_t>(type(kDLUInt, 16), 300, 1, {300, 1}, "uint16");
  check_type<std::int32_t>(type(kDLInt, 32), -70000, 1, {-70000, 1}, "int32");
  check_type<std::uint32_t>(type(kDLUInt, 32), 70000, 1, {70000, 1}, "uint32");
  check_type<std::int64_t>(type(kDLInt, 64), -7, 1, {-7, 1}, "int64");
  check_type<long long>(type(kDLInt, 64), -7, 1, {-7, 1}, "int64");
  check_type<std::uint64_t>(type(kDLUInt, 64), 7, 1, {7, 1}, "uint64");
}

TEST_CASE("DLPack: bool is read as bytes, and not written as such", "[dlpack]") {
  unsigned char bytes[] = {1, 0};
  const Made flags(bytes, type(6, 8), {2}), numbers(bytes, type(kDLUInt, 8), {2});
  CHECK(gdpo::view<const unsigned char, 1>(flags).data == bytes);
  CHECK(refusal<unsigned char>(flags) == "given bool; needed: uint8");
  CHECK(refusal<bool>(numbers) == "given uint8; needed: bool");
  CHECK(refusal<const bool>(numbers) == "given uint8; needed: bool");
  CHECK(refusal<const std::int8_t>(flags) == "given bool; needed: int8");
  CHECK(refusal<const unsigned char>(Made(bytes, type(kDLInt, 8), {2})) ==
        "given int8; needed: uint8 or bool");
}

TEST_CASE("DLPack: strides, offsets and axes are the tensor's own", "[dlpack]") {
  std::vector<float> data(24);
  std::iota(data.begin(), data.end(), 0.0f);
  const DLDataType f = type(kDLFloat, 32);
  const auto whole = gdpo::view<const float, 3>(Made(data.data(), f, {2, 3, 4}));
  CHECK(values_of(whole) == std::vector<double>(data.begin(), data.end()));
  CHECK(std::vector<index_t>(whole.stride, whole.stride + 3) == std::vector<index_t>{12, 4, 1});
  CHECK(values_of(gdpo::view<float, 2>(Made(data.data(), f, {2, 3}, {1, 8}))) ==
        std::vector<double>{0, 8, 16, 1, 9, 17});
  Made backwards(data.data(), f, {3}, {-2});
  backwards.tensor.byte_offset = 5 * sizeof(float);
  CHECK(values_of(gdpo::view<float, 1>(backwards)) == std::vector<double>{5, 3, 1});
  // One element read again and again; for reading only.
  CHECK(values_of(gdpo::view<const float, 2>(Made(data.data() + 7, f, {2, 2}, {0, 0}))) ==
        std::vector<double>{7, 7, 7, 7});
  // The stride of an axis with one element steps nowhere.
  CHECK(values_of(gdpo::view<float, 2>(Made(data.data(), f, {1, 2}, {lowest, 3}))) ==
        std::vector<double>{0, 3});
  CHECK(values_of(gdpo::view<float, 2>(Made(data.data(), f, {1, 2}, {0, 3}))) ==
        std::vector<double>{0, 3});
}

TEST_CASE("DLPack: tensors without elements", "[dlpack]") {
  const DLDataType f = type(kDLFloat, 32);
  const auto none = gdpo::view<float, 2>(Made(nullptr, f, {0, 3}));
  CHECK(none.data == nullptr);
  CHECK(none.extent[1] == 3);
  CHECK(gdpo::view<float, 2>(Made(nullptr, f, {3, 0})).extent[0] == 3);
  // Strides and alignment of elements that are not there do not matter.
  float one = 0;
  Made empty(&one, f, {3, 0}, {0, highest});
  empty.tensor.byte_offset = 1;
  CHECK(gdpo::view<float, 2>(empty).stride[1] == highest);
}

TEST_CASE("DLPack: a tensor that does not fit is refused", "[dlpack]") {
  std::vector<float> data(8);
  const DLDataType f = type(kDLFloat, 32);
  float* const p = data.data();
  CHECK(refusal<float>(Made(p, type(kDLFloat, 64), {2})) == "given float64; needed: float32");
  CHECK(refusal<float>(Made(p, type(kDLFloat, 32, 4), {2})) ==
        "given float32 in 4 lanes; needed: float32");
  CHECK(refusal<float>(Made(p, type(kDLInt, 32), {2})) == "given int32; needed: float32");
  CHECK(refusal<gdpo::Float16>(Made(p, type(kDLBfloat, 16), {2})) ==
        "given bfloat16; needed: float16");
  CHECK(refusal<float>(Made(p, type(12, 8), {2})) ==
        "given a dtype with code 12 and 8 bits; needed: float32");
  CHECK(refusal<bool>(Made(p, type(6, 1), {2})) == "given bool of 1 bits; needed: bool");
  CHECK(refusal<float, 2>(Made(p, f, {2})) == "given (2); needed: rank 2");
  CHECK(refusal<float, 1>(Made(p, f, {2, 2})) == "given (2, 2); needed: rank 1");
  CHECK(refusal<float, 1>(Made(p, f, {})) == "given (); needed: rank 1");
  Made shapeless(p, f, {2});
  shapeless.tensor.shape = nullptr;
  CHECK(refusal<float>(shapeless) == "given a null pointer; needed: a shape");
  CHECK(refusal<float, 2>(Made(p, f, {2, -1})) == "given (2, -1); needed: extents of at least 0");
  CHECK(refusal<float, 2>(Made(p, f, {highest, 2})) ==
        "given (9223372036854775807, 2); needed: at most 2^48 elements, more than memory holds");
  CHECK(refusal<float, 2>(Made(nullptr, f, {2, 3})) ==
        "given a null pointer; needed: (2, 3) elements");
  Made wrapping(p, f, {2});
  wrapping.tensor.byte_offset = (std::numeric_limits<std::uint64_t>::max)();
  CHECK(refusal<float>(wrapping) ==
        "given a byte_offset of 18446744073709551615; needed: one within the memory");
  Made unaligned(p, f, {2});
  unaligned.tensor.byte_offset = 5;
  CHECK(refusal<const float>(unaligned) ==
        "given data 1 bytes beyond an element's boundary; needed: data at a multiple of 4 bytes");
}

TEST_CASE("DLPack: strides that leave all memory are refused", "[dlpack]") {
  float data[4] = {};
  const DLDataType f = type(kDLFloat, 32);
  const std::string needed = "; needed: elements at most 2^63 - 1 bytes apart";
  CHECK(refusal<const float>(Made(data, f, {2}, {highest / 4 + 1})) ==
        "given strides (2305843009213693952)" + needed);
  CHECK(refusal<const float>(Made(data, f, {2}, {highest / 4})) == "no error");
  CHECK(refusal<const float>(Made(data, f, {2}, {-(highest / 4)})) == "no error");
  CHECK(refusal<const float>(Made(data, f, {3}, {highest / 8})) == "no error");
  CHECK(refusal<const float>(Made(data, f, {3}, {highest / 8 + 1})) ==
        "given strides (1152921504606846976)" + needed);
  CHECK(refusal<float>(Made(data, f, {2}, {lowest})) ==
        "given strides (-9223372036854775808)" + needed);
  // Each axis alone would fit.
  CHECK(refusal<const float, 2>(Made(data, f, {2, 2}, {highest / 4, 1})) ==
        "given strides (2305843009213693951, 1)" + needed);
  CHECK(refusal<const float, 2>(Made(data, f, {2, 2}, {highest / 4 - 1, -1})) == "no error");
}

TEST_CASE("DLPack: elements for writing do not overlap", "[dlpack]") {
  float data[4] = {};
  const DLDataType f = type(kDLFloat, 32);
  CHECK(
      refusal<float, 2>(Made(data, f, {2, 3}, {1, 0})) ==
      "given strides (1, 0) for shape (2, 3), which repeat elements; needed: an element of its own "
      "for each index, because it is written");
  CHECK(
      refusal<float, 2>(Made(data, f, {2, 2}, {1, 1})) ==
      "given strides (1, 1) for shape (2, 2), which repeat elements; needed: an element of its own "
      "for each index, because it is written");
  CHECK(refusal<float, 2>(Made(data, f, {2, 1}, {1, 0})) == "no error");
  CHECK(refusal<const float, 2>(Made(data, f, {2, 3}, {1, 0})) == "no error");
}

TEST_CASE("DLPack: each device sees its own memory", "[dlpack]") {
  float data[2] = {};
  const auto on = [&](DLDevice memory, DLDevice by) {
    Made made(data, type(kDLFloat, 32), {2});
    made.tensor.device = memory;
    return refusal<float>(made, by);
  };
  const DLDevice cpu = gdpo::dlpack_cpu, cuda = gdpo::dlpack_cuda(1);
  CHECK(on(device(kDLCPU, 3), cpu) == "no error");
  CHECK(on(device(kDLCUDAHost), cpu) == "no error");
  CHECK(on(device(kDLROCMHost), cpu) == "no error");
  CHECK(on(device(kDLCUDAManaged), cpu) == "no error");
  CHECK(on(device(kDLCUDAManaged), cuda) == "no error");
  CHECK(on(device(kDLCUDA, 1), cuda) == "no error");
  CHECK(on(device(kDLROCM, 2), device(kDLROCM, 2)) == "no error");
  CHECK(on(device(kDLCUDA, 1), cpu) == "given CUDA device 1; needed: the CPU");
  CHECK(on(device(kDLCUDA), cuda) == "given CUDA device 0; needed: CUDA device 1");
  CHECK(on(cpu, cuda) == "given the CPU; needed: CUDA device 1");
  CHECK(on(device(kDLCUDAHost), cuda) == "given pinned host memory of CUDA; needed: CUDA device 1");
  CHECK(on(device(kDLCUDAManaged), device(kDLROCM)) ==
        "given managed memory of CUDA; needed: device 0 of type 10");
  CHECK(on(device(99, 4), cpu) == "given device 4 of type 99; needed: the CPU");
}

TEST_CASE("DLPack: the name of a tensor is 'tensor' unless it is given", "[dlpack]") {
  std::vector<float> data(2);
  Counted<DLManagedTensor> counted(data);
  CHECK(message_of([&] { gdpo::view<double, 1>(counted.made.tensor); }) ==
        "gdpo::view: tensor: given float32; needed: float64");
  CHECK(message_of([&] { gdpo::view<double, 1>(&counted.managed); }) ==
        "gdpo::view: tensor: given float32; needed: float64");
  CHECK(message_of([&] { gdpo::view<double, 1>(&counted.managed, "mask"); }) ==
        "gdpo::view: mask: given float32; needed: float64");
  const DLManagedTensor* const none = nullptr;
  CHECK(message_of([&] { gdpo::view<float, 1>(none, "mask"); }) ==
        "gdpo::view: mask: given a null pointer; needed: a managed tensor");
  CHECK(gdpo::view<float, 1>(&counted.managed).data == data.data());
}

TEST_CASE("DLPack: visit_view takes the types that it is given", "[dlpack]") {
  double numbers[] = {1.5, 2.5};
  std::int64_t ids[] = {4, 5};
  const Made f(numbers, type(kDLFloat, 64), {2}), i(ids, type(kDLInt, 64), {2});
  const auto last = [](auto v) { return gdpo::load(v(1)); };
  const auto visit = [&](const Made& m) {
    return gdpo::visit_view<1, const float, const double>(m.tensor, last, "rewards");
  };
  CHECK(visit(f) == 2.5);
  CHECK(message_of([&] { visit(i); }) ==
        "gdpo::visit_view: rewards: given int64; needed: one of float32, float64");
  CHECK(message_of([&] { gdpo::visit_view<1, const double>(i.tensor, last, "rewards"); }) ==
        "gdpo::visit_view: rewards: given int64; needed: float64");
  CHECK(gdpo::visit_view<1>(f.tensor, last) == 2.5);
  CHECK(gdpo::visit_view<1>(i.tensor, last) == 5);
  CHECK(message_of([&] { gdpo::visit_view<1>(Made(ids, type(kDLUInt, 64), {2}).tensor, last); }) ==
        "gdpo::visit_view: tensor: given uint64; needed: one of float32, float64, bfloat16, "
        "float16, uint8 or bool, int8, int16, int32, int64");
  // Elements without const may be written.
  gdpo::visit_view<1, float, double>(f.tensor, [](auto v) { v(0) = 7; });
  CHECK(numbers[0] == 7);
  // A reference is returned as one.
  double& element = gdpo::visit_view<1, double>(
      f.tensor, [](auto v) -> auto& { return v(0); });
  CHECK(&element == numbers);
  // What `view` refuses, visit_view refuses in its own name.
  CHECK(message_of([&] {
          gdpo::visit_view<2>(
              f.tensor, [](auto) {}, "ids");
        }) == "gdpo::visit_view: ids: given (2); needed: rank 2");
  CHECK(message_of([&] { gdpo::visit_view<1>(f.tensor, last, "ids", gdpo::dlpack_cuda()); }) ==
        "gdpo::visit_view: ids: given the CPU; needed: CUDA device 0");
  // It keeps to the order of the types, and calls the function once.
  unsigned char bytes[] = {1, 0};
  int calls = 0;
  const bool as_bool = gdpo::visit_view<1, const bool, const unsigned char>(
      Made(bytes, type(6, 8), {2}).tensor, [&](auto v) {
        ++calls;
        return std::is_same_v<decltype(v), gdpo::View<const bool, 1>>;
      });
  CHECK(as_bool);
  CHECK(calls == 1);
}

TEST_CASE("DLPack: every type that visit_view admits by itself", "[dlpack]") {
  alignas(8) unsigned char memory[16] = {};
  const auto size = [](auto v) { return sizeof(v(0)); };
  for (const DLDataType t : {type(kDLFloat, 32), type(kDLFloat, 64), type(kDLBfloat, 16),
                             type(kDLFloat, 16), type(kDLUInt, 8), type(6, 8), type(kDLInt, 8),
                             type(kDLInt, 16), type(kDLInt, 32), type(kDLInt, 64)}) {
    INFO(int{t.code} << " " << int{t.bits});
    CHECK(gdpo::visit_view<1>(Made(memory, t, {2}).tensor, size) * 8 == t.bits);
  }
}

TEMPLATE_LIST_TEST_CASE("DLPack: an owner calls the deleter once", "[dlpack]", ManagedTensors) {
  std::vector<float> data{1, 2, 3};
  Counted<TestType> a(data), b(data);
  {
    const gdpo::DlpackTensor tensor(&a.managed);
    CHECK(static_cast<bool>(tensor));
    CHECK_FALSE(tensor.read_only());
    CHECK(&tensor.tensor() == &a.managed.dl_tensor);
    CHECK(gdpo::view<float, 1>(tensor, "x").data == data.data());
    CHECK(gdpo::visit_view<1>(tensor, [](auto v) { return v.extent[0]; }) == 3);
    CHECK(gdpo::visit_view<1>(&a.managed, [](auto v) { return v.extent[0]; }) == 3);
    CHECK(message_of([&] { gdpo::view<double, 1>(tensor, "x"); }) ==
          "gdpo::view: x: given float32; needed: float64");
    CHECK(a.ends == 0);
  }
  CHECK(a.ends == 1);
  {
    gdpo::DlpackTensor first(&a.managed), second(&b.managed);
    gdpo::DlpackTensor moved(std::move(first));
    CHECK_FALSE(static_cast<bool>(first));
    CHECK(a.ends == 1);
    second = std::move(moved);  // ends b
    CHECK(b.ends == 1);
    CHECK(&second.tensor() == &a.managed.dl_tensor);
    gdpo::DlpackTensor& same = second;
    second = std::move(same);
    CHECK(&second.tensor() == &a.managed.dl_tensor);
    CHECK(a.ends == 1);
  }
  CHECK(a.ends == 2);
  CHECK(b.ends == 1);
  a.managed.deleter = nullptr;
  gdpo::DlpackTensor without(&a.managed);
  without = gdpo::DlpackTensor();
  CHECK(a.ends == 2);
}

TEST_CASE("DLPack: an owner without a tensor", "[dlpack]") {
  static_assert(!std::is_copy_constructible_v<gdpo::DlpackTensor>);
  static_assert(!std::is_copy_assignable_v<gdpo::DlpackTensor>);
  static_assert(std::is_nothrow_move_constructible_v<gdpo::DlpackTensor>);
  static_assert(!std::is_convertible_v<DLManagedTensor*, gdpo::DlpackTensor>);
  const gdpo::DlpackTensor none;
  CHECK_FALSE(static_cast<bool>(none));
  CHECK(message_of([&] { none.tensor(); }) ==
        "gdpo::DlpackTensor: tensor: given none; needed: a managed tensor");
  CHECK(message_of([&] { gdpo::view<float, 1>(none, "x"); }) ==
        "gdpo::view: x: given no tensor; needed: a managed tensor");
  CHECK(message_of([&] {
          gdpo::visit_view<1>(
              none, [](auto) {}, "x");
        }) == "gdpo::visit_view: x: given no tensor; needed: a managed tensor");
  CHECK(message_of([] { gdpo::DlpackTensor(static_cast<DLManagedTensor*>(nullptr)); }) ==
        "gdpo::DlpackTensor: managed: given a null pointer; needed: a managed tensor");
}

TEST_CASE("DLPack: a view is lent with its shape, strides and device", "[dlpack]") {
  std::vector<float> data(12);
  std::iota(data.begin(), data.end(), 0.0f);
  const gdpo::View<float, 2> v{data.data() + 11, {3, 2}, {-4, -1}};
  const gdpo::DlpackView lent = gdpo::to_dlpack(v);
  const gdpo::DlpackView copy = lent;
  const DLTensor t = copy.tensor();
  CHECK(t.data == v.data);
  CHECK(t.ndim == 2);
  CHECK(t.byte_offset == 0);
  CHECK(t.device.device_type == kDLCPU);
  CHECK(t.shape != lent.tensor().shape);  // each points into its own
  const auto back = gdpo::view<float, 2>(t);
  CHECK(values_of(back) == values_of(v));
  CHECK(back.stride[0] == -4);
  CHECK(back.stride[1] == -1);
  const auto on_device = gdpo::to_dlpack(v, gdpo::dlpack_cuda(2));
  CHECK(on_device.tensor().device.device_type == kDLCUDA);
  CHECK(on_device.tensor().device.device_id == 2);
  const auto cube = gdpo::to_dlpack(gdpo::view(data.data(), 2, 3, 2));
  CHECK(gdpo::view<float, 3>(cube.tensor()).stride[0] == 6);
  CHECK(message_of([] {
          gdpo::to_dlpack(gdpo::View<float, 1>{nullptr, {2}, {1}});
        }) == "gdpo::to_dlpack: view: given a null pointer; needed: (2) elements");
  CHECK(message_of([&] { gdpo::to_dlpack(gdpo::view(data.data(), -2)); }) ==
        "gdpo::to_dlpack: view: given (-2); needed: extents of at least 0");
  const auto nothing = gdpo::to_dlpack(gdpo::View<float, 1>{});
  CHECK(nothing.tensor().data == nullptr);
}

TEMPLATE_LIST_TEST_CASE("DLPack: a managed tensor lets go of what it holds", "[dlpack]",
                        ManagedTensors) {
  const auto values = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4});
  const auto table = gdpo::view(values->data(), 2, 2);
  {
    TestType* managed = gdpo::to_dlpack_managed<TestType>(values, table, gdpo::dlpack_cuda(1));
    CHECK(values.use_count() == 2);
    CHECK(managed->dl_tensor.device.device_id == 1);
    const gdpo::DlpackTensor tensor(managed);
    CHECK_FALSE(tensor.read_only());
    const auto v = gdpo::view<float, 2>(tensor, "x", gdpo::dlpack_cuda(1));
    CHECK(v.data == values->data());
    CHECK(values_of(v) == std::vector<double>{1, 2, 3, 4});
#if GDPO_DLPACK_VERSIONED
    if constexpr (std::is_same_v<TestType, DLManagedTensorVersioned>) {
      CHECK(managed->version.major == DLPACK_MAJOR_VERSION);
      CHECK(managed->version.minor == DLPACK_MINOR_VERSION);
      CHECK(managed->flags == 0);
    }
#endif
  }
  CHECK(values.use_count() == 1);

  const auto made = [](auto* managed) {
    const gdpo::DlpackTensor tensor(managed);
    return values_of(gdpo::view<float, 1>(tensor));
  };
  CHECK(made(gdpo::to_dlpack_managed<TestType>(std::vector<float>{5, 6})) ==
        std::vector<double>{5, 6});
  std::vector<float> row{1, 2, 3, 4};
  const gdpo::View<float, 1> odd{row.data() + 3, {2}, {-2}};
  CHECK(made(gdpo::to_dlpack_managed<TestType>(std::move(row), odd)) == std::vector<double>{4, 2});
  auto raw = std::make_unique<float[]>(2);
  raw[1] = 8;
  const auto pair = gdpo::view(raw.get(), 2);
  CHECK(made(gdpo::to_dlpack_managed<TestType>(std::move(raw), pair)) == std::vector<double>{0, 8});
  CHECK(made(gdpo::to_dlpack_managed<TestType>(std::vector<float>())) == std::vector<double>{});
}

TEST_CASE("DLPack: what a managed tensor refuses", "[dlpack]") {
  using Managed = DLManagedTensor;
  float one = 0;
  CHECK(message_of([&] { gdpo::to_dlpack_managed<Managed>(nullptr, gdpo::view(&one, 1)); }) ==
        "gdpo::to_dlpack_managed: owner: given a null pointer; needed: what keeps the elements "
        "alive");
  CHECK(message_of([&] {
          gdpo::to_dlpack_managed<Managed>(std::make_shared<int>(),
                                           gdpo::View<float, 1>{nullptr, {1}, {1}});
        }) == "gdpo::to_dlpack_managed: view: given a null pointer; needed: (1) elements");
  const std::string outside =
      "gdpo::to_dlpack_managed: view: given elements outside of the container; needed: elements of "
      "the container";
  const auto moved = [](index_t begin, index_t extent, index_t stride) {
    std::vector<float> v(4);
    const gdpo::View<float, 1> view{v.data() + begin, {extent}, {stride}};
    return message_of(
        [&] { gdpo::DlpackTensor(gdpo::to_dlpack_managed<Managed>(std::move(v), view)); });
  };
  CHECK(moved(0, 4, 1) == "no error");
  CHECK(moved(3, 4, -1) == "no error");
  CHECK(moved(1, 3, 1) == "no error");
  CHECK(moved(1, 4, 1) == outside);
  CHECK(moved(0, 3, 2) == outside);
  CHECK(moved(2, 4, -1) == outside);
  CHECK(moved(4, 1, 1) == outside);
  CHECK(moved(-1, 1, 1) == outside);
  CHECK(moved(5, 1, 1) == outside);
  CHECK(moved(0, 2, highest / 2) ==
        "gdpo::to_dlpack_managed: view: given strides (4611686018427387903); needed: elements at "
        "most 2^63 - 1 bytes apart");
  std::vector<float> four(4);
  CHECK(message_of([&] {
          gdpo::to_dlpack_managed<Managed>(std::move(four), gdpo::view(&one, 1));
        }) == outside);
  CHECK(four.size() == 4);  // it stays the caller's
  std::array<float, 2> here{1, 2};
  CHECK(message_of([&] {
          gdpo::to_dlpack_managed<Managed>(std::move(here), gdpo::view(here.data(), 2));
        }) ==
        "gdpo::to_dlpack_managed: container: given one whose elements move with it; needed: one "
        "that keeps them in their place, such as std::vector");
}

TEST_CASE("DLPack: what goes out comes back as the same view, for all small shapes and strides",
          "[dlpack]") {
  // An element is at most 2 steps of 3 elements away on each of 2 axes.
  std::vector<float> data(2 * 12 + 1);
  int repeating = 0;
  for (const index_t rows : {0, 1, 2, 3}) {
    for (const index_t columns : {0, 1, 2, 3}) {
      for (const index_t down : {-3, -1, 0, 1, 2}) {
        for (const index_t right : {-2, 0, 1, 3}) {
          const gdpo::View<float, 2> v{data.data() + 12, {rows, columns}, {down, right}};
          INFO(rows << " x " << columns << ", strides " << down << ", " << right);
          const auto lent = gdpo::to_dlpack(v);
          const auto back = gdpo::view<const float, 2>(lent.tensor());
          CHECK(back.data == v.data);
          for (int r = 0; r < 2; ++r) {
            CHECK(back.extent[r] == v.extent[r]);
            CHECK(back.stride[r] == v.stride[r]);
          }
          // What is written has an element of its own for each index; that what is refused may be
          // apart all the same is the rule of elements_apart() (core/errors.hpp).
          std::set<const float*> elements;
          for (index_t i = 0; i < rows; ++i)
            for (index_t j = 0; j < columns; ++j) elements.insert(&v(i, j));
          const bool repeated = static_cast<index_t>(elements.size()) < rows * columns;
          repeating += repeated;
          const bool refused =
              message_of([&] { gdpo::view<float, 2>(lent.tensor()); }) != "no error";
          CHECK(refused == !gdpo::contract::elements_apart(2, v.extent, v.stride));
          CHECK(refused >= repeated);
        }
      }
    }
  }
  CHECK(repeating > 50);
}

TEST_CASE("DLPack: rewards in, advantages out", "[dlpack]") {
  const std::vector<double> rewards{1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1};
  const auto groups = gdpo::groups_of(4);
  const auto expected = gdpo::advantages(gdpo::view(rewards.data(), 8, 2), groups);
  auto copy = std::make_shared<std::vector<double>>(rewards);
  const gdpo::DlpackTensor in(
      gdpo::to_dlpack_managed<DLManagedTensor>(copy, gdpo::view(copy->data(), 8, 2)));
  auto* out = gdpo::visit_view<2, const float, const double>(in, [&](auto v) {
    return gdpo::to_dlpack_managed<DLManagedTensor>(gdpo::advantages(v, groups));
  });
  const gdpo::DlpackTensor result(out);
  CHECK(values_of(gdpo::view<const double, 1>(result)) == expected);
}

#if GDPO_DLPACK_VERSIONED

TEST_CASE("DLPack 1: a tensor for reading only is not written", "[dlpack]") {
  std::vector<float> data{1, 2};
  Counted<DLManagedTensorVersioned> counted(data);
  counted.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  const auto refused = [&](const char* function) {
    return std::string(function) +
           ": x: given a tensor for reading only; needed: one that may be written, or a view of "
           "const elements";
  };
  CHECK(message_of([&] { gdpo::view<float, 1>(&counted.managed, "x"); }) == refused("gdpo::view"));
  CHECK(gdpo::view<const float, 1>(&counted.managed, "x").data == data.data());
  CHECK(message_of([&] {
          gdpo::visit_view<1, float>(
              &counted.managed, [](auto) {}, "x");
        }) == refused("gdpo::visit_view"));
  const gdpo::DlpackTensor owner(&counted.managed);
  CHECK(owner.read_only());
  CHECK(message_of([&] { gdpo::view<float, 1>(owner, "x"); }) == refused("gdpo::view"));
  CHECK(message_of([&] {
          gdpo::visit_view<1, float>(
              owner, [](auto) {}, "x");
        }) == refused("gdpo::visit_view"));
  CHECK(gdpo::view<const float, 1>(owner, "x").data == data.data());
  // Another flag says nothing of writing.
  counted.managed.flags = DLPACK_FLAG_BITMASK_IS_COPIED;
  CHECK(gdpo::view<float, 1>(&counted.managed).data == data.data());
}

TEST_CASE("DLPack 1: another major version is ended and not read", "[dlpack]") {
  std::vector<float> data{1, 2};
  Counted<DLManagedTensorVersioned> counted(data);
  counted.managed.version = {DLPACK_MAJOR_VERSION + 1, 3};
  const std::string given = "given a tensor of DLPack 2.3; needed: one of DLPack 1";
  CHECK(message_of([&] { gdpo::view<float, 1>(&counted.managed, "x"); }) ==
        "gdpo::view: x: " + given);
  CHECK(message_of([&] {
          gdpo::visit_view<1>(
              &counted.managed, [](auto) {}, "x");
        }) == "gdpo::visit_view: x: " + given);
  CHECK(counted.ends == 0);
  CHECK(message_of([&] { gdpo::DlpackTensor owner(&counted.managed); }) ==
        "gdpo::DlpackTensor: managed: " + given);
  CHECK(counted.ends == 1);
  const DLManagedTensorVersioned* const none = nullptr;
  CHECK(message_of([&] { gdpo::view<float, 1>(none, "x"); }) ==
        "gdpo::view: x: given a null pointer; needed: a managed tensor");
  CHECK(message_of([] { gdpo::DlpackTensor(static_cast<DLManagedTensorVersioned*>(nullptr)); }) ==
        "gdpo::DlpackTensor: managed: given a null pointer; needed: a managed tensor");
}

TEST_CASE("DLPack 1: const elements make a tensor for reading only", "[dlpack]") {
  using Managed = DLManagedTensorVersioned;
  const auto values = std::make_shared<const std::vector<float>>(std::vector<float>{1, 2});
  auto* managed = gdpo::to_dlpack_managed<Managed>(values, gdpo::view(*values));
  CHECK(managed->flags == DLPACK_FLAG_BITMASK_READ_ONLY);
  const gdpo::DlpackTensor tensor(managed);
  CHECK(tensor.read_only());
  CHECK(gdpo::view<const float, 1>(tensor).data == values->data());
  std::vector<float> row{3, 4};
  const gdpo::View<const float, 1> fixed = gdpo::view(row);
  CHECK(gdpo::DlpackTensor(gdpo::to_dlpack_managed<Managed>(std::move(row), fixed)).read_only());
}

#endif
