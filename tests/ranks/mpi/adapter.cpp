// What gdpo/with/mpi.hpp does on the ranks of a real MPI job: mpirun runs this program, and ctest
// looks at its exit status and at what is printed. The argument says what happens:
//   gather          every rank gets what every rank sent: random sizes, pieces, subgroups
//   late            a rank comes after the deadline, but before the roll call has ended
//   killed, exits   rank 1 dies, or leaves without MPI_Finalize
//   stuck, stopped  rank 1 sleeps, or is stopped by a signal
//   subgroup        a rank of one of two subgroups sleeps
//   apart           rank 1 sleeps, and the others wait in different calls
//   longer          rank 1 sends more than the others expect
//   refused         what the constructor refuses, before, between and after Init and Finalize
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <gdpo/with/mpi.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using gdpo::dist::Mpi;

static_assert(gdpo::dist::is_communicator_v<Mpi>);
static_assert(std::is_nothrow_move_constructible_v<Mpi> && std::is_nothrow_move_assignable_v<Mpi>);
static_assert(!std::is_copy_constructible_v<Mpi> && !std::is_copy_assignable_v<Mpi>);

[[noreturn]] void fail(const std::string& what) {
  std::printf("failed: %s\n", what.c_str());
  std::fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, 3);
  std::abort();
}
void need(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// ---- gather ----

/// Byte `i` of what a process sends in a round.
char byte_of(int process, int round, std::size_t i) {
  const std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u ^
                          static_cast<std::uint64_t>(process * 1000 + round) * 0xd1342543de82ef95u;
  return static_cast<char>(x >> 56);
}

/// One gather of that many bytes. `processes` are the ranks in MPI_COMM_WORLD.
template <int... piece>
void check_gather(const Mpi& ranks, const std::vector<int>& processes, int round,
                  std::size_t bytes) {
  const std::size_t n = processes.size();
  std::vector<char> send(bytes), receive(n * bytes + 1, 'x');
  const int mine = processes[static_cast<std::size_t>(ranks.rank())];
  for (std::size_t i = 0; i < bytes; ++i) send[i] = byte_of(mine, round, i);
  ranks.all_gather<piece...>(bytes ? send.data() : nullptr, bytes, receive.data());
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t i = 0; i < bytes; ++i)
      if (receive[r * bytes + i] != byte_of(processes[r], round, i))
        fail("byte " + std::to_string(i) + " of " + std::to_string(bytes) + " of rank " +
             std::to_string(r) + " of " + std::to_string(n));
  need(receive[n * bytes] == 'x', "a byte behind the result is written");
}

void check_gathers(const Mpi& ranks, const std::vector<int>& processes) {
  need(ranks.size() == static_cast<int>(processes.size()), "size");
  need(processes[static_cast<std::size_t>(ranks.rank())] == world_rank(), "rank");
  std::mt19937 random(7);  // the same sizes on all ranks
  int round = 0;
  const auto all = [&](std::size_t bytes) {
    check_gather(ranks, processes, ++round, bytes);
    check_gather<1>(ranks, processes, ++round, bytes % 20);
    check_gather<7>(ranks, processes, ++round, bytes % 300);
    check_gather<4096>(ranks, processes, ++round, bytes);
  };
  for (const std::size_t bytes : {0u, 1u, 7u, 8u, 14u, 1312u, 4095u, 4096u, 4097u}) all(bytes);
  for (int i = 0; i < 40; ++i) all(random() % (std::size_t{1} << random() % 17));
  // Above the size from which ranks do not sleep, and a transfer that takes a while.
  check_gather(ranks, processes, ++round, 2'000'003);
  check_gather<1 << 20>(ranks, processes, ++round, 2'000'003);
}

void gather() {
  const int me = world_rank();
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<int> processes(static_cast<std::size_t>(size));
  std::iota(processes.begin(), processes.end(), 0);

  // A receive that takes any message of the caller's communicator gets none of the adapter's.
  int received = 0;
  MPI_Request any;
  MPI_Irecv(&received, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any);
  Mpi world(MPI_COMM_WORLD);
  check_gathers(world, processes);
  const int sent = 42 + me;
  MPI_Send(&sent, 1, MPI_INT, (me + 1) % size, 5, MPI_COMM_WORLD);
  MPI_Wait(&any, MPI_STATUS_IGNORE);
  need(received == 42 + (me + size - 1) % size, "the caller's message");
  MPI_Errhandler handler;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
  need(handler == MPI_ERRORS_ARE_FATAL, "the caller's error handler is changed");
  MPI_Errhandler_free(&handler);

  // Subgroups, in which the ranks stand in reverse order.
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, me % 2, -me, &half);
  std::vector<int> members;
  for (int r = size; r-- > 0;)
    if (r % 2 == me % 2) members.push_back(r);
  {
    const Mpi ranks(half);
    MPI_Comm_free(&half);  // the adapter has its own
    check_gathers(ranks, members);
    check_gather(world, processes, 0, 100);
  }

  // Moved objects work, and many objects leave nothing behind: MPI has some thousand communicators,
  // Open MPI 65,000.
  Mpi moved = std::move(world);
  check_gather(moved, processes, 1, 100);
  const auto refused = [](const auto& call) {
    std::string message = "none";
    try {
      call();
    } catch (const gdpo::invalid_input& e) {
      message = e.what();
    }
    need(message ==
             "gdpo::dist::Mpi: object: given one that has been moved from; needed: one that "
             "has a communicator",
         "a call of an object that has been moved from: " + message);
  };
  refused([&] { world.rank(); });
  refused([&] { world.size(); });
  refused([&] { world.all_gather(&me, 1, nullptr); });
  for (int i = 0; i < (size == 1 ? 70000 : 100); ++i) moved = Mpi(MPI_COMM_WORLD, 1e9);
  check_gather(moved, processes, 2, 100);
  if (me == 0) std::printf("gathered on %d ranks\n", size);
  // The last object is destroyed by a static's destructor, after MPI_Finalize.
  static Mpi last = std::move(moved);
}

