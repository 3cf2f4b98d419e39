#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace resolution {

/// Slices of an array, numbered so that equal slices have the same number, from 0 in the order of
/// their first appearance.
struct SliceNumbers {
  std::vector<std::uint32_t> of;  ///< the number of each slice
  std::size_t count = 0;          ///< how many different slices there are
};

/// Numbers the slices values[begin[i]] .. values[begin[i + 1] - 1]. Values are compared with ==;
/// there is no NaN and no -0 among them.
template <class T>
SliceNumbers number_slices(const std::vector<T>& values, const std::vector<std::size_t>& begin) {
  const auto hash = [&](std::size_t i) {
    std::uint64_t h = 0;
    for (std::size_t at = begin[i]; at < begin[i + 1]; ++at) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, &values[at], sizeof(T));
      h = (h ^ bits) * 0x9E3779B97F4A7C15U;
      h ^= h >> 29U;
    }
    return static_cast<std::size_t>(h);
  };
  const auto at = [&](std::size_t i) {
    return values.begin() + static_cast<std::ptrdiff_t>(begin[i]);
  };
  const auto equal = [&](std::size_t a, std::size_t b) {
    return std::equal(at(a), at(a + 1), at(b), at(b + 1));
  };
  std::unordered_map<std::size_t, std::uint32_t, decltype(hash), decltype(equal)> numbers(16, hash,
                                                                                          equal);
  SliceNumbers result;
  for (std::size_t i = 0; i + 1 < begin.size(); ++i) {
    const auto next = static_cast<std::uint32_t>(numbers.size());
    result.of.push_back(numbers.try_emplace(i, next).first->second);
  }
  result.count = numbers.size();
  return result;
}

}  // namespace resolution
