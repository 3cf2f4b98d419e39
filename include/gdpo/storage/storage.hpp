#pragma once
// How a stored number becomes a double, and a result a stored number. Statistics are computed in double from whatever the
// caller's array holds.
#include <cstdint>
#include <gdpo/core/errors.hpp>
#include <gdpo/math/scalar.hpp>

namespace gdpo {  // plain data

/// Raw 16-bit floats of a foreign buffer: IEEE binary16 and bfloat16. view(reinterpret_cast<const BFloat16*>(p), n).
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Float16 or BFloat16 where a class is one of them in memory, so that it can be read and written in lanes; else T.
/// with/eigen.hpp says it of Eigen's. For another library's:
///   template <> struct gdpo::LayoutOf<c10::BFloat16> { using type = gdpo::BFloat16; };
template <class T>
struct LayoutOf {
  using type = T;
};
template <class T>
using layout_t = typename LayoutOf<std::remove_const_t<T>>::type;

/// Storage<T>: `load` gives the exact value as double (64-bit integers above 2^53 are rounded), `store` the nearest T, ties
/// to even; `Result` is the scalar of the results: float for float and narrower floating types, double for double and
/// integers. The general case is any class that converts to float and from it: Eigen::half, c10::BFloat16, __half.
template <class T, class = void>
struct Storage {
  using Result = float;
  static_assert(sizeof(layout_t<T>) == sizeof(T), "LayoutOf<T>::type is what stands in memory");
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
  GDPO_CALLS_ANY
  static GDPO_INLINE void store(T& to, float x) {
    if constexpr (std::is_same_v<layout_t<T>, T>) {
      to = static_cast<T>(x);
    } else {
      layout_t<T> raw;
      Storage<layout_t<T>>::store(raw, x);
      std::memcpy(static_cast<void*>(&to), &raw, sizeof raw);
    }
  }
};
template <class T>
struct Storage<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  using Result = std::conditional_t<std::is_same_v<T, float>, float, double>;
  static GDPO_INLINE double load(T x) { return static_cast<double>(x); }
  template <class S>
  static GDPO_INLINE void store(T& to, S x) {
    static_assert(std::is_floating_point_v<T>, "results are floating-point numbers");
    to = static_cast<T>(x);
  }
};
template <>
struct Storage<BFloat16> {
  using Result = float;
  static GDPO_INLINE double load(BFloat16 x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<double>(value);
  }
  static GDPO_INLINE void store(BFloat16& to, float x) {
    const std::uint32_t bits = math::bits_of(x), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    to.bits = static_cast<std::uint16_t>((math::is_nan(x) ? bits | 0x400000u : rounded) >> 16);
  }
};
template <>
struct Storage<Float16> {
  using Result = float;
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
  static GDPO_INLINE void store(Float16& to, float x) {
    const std::uint32_t bits = math::bits_of(x), sign = (bits >> 16) & 0x8000u,
                        magnitude = bits & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u) {  // NaN, quiet, with what fits of its payload
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {  // from 65520 on
      half = 0x7c00u;
    } else if (magnitude <
               0x38800000u) {  // multiples of 2^-24, the spacing of floats from 0.5 to 1
      half = math::bits_of(math::from_bits(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    to.bits = static_cast<std::uint16_t>(sign | half);
  }
};

template <class T>
using result_t = typename Storage<std::remove_const_t<T>>::Result;

template <class T>
GDPO_INLINE double load(const T& x) {
  return Storage<std::remove_const_t<T>>::load(x);
}
/// x, float or double, into an element of any storage type.
template <class T, class S>
GDPO_INLINE void store(T& to, S x) {
  if constexpr (std::is_arithmetic_v<T>) {
    Storage<T>::store(to, x);
  } else {
    Storage<T>::store(to, static_cast<float>(x));
  }
}

GDPO_END_NAMESPACE
