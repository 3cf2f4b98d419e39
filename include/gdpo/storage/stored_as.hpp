#pragma once
// Element types as values of an enumeration. A CUDA kernel uses such a value to read an array whose
// type it learns at run time; the host calls a conversion function through a pointer instead.
#include <gdpo/storage/storage.hpp>

namespace gdpo {

/// What one element of an array is in memory.
enum class StoredAs : unsigned char {
  Other,     ///< A class that only the host can read; LayoutOf can turn it into a 16-bit float.
  Float,     ///< float
  Double,    ///< double
  Float16,   ///< gdpo::Float16
  BFloat16,  ///< gdpo::BFloat16
  Int8,      ///< Signed, 8 bits.
  UInt8,     ///< Unsigned, 8 bits, or bool.
  Int16,     ///< Signed, 16 bits.
  UInt16,    ///< Unsigned, 16 bits.
  Int32,     ///< Signed, 32 bits.
  UInt32,    ///< Unsigned, 32 bits.
  Int64,     ///< Signed, 64 bits.
  UInt64     ///< Unsigned, 64 bits.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The StoredAs of an element of type T.
template <class T>
constexpr StoredAs stored_as() {
  using L = layout_t<T>;
  if constexpr (std::is_same_v<L, float>) return StoredAs::Float;
  if constexpr (std::is_same_v<L, double>) return StoredAs::Double;
  if constexpr (std::is_same_v<L, Float16>) return StoredAs::Float16;
  if constexpr (std::is_same_v<L, BFloat16>) return StoredAs::BFloat16;
  if constexpr (std::is_integral_v<L>) {
    constexpr bool is_signed = std::is_signed_v<L>;
    if constexpr (sizeof(L) == 1) return is_signed ? StoredAs::Int8 : StoredAs::UInt8;
    if constexpr (sizeof(L) == 2) return is_signed ? StoredAs::Int16 : StoredAs::UInt16;
    if constexpr (sizeof(L) == 4) return is_signed ? StoredAs::Int32 : StoredAs::UInt32;
    if constexpr (sizeof(L) == 8) return is_signed ? StoredAs::Int64 : StoredAs::UInt64;
  }
  return StoredAs::Other;
}

/// Element i of an array, converted to S.
///
/// For StoredAs::Other it is 0; the host refuses such an array before a kernel sees it.
template <class S>
GDPO_INLINE S load_stored(const void* data, StoredAs type, index_t i) {
  switch (type) {
    case StoredAs::Float:
      return static_cast<S>(static_cast<const float*>(data)[i]);
    case StoredAs::Double:
      return static_cast<S>(static_cast<const double*>(data)[i]);
    case StoredAs::Float16:
      return static_cast<S>(load(static_cast<const Float16*>(data)[i]));
    case StoredAs::BFloat16:
      return static_cast<S>(load(static_cast<const BFloat16*>(data)[i]));
    case StoredAs::Int8:
      return static_cast<S>(static_cast<const std::int8_t*>(data)[i]);
    case StoredAs::UInt8:
      return static_cast<S>(static_cast<const std::uint8_t*>(data)[i]);
    case StoredAs::Int16:
      return static_cast<S>(static_cast<const std::int16_t*>(data)[i]);
    case StoredAs::UInt16:
      return static_cast<S>(static_cast<const std::uint16_t*>(data)[i]);
    case StoredAs::Int32:
      return static_cast<S>(static_cast<const std::int32_t*>(data)[i]);
    case StoredAs::UInt32:
      return static_cast<S>(static_cast<const std::uint32_t*>(data)[i]);
    case StoredAs::Int64:
      return static_cast<S>(static_cast<const std::int64_t*>(data)[i]);
    case StoredAs::UInt64:
      return static_cast<S>(static_cast<const std::uint64_t*>(data)[i]);
    case StoredAs::Other:
      break;
  }
  return S(0);
}

GDPO_END_NAMESPACE
