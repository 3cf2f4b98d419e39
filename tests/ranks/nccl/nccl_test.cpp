// Nccl between threads of this process, against stand-ins for NCCL and the CUDA runtime.
#include <cmath>
#include <gdpo/with/nccl.hpp>
#include <random>

#include "made_up.hpp"
#include "support/catch.hpp"

using Catch::Matchers::ContainsSubstring;
using gdpo::dist::Nccl;
static_assert(gdpo::dist::is_communicator_v<Nccl>);

namespace {

/// One rank: its device, its stream and its communicator.
struct Place {
  made_up::Rank seen;
  CUstream_st stream;
  ncclComm comm;
  Place(made_up::Network& network, int rank, int polls_to_settle = 0)
      : comm(network, (seen.polls_to_settle = polls_to_settle, seen), rank, 0) {
    made_up::self = &seen;
  }
};

std::vector<char> sent(int rank, std::size_t round, std::size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(round) * 100 + static_cast<unsigned>(rank));
  std::vector<char> result(bytes);
  for (char& byte : result) byte = static_cast<char>(random());
  return result;
}

/// The message of the communication_error that a gather throws, or nothing.
std::string error_of_gather(const Nccl& ranks, std::size_t bytes = 1312) {
  const std::vector<char> mine(bytes, 1), before(bytes * static_cast<std::size_t>(ranks.size()), 7);
  std::vector<char> all = before;
  try {
    ranks.all_gather(mine.data(), bytes, all.data());
    return "";
  } catch (const gdpo::communication_error& error) {
    return error.what();
  }
}

/// Waits until ncclCommAbort has returned, which may be after the error if the deadline is short.
void wait_for_abort(const Place& place) {
  while (!place.comm.returned) std::this_thread::yield();
}

double seconds_of(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

using Calls = std::vector<std::string>;

}  // namespace

TEST_CASE("NCCL: every rank gets the bytes of all", "[ranks]") {
  const int size = GENERATE(1, 2, 3, 5);
  const int polls = GENERATE(0, 4);  // 4: nonblocking communicators
  made_up::Network network(size);
  std::vector<std::string> wrong(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& what = wrong[static_cast<std::size_t>(rank)];
      Place place(network, rank, polls);
      std::mt19937 sizes(3);
      {
        const Nccl ranks(&place.comm, &place.stream, 30);
        if (ranks.rank() != rank || ranks.size() != size) what = "the place";
        for (std::size_t round = 0; round < 40; ++round) {
          const std::size_t bytes = round % 7 == 3 ? 0 : sizes() % 3000;
          const std::size_t all = bytes * static_cast<std::size_t>(size);
          const std::vector<char> mine = sent(rank, round, bytes);
          std::vector<char> got(all + 16, 7), expected;
          ranks.all_gather(mine.data(), bytes, got.data());
          for (int r = 0; r < size; ++r) {
            const std::vector<char> theirs = sent(r, round, bytes);
            expected.insert(expected.end(), theirs.begin(), theirs.end());
          }
          expected.resize(all + 16, 7);
          if (got != expected) what = "the bytes of round " + std::to_string(round);
        }
        if (ranks.aborted() || place.seen.aborts != 0) what = "an abort";
      }
      if (!place.seen.memory.empty()) what = "memory is left";
      if (place.seen.last != cudaSuccess) what = "an error is left";
      if (!place.seen.wrong.empty()) what = place.seen.wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& what : wrong) CHECK(what == "");
}

