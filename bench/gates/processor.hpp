#pragma once
// Which processor this is, according to Linux, and on which one the gates were set.
#include <fstream>
#include <map>
#include <string>

namespace gates {

class Processor {
 public:
  Processor() {
    std::ifstream info("/proc/cpuinfo");
    // The file has a paragraph for each processor. The first is read.
    for (std::string line; std::getline(info, line) && !line.empty();) {
      const auto colon = line.find(':');
      if (colon + 2 < line.size())
        of_[line.substr(0, line.find_first_of("\t:"))] = line.substr(colon + 2);
    }
  }
  std::string name() const {
    return of("model name", "unknown") + " (" + of("vendor_id", "?") + " family " +
           of("cpu family", "?") + " model " + of("model", "?") + ")";
  }
  /// The processor on which the gates were set. Zen 4 misses most of them, because its
  /// floating-point units are narrower.
  static constexpr const char* of_the_gates = "AMD Zen 5 (AuthenticAMD family 26)";
  bool is_of_the_gates() const {
    return of("vendor_id", "") == "AuthenticAMD" && of("cpu family", "") == "26";
  }

 private:
  std::string of(const char* key, const char* otherwise) const {
    const auto found = of_.find(key);
    return found == of_.end() ? otherwise : found->second;
  }
  std::map<std::string, std::string> of_;
};

}  // namespace gates
