// Makes again the calls of files, of all files of folders, and of inputs given as hexadecimal
// digits. The exit status is 1 where a call did not do what its contract says.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fuzz/call.hpp"

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<unsigned char>;

int inputs = 0, failures = 0;

void replay(const std::string& name, const Bytes& bytes) {
  const fuzz::Outcome o = fuzz::call(bytes.data(), bytes.size());
  ++inputs;
  if (o.failure.empty()) return;
  ++failures;
  std::printf("%s: %s: %s\n  %s\n", name.c_str(), o.function, o.failure.c_str(),
              fuzz::digits_of(bytes.data(), bytes.size()).c_str());
}
void replay_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  replay(path.string(), Bytes(std::istreambuf_iterator<char>(file), {}));
}
bool replay_digits(const std::string& digits) {
  if (digits.size() % 2 != 0 || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  Bytes bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes.push_back(static_cast<unsigned char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  replay(digits, bytes);
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  for (int k = 1; k < count; ++k) {
    const fs::path path(arguments[k]);
    if (fs::is_directory(path)) {
      for (const auto& entry : fs::directory_iterator(path)) replay_file(entry.path());
    } else if (fs::exists(path)) {
      replay_file(path);
    } else if (!replay_digits(arguments[k])) {
      std::printf("neither a file, a folder nor hexadecimal digits: %s\n", arguments[k]);
      return 2;
    }
  }
  std::printf("%d inputs, %d failures\n", inputs, failures);
  return inputs > 0 && failures == 0 ? 0 : 1;
}
