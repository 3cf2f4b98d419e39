#pragma once
// Conversion of a stored number to double, and of a result to a stored number. Statistics are
// computed in double, whatever type the caller's array holds.
#include <cstdint>
#include <gdpo/core/errors.hpp>
#include <gdpo/math/scalar.hpp>

// These are plain data, so they stand outside the inline namespace (core/config.hpp).
namespace gdpo {

/// A 16-bit float of IEEE binary16 (half precision), for buffers of other libraries.
///
///     gdpo::view(reinterpret_cast<const gdpo::Float16*>(p), n)
struct Float16 {
  std::uint16_t bits;  ///< Sign 1 bit, exponent 5, mantissa 10.
};
/// A bfloat16, the upper 16 bits of a float, for buffers of other libraries.
///
///     gdpo::view(reinterpret_cast<const gdpo::BFloat16*>(p), n)
struct BFloat16 {
  std::uint16_t bits;  ///< Sign 1 bit, exponent 8, mantissa 7.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The library's type with the same memory layout as T; the general case is T itself.
///
/// Specialize it for a class that is a binary16 or a bfloat16 in memory. Then vector lanes and CUDA
/// kernels can read and write it. with/eigen.hpp does so for Eigen's two types. For another
/// library:
///
///     template <>
///     struct gdpo::LayoutOf<c10::BFloat16> {
///       using type = gdpo::BFloat16;
///     };
template <class T>
struct LayoutOf {
  using type = T;  ///< Float16 or BFloat16 in a specialization
};
/// Shorthand for LayoutOf, which ignores a const.
template <class T>
using layout_t = typename LayoutOf<std::remove_const_t<T>>::type;

/// How an element of type T is read and written.
///
/// `load` gives the exact value as a double, except that 64-bit integers above 2^53 are rounded.
/// `store` writes the nearest T, ties to even, as far as T's own conversion from float rounds so.
/// This general case serves any class that converts to float and from it, such as Eigen::half,
/// c10::BFloat16 and __half.
template <class T, class = void>
struct Storage {
  using Result = float;  ///< Type of results: float for float and narrower floats, else double.
  static_assert(sizeof(layout_t<T>) == sizeof(T), "LayoutOf<T>::type is what stands in memory");
  /// The value of an element.
  GDPO_CALLS_ANY
  static GDPO_INLINE double load(const T& x) {
    if constexpr (std::is_same_v<layout_t<T>, T>) {
      return static_cast<double>(static_cast<float>(x));
    } else {
      layout_t<T> raw;
      std::memcpy(&raw, &x, sizeof raw);
      return Storage<layout_t<T>>::load(raw);
    }
  }
  /// Writes x into an element.
  GDPO_CALLS_ANY
  static GDPO_INLINE void store(T& element, float x) {
    if constexpr (std::is_same_v<layout_t<T>, T>) {
      element = static_cast<T>(x);
    } else {
      layout_t<T> raw;
      Storage<layout_t<T>>::store(raw, x);
      std::memcpy(static_cast<void*>(&element), &raw, sizeof raw);
    }
  }
};
/// Storage of float, double, integers and bool.
template <class T>
struct Storage<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  /// Type of results: float for float, double for double, integers and bool.
  using Result = std::conditional_t<std::is_same_v<T, float>, float, double>;
  /// The value of an element.
  static GDPO_INLINE double load(T x) { return static_cast<double>(x); }
  /// Writes x into an element; results are floating-point numbers, so T must be float or double.
  template <class S>
  static GDPO_INLINE void store(T& element, S x) {
    static_assert(std::is_floating_point_v<T>, "results are floating-point numbers");
    element = static_cast<T>(x);
  }
};
/// Storage of BFloat16.
template <>
struct Storage<BFloat16> {
  using Result = float;  ///< Type of results.
  /// The value of an element, exact.
  static GDPO_INLINE double load(BFloat16 x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<double>(value);
  }
  /// Writes the nearest bfloat16, ties to even. A NaN stays NaN and becomes quiet.
  static GDPO_INLINE void store(BFloat16& element, float x) {
    // A bfloat16 is the upper half of a float. Adding just under half a unit of its last place,
    // plus its last bit, makes truncation round to the nearest, ties to even.
    const std::uint32_t bits = math::bits_of(x), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    element.bits = static_cast<std::uint16_t>((math::is_nan(x) ? bits | 0x400000u : rounded) >> 16);
  }
};
/// Storage of Float16.
template <>
struct Storage<Float16> {
  using Result = float;  ///< Type of results.
  /// The value of an element, exact.
  static GDPO_INLINE double load(Float16 x) {
    const std::uint64_t sign = static_cast<std::uint64_t>(x.bits & 0x8000u) << 48;
    const std::uint64_t exponent = (x.bits >> 10) & 0x1fu, mantissa = x.bits & 0x3ffu;
    if (exponent == 0) {  // zero and subnormals: multiples of 2^-24
      const double value = static_cast<double>(mantissa) * 0x1p-24;
      return sign ? -value : value;
    }
    const std::uint64_t wide = exponent == 0x1f ? 0x7ff : exponent - 15 + 1023;
    const std::uint64_t bits = sign | (wide << 52) | (mantissa << 42);
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  /// Writes the nearest binary16, ties to even.
  ///
  /// 65520 and more in magnitude become infinite. A NaN becomes quiet and keeps the upper bits of
  /// its payload.
  static GDPO_INLINE void store(Float16& element, float x) {
    const std::uint32_t bits = math::bits_of(x), sign = (bits >> 16) & 0x8000u,
                        magnitude = bits & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u) {  // NaN
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {  // 65520 and more
      half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {
      // Below 2^-14 a binary16 is a multiple of 2^-24. That is the spacing of floats from 0.5 to 1,
      // so adding 0.5 rounds to such a multiple, and the low bits of the sum are its number.
      half = math::bits_of(math::from_bits(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      // 0x38000000 rebases the exponent from bias 127 to 15. Adding 0xfff and the last bit that
      // stays rounds the 13 bits that go to the nearest, ties to even.
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    element.bits = static_cast<std::uint16_t>(sign | half);
  }
};

/// The type of results computed from elements of type T: float or double.
template <class T>
using result_t = typename Storage<std::remove_const_t<T>>::Result;

/// The value of an element of any storage type as a double.
template <class T>
GDPO_INLINE double load(const T& x) {
  return Storage<std::remove_const_t<T>>::load(x);
}
/// Writes x, a float or a double, into an element of any floating-point storage type.
///
/// A double for a type narrower than float is rounded to float first.
template <class T, class S>
GDPO_INLINE void store(T& element, S x) {
  if constexpr (std::is_arithmetic_v<T>) {
    Storage<T>::store(element, x);
  } else {
    Storage<T>::store(element, static_cast<float>(x));
  }
}

GDPO_END_NAMESPACE
