// Files that are written whole or not at all, also where the program is interrupted, and progress.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "output_file.hpp"
#include "progress.hpp"
#include "support.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

/// A folder that is removed with what is in it.
class Folder {
 public:
  Folder() { fs::create_directory(path_); }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_ =
      fs::temp_directory_path() / ("gdpo_resolution_output_" + std::to_string(getpid()));
};

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("Files are written whole, or none of them") {
  const Folder folder;
  write_files({{folder / "a", "first"}, {folder / "b", "one"}});
  write_files({{folder / "a", "second"}});
  CHECK(content(folder / "a") == "second");
  CHECK(folder.files() == 2);
  CHECK_THAT(error_of([&] {
               write_files({{folder / "a", "x"}, {folder / "no/such", "x"}});
             }),
             ContainsSubstring("no/such: cannot be written"));
  CHECK_THAT(error_of([&] {
               write_files({{folder / "a", "x"}, {folder / "", "x"}});
             }),
             ContainsSubstring("is a directory"));
  CHECK_THAT(error_of([&] {
               write_files({{folder / "c", "x"}, {"/dev/full", "x"}});
             }),
             ContainsSubstring("/dev/full: cannot be written"));
  CHECK(content(folder / "a") == "second");
  CHECK(folder.files() == 2);
  fs::create_symlink(folder / "a", folder / "link");
  write_files({{folder / "link", "third"}});
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(content(folder / "a") == "third");
}

TEST_CASE("An interrupt while files are written leaves no part of one") {
  const Folder folder;
  const std::string text(std::size_t{100} << 20U, 'x');
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    try {
      write_files({{folder / "a", text}, {folder / "b", text}});
      pause();  // where the files are complete before the interrupt comes
    } catch (const UserError&) {
    }
    _exit(1);
  }
  int status = 0;
  // The interrupt comes as soon as there is a temporary file.
  while (folder.files() == 0 && waitpid(child, &status, WNOHANG) == 0) {
  }
  kill(child, SIGINT);
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(folder.files() == 2);
  for (const char* name : {"a", "b"}) CHECK(fs::file_size(folder / name) == text.size());
}

TEST_CASE("Files are written before the text, which nobody need read") {
  const Folder folder;
  const std::string text(std::size_t{1} << 20U, 'x');  // more than a pipe holds
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    close(ends[0]);
    dup2(ends[1], STDOUT_FILENO);
    std::signal(SIGPIPE, SIG_DFL);
    try {
      write_reports({{folder / "a", "whole"}}, text);
      _exit(0);
    } catch (const UserError&) {
    }
    _exit(1);
  }
  close(ends[1]);
  char first = 0;
  CHECK(read(ends[0], &first, 1) == 1);
  CHECK(first == 'x');
  CHECK(content(folder / "a") == "whole");  // although the text is not printed yet
  close(ends[0]);                           // as `head` does
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("Standard output that cannot be written is an error, and the files are there") {
  const Folder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int full = open("/dev/full", O_WRONLY);
    dup2(full, STDOUT_FILENO);
    try {
      write_reports({{folder / "a", "whole"}}, "x");
    } catch (const UserError& error) {
      _exit(std::string(error.what()) == "standard output: cannot be written" ? 2 : 1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 2);
  CHECK(content(folder / "a") == "whole");
}

TEST_CASE("Progress is silent for a second, then says how far it is and how long it will take") {
  using std::chrono::milliseconds;
  std::ostringstream out;
  const auto start = Progress::Clock::now();
  Progress progress("reading", 2000, "row", out, false, start);
  progress.update_at(10, 0, start);
  CHECK(out.str().empty());
  progress.update_at(500, 0, start + milliseconds(1500));
  progress.update_at(600, 0, start + milliseconds(1600));
  progress.rename("counting");
  progress.update_at(1000, 0.9, start + milliseconds(2700));
  CHECK(out.str() ==
        "reading: 500 of 2,000 rows (25 %), 5 s left\n"
        "counting: 1,000 of 2,000 rows (90 %), 1 s left\n");
  out.str("");
  Progress unknown("reading", 0, "row", out, false, start);
  unknown.update_at(1000000, 0, start + milliseconds(1500));
  unknown.update_at(2000000, 0.01, start + milliseconds(3000));
  CHECK(out.str() == "reading: 1,000,000 rows\nreading: 2,000,000 rows (1 %), 5 min left\n");
}

TEST_CASE("On a terminal a line of progress replaces the one before, and the last is wiped") {
  std::ostringstream out;
  const auto start = Progress::Clock::now();
  {
    Progress progress("a long name", 0, "row", out, true, start);
    progress.update_at(1, 0, start + std::chrono::seconds(2));
    progress.rename("b");
    progress.update_at(2, 0, start + std::chrono::seconds(4));
  }
  CHECK(out.str() == "\ra long name: 1 row\rb: 2 rows         \r         \r");
}
