#pragma once
// The device of a test: a simulated grid or, where the file is compiled with GDPO_TEST_ON_GPU
// (tests/cuda), a GPU. A test keeps its arrays in OnDevice and reads with host() what a call has
// written.
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/device/tuning.hpp>
#include <limits>
#include <vector>

#if defined(GDPO_TEST_ON_GPU)

#include <gdpo/cuda/device/on.hpp>

using TestDevice = gdpo::cuda::On;
/// Only a simulated grid uses the seed.
inline TestDevice test_device(unsigned = 0) { return gdpo::cuda::On(nullptr); }
inline TestDevice test_device(unsigned, const gdpo::cuda::Tuning& tuning) {
  return gdpo::cuda::On(nullptr, tuning);
}

/// An array on the device.
template <class T>
class OnDevice {
 public:
  OnDevice() = default;
  explicit OnDevice(const std::vector<T>& values) : n_(values.size()) {
    gdpo::cuda::check("OnDevice", cudaMalloc(&data_, (n_ + 1) * sizeof(T)));
    gdpo::cuda::check("OnDevice",
                      cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
    // From pageable memory, cudaMemcpy may return before the last bytes have arrived, and a
    // non-blocking stream does not wait for them.
    gdpo::cuda::check("OnDevice", cudaDeviceSynchronize());
  }
  OnDevice(OnDevice&& o) noexcept : data_(o.data_), n_(o.n_) { o.data_ = nullptr; }
  OnDevice& operator=(OnDevice&& o) noexcept {
    std::swap(data_, o.data_), std::swap(n_, o.n_);
    return *this;
  }
  ~OnDevice() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> host() const {
    std::vector<T> values(n_);
    gdpo::cuda::check("OnDevice",
                      cudaMemcpy(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t n_ = 0;
};

#else

#include "support/simulated_grid.hpp"

using TestDevice = SimulatedGrid;
inline TestDevice test_device(unsigned seed = 0) { return SimulatedGrid{seed}; }
inline TestDevice test_device(unsigned seed, const gdpo::cuda::Tuning& tuning) {
  return SimulatedGrid{seed, tuning};
}

/// An array of the simulated device, which is memory of the host.
template <class T>
class OnDevice {
 public:
  OnDevice() = default;
  explicit OnDevice(const std::vector<T>& values) : values_(values) {}
  T* data() { return values_.data(); }
  std::vector<T> host() const { return values_; }

 private:
  std::vector<T> values_;
};

#endif

/// Scratch memory of exactly `bytes` bytes, filled with NaN. A kernel that reads what no kernel has
/// written yet gives NaN.
class TestScratch {
 public:
  explicit TestScratch(std::size_t bytes)
      : memory_(std::vector<double>(bytes / sizeof(double) + 1,
                                    std::numeric_limits<double>::quiet_NaN())),
        bytes_(bytes) {}
  gdpo::cuda::Scratch operator()() { return {memory_.data(), bytes_}; }

 private:
  OnDevice<double> memory_;
  std::size_t bytes_;
};
