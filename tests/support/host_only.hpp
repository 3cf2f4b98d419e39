// A device that runs no kernel and reads no memory. It shows what a call does before its kernels,
// and how many it launches.
#pragma once
#include <cstddef>
#include <cstdint>
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/device/tuning.hpp>

struct HostOnly {
  static constexpr bool launches_kernels = true;
  gdpo::cuda::Tuning chosen{};
  mutable int launches = 0;

  const gdpo::cuda::Tuning& tuning() const { return chosen; }
  template <class Kernel>
  void launch(gdpo::index_t, int, std::size_t, const Kernel&) const {
    ++launches;
  }
};

/// Scratch for any call on it: memory that nothing reads or writes.
inline gdpo::cuda::Scratch unused_scratch() {
  return {reinterpret_cast<double*>(std::uintptr_t{4096}), std::size_t{1} << 30};
}
