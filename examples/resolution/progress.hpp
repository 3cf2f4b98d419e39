#pragma once

#include <chrono>
#include <cstddef>
#include <iosfwd>
#include <string>

namespace resolution {

/// Reports on standard error how far a long loop has come and how long the rest will take: nothing
/// in the first second, then one line a second. On a terminal the line replaces itself and is wiped
/// at the end.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// The loop does `what` to `total` rows, or whatever `unit` is; 0 where the number is not known.
  explicit Progress(std::string what, std::size_t total = 0, std::string unit = "row");
  /// The same on another stream; `terminal` says whether a line can replace itself there.
  Progress(std::string what, std::size_t total, std::string unit, std::ostream& out, bool terminal,
           Clock::time_point start);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Call it after every row; the clock is read only every 64th time. `share` is the part of all
  /// work that is done, where the number of rows does not tell it; 0: the rows tell it.
  void update(std::size_t done, double share = 0) {
    if ((calls_++ & 63U) == 0) update_at(done, share, Clock::now());
  }
  /// The rest of the loop does something else; the time goes on.
  void rename(std::string what) { what_ = std::move(what); }
  /// The same as update() at the time `now`.
  void update_at(std::size_t done, double share, Clock::time_point now);

 private:
  std::string what_;
  std::size_t total_;
  std::string unit_;
  std::ostream& out_;
  bool terminal_;
  std::size_t calls_ = 0;
  std::size_t shown_width_ = 0;
  Clock::time_point start_;
  Clock::time_point next_;
};

}  // namespace resolution