// ---- ranks that take no part ----

/// Gathers that succeed, until the one that does not.
void some_gathers(const Mpi& ranks, int n) {
  std::vector<int> all(static_cast<std::size_t>(ranks.size()));
  for (int i = 0; i < n; ++i) {
    const int mine = ranks.rank();
    ranks.all_gather(&mine, sizeof mine, all.data());
    for (int r = 0; r < ranks.size(); ++r)
      need(all[static_cast<std::size_t>(r)] == r, "what came from rank " + std::to_string(r));
  }
}

void late() {
  const Mpi ranks(MPI_COMM_WORLD, 3.9);
  some_gathers(ranks, 5);
  if (ranks.rank() == 1) sleep_for(4.2);
  some_gathers(ranks, 1);
  // The question that rank 1 was asked is answered now, and does not shorten its deadline.
  if (ranks.rank() == 0) sleep_for(3.6);
  some_gathers(ranks, 5);
  if (ranks.rank() == 0) std::printf("all ranks came\n");
}

void missing(const std::string& how) {
  const Mpi ranks(MPI_COMM_WORLD, 2);
  some_gathers(ranks, 16);
  if (ranks.rank() == 1) {
    if (how == "killed") std::raise(SIGKILL);
    if (how == "exits") std::_Exit(0);
    if (how == "stopped") std::raise(SIGSTOP);
    sleep_for(600);
  }
  some_gathers(ranks, 1);
  fail("all_gather returned without rank 1");
}

void subgroup() {
  const int me = world_rank();
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &half);
  const Mpi ranks(half, 2);
  some_gathers(ranks, 3);
  if (me == 3) sleep_for(600);
  some_gathers(ranks, 1);
  if (me % 2 == 0) sleep_for(600);  // this subgroup knows of nothing
  fail("all_gather returned without rank 3");
}

void apart() {
  const Mpi ranks(MPI_COMM_WORLD, 2);
  // The next two numbers are said by the largest tag and, again, by 1. An empty gather counts.
  for (int i = 0; i < 32765; ++i) ranks.all_gather(nullptr, 0, nullptr);
  if (ranks.rank() == 1) sleep_for(600);
  if (ranks.rank() == 2) ranks.all_gather(nullptr, 0, nullptr);
  some_gathers(ranks, 1);
  fail("all_gather returned without rank 1");
}

void longer() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const Mpi ranks(MPI_COMM_WORLD, 2);
  std::vector<char> send(20000), receive(static_cast<std::size_t>(ranks.size()) * send.size());
  try {
    ranks.all_gather(send.data(), ranks.rank() == 1 ? send.size() : 8, receive.data());
    sleep_for(600);
  } catch (const gdpo::communication_error& error) {
    fail(error.what());
  }
}

// ---- what the constructor refuses ----

void refuses(MPI_Comm comm, double deadline, const std::string& words) {
  try {
    const Mpi ranks(comm, deadline);
  } catch (const gdpo::invalid_input& error) {
    if (error.what() == "gdpo::dist::Mpi: " + words) return;
    std::printf("failed: %s\n", error.what());
    std::exit(1);
  }
  std::printf("failed: no error with \"%s\"\n", words.c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::string running =
      "; needed: a call after MPI_Init or MPI_Init_thread and before MPI_Finalize";
  if (mode == "refused") refuses(MPI_COMM_WORLD, 1, "MPI: given not initialized" + running);
  MPI_Init(&argc, &argv);
  if (mode == "gather") gather();
  if (mode == "late") late();
  if (mode == "killed" || mode == "exits" || mode == "stuck" || mode == "stopped") missing(mode);
  if (mode == "subgroup") subgroup();
  if (mode == "apart") apart();
  if (mode == "longer") longer();
  if (mode == "refused") {
    const std::string seconds = "; needed: a number of seconds above 0 and at most 1e9";
    refuses(MPI_COMM_WORLD, 0, "deadline: given 0" + seconds);
    refuses(MPI_COMM_WORLD, -1, "deadline: given -1" + seconds);
    refuses(MPI_COMM_WORLD, 2e9, "deadline: given 2000000000" + seconds);
    refuses(MPI_COMM_WORLD, std::nan(""), "deadline: given nan" + seconds);
    const std::string one = "; needed: a communicator within one group, to which this rank belongs";
    refuses(MPI_COMM_NULL, 1, "caller: given MPI_COMM_NULL" + one);
    MPI_Comm half, both;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank() % 2, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, (world_rank() + 1) % 2, 0, &both);
    refuses(both, 1, "caller: given an inter-communicator" + one);
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
  }
  MPI_Finalize();
  if (mode == "refused") {
    refuses(MPI_COMM_WORLD, 1, "MPI: given finalized" + running);
    std::printf("all refused\n");
  }
}
