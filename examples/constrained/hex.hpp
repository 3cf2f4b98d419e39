#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace constrained {

/// A word as 16 hexadecimal digits.
inline std::string hex(std::uint64_t word) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15U];
  return text;
}

/// The bits of a number as 16 hexadecimal digits.
inline std::string hex(double x) {
  std::uint64_t word;
  std::memcpy(&word, &x, sizeof word);
  return hex(word);
}

/// The 64-bit FNV-1a hash of some bytes.
inline std::uint64_t checksum(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (std::size_t i = 0; i < size; ++i) sum = (sum ^ bytes[i]) * 0x100000001b3U;
  return sum;
}

}  // namespace constrained
