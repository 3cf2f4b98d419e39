// TorchDistributed over gloo, between processes of this machine.
//   ranks_torch SCENARIO RANKS
// The program starts one process for each rank and compares how they end. It kills those that have
// not ended after a limit, so it always ends itself.
#include <signal.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <gdpo/with/torch_distributed.hpp>
#include <limits>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "ranks/law.hpp"

using gdpo::dist::TorchDistributed;
static_assert(gdpo::dist::is_communicator_v<TorchDistributed>);

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<unsigned char>;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int failures = 0;
void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  ++failures;
}

/// What one rank needs to join the group. The time-out of the group itself is far longer than any
/// deadline here, so that the deadlines are the adapter's.
struct Rank {
  std::string file;
  int rank, size;

  auto backend() const {
    auto store = c10::make_intrusive<c10d::FileStore>(file, size);
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    options->threads = 2;
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  }
  c10::intrusive_ptr<c10d::ProcessGroup> group() const {
#if TORCH_VERSION_MAJOR < 2
    return backend();
#else
    auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, size);
    group->setBackend(c10::kCPU, c10d::ProcessGroup::GLOO, backend());
    return group;
#endif
  }
};

/// What `rank` sends in the transfer `round`.
Bytes sent(int rank, int round, std::size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(1000 * round + rank));
  Bytes result(bytes);
  for (unsigned char& byte : result) byte = static_cast<unsigned char>(random());
  return result;
}

/// Whether one gather brings the bytes of all ranks, in their order, and writes nothing else.
bool gathers(const TorchDistributed& ranks, int round, std::size_t bytes) {
  constexpr unsigned char guard = 0xA5;
  const Bytes mine = sent(ranks.rank(), round, bytes);
  const std::size_t all = bytes * static_cast<std::size_t>(ranks.size());
  Bytes got(all + 64, guard), expected;
  ranks.all_gather(mine.data(), bytes, got.data());
  for (int r = 0; r < ranks.size(); ++r) {
    const Bytes theirs = sent(r, round, bytes);
    expected.insert(expected.end(), theirs.begin(), theirs.end());
  }
  expected.resize(all + 64, guard);
  return got == expected;
}

/// The message of the communication_error that a gather of 1312 bytes throws, or nothing.
std::string error_of_gather(const TorchDistributed& ranks, Bytes& receive) {
  const Bytes mine(1312, 1);
  try {
    ranks.all_gather(mine.data(), mine.size(), receive.data());
    return "";
  } catch (const gdpo::communication_error& error) {
    return error.what();
  }
}

/// Checks that a gather fails between two times, that the message says all, and that the next
/// gather fails at once.
void fails(const TorchDistributed& ranks, int number, double earliest, double latest) {
  Bytes receive(1312 * static_cast<std::size_t>(ranks.size()), 7);
  const Bytes before = receive;
  const auto begin = Clock::now();
  const std::string message = error_of_gather(ranks, receive);
  const double took = seconds_since(begin);
  std::printf("%.2f s: %s\n", took, message.c_str());
  check(took >= earliest && took <= latest, "the error comes in time");
  const std::string who = "gdpo::dist::TorchDistributed: rank " + std::to_string(ranks.rank()) +
                          " of " + std::to_string(ranks.size()) + " waited ";
  const std::string what = " s in all_gather number " + std::to_string(number) + " of 1312 bytes: ";
  check(message.find(who) == 0 && message.find(what) != std::string::npos, "the message says it");
  check(message.size() > message.find(what) + what.size() + 10, "with words of c10d");
  check(message.find('\n') == std::string::npos && message.size() < 600, "in one line");
  check(receive == before, "nothing is written");
  const auto again = Clock::now();
  check(error_of_gather(ranks, receive).find("an earlier all_gather failed") != std::string::npos,
        "so does the next gather");
  check(seconds_since(again) < 0.5, "at once");
}

template <class Group>
void refuses(const Group& group, double deadline, const char* needed) {
  try {
    const TorchDistributed ranks(group, deadline);
    check(false, "a constructor refuses its arguments");
  } catch (const gdpo::invalid_input& error) {
    check(std::string(error.what()).find(needed) != std::string::npos, "it says what it needs");
  }
}