TEST_CASE("NCCL: the calls come in their order", "[ranks]") {
  made_up::Network network(1);
  Place place(network, 0);
  Calls& calls = place.seen.calls;
  Nccl first(&place.comm, &place.stream, 5);
  CHECK(calls ==
        Calls{"cudaGetDevice", "poll", "ncclCommCuDevice", "ncclCommUserRank", "ncclCommCount"});
  const Calls gather{"copy to the device", "ncclAllGather", "poll", "copy to the host",
                     "cudaStreamSynchronize"};
  const auto gathers = [&](const Nccl& ranks, std::size_t bytes, const Calls& before) {
    calls.clear();
    CHECK(error_of_gather(ranks, bytes) == "");
    Calls expected{"cudaGetDevice", "poll"};
    expected.insert(expected.end(), before.begin(), before.end());
    expected.insert(expected.end(), gather.begin(), gather.end());
    CHECK(calls == expected);
  };
  gathers(first, 100, {"cudaMalloc"});
  gathers(first, 100, {});
  gathers(first, 30, {});
  gathers(first, 101, {"cudaFree", "cudaMalloc"});
  calls.clear();
  first.all_gather(nullptr, 0, nullptr);
  CHECK(calls.empty());
  const Nccl moved = std::move(first);
  gathers(moved, 101, {});
  CHECK(place.seen.wrong == "");
  CHECK(place.seen.memory.size() == 1);
  gathers(first, 50, {"cudaMalloc"});  // moved from, it has the communicator and no buffer
  CHECK(place.seen.wrong == "");
  CHECK(place.seen.memory.size() == 2);
}

TEST_CASE("NCCL: an error of any call aborts the communicator", "[ranks]") {
  const std::string call = GENERATE(as<std::string>{}, "cudaGetDevice", "poll", "cudaMalloc",
                                    "copy to the device", "copy to the host", "ncclAllGather",
                                    "cudaStreamSynchronize", "ncclCommGetAsyncError");
  CAPTURE(call);
  made_up::Network network(1);
  Place place(network, 0);
  {
    const Nccl ranks(&place.comm, &place.stream, 5);
    CHECK(error_of_gather(ranks, 8) == "");
    CHECK_FALSE(ranks.aborted());
    place.seen.fails[call] = 2;
    const std::string message = error_of_gather(ranks);
    const bool of_nccl = call.find("nccl") == 0;
    const std::map<std::string, std::string> names{{"poll", "cudaStreamQuery"},
                                                   {"copy to the device", "cudaMemcpyAsync"},
                                                   {"copy to the host", "cudaMemcpyAsync"}};
    const std::string name = names.count(call) ? names.at(call) : call;
    CHECK_THAT(message, ContainsSubstring("gdpo::dist::Nccl: waited "));
    CHECK_THAT(message, ContainsSubstring(
                            " s in all_gather number 2 of 1312 bytes, as rank 0 of 1: " + name +
                            (of_nccl ? ": an error of NCCL: said in detail"
                                     : ": cudaErrorOfTest: as the test asks")));
    CHECK(ranks.aborted());
    CHECK(place.seen.aborts == 1);
    CHECK(place.seen.last == cudaSuccess);  // no launch will be blamed

    place.seen.fails.clear();
    place.seen.calls.clear();
    CHECK_THAT(error_of_gather(ranks), ContainsSubstring("an earlier error has aborted"));
    CHECK(place.seen.calls.empty());
  }
  CHECK(place.seen.aborts == 1);
  CHECK(place.seen.memory.empty());
  CHECK(place.seen.wrong == "");
}

TEST_CASE("NCCL: an error of the constructor aborts the communicator", "[ranks]") {
  const std::string call = GENERATE(as<std::string>{}, "cudaGetDevice", "ncclCommGetAsyncError",
                                    "ncclCommCuDevice", "ncclCommUserRank", "ncclCommCount");
  made_up::Network network(1);
  Place place(network, 0);
  place.seen.fails[call] = 3;
  CHECK_THROWS_WITH(Nccl(&place.comm, &place.stream),
                    ContainsSubstring("in the constructor") && ContainsSubstring(call));
  CHECK(place.seen.aborts == 1);
  CHECK(place.seen.wrong == "");
}

