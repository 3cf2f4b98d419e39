#pragma once
// Arrays on the device, random data for them, and the time of calls on a stream.
#include <algorithm>
#include <gdpo/cuda.hpp>
#include <vector>

#include "../timing.hpp"

namespace bench {

using gdpo::index_t;
using gdpo::cuda::check;

/// An array on the device, aligned to 256 bytes.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(index_t n) : size_(n) { check("cudaMalloc", cudaMalloc(&data_, bytes())); }
  Array(Array&& o) noexcept : data_(o.data_), size_(o.size_) { o.data_ = nullptr, o.size_ = 0; }
  Array& operator=(Array&& o) noexcept {
    std::swap(data_, o.data_), std::swap(size_, o.size_);
    return *this;
  }
  ~Array() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }
  index_t size() const { return size_; }
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }
  /// A copy of n numbers from `first` on. It waits for all work on the device.
  std::vector<T> host(index_t first, index_t n) const {
    std::vector<T> values(static_cast<std::size_t>(n));
    check("cudaDeviceSynchronize", cudaDeviceSynchronize());
    check("cudaMemcpy", cudaMemcpy(values.data(), data() + first, values.size() * sizeof(T),
                                   cudaMemcpyDeviceToHost));
    return values;
  }
  std::vector<T> host() const { return host(0, size_); }
  /// Copies numbers from the host. Work that is enqueued later, on any stream, finds them there.
  void copy(const std::vector<T>& values) const {
    check("cudaMemcpy",
          cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    check("cudaDeviceSynchronize", cudaDeviceSynchronize());
  }
  /// Sets every byte to 0xff, which is NaN in every floating type.
  void poison(cudaStream_t stream) const {
    check("cudaMemsetAsync", cudaMemsetAsync(data_, 0xff, bytes(), stream));
  }

 private:
  void* data_ = nullptr;
  index_t size_ = 0;
};

// ---- random data, which place and seed alone decide ----

/// A number in (0, 1).
GDPO_DEVICE inline float uniform(index_t place, unsigned seed) {
  std::uint64_t x =
      static_cast<std::uint64_t>(place) * 0x9e3779b97f4a7c15u + (seed + 1) * 0xd1b54a32d192ed03u;
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
  return (static_cast<float>(x >> 41) + 0.5f) * 0x1p-23f;
}
/// A number of mean 0 and standard deviation 1 in (-3.5, 3.5): a sum of four uniform ones.
GDPO_DEVICE inline float bell(index_t place, unsigned seed) {
  float sum = -2;
  for (unsigned k = 0; k < 4; ++k) sum += uniform(place, seed + k);
  return 1.7320508f * sum;
}
GDPO_DEVICE inline void put(float& to, float x) { to = x; }
GDPO_DEVICE inline void put(gdpo::BFloat16& to, float x) { gdpo::store(to, x); }

/// A kernel that calls f(i) for every i < n.
template <class F>
struct ForEach {
  index_t n;
  F f;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      const index_t step = block.count() * block.threads();
      for (index_t i = block.index() * block.threads() + thread; i < n; i += step) f(i);
    });
  }
};
template <class F>
void for_each(const gdpo::cuda::On& on, index_t n, const F& f) {
  on.launch((std::min)(index_t{on.tuning().blocks}, (n + 255) / 256), 256, 0, ForEach<F>{n, f});
}

/// For for_each: fills `to` with scale * (a uniform or bell number) + shift.
template <class T>
struct Uniform {
  T* to;
  float scale, shift;
  unsigned seed;
  GDPO_DEVICE void operator()(index_t i) const { put(to[i], scale * uniform(i, seed) + shift); }
};
template <class T>
struct Bell {
  T* to;
  float scale, shift;
  unsigned seed;
  GDPO_DEVICE void operator()(index_t i) const { put(to[i], scale * bell(i, seed) + shift); }
};

/// A kernel that counts NaN among n numbers, one count a block.
template <class T>
struct CountNan {
  const T* x;
  index_t n;
  index_t* of_block;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const auto count = block.template reduce<gdpo::cuda::Sum<index_t>>([&](int thread) {
      index_t found = 0;
      const index_t step = block.count() * block.threads();
      for (index_t i = block.index() * block.threads() + thread; i < n; i += step) {
        found += gdpo::math::is_nan(static_cast<float>(gdpo::load(x[i])));
      }
      return gdpo::cuda::Sum<index_t>{found};
    });
    block.each([&](int thread) {
      if (thread == 0) of_block[block.index()] = count.value;
    });
  }
};
template <class T>
index_t count_nan(const gdpo::cuda::On& on, const Array<T>& x) {
  const Array<index_t> of_block(64);
  on.launch(of_block.size(), 256, 0, CountNan<T>{x.data(), x.size(), of_block.data()});
  index_t found = 0;
  for (const index_t n : of_block.host()) found += n;
  return found;
}

// ---- time ----

/// Seconds of one call: median and quartiles.
struct Time {
  double median = 0, low = 0, high = 0;
};
inline Time time_of_all(const std::vector<double>& seconds) {
  return {quantile(seconds, 0.5), quantile(seconds, 0.25), quantile(seconds, 0.75)};
}

class Stream {
 public:
  Stream() {
    check("cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The work that `enqueue` puts on the stream, captured once, to be launched again and again.
class Graph {
 public:
  template <class F>
  Graph(cudaStream_t stream, const F& enqueue) {
    cudaGraph_t graph = nullptr;
    check("cudaStreamBeginCapture",
          cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    check("cudaStreamEndCapture", cudaStreamEndCapture(stream, &graph));
    const cudaError_t code = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check("cudaGraphInstantiate", code);
  }
  ~Graph() { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const {
    check("cudaGraphLaunch", cudaGraphLaunch(graph_, stream));
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

/// Measures time between two events of a stream.
class Stopwatch {
 public:
  Stopwatch(cudaStream_t stream, int repeats) : stream_(stream), repeats_(repeats) {
    for (cudaEvent_t* event : {&begin_, &end_}) check("cudaEventCreate", cudaEventCreate(event));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// The time of one of the `calls` that `enqueue` puts on the stream. `before` is enqueued before
  /// each repeat and not timed. Two repeats before the others warm up.
  template <class F, class Before>
  Time time(int calls, const F& enqueue, const Before& before) const {
    std::vector<double> seconds;
    for (int r = -2; r < repeats_; ++r) {
      before();
      check("cudaEventRecord", cudaEventRecord(begin_, stream_));
      enqueue();
      check("cudaEventRecord", cudaEventRecord(end_, stream_));
      check("cudaEventSynchronize", cudaEventSynchronize(end_));
      float ms = 0;
      check("cudaEventElapsedTime", cudaEventElapsedTime(&ms, begin_, end_));
      if (r >= 0) seconds.push_back(1e-3 * static_cast<double>(ms) / calls);
    }
    return time_of_all(seconds);
  }
  template <class F>
  Time time(int calls, const F& enqueue) const {
    return time(calls, enqueue, [] {});
  }

 private:
  cudaStream_t stream_;
  int repeats_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace bench