/// What a rank does in each scenario.
void act(const std::string& scenario, const Rank& self) {
  signal(SIGPIPE, SIG_IGN);  // as with/torch_distributed.hpp says
  // It is never destroyed, because the destructor waits for a transfer that has been given up.
  const auto& group = *new auto(self.group());
  if (scenario == "gathers") {
    TorchDistributed ranks(group);
    check(ranks.rank() == self.rank && ranks.size() == self.size, "it knows its place");
    std::mt19937 sizes(17);
    int round = 0;
    for (const std::size_t bytes : {0u, 1u, 7u, 1312u, 3'000'000u, 0u, 64u})
      check(gathers(ranks, ++round, bytes), "a gather of " + std::to_string(bytes) + " bytes");
    while (round < 100) check(gathers(ranks, ++round, sizes() % 20'000), "one of random size");
    const TorchDistributed moved = std::move(ranks);
    check(gathers(moved, ++round, 100), "one after a move");
    check(gathers(TorchDistributed(group, 1e9), ++round, 100), "one with the longest deadline");

    Bytes mine(1312), all(1312 * static_cast<std::size_t>(self.size));
    constexpr int times = 300;
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) moved.all_gather(mine.data(), mine.size(), all.data());
    if (self.rank == 0)
      std::printf("1312 bytes, %d ranks: %.0f us\n", self.size, seconds_since(begin) / times * 1e6);

    const char* const above = "a number of seconds above 0 and at most 1e9";
    refuses(group, 0, above);
    refuses(group, -1, above);
    refuses(group, 1.1e9, above);
    refuses(group, std::nan(""), above);
    refuses(c10::intrusive_ptr<c10d::ProcessGroup>(), 1, "a process group of c10d");
    const auto backend = Rank{self.file + ".backend", self.rank, self.size}.backend();
    check(gathers(TorchDistributed(backend), 1, 1312), "one in a group of a class of its own");
    check(gathers(moved, ++round, 1), "the last one");
    return;
  }
  if (scenario == "law") {  // a step over the ranks is the step of one process
    const std::string broken = ranks::broken_law(TorchDistributed(group, 30), 10);
    return check(broken.empty(), broken);
  }
  const TorchDistributed ranks(group, scenario == "killed" ? 20 : scenario == "stuck" ? 2 : 1);
  for (int round = 1; round <= 3; ++round) check(gathers(ranks, round, 1312), "a gather before");
  if (scenario == "killed") {
    if (self.rank == 1) raise(SIGKILL);
    fails(ranks, 4, 0, 19);
  } else if (scenario == "stuck") {
    if (self.rank == 1) pause();
    fails(ranks, 4, 1.9, 10);
  } else if (self.rank == 1) {  // "late": it comes when the others have given up
    std::this_thread::sleep_for(std::chrono::seconds(2));
    try {
      gathers(ranks, 4, 1312);  // gloo may still bring the bytes
    } catch (const gdpo::communication_error&) {
    }
  } else {
    Bytes receive(1312 * static_cast<std::size_t>(self.size), 7);
    const Bytes before = receive;
    check(!error_of_gather(ranks, receive).empty(), "the gather fails");
    std::this_thread::sleep_for(std::chrono::seconds(2));
    check(receive == before, "and writes nothing when the bytes come after all");
  }
}

/// Runs the scenario in processes and returns whether all of them end as they should: rank 1 by a
/// signal where it is killed or stuck, all others well.
bool run(const std::string& scenario, int size) {
  std::string folder = std::filesystem::temp_directory_path() / "gdpo_ranks_XXXXXX";
  if (!mkdtemp(folder.data())) return false;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.push_back(fork());
    if (processes.back() != 0) continue;
    try {
      act(scenario, {folder + "/store", rank, size});
    } catch (const std::exception& error) {
      check(false, error.what());
    }
    std::fflush(nullptr);
    _exit(failures == 0 ? 0 : 1);
  }
  const bool signaled = scenario == "killed" || scenario == "stuck";
  const auto begin = Clock::now();
  bool good = true;
  const auto wait_for = [&](int rank, double limit) {
    const pid_t process = processes[static_cast<std::size_t>(rank)];
    int status = 0;
    while (waitpid(process, &status, WNOHANG) == 0) {
      if (seconds_since(begin) > limit) kill(process, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const bool as_planned = signaled && rank == 1 ? WIFSIGNALED(status) != 0
                                                  : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!as_planned) std::fprintf(stderr, "rank %d ended with status %d\n", rank, status);
    good = good && as_planned;
  };
  for (int rank = 0; rank < size; ++rank)
    if (rank != 1) wait_for(rank, 60);
  wait_for(1, scenario == "stuck" ? 0 : 60);
  std::filesystem::remove_all(folder);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return run(argv[1], std::atoi(argv[2])) ? 0 : 1;
}
