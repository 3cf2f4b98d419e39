#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "words.hpp"

namespace resolution {

Progress::Progress(std::string what, std::size_t total)
    : Progress(std::move(what), total, std::cerr, isatty(STDERR_FILENO) != 0) {}

Progress::Progress(std::string what, std::size_t total, std::ostream& out, bool terminal)
    : what_(std::move(what)),
      total_(total),
      out_(out),
      terminal_(terminal),
      next_(Clock::now() + std::chrono::seconds(1)) {}

Progress::~Progress() {
  if (terminal_ && shown_width_ > 0)
    out_ << '\r' << std::string(shown_width_, ' ') << '\r' << std::flush;
}

void Progress::update_at(std::size_t done, Clock::time_point now) {
  if (now < next_) return;
  next_ = now + std::chrono::seconds(1);
  std::string line = what_ + ": " + grouped(done);
  if (total_ > 0) {
    line += " of " + grouped(total_) + " (" +
            percent(static_cast<double>(std::min(done, total_)) / static_cast<double>(total_), 0) +
            ")";
  }
  const std::size_t width = line.size();
  line.resize(std::max(width, terminal_ ? shown_width_ : 0), ' ');
  out_ << (terminal_ ? "\r" : "") << line << (terminal_ ? "" : "\n") << std::flush;
  shown_width_ = width;
}

}  // namespace resolution
