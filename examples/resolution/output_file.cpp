#include "output_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "errors.hpp"
#include "words.hpp"

namespace resolution {
namespace {

namespace fs = std::filesystem;

/// Holds back the signals that end the program while it exists.
class SignalsWait {
 public:
  SignalsWait() {
    sigset_t ending;
    sigemptyset(&ending);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, signal);
    pthread_sigmask(SIG_BLOCK, &ending, &before_);
  }
  ~SignalsWait() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  sigset_t before_;
};

/// Temporary files, which are removed unless they were renamed.
class Temporaries {
 public:
  Temporaries() = default;
  ~Temporaries() {
    std::error_code error;
    for (const auto& [temporary, path] : files_) fs::remove(temporary, error);
  }
  Temporaries(const Temporaries&) = delete;
  Temporaries& operator=(const Temporaries&) = delete;

  /// The name of the temporary file for `path`.
  const std::string& add(const std::string& path) {
    files_.push_back({path + ".part" + std::to_string(getpid()), path});
    return files_.back().first;
  }
  void rename_all() {
    for (const auto& [temporary, path] : files_) {
      std::error_code error;
      fs::rename(temporary, path, error);
      if (error) throw UserError(printable(path) + ": cannot be written");
    }
  }

 private:
  std::vector<std::pair<std::string, std::string>> files_;
};

void write(const std::string& to, const OutputFile& output) {
  std::ofstream file(to, std::ios::binary | std::ios::trunc);
  file.write(output.text.data(), static_cast<std::streamsize>(output.text.size()));
  file.close();
  if (!file) throw UserError(printable(output.path) + ": cannot be written");
}

bool is_special(const std::string& path) {
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  return fs::exists(there) && !fs::is_regular_file(there);
}

/// The file that a symbolic link leads to, or the path itself.
std::string target_of(const std::string& path) {
  std::error_code error;
  return fs::is_symlink(path, error) ? fs::weakly_canonical(path, error).string() : path;
}

}  // namespace

void write_files(const std::vector<OutputFile>& files) {
  for (const OutputFile& f : files) {
    std::error_code error;
    if (fs::is_directory(f.path, error))
      throw UserError(printable(f.path) + ": is a directory, cannot be written");
  }
  // What is no regular file cannot be taken back, but leaves nothing behind either.
  for (const OutputFile& f : files) {
    if (is_special(f.path)) write(f.path, f);
  }
  const SignalsWait wait;
  Temporaries temporaries;
  for (const OutputFile& f : files) {
    if (!is_special(f.path)) write(temporaries.add(target_of(f.path)), f);
  }
  temporaries.rename_all();
}

void write_reports(const std::vector<OutputFile>& files, const std::string& text) {
  write_files(files);
  // A pipe that nobody reads is then an error of write(), and no signal that ends the program.
  std::signal(SIGPIPE, SIG_IGN);
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (written >= 0) {
      at += static_cast<std::size_t>(written);
    } else if (errno == EPIPE) {
      return;
    } else if (errno != EINTR) {
      throw UserError("standard output: cannot be written");
    }
  }
}

}  // namespace resolution
