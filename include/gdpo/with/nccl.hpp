#pragma once
/// \file
/// Communicator for callers who use NCCL: the ranks of an ncclComm_t.
///
///     const gdpo::dist::Nccl ranks(communicator, stream);  // an ncclComm_t and a cudaStream_t
///     ranks.all_gather(&mine, sizeof mine, all.data());    // all: ranks.size() elements
///     ...
///     if (!ranks.aborted()) ncclCommDestroy(communicator);
///
/// Build: link NCCL (2.14 or later) and CUDA::cudart in CMake. It does not need nvcc.
///
/// What happens when a rank takes no part, or when NCCL or CUDA report an error: the object throws
/// communication_error, after the deadline at the latest, and the communicator is gone, because
/// only ncclCommAbort ends a transfer that is stuck on the device. aborted() is true from then on,
/// each further all_gather throws, and the program must neither use nor destroy the ncclComm_t. So
/// give the object a communicator of its own (ncclCommSplit makes one) and a stream of its own
/// (cudaStreamNonBlocking, never captured into a CUDA graph).
///
/// The deadline cannot end calls that block the host. NCCL blocks it while it connects the ranks,
/// for example in the first transfer, unless the communicator is nonblocking (`blocking = 0` in its
/// ncclConfig_t). CUDA blocks it while it frees and allocates memory: a transfer that is larger
/// than all before it waits for all other work of the device.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <future>
#include <gdpo/dist/communicator.hpp>
#include <gdpo/dist/deadline.hpp>
#include <memory>
#include <thread>
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 14, 0)
#error "gdpo/with/nccl.hpp needs NCCL 2.14 or later"
#endif

GDPO_BEGIN_NAMESPACE
namespace dist {

/// The ranks of a communicator of NCCL. The memory of all_gather is that of the host; its bytes go
/// through memory on the device, which the object has. One thread at a time may call it. An object
/// that was moved from can only be assigned to or destroyed.
class Nccl {
 public:
  /// The ranks of `communicator`, whose device must be current here and in each all_gather.
  /// `deadline` is the number of seconds that all_gather waits for the other ranks. A communicator
  /// that NCCL still connects is waited for, too.
  ///
  /// Errors: `invalid_input` for a null communicator, and for a deadline that is not above 0 or is
  /// above 1e9. After those the communicator is as before; after communication_error it is aborted.
  Nccl(ncclComm_t communicator, cudaStream_t stream, double deadline = 300)
      : communicator_(communicator), stream_(stream), begin_(Clock::now()) {
    if (!communicator) contract::fail(name, "communicator", "a null pointer", "an ncclComm_t");
    deadline_ = gdpo::detail::checked_deadline(name, deadline);
    check("cudaGetDevice", cudaGetDevice(&device_));
    wait("NCCL has not connected the ranks", [&] { return settled(); });
    check("ncclCommCuDevice", ncclCommCuDevice(communicator_, &device_));
    check("ncclCommUserRank", ncclCommUserRank(communicator_, &rank_));
    check("ncclCommCount", ncclCommCount(communicator_, &size_));
  }

  int rank() const { return rank_; }  ///< The number of this rank in the communicator.
  int size() const { return size_; }  ///< How many ranks the communicator has.
  /// Whether the object has aborted the communicator: it has if it has thrown communication_error.
  bool aborted() const { return aborted_; }

  /// Copies the bytes of every rank to every rank; 0 bytes return at once. Errors: `invalid_input`
  /// if another device than the communicator's is current.
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    if (bytes == 0) return;
    begin_ = Clock::now();
    bytes_ = bytes;
    ++number_;
    if (aborted_) fail("an earlier error has aborted the communicator");
    int current = 0;
    check("cudaGetDevice", cudaGetDevice(&current));
    if (current != device_)
      contract::fail(name, "current device", contract::text(index_t{current}),
                     contract::text(index_t{device_}) + ", the communicator's");

