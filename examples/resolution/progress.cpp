#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "words.hpp"

namespace resolution {
namespace {

/// A time that is left, rounded up to whole seconds: "48 s", "3 min".
std::string time_left(double seconds) {
  return seconds <= 90 ? grouped(static_cast<std::size_t>(std::ceil(seconds))) + " s"
                       : grouped(static_cast<std::size_t>(std::ceil(seconds / 60))) + " min";
}

}  // namespace

Progress::Progress(std::string what, std::size_t total, std::string unit)
    : Progress(std::move(what), total, std::move(unit), std::cerr, isatty(STDERR_FILENO) != 0,
               Clock::now()) {}

Progress::Progress(std::string what, std::size_t total, std::string unit, std::ostream& out,
                   bool terminal, Clock::time_point start)
    : what_(std::move(what)),
      total_(total),
      unit_(std::move(unit)),
      out_(out),
      terminal_(terminal),
      start_(start),
      next_(start + std::chrono::seconds(1)) {}

Progress::~Progress() {
  if (terminal_ && shown_width_ > 0)
    out_ << '\r' << std::string(shown_width_, ' ') << '\r' << std::flush;
}

void Progress::update_at(std::size_t done, double share, Clock::time_point now) {
  if (now < next_) return;
  next_ = now + std::chrono::seconds(1);
  std::string line = what_ + ": " + grouped(done);
  if (total_ > 0) {
    line += " of " + grouped(total_);
    if (share == 0) share = static_cast<double>(done) / static_cast<double>(total_);
  }
  line += " " + unit_ + (done == 1 && total_ == 0 ? "" : "s");
  if (share > 0) {
    share = std::min(share, 1.0);
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    line += " (" + percent(share, 0) + "), " + time_left(elapsed / share - elapsed) + " left";
  }
  const std::size_t width = width_of(line);
  if (terminal_ && width < shown_width_) line += std::string(shown_width_ - width, ' ');
  out_ << (terminal_ ? "\r" : "") << line << (terminal_ ? "" : "\n") << std::flush;
  shown_width_ = width;
}

}  // namespace resolution
