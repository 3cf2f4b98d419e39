#pragma once
// Stand-ins for NCCL and the CUDA runtime, without a device: ranks are threads, memory of a device
// is memory of the host, and a stream does what it holds when somebody asks for it. They behave in
// ways that the documentation allows but a fast machine seldom shows. What a program must not do is
// written down in `wrong`.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

/// A stream: pieces of work, the first of which runs at a time; each says whether it is done.
struct CUstream_st {
  std::deque<std::function<bool()>> work;
  bool idle() {
    if (!work.empty() && work.front()()) work.pop_front();
    return work.empty();
  }
};

namespace made_up {

/// What connects the ranks: the bytes of each transfer, by rank.
struct Network {
  explicit Network(int ranks) : size(ranks) {}
  int size;
  std::mutex mutex;
  std::map<int, std::map<int, std::vector<char>>> transfers;
};

/// What one rank sees of its device. A test sets the upper half and reads the lower.
struct Rank {
  int device = 0;                       // the current one
  std::map<std::string, int> fails;     // the call of this name returns this code, from now on
  int polls_to_settle = 0;              // of a nonblocking communicator; negative: it never settles
  int async = ncclSuccess;              // what happens in the background once a transfer has begun
  std::atomic<bool> hold_abort{false};  // ncclCommAbort does not return

  std::vector<std::string> calls;  // without polls that follow one another
  std::string wrong;
  cudaError_t last = cudaSuccess;
  std::map<char*, std::size_t> memory;  // allocated on the device
  std::atomic<int> aborts{0};
  int frees = 0;

  void called(const std::string& call) {
    if (calls.empty() || calls.back() != call) calls.push_back(call);
  }
  int code(const std::string& call) {
    called(call);
    const auto found = fails.find(call);
    return found == fails.end() ? 0 : found->second;
  }
  /// Notes it unless the bytes are allocated.
  void touches(const void* data, std::size_t bytes) {
    const char* begin = static_cast<const char*>(data);
    for (const auto& [block, size] : memory)
      if (begin >= block && begin + bytes <= block + size) return;
    wrong = "memory that is not the device's";
  }
};
inline thread_local Rank* self = nullptr;  // the rank whose thread this is

}  // namespace made_up

/// A communicator of one rank.
struct ncclComm {
  made_up::Network& network;
  made_up::Rank& owner;
  int rank, device;
  int transfer = 0;
  int polls = 0;                // until it settles
  std::function<void()> begin;  // what the stream gets then
  std::atomic<bool> aborted{false}, returned{false};
  ncclResult_t state = ncclSuccess;

  ncclComm(made_up::Network& of, made_up::Rank& by, int number, int on)
      : network(of), owner(by), rank(number), device(on), polls(by.polls_to_settle) {}
  /// Notes it if the program may not use the communicator now.
  void used() {
    if (aborted) owner.wrong = "a communicator is used after it was aborted";
    if (polls != 0) owner.wrong = "a communicator is used while NCCL is in progress";
  }
};

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = made_up::self->device;
  return static_cast<cudaError_t>(made_up::self->code("cudaGetDevice"));
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaMalloc(void** to, std::size_t bytes) {
  made_up::Rank& self = *made_up::self;
  if (const int code = self.code("cudaMalloc")) return self.last = static_cast<cudaError_t>(code);
  char* const block = new char[bytes];
  std::memset(block, 0x5A, bytes);
  self.memory[block] = bytes;
  *to = block;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  made_up::Rank& self = *made_up::self;
  self.called("cudaFree");
  ++self.frees;
  if (!self.memory.erase(static_cast<char*>(data))) self.wrong = "other memory is freed";
  delete[] static_cast<char*>(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  made_up::Rank& self = *made_up::self;
  const bool in = kind == cudaMemcpyHostToDevice;
  if (const int code = self.code(in ? "copy to the device" : "copy to the host"))
    return self.last = static_cast<cudaError_t>(code);
  // This is where a copy of memory that is not pinned would block.
  if (!stream->work.empty()) self.wrong = "a copy waits for the stream";
  self.touches(in ? to : from, bytes);
  // And a copy of pinned memory would read and write it later.
  stream->work.push_back([=] { return std::memcpy(to, from, bytes) != nullptr; });
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  made_up::Rank& self = *made_up::self;
  if (const int code = self.code("poll")) return self.last = static_cast<cudaError_t>(code);
  return stream->idle() ? cudaSuccess : self.last = cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  made_up::Rank& self = *made_up::self;
  if (const int code = self.code("cudaStreamSynchronize"))
    return self.last = static_cast<cudaError_t>(code);
  if (stream->work.size() != 1) self.wrong = "the host waits for more than a copy";
  while (!stream->idle()) std::this_thread::yield();
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(made_up::self->last, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTest"; }
const char* cudaGetErrorString(cudaError_t) { return "as the test asks"; }

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm->aborted) comm->owner.wrong = "a communicator is asked after it was aborted";
  if (const int code = comm->owner.code("ncclCommGetAsyncError"))
    return static_cast<ncclResult_t>(code);
  if (comm->polls > 0 && --comm->polls == 0 && comm->begin) std::exchange(comm->begin, {})();
  *state = comm->polls != 0 ? ncclInProgress : comm->state;
  // Polls of NCCL and of the stream alternate; they count as one.
  comm->owner.calls.pop_back();
  comm->owner.called("poll");
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  comm->used();
  *device = comm->device;
  return static_cast<ncclResult_t>(comm->owner.code("ncclCommCuDevice"));
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  comm->used();
  *rank = comm->rank;
  return static_cast<ncclResult_t>(comm->owner.code("ncclCommUserRank"));
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  comm->used();
  *count = comm->network.size;
  return static_cast<ncclResult_t>(comm->owner.code("ncclCommCount"));
}
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  made_up::Rank& self = comm->owner;
  comm->used();
  if (const int code = self.code("ncclAllGather")) return static_cast<ncclResult_t>(code);
  if (type != ncclUint8 && type != ncclChar) self.wrong = "not bytes";
  self.touches(send, count);
  self.touches(receive, count * static_cast<std::size_t>(comm->network.size));
  // NCCL allows the two to overlap in this one way.
  const char* const place =
      static_cast<const char*>(receive) + count * static_cast<std::size_t>(comm->rank);
  if (send != place) self.wrong = "what is sent is not in its place";
  const auto work = [=, sent = false]() mutable {
    made_up::Network& network = comm->network;
    const std::lock_guard<std::mutex> lock(network.mutex);
    auto& bytes = network.transfers[comm->transfer];
    const char* const mine = static_cast<const char*>(send);
    if (!std::exchange(sent, true)) bytes[comm->rank].assign(mine, mine + count);
    if (static_cast<int>(bytes.size()) < network.size) return comm->aborted.load();
    ++comm->transfer;
    char* to = static_cast<char*>(receive);
    for (const auto& [rank, theirs] : bytes) to = std::copy(theirs.begin(), theirs.end(), to);
    return true;
  };
  comm->begin = [=] {
    stream->work.push_back(work);
    comm->state = static_cast<ncclResult_t>(comm->owner.async);
  };
  comm->polls = self.polls_to_settle;
  if (comm->polls != 0) return ncclInProgress;
  std::exchange(comm->begin, {})();
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ++comm->owner.aborts;
  comm->aborted = true;
  while (comm->owner.hold_abort) std::this_thread::yield();
  comm->returned = true;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "an error of NCCL"; }
const char* ncclGetLastError(ncclComm_t comm) {
  if (comm->aborted) comm->owner.wrong = "a communicator is asked after it was aborted";
  return "said in detail";
}

}  // extern "C"
