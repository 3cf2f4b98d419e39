#pragma once
// Ranks as threads of this process, for tests of dist/.
#include <condition_variable>
#include <gdpo/dist.hpp>
#include <mutex>
#include <thread>

namespace test {

/// What the threads of one run share.
struct RankBoard {
  explicit RankBoard(int ranks) : send(static_cast<std::size_t>(ranks)), size(ranks) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<const void*, std::size_t>> send;
  int size, arrived = 0, copied = 0, gone = 0;
  long turn = 0;
  std::size_t calls = 0, bytes = 0;  // of rank 0
};

/// A communicator of one of the threads. A rank that has left makes the others throw: no test
/// hangs. Different numbers of bytes throw as well, where a real transport might do anything.
struct ThreadRank {
  RankBoard& board;
  int number;

  int rank() const { return number; }
  int size() const { return board.size; }
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    std::unique_lock<std::mutex> lock(board.mutex);
    const auto wait = [&](const auto& done) {
      board.changed.wait(lock, [&] { return done() || board.gone > 0; });
      if (!done()) gdpo::dist::fail_communication("a rank has left");
    };
    board.send[static_cast<std::size_t>(number)] = {send, bytes};
    if (number == 0) ++board.calls, board.bytes += bytes;
    const long turn = board.turn;
    if (++board.arrived == board.size) {
      board.arrived = 0, board.copied = 0;
      ++board.turn;
      board.changed.notify_all();
    } else {
      wait([&] { return board.turn != turn; });
    }
    char* to = static_cast<char*>(receive);
    bool same = true;
    for (const auto& [from, n] : board.send) {
      same = same && n == bytes;
      if (n == bytes && bytes > 0) std::memcpy(to, from, bytes);
      to += bytes;
    }
    // Nobody sends anew before all have copied.
    if (++board.copied == board.size) {
      board.changed.notify_all();
    } else {
      const long next = board.turn;
      wait([&] { return board.copied >= board.size || board.turn != next; });
    }
    if (!same) gdpo::dist::fail_communication("ranks send different numbers of bytes");
  }
};

/// Runs f(communicator) on so many ranks, and returns what each of them threw: "" for nothing.
/// `bytes`, if given, receives what rank 0 has sent.
template <class F>
std::vector<std::string> on_ranks(int ranks, const F& f, std::size_t* bytes = nullptr) {
  RankBoard board(ranks);
  std::vector<std::string> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::string what;
      try {
        f(ThreadRank{board, r});
      } catch (const gdpo::invalid_input& e) {
        what = e.what();
      } catch (const gdpo::communication_error& e) {
        what = std::string("communication_error: ") + e.what();
      } catch (const std::exception& e) {
        what = std::string("exception: ") + e.what();
      }
      const std::lock_guard<std::mutex> lock(board.mutex);
      thrown[static_cast<std::size_t>(r)] = what;
      ++board.gone;
      board.changed.notify_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (bytes) *bytes = board.bytes;
  return thrown;
}

}  // namespace test