    // A copy from or to memory of the host that is not pinned blocks the host until the stream has
    // done all before it, and a blocked host cannot check the deadline. So each copy begins when
    // the stream is idle, which makes pinned memory unnecessary.
    const auto done = [&] { return settled() && idle(); };
    wait("the stream has not done what it was given before", done);
    const std::size_t all = bytes * static_cast<std::size_t>(size_);
    if (!buffer_ || all > capacity_) grow(all);  // none is left in an object that was moved from
    char* const mine = buffer_.get() + bytes * static_cast<std::size_t>(rank_);
    check("cudaMemcpyAsync", cudaMemcpyAsync(mine, send, bytes, cudaMemcpyHostToDevice, stream_));
    check("ncclAllGather",
          ncclAllGather(mine, buffer_.get(), bytes, ncclUint8, communicator_, stream_));
    wait("no answer from another rank", done);
    check("cudaMemcpyAsync",
          cudaMemcpyAsync(receive, buffer_.get(), all, cudaMemcpyDeviceToHost, stream_));
    check("cudaStreamSynchronize", cudaStreamSynchronize(stream_));
  }

 private:
  using Clock = gdpo::detail::WaitClock;
  using Seconds = gdpo::detail::Seconds;
  static constexpr const char* name = "gdpo::dist::Nccl";
  struct Free {
    void operator()(char* memory) const { static_cast<void>(cudaFree(memory)); }
  };

  void grow(std::size_t bytes) const {
    buffer_.reset();
    capacity_ = 0;
    void* memory = nullptr;
    check("cudaMalloc", cudaMalloc(&memory, bytes));
    buffer_.reset(static_cast<char*>(memory));
    capacity_ = bytes;
  }

  /// Whether NCCL has done its part on the host. A nonblocking communicator does it in the
  /// background, and until then the transfer is not on the stream.
  bool settled() const {
    ncclResult_t state = ncclSuccess;
    check("ncclCommGetAsyncError", ncclCommGetAsyncError(communicator_, &state));
    check("NCCL in the background", state);
    return state != ncclInProgress;
  }
  /// Whether the stream has nothing to do.
  bool idle() const {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state != cudaErrorNotReady) check("cudaStreamQuery", state);
    // The runtime keeps cudaErrorNotReady, and the program's next launch would be blamed for it.
    if (state == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
    return state == cudaSuccess;
  }
  /// Polls until `done`, because no call that waits takes a deadline.
  template <class Done>
  void wait(const char* failure, const Done& done) const {
    while (!done()) {
      const Seconds waited = Clock::now() - begin_;
      if (waited >= deadline_) fail(failure);
      gdpo::detail::rest(waited);
    }
  }

  void check(const char* call, cudaError_t code) const {
    if (code == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());  // which the program's next launch would be blamed for
    fail(std::string(call) + ": " + cudaGetErrorName(code) + ": " + cudaGetErrorString(code));
  }
  void check(const char* call, ncclResult_t code) const {
    if (code == ncclSuccess || code == ncclInProgress) return;
    const std::string last = ncclGetLastError(communicator_);
    fail(std::string(call) + ": " + ncclGetErrorString(code) + (last.empty() ? "" : ": ") + last);
  }
  /// Aborts the communicator, once, and throws communication_error.
  [[noreturn]] void fail(const std::string& words) const {
    const std::string waited = gdpo::detail::time_since(begin_);
    if (!aborted_) {
      aborted_ = true;
      // ncclCommAbort can wait for other ranks, so a detached thread calls it. Where that takes
      // long, the buffer is leaked, because cudaFree would wait as well.
      std::packaged_task<void()> abort([communicator = communicator_, device = device_] {
        static_cast<void>(cudaSetDevice(device));
        static_cast<void>(ncclCommAbort(communicator));
      });
      const std::future<void> done = abort.get_future();
      std::thread(std::move(abort)).detach();
      if (done.wait_for((std::min)(deadline_, Seconds(10))) != std::future_status::ready)
        static_cast<void>(buffer_.release());
    }
    std::string where = "the constructor";
    if (number_ > 0)
      where = "all_gather number " + std::to_string(number_) + " of " + std::to_string(bytes_) +
              " bytes, as rank " + std::to_string(rank_) + " of " + std::to_string(size_);
    fail_communication(std::string(name) + ": waited " + waited + " in " + where + ": " + words);
  }

  ncclComm_t communicator_;
  cudaStream_t stream_;
  Seconds deadline_{};
  int device_ = 0, rank_ = 0, size_ = 1;
  mutable std::unique_ptr<char, Free> buffer_;  // on the device
  mutable std::size_t capacity_ = 0;            // of the buffer, in bytes
  mutable Clock::time_point begin_;             // of this all_gather
  mutable std::size_t bytes_ = 0;               // which each rank sends in it
  mutable long long number_ = 0;                // which it is, counted from 1
  mutable bool aborted_ = false;
};

}  // namespace dist
GDPO_END_NAMESPACE
