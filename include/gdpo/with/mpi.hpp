#pragma once
/// \file
/// Communicator for callers who run MPI: the ranks of an MPI communicator.
///
///     MPI_Init(&argc, &argv);
///     const gdpo::dist::Mpi ranks(MPI_COMM_WORLD);       // or a subgroup, from MPI_Comm_split
///     ranks.all_gather(&mine, sizeof mine, all.data());  // all: ranks.size() elements
///
/// Build: find_package(MPI REQUIRED COMPONENTS CXX) and link MPI::MPI_CXX in CMake, or compile with
/// mpicxx. It needs MPI 3.0 or later.
///
/// What happens when a rank takes no part:
///   - The rank is dead (a signal, or an exit without MPI_Finalize): mpirun ends the others, and
///     that of Open MPI says which rank it was.
///   - The rank is stuck, or outside all_gather: MPI has no time-outs, so this class has a
///     deadline. When it has passed, one of the waiting ranks calls the roll. About a second later
///     it writes one line to stderr and ends the job with MPI_Abort:
///
///         gdpo::dist::Mpi: rank 0 of 4, all_gather number 17 of 1312 bytes: waited 301 s; rank 2
///         does not answer; MPI has no time-outs, so the job ends
///
///   - MPI reports an error: all_gather throws communication_error with the words of MPI. What Open
///     MPI 4 notices while ranks wait goes to the error handler of MPI_COMM_WORLD first, which ends
///     the job unless it is MPI_ERRORS_RETURN.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <gdpo/dist/communicator.hpp>
#include <gdpo/dist/deadline.hpp>
#include <memory>
#include <thread>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace dist {

/// The ranks of an MPI communicator. It has a duplicate of the caller's communicator, so that its
/// messages never mix with the caller's. One thread at a time may call it. The functions of an
/// object that has been moved from throw invalid_input.
class Mpi {
 public:
  /// The ranks of `caller`. Construction is collective: all of these ranks construct the object, in
  /// the same order as their other collective calls. So is destruction, which does nothing after
  /// MPI_Finalize. `deadline` is how many seconds all_gather waits for the other ranks.
  ///
  /// Errors: `invalid_input` if MPI is not running, if `caller` is null or between two groups, and
  /// for a deadline that is not above 0 or is above 1e9.
  explicit Mpi(MPI_Comm caller, double deadline = 300) {
    int initialized = 0, finalized = 0, inter = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized)
      contract::fail("gdpo::dist::Mpi", "MPI", finalized ? "finalized" : "not initialized",
                     "a call after MPI_Init or MPI_Init_thread and before MPI_Finalize");
    const Seconds limit = gdpo::detail::checked_deadline("gdpo::dist::Mpi", deadline);
    if (caller != MPI_COMM_NULL) MPI_Comm_test_inter(caller, &inter);
    if (caller == MPI_COMM_NULL || inter)
      contract::fail("gdpo::dist::Mpi", "caller", inter ? "an inter-communicator" : "MPI_COMM_NULL",
                     "a communicator within one group, to which this rank belongs");
    state_ = std::make_unique<State>();
    state_->deadline = limit;
    if (const int code = MPI_Comm_dup(caller, &state_->comm))
      fail_communication("gdpo::dist::Mpi: MPI_Comm_dup: " + words(code));
    MPI_Comm_set_errhandler(state_->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(state_->comm, &state_->rank);
    MPI_Comm_size(state_->comm, &state_->size);
  }

  int rank() const { return state().rank; }  ///< The number of this rank in the communicator.
  int size() const { return state().size; }  ///< How many ranks the communicator has.

