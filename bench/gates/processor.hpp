#pragma once
// Which processor this is, according to Linux.
#include <fstream>
#include <map>
#include <string>

namespace gates {

/// The kinds of processors that gates are set for.
inline constexpr const char *zen4 = "AMD Zen 4", *zen5 = "AMD Zen 5";

class Processor {
 public:
  Processor() {
    std::ifstream info("/proc/cpuinfo");
    // The file has a paragraph for each processor. The first is read.
    for (std::string line; std::getline(info, line) && !line.empty();) {
      const auto colon = line.find(':');
      if (colon + 2 < line.size())
        lines_[line.substr(0, line.find_first_of("\t:"))] = line.substr(colon + 2);
    }
  }
  std::string name() const {
    return entry("model name", "unknown") + " (" + entry("vendor_id", "?") + " family " +
           entry("cpu family", "?") + " model " + entry("model", "?") + ")";
  }
  /// The kind of core, by what Linux says of its instructions, since a hypervisor may invent the
  /// model; "another processor" for one that no gate is set for and no page has figures of.
  std::string kind() const {
    const std::string vendor = entry("vendor_id", ""), family = entry("cpu family", "");
    if (vendor == "AuthenticAMD" && family == "26") return zen5;
    if (vendor == "AuthenticAMD" && family == "25" && has("avx512f")) return zen4;
    if (vendor == "GenuineIntel" && has("amx_tile")) return "Intel Sapphire Rapids or later";
    if (vendor == "GenuineIntel" && has("avx512_vnni") && !has("avx512_vbmi2"))
      return "Intel Cascade Lake";
    return "another processor";
  }

 private:
  std::string entry(const std::string& name, const char* otherwise) const {
    const auto found = lines_.find(name);
    return found == lines_.end() ? otherwise : found->second;
  }
  bool has(const std::string& flag) const {
    return (" " + entry("flags", "") + " ").find(" " + flag + " ") != std::string::npos;
  }
  std::map<std::string, std::string> lines_;
};

}  // namespace gates
