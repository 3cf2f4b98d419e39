#pragma once
// What a communicator must provide, and the errors that it throws.
#include <cstring>
#include <gdpo/core/errors.hpp>

// This stands outside the inline namespace, so that a trainer catches one type, whichever object
// file threw it.
namespace gdpo {

/// Thrown by a communicator that cannot reach the other ranks: one of them is dead or stuck, or
/// the network failed. It is not a mistake of the caller, and no further collective will succeed.
struct communication_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace dist {

/// Whether C is a communicator: the ranks (processes) that work on one step, and a way to send
/// something to all of them.
///
/// Contract of a communicator, all that the library asks of MPI, NCCL, torch.distributed or a
/// transport of your own:
///
///     int rank() const;  // the number of this rank, from 0 to size() - 1
///     int size() const;  // how many ranks there are, at least 1
///     void all_gather(const void* send, std::size_t bytes, void* receive) const;
///
/// `all_gather` copies the `bytes` bytes at `send` of every rank to `receive` on every rank, those
/// of rank 0 first; `receive` has room for size() * bytes. All ranks call it in the same order with
/// the same number of bytes, which may be 0 and may be more than 2^31. It returns when `receive` is
/// filled in on this rank. Where a rank does not answer it throws communication_error
/// (fail_communication), after a deadline of its own: nothing may wait for ever. The memory is that
/// of the host.
///
/// The ranks may be any subgroup of the processes: those with different rows (data parallel), those
/// with the tokens of the same rows (context parallel).
///
/// Adapters: gdpo/with/mpi.hpp, gdpo/with/nccl.hpp, gdpo/with/torch_distributed.hpp.
template <class C, class = void>
constexpr bool is_communicator_v = false;
template <class C>
constexpr bool is_communicator_v<
    C, std::void_t<decltype(std::declval<const C&>().all_gather(
           static_cast<const void*>(nullptr), std::size_t{}, static_cast<void*>(nullptr)))>> =
    std::is_same_v<decltype(std::declval<const C&>().rank()), int>&&
        std::is_same_v<decltype(std::declval<const C&>().size()), int>;

/// One process by itself: everything in dist/ then works as without other ranks.
struct Single {
  int rank() const { return 0; }  ///< 0.
  int size() const { return 1; }  ///< 1.
  /// Copies the bytes.
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    if (bytes > 0) std::memcpy(receive, send, bytes);
  }
};

/// Throws communication_error. Where exceptions are disabled it calls gdpo::on_failure with the
/// message and aborts the program.
[[noreturn]] GDPO_COLD inline void fail_communication(const std::string& message) {
#if defined(__cpp_exceptions)
  throw communication_error(message);
#else
  on_failure(message.c_str());
  std::abort();
#endif
}

}  // namespace dist

namespace detail {

/// Fails to compile if C is no communicator. It returns true, so that a static_assert can call it.
template <class C>
constexpr bool needs_communicator() {
  static_assert(dist::is_communicator_v<C>,
                "a communicator needs: int rank() const, int size() const, and void "
                "all_gather(const void* send, std::size_t bytes, void* receive) const");
  return true;
}

}  // namespace detail
GDPO_END_NAMESPACE
