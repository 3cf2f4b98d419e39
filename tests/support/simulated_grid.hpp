#pragma once
// A simulated device for machines without a GPU. It runs kernels on the host: blocks one after the
// other in a random order, and in a block the threads of each `each` in a random order. A kernel in
// which a thread reads what another thread of the same `each` writes gives other bits with another
// seed.
#include <algorithm>
#include <cstring>
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/cuda/device/tuning.hpp>
#include <numeric>
#include <random>
#include <vector>

/// A block of such a grid (gdpo/cuda/device/kernel.hpp has what its members do).
class SimulatedBlock {
 public:
  SimulatedBlock(gdpo::index_t index, gdpo::index_t count, int threads, std::size_t shared_bytes,
                 std::mt19937& random)
      : index_(index), count_(count), order_(static_cast<std::size_t>(threads)), random_(random) {
    std::iota(order_.begin(), order_.end(), 0);
    shared_.resize(shared_bytes / sizeof(Aligned) + 1);
    // Fill shared memory with NaN, so that reading it before writing shows.
    std::memset(static_cast<void*>(shared_.data()), 0xff, shared_.size() * sizeof(Aligned));
  }
  gdpo::index_t index() const { return index_; }
  gdpo::index_t count() const { return count_; }
  int threads() const { return static_cast<int>(order_.size()); }

  template <class F>
  void each(const F& f) {
    std::shuffle(order_.begin(), order_.end(), random_);
    for (const int thread : order_) f(thread);
  }
  template <class T, class F>
  T reduce(const F& f) {
    std::vector<T> of(order_.size());
    each([&](int thread) { of[static_cast<std::size_t>(thread)] = f(thread); });
    constexpr std::size_t warp = gdpo::cuda::warp;
    T total{};
    for (std::size_t first = 0; first < of.size(); first += warp) {
      T* const x = of.data() + first;
      for (std::size_t by = warp / 2; by > 0; by /= 2) {
        for (std::size_t i = 0; i < by; ++i) x[i].add(x[i + by]);
      }
      if (first == 0) {
        total = x[0];
      } else {
        total.add(x[0]);
      }
    }
    return total;
  }
  template <class F>
  void teams(int threads, const F& f) {
    if (threads == 0) return f(*this, 0, 1);
    const int n = this->threads() / gdpo::cuda::warp;
    std::vector<int> teams(static_cast<std::size_t>(n)), own(static_cast<std::size_t>(threads));
    std::iota(teams.begin(), teams.end(), 0);
    std::shuffle(teams.begin(), teams.end(), random_);
    std::iota(own.begin(), own.end(), 0);
    order_.swap(own);
    for (const int i : teams) f(*this, i, n);
    order_.swap(own);
  }
  template <class T>
  T* shared() {
    return reinterpret_cast<T*>(shared_.data());
  }

 private:
  struct alignas(16) Aligned {
    unsigned char bytes[16];
  };
  gdpo::index_t index_, count_;
  std::vector<int> order_;
  std::vector<Aligned> shared_;
  std::mt19937& random_;
};

/// The execution tag of the simulated grid. The seed decides the order of blocks and threads.
struct SimulatedGrid {
  static constexpr bool launches_kernels = true;
  unsigned seed = 0;
  gdpo::cuda::Tuning chosen{};
  mutable int launches = 0;

  const gdpo::cuda::Tuning& tuning() const { return chosen; }
  template <class Kernel>
  void launch(gdpo::index_t blocks, int threads, std::size_t shared_bytes,
              const Kernel& kernel) const {
    static_assert(std::is_trivially_copyable_v<Kernel>, "a kernel is copied to the device");
    if (threads % gdpo::cuda::warp != 0 || threads < 1 || threads > gdpo::cuda::most_threads)
      std::abort();
    ++launches;
    std::mt19937 random(seed);
    std::vector<gdpo::index_t> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), gdpo::index_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (const gdpo::index_t b : order) {
      SimulatedBlock block(b, blocks, threads, shared_bytes, random);
      kernel(block);
    }
  }
};
