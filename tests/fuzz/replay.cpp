// Makes the calls of inputs again. An INPUT is given as hexadecimal digits, as a file, or as a
// folder, of which every file is taken. A file whose name ends in .txt has an input a line, as
// hexadecimal digits; any other file is one input.
//   gdpo_fuzz_replay INPUT...                  makes the calls; the exit status is 1 where one did
//                                              not do what its contract says
//   gdpo_fuzz_replay --into FILE.txt INPUT...  writes the inputs to a file instead, sorted
//   gdpo_fuzz_replay --into FOLDER INPUT...    writes them to a new folder instead, for libFuzzer
// The exit status is 2 where an argument or a line cannot be read.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <system_error>

#include "fuzz/call.hpp"

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<unsigned char>;
struct Input {
  std::string name;
  Bytes bytes;
};
using Inputs = std::vector<Input>;

[[noreturn]] void fail(const std::string& name, const std::string& given,
                       const std::string& needed) {
  throw std::runtime_error(name + ": given " + given + "; needed: " + needed);
}

bool is_digits(const std::string& text) {
  return text.size() % 2 == 0 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}
std::string digits_of(const Bytes& bytes) { return fuzz::digits_of(bytes.data(), bytes.size()); }
Bytes bytes_of(const std::string& digits) {
  Bytes bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes.push_back(static_cast<unsigned char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return bytes;
}

void read_file(const fs::path& path, Inputs& inputs) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path.string(), "a file that cannot be opened", "one that can be read");
  if (path.extension() != ".txt") {
    inputs.push_back({path.string(), Bytes(std::istreambuf_iterator<char>(file), {})});
    return;
  }
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string place = path.string() + ":" + std::to_string(number);
    if (!is_digits(line)) fail(place, "\"" + line + "\"", "pairs of the digits 0 to 9 and a to f");
    inputs.push_back({place, bytes_of(line)});
  }
}
void read(const std::string& argument, Inputs& inputs) {
  std::error_code ignored;  // digits can be longer than a file's name may be
  const fs::file_status status = fs::status(argument, ignored);
  if (fs::is_directory(status)) {
    for (const auto& entry : fs::recursive_directory_iterator(argument))
      if (entry.is_regular_file()) read_file(entry.path(), inputs);
  } else if (fs::exists(status)) {
    read_file(argument, inputs);
  } else if (is_digits(argument)) {
    inputs.push_back({argument, bytes_of(argument)});
  } else {
    fail("INPUT", "\"" + argument + "\"", "a file, a folder, or hexadecimal digits");
  }
}

/// Writes the inputs, each once, in the order of their digits.
void write(const Inputs& inputs, const fs::path& target) {
  std::set<Bytes> distinct;
  for (const Input& input : inputs) distinct.insert(input.bytes);
  if (distinct.empty()) fail("--into", "no inputs", "at least one");
  const auto write_file = [](const fs::path& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    if (!(file << text).flush()) fail(path.string(), "a file that cannot be written", "another");
  };
  if (target.extension() == ".txt") {
    std::string lines;
    for (const Bytes& bytes : distinct) lines += digits_of(bytes) + "\n";
    write_file(target, lines);
  } else {
    if (fs::exists(target) && !fs::is_empty(target))
      fail("--into", "\"" + target.string() + "\", which is not empty", "a new folder");
    fs::create_directories(target);
    int number = 0;
    for (const Bytes& bytes : distinct)
      write_file(target / std::to_string(++number), std::string(bytes.begin(), bytes.end()));
  }
  std::printf("%zu inputs in %s\n", distinct.size(), target.string().c_str());
}

/// Makes the calls. Returns whether there were any, and all did what their contracts say.
bool replay(const Inputs& inputs) {
  int failures = 0;
  for (const Input& input : inputs) {
    const fuzz::Outcome o = fuzz::call(input.bytes.data(), input.bytes.size());
    if (o.failure.empty()) continue;
    ++failures;
    std::printf("%s: %s: %s\n  %s\n", input.name.c_str(), o.function, o.failure.c_str(),
                digits_of(input.bytes).c_str());
  }
  std::printf("%zu inputs, %d failures\n", inputs.size(), failures);
  return !inputs.empty() && failures == 0;
}

}  // namespace

int main(int count, char** values) {
  try {
    const std::vector<std::string> arguments(values + 1, values + count);
    const bool writes = !arguments.empty() && arguments[0] == "--into";
    if (writes && arguments.size() < 2) fail("--into", "nothing", "FILE.txt or FOLDER");
    Inputs inputs;
    for (std::size_t k = writes ? 2 : 0; k < arguments.size(); ++k) read(arguments[k], inputs);
    if (!writes) return replay(inputs) ? 0 : 1;
    write(inputs, arguments[1]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gdpo_fuzz_replay: %s\n", e.what());
    return 2;
  }
}