TEST_CASE("NCCL: a transfer that is stuck ends at the deadline", "[ranks]") {
  made_up::Network network(2);  // nobody is rank 1
  Place place(network, 0, GENERATE(0, 3));
  const Nccl ranks(&place.comm, &place.stream, 0.2);
  std::string message;
  const double took = seconds_of([&] { message = error_of_gather(ranks); });
  CHECK(took >= 0.2);
  CHECK(took < 5);
  CHECK_THAT(message, ContainsSubstring("gdpo::dist::Nccl: waited 0.2"));
  CHECK_THAT(message, ContainsSubstring("of 1312 bytes, as rank 0 of 2: no answer from another"));
  CHECK(ranks.aborted());
  wait_for_abort(place);
  CHECK(place.seen.aborts == 1);
  CHECK(place.seen.calls.back() == "poll");  // nothing is copied back
  CHECK(place.seen.last == cudaSuccess);
  CHECK(place.seen.wrong == "");
}

TEST_CASE("NCCL: an error in the background ends the wait before the deadline", "[ranks]") {
  made_up::Network network(2);
  Place place(network, 0, GENERATE(0, 3));
  const Nccl ranks(&place.comm, &place.stream, 60);
  place.seen.async = ncclRemoteError;
  std::string message;
  CHECK(seconds_of([&] { message = error_of_gather(ranks); }) < 5);
  CHECK_THAT(message,
             ContainsSubstring("NCCL in the background: an error of NCCL: said in detail"));
  CHECK(ranks.aborted());
  CHECK(place.seen.aborts == 1);
  CHECK(place.seen.wrong == "");
}

TEST_CASE("NCCL: the stream is stuck before the transfer", "[ranks]") {
  made_up::Network network(1);
  Place place(network, 0);
  const Nccl ranks(&place.comm, &place.stream, 0.1);
  place.stream.work.push_back([] { return false; });
  CHECK_THAT(error_of_gather(ranks),
             ContainsSubstring("the stream has not done what it was given"));
  CHECK(ranks.aborted());
  wait_for_abort(place);
  CHECK(place.seen.wrong == "");  // no copy waits for it
}

TEST_CASE("NCCL: a communicator that is never connected", "[ranks]") {
  made_up::Network network(2);
  Place place(network, 0, -1);
  CHECK_THROWS_WITH(Nccl(&place.comm, &place.stream, 0.1),
                    ContainsSubstring("in the constructor: NCCL has not connected the ranks"));
  wait_for_abort(place);
  CHECK(place.seen.aborts == 1);
  CHECK(place.seen.wrong == "");
}

TEST_CASE("NCCL: ncclCommAbort itself does not return", "[ranks]") {
  made_up::Network network(2);
  Place place(network, 0);
  place.seen.hold_abort = true;
  {
    const Nccl ranks(&place.comm, &place.stream, 0.1);
    CHECK(seconds_of([&] { error_of_gather(ranks); }) < 5);
    CHECK(ranks.aborted());
  }
  // To free the memory would be to wait for the device.
  CHECK(place.seen.frees == 0);
  CHECK_FALSE(place.comm.returned);
  place.seen.hold_abort = false;
  wait_for_abort(place);
  CHECK(place.seen.wrong == "");
  for (const auto& [block, bytes] : place.seen.memory) delete[] block;
}

TEST_CASE("NCCL: mistakes of the caller leave the communicator alone", "[ranks]") {
  made_up::Network network(1);
  Place place(network, 0);
  const double deadline = GENERATE(0., -1., 1.1e9, std::nan(""));
  CHECK_THROWS_AS(Nccl(&place.comm, &place.stream, deadline), gdpo::invalid_input);
  CHECK_THROWS_WITH(Nccl(nullptr, &place.stream), ContainsSubstring("an ncclComm_t"));
  const Nccl ranks(&place.comm, &place.stream, 1e9);
  place.seen.device = 3;
  CHECK_THROWS_WITH(error_of_gather(ranks),
                    "gdpo::dist::Nccl: current device: given 3; needed: 0, "
                    "the communicator's");
  place.seen.device = 0;
  CHECK(error_of_gather(ranks) == "");
  CHECK(place.seen.aborts == 0);
  CHECK(place.seen.wrong == "");
}
