#pragma once
// Many ranks in one process, without a network. What a rank sends in a collective does not depend
// on what the others send, as long as none of them fails. So every rank is rehearsed alone, which
// records its messages, and then one rank makes the same call again and gets the messages of all.
#include <chrono>
#include <gdpo/dist/communicator.hpp>
#include <stdexcept>
#include <vector>

/// What all ranks send in one collective: message after message, the bytes of rank 0 first.
struct Recording {
  struct Message {
    std::size_t bytes = 0;           // from each rank
    std::vector<unsigned char> all;  // (ranks * bytes)
  };
  int ranks = 0;
  std::vector<Message> messages;
};

/// A rank that is rehearsed: it hears only itself.
class RehearsedRank {
 public:
  explicit RehearsedRank(Recording& to) : to_(to) { ++to_.ranks; }
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    gdpo::dist::Single{}.all_gather(send, bytes, receive);
    if (sent_ == to_.messages.size()) to_.messages.push_back({bytes, {}});
    Recording::Message& message = to_.messages[sent_++];
    if (message.bytes != bytes) throw std::logic_error("ranks send different numbers of bytes");
    const auto* from = static_cast<const unsigned char*>(send);
    message.all.insert(message.all.end(), from, from + bytes);
  }

 private:
  Recording& to_;
  mutable std::size_t sent_ = 0;
};

/// Records `call(communicator, r)` of the ranks r = 0, 1, ... `ranks` - 1.
template <class Call>
Recording rehearse(int ranks, const Call& call) {
  Recording recording;
  for (int r = 0; r < ranks; ++r) call(RehearsedRank(recording), r);
  return recording;
}

/// One rank among the recorded ones. It has to make the call of the rehearsal, with data of the
/// same size.
class ReplayedRank {
 public:
  ReplayedRank(const Recording& recording, int rank) : recording_(recording), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const { return recording_.ranks; }
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    const auto start = Clock::now();
    const Recording::Message& message = recording_.messages[next_];
    // Only the status words are compared: records may have bytes between their members.
    const std::size_t own = static_cast<std::size_t>(rank_) * bytes;
    if (message.bytes != bytes ||
        (next_ == 0 && std::memcmp(message.all.data() + own, send, bytes) != 0))
      throw std::logic_error("a rank sends something else than in the rehearsal");
    std::memcpy(receive, message.all.data(), message.all.size());
    next_ = (next_ + 1) % recording_.messages.size();
    copying_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

  /// The bytes that a rank receives from the others in the collective.
  double received() const {
    double bytes = 0;
    for (const Recording::Message& message : recording_.messages)
      bytes += static_cast<double>(message.bytes) * (size() - 1);
    return bytes;
  }
  /// Seconds of one call of f without those that the messages took, which no network has carried.
  template <class F>
  double time_without_messages(const F& f) const {
    const double before = copying_;
    const auto start = Clock::now();
    f();
    return std::chrono::duration<double>(Clock::now() - start).count() - (copying_ - before);
  }
  /// A model of the seconds that a network needs, by the formula printed with the tables: 5 us for
  /// each step of a message that doubles the ranks which have been heard, and 25 GB/s.
  double modeled_network() const {
    int steps = 0;
    while ((std::int64_t{1} << steps) < size()) ++steps;
    return static_cast<double>(recording_.messages.size()) * steps * 5e-6 + received() / 25e9;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Recording& recording_;
  int rank_;
  mutable std::size_t next_ = 0;
  mutable double copying_ = 0;
};