  /// Copies the bytes of every rank to every rank; see the contract of a communicator. MPI counts
  /// in int, so more than `piece` bytes in all go in pieces, and the deadline is that of a piece.
  /// Errors: communication_error if MPI reports one. The job ends where the deadline passes.
  template <int piece = 0x40000000>
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    ++state().number;
    state_->bytes = bytes;
    const bool whole = bytes <= std::size_t{piece} / static_cast<std::size_t>(size());
    for (std::size_t begin = 0; begin < bytes; begin += piece)
      wait(start(static_cast<const char*>(send) + begin,
                 static_cast<int>((std::min)(std::size_t{piece}, bytes - begin)),
                 static_cast<char*>(receive) + begin, whole));
  }

 private:
  using Clock = gdpo::detail::WaitClock;
  using Seconds = gdpo::detail::Seconds;

  struct State {
    MPI_Comm comm = MPI_COMM_NULL;
    int rank = 0, size = 1;
    Seconds deadline{};
    long long number = 0;   // of the latest all_gather, counted from 1
    std::size_t bytes = 0;  // that each rank sends in it
    ~State() {
      int finalized = 0;
      MPI_Finalized(&finalized);
      if (comm != MPI_COMM_NULL && !finalized) MPI_Comm_free(&comm);
    }
  };

  State& state() const {
    if (!state_)
      contract::fail("gdpo::dist::Mpi", "object", "one that has been moved from",
                     "one that has a communicator");
    return *state_;
  }
  /// Begins to gather `bytes` bytes of each rank.
  MPI_Request start(const void* send, int bytes, void* receive, bool whole) const {
    MPI_Datatype row = MPI_BYTE;
    if (!whole) {
      // A type for the pieces of the ranks, which begin state_->bytes apart.
      MPI_Datatype dense;
      MPI_Type_contiguous(bytes, MPI_BYTE, &dense);
      MPI_Type_create_resized(dense, 0, static_cast<MPI_Aint>(state_->bytes), &row);
      MPI_Type_commit(&row);
      MPI_Type_free(&dense);
    }
    MPI_Request request;
    const int code = MPI_Iallgather(send, bytes, MPI_BYTE, receive, whole ? bytes : 1, row,
                                    state_->comm, &request);
    if (!whole) MPI_Type_free(&row);  // MPI keeps it for as long as the request needs it
    check(code, "MPI_Iallgather");
    return request;
  }

  /// Waits until the request is done, and takes part in roll calls while it waits.
  void wait(MPI_Request request) const {
    // MPI may move data only inside its calls, so a large transfer is polled without sleep.
    const bool sleeps = state_->bytes <= (1 << 20) / static_cast<std::size_t>(size());
    const auto begin = Clock::now();
    // Ranks often begin to wait together, so their turns to call the roll are spread.
    RollCall roll{state_->deadline + grace * rank() / size(), {}};
    for (;;) {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done) return;
      const Seconds waited = Clock::now() - begin;
      if (waited > nap) attend(roll, waited);
      if (sleeps)
        gdpo::detail::rest(waited);
      else
        std::this_thread::yield();
    }
  }

  // The messages of a roll call are empty, so that no buffer has to outlive them. Their tag is
  // their content: `question`, or 1 + the number, modulo `span`, of the all_gather in which the
  // answering rank waits. Every MPI has tags up to 32767.
  static constexpr int none = -1, question = 0, span = 32767;
  static constexpr Seconds nap{1e-3}, grace{1.0};

  struct RollCall {
    Seconds turn;              // when this rank calls the roll, or, after that, reports
    std::vector<int> answers;  // of all ranks, if this rank has called the roll
  };

  /// Answers roll calls. In its turn this rank calls the roll; a second later it ends the job.
  void attend(RollCall& roll, Seconds waited) const {
    const int answer = 1 + static_cast<int>(state_->number % span);
    for (MPI_Status status; receive_tag(status);) {
      const int source = status.MPI_SOURCE;
      const bool is_caller = !roll.answers.empty();
      if (status.MPI_TAG != question) {
        if (is_caller) roll.answers[static_cast<std::size_t>(source)] = status.MPI_TAG;
        continue;
      }
      send_tag(source, answer);
      // One rank reports. This rank only does so if the job has not ended a little later.
      if (!is_caller || source < rank()) roll = {(std::max)(roll.turn, waited + 2 * grace), {}};
    }
    if (waited < roll.turn) return;
    if (!roll.answers.empty()) report_and_abort(roll.answers, answer, waited);
    roll = {waited + grace, std::vector<int>(static_cast<std::size_t>(size()), none)};
    roll.answers[static_cast<std::size_t>(rank())] = answer;
    for (int r = 0; r < size(); ++r)
      if (r != rank()) send_tag(r, question);
  }
  void send_tag(int destination, int tag) const {
    MPI_Request request;
    check(MPI_Isend(nullptr, 0, MPI_BYTE, destination, tag, state_->comm, &request), "MPI_Isend");
    MPI_Request_free(&request);  // MPI sends the message all the same
  }
  bool receive_tag(MPI_Status& status) const {
    int flag = 0;
    check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, state_->comm, &flag, &status), "MPI_Iprobe");
    if (flag)
      check(
          MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, state_->comm, &status),
          "MPI_Recv");
    return flag != 0;
  }

  [[noreturn]] void report_and_abort(const std::vector<int>& answers, int local,
                                     Seconds waited) const {
    std::string report = where() + "waited " + std::to_string(std::lround(waited.count())) + " s";
    int absent = 0;
    for (int r = 0; r < size(); ++r) {
      const int answer = answers[static_cast<std::size_t>(r)];
      if (answer == local || ++absent > 16) continue;
      // The numbers of two ranks differ by little, so their remainders determine the difference.
      const int ahead = answer - local, nearest = ahead - 2 * ahead / span * span;
      report += "; " + name(r) +
                (answer == none ? " does not answer"
                                : " waits in number " + std::to_string(state_->number + nearest));
    }
    if (absent == 0) report += "; all ranks wait in it";
    if (absent > 16) report += "; " + std::to_string(absent - 16) + " more ranks are missing";
    std::fprintf(stderr, "%s; MPI has no time-outs, so the job ends\n", report.c_str());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);  // on a part of it, MPICH would end this rank only
    std::abort();
  }

  /// The beginning of every message: which rank writes it, and what it is doing.
  std::string where() const {
    return "gdpo::dist::Mpi: " + name(rank()) + " of " + std::to_string(size()) +
           ", all_gather number " + std::to_string(state_->number) + " of " +
           std::to_string(state_->bytes) + " bytes: ";
  }
  /// A rank in words, with its number in MPI_COMM_WORLD if that is another one.
  std::string name(int r) const {
    MPI_Group group, world;
    int world_rank = r;
    MPI_Comm_group(state_->comm, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_translate_ranks(group, 1, &r, world, &world_rank);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    const bool same = world_rank == r || world_rank == MPI_UNDEFINED;
    return "rank " + std::to_string(r) +
           (same ? "" : " (" + std::to_string(world_rank) + " of MPI_COMM_WORLD)");
  }
  void check(int code, const char* call) const {
    if (code != MPI_SUCCESS) fail_communication(where() + call + ": " + words(code));
  }
  static std::string words(int code) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    return text;
  }

  std::unique_ptr<State> state_;
};

}  // namespace dist
GDPO_END_NAMESPACE
