#pragma once
// Scratch: device memory of the caller, and how a call takes its arrays from it.
#include <cstddef>
#include <gdpo/core/errors.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// Device memory of the caller, for one call at a time. Allocate it once, for the call that needs
/// most:
///
///     gdpo::cuda::Scratch scratch{nullptr, gdpo::cuda::scratch_bytes(loss, batch)};
///     gdpo::cuda::check("scratch", cudaMalloc(&scratch.data, scratch.bytes));
///
/// Calls on one stream may share it: no call reads what an earlier one left there. Calls that run
/// on different streams at the same time each need their own.
struct Scratch {
  void* data = nullptr;   ///< aligned to 256 bytes, as cudaMalloc gives it
  std::size_t bytes = 0;  ///< bytes at `data`; a call that needs more throws invalid_input
};

namespace detail {

/// Hands out arrays of a Scratch one after the other. Without memory it only counts their bytes,
/// for scratch_bytes().
class ScratchCursor {
 public:
  explicit ScratchCursor(const Scratch& scratch = {})
      : data_(static_cast<unsigned char*>(scratch.data)) {}
  template <class T>
  T* take(index_t n) {
    constexpr std::size_t alignment = 256;
    const std::size_t offset = used_;
    used_ += (static_cast<std::size_t>(n) * sizeof(T) + alignment - 1) / alignment * alignment;
    return data_ ? reinterpret_cast<T*>(data_ + offset) : nullptr;
  }
  std::size_t bytes() const { return used_; }

 private:
  unsigned char* data_;
  std::size_t used_ = 0;
};

inline void check_scratch(const char* function, const Scratch& given, std::size_t needed) {
  if (given.bytes >= needed && (given.data || needed == 0)) return;
  contract::fail(function, "scratch",
                 given.data ? std::to_string(given.bytes) + " bytes" : std::string("no memory"),
                 std::to_string(needed) + " bytes, as scratch_bytes(...) says");
}

/// Bytes that Memory takes.
template <class Memory, class... Args>
std::size_t bytes_of(const Args&... args) {
  ScratchCursor cursor;
  Memory(cursor, args...);
  return cursor.bytes();
}
/// Memory in a scratch; invalid_input if the scratch is too small.
template <class Memory, class... Args>
Memory take_memory(const char* function, const Scratch& scratch, const Args&... args) {
  check_scratch(function, scratch, bytes_of<Memory>(args...));
  ScratchCursor cursor(scratch);
  return Memory(cursor, args...);
}

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
