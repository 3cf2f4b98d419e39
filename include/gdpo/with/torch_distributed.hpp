#pragma once
/// \file
/// Communicator for callers who use LibTorch: the ranks of a process group of c10d, which is
/// torch.distributed in Python.
///
///     const gdpo::dist::TorchDistributed ranks(group);   // a c10d::ProcessGroup, or a Backend
///     ranks.all_gather(&mine, sizeof mine, all.data());  // all: ranks.size() elements
///
/// A group of NCCL refuses memory of the host, so its bytes go through tensors on a device:
///
///     const gdpo::dist::TorchDistributed ranks(group, 300, c10::Device(c10::kCUDA, local_rank));
///
/// Build: find_package(Torch REQUIRED) and link torch in CMake. It needs LibTorch 1.13 or later,
/// and the C++ standard that the release asks for (2.15: C++20).
///
/// What happens when a rank takes no part:
///   - The rank has died: all_gather throws communication_error with c10d's own words as soon as
///     c10d notices, which gloo does at once, and otherwise after the deadline. gloo may write to
///     the connection that has just broken, and then the signal SIGPIPE ends this rank as well. So
///     ignore it, as Python does: std::signal(SIGPIPE, SIG_IGN).
///   - The rank is stuck: all_gather throws after the deadline. Older releases (1.13, but not 2.15)
///     go on with the transfer in the background until the time-out of the group itself, and the
///     group's destructor waits for that. So make the group with a time-out like the deadline: by
///     default it is 30 minutes.
///   - The group is one of NCCL: both as above, but c10d may also end the process, as its variable
///     TORCH_NCCL_ASYNC_ERROR_HANDLING says.
#include <algorithm>
#include <chrono>
#include <functional>
#include <gdpo/dist/communicator.hpp>
#include <gdpo/dist/deadline.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace dist {

/// The ranks of a process group of c10d. The object shares the group, so that its messages stand in
/// one order with the caller's. One thread at a time may call it. An object that was moved from can
/// only be assigned to or destroyed.
class TorchDistributed {
 public:
  /// The ranks of `group`, a c10::intrusive_ptr to a c10d::ProcessGroup or to what implements one
  /// (a c10d::Backend, such as ProcessGroupGloo of LibTorch 2). `deadline` is the number of seconds
  /// that all_gather waits for the other ranks. `device` is where the group wants its tensors.
  ///
  /// Errors: `invalid_input` for a null pointer, and for a deadline that is not above 0 or is above
  /// 1e9.
  template <class Group>
  explicit TorchDistributed(c10::intrusive_ptr<Group> group, double deadline = 300,
                            c10::Device device = c10::kCPU)
      : device_(device) {
    constexpr const char* function = "gdpo::dist::TorchDistributed";
    if (!group) contract::fail(function, "group", "a null pointer", "a process group of c10d");
    // It is rounded up, because c10d reads 0 ms as no deadline.
    deadline_ = std::chrono::ceil<std::chrono::milliseconds>(
        gdpo::detail::checked_deadline(function, deadline));
    rank_ = group->getRank();
    size_ = group->getSize();
    gather_ = [group = std::move(group)](auto& outputs, auto& inputs, const auto& options) {
      return group->allgather(outputs, inputs, options);
    };
  }
  TorchDistributed(TorchDistributed&&) = default;             ///< A move.
  TorchDistributed& operator=(TorchDistributed&&) = default;  ///< A move.

  int rank() const { return rank_; }  ///< The number of this rank in the group.
  int size() const { return size_; }  ///< How many ranks the group has.

  /// Copies the bytes of every rank to every rank; 0 bytes return at once. After an error all
  /// further calls throw: this rank may have missed a transfer that others made, so that they would
  /// be one transfer apart.
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    if (bytes == 0) return;
    ++number_;
    bytes_ = bytes;
    begin_ = Clock::now();
    if (failed_) fail("an earlier all_gather failed");

    // The tensors own their memory, because a transfer may go on after the deadline, when the
    // memory of the caller may be gone.
    const auto count = static_cast<std::int64_t>(bytes);
    const at::Tensor mine = at::empty({count}, at::kByte);
    std::memcpy(mine.data_ptr(), send, bytes);
    at::Tensor all = at::empty({size_, count}, at::TensorOptions(at::kByte).device(device_));
    // c10d gathers into the rows of one tensor. _allgather_base would need no rows, but gloo lacks
    // it in LibTorch 1.13, and later releases call it all_gather_single.
    Tensors inputs{mine.to(device_)};
    std::vector<Tensors> outputs{all.unbind(0)};
    c10d::AllgatherOptions options;
    options.timeout = deadline_;
    bool done = false;
    try {
      done = gather_(outputs, inputs, options)->wait(deadline_);
    } catch (const std::exception& error) {
      fail(error.what());
    }
    if (!done) fail("c10d aborted it");
    // With a deadline, wait() returns when a device is done as well: this copy waits for nothing.
    all = all.to(at::kCPU);
    std::memcpy(receive, all.data_ptr(), bytes * static_cast<std::size_t>(size_));
  }

 private:
  using Clock = gdpo::detail::WaitClock;
  using Tensors = std::vector<at::Tensor>;

  /// Throws communication_error with the first line of c10d's words; a stack trace may follow it.
  [[noreturn]] void fail(std::string words) const {
    failed_ = true;
    words.resize((std::min)({words.find('\n'), words.size(), std::size_t{400}}));
    fail_communication("gdpo::dist::TorchDistributed: rank " + std::to_string(rank_) + " of " +
                       std::to_string(size_) + " waited " + gdpo::detail::time_since(begin_) +
                       " in all_gather number " + std::to_string(number_) + " of " +
                       std::to_string(bytes_) + " bytes: " + words);
  }

  // The group, whatever its type is.
  std::function<c10::intrusive_ptr<c10d::Work>(std::vector<Tensors>&, Tensors&,
                                               const c10d::AllgatherOptions&)>
      gather_;
  c10::Device device_;
  std::chrono::milliseconds deadline_{};
  int rank_ = 0, size_ = 1;
  mutable long long number_ = 0;   // which all_gather this is, counted from 1
  mutable std::size_t bytes_ = 0;  // what each rank sends in it
  mutable Clock::time_point begin_;
  mutable bool failed_ = false;
};

}  // namespace dist
GDPO_END_NAMESPACE
