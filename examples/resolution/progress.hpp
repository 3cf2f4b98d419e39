#pragma once

#include <chrono>
#include <cstddef>
#include <iosfwd>
#include <string>

namespace resolution {

/// Reports on standard error how far a long loop has come: nothing in the first second, then one
/// line a second. On a terminal the line replaces itself and is wiped at the end.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// The loop does `what`, in `total` steps; 0 where the number of steps is not known.
  explicit Progress(std::string what, std::size_t total = 0);
  /// The same on another stream; `terminal` says whether a line can replace itself there.
  Progress(std::string what, std::size_t total, std::ostream& out, bool terminal);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Call it after every step; the clock is read only every 1024th time.
  void update(std::size_t done) {
    if ((calls_++ & 1023U) == 0) update_at(done, Clock::now());
  }
  /// The same at the time `now`.
  void update_at(std::size_t done, Clock::time_point now);

 private:
  std::string what_;
  std::size_t total_;
  std::ostream& out_;
  bool terminal_;
  std::size_t calls_ = 0;
  std::size_t shown_width_ = 0;
  Clock::time_point next_;
};

}  // namespace resolution
