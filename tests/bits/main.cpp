// Prints the results of every object that is linked in, one per line: kind, hash, object, name.
// Objects that this processor cannot run are named on stderr. The exit status is 1 if the targets
// of one object (seq, simd, parallel) differ from each other.
#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "results.hpp"

namespace {

struct Line {
  std::string kind, name;
  std::uint64_t hash;
};

void collect(void* lines, const char* kind, const char* name, std::uint64_t hash) {
  static_cast<std::vector<Line>*>(lines)->push_back({kind, name, hash});
}

bool differs = false;
void run(const char* object, bool can_run, gdpo_bits_results results) {
  if (!can_run) {
    std::fprintf(stderr, "This processor cannot run %s: it was compiled, and not tested.\n",
                 object);
    return;
  }
  std::vector<Line> lines;
  const bool fma = results(&collect, &lines) != 0;
  for (const Line& line : lines) {
    const bool depends = line.kind == "loss" || line.kind == "libm";
    std::printf("%s%s %016" PRIx64 " %s %s\n", line.kind.c_str(),
                !depends ? ""
                : fma    ? "_fma"
                         : "_no_fma",
                line.hash, object, line.name.c_str());
    differs = differs || line.kind == "differs";
  }
}

}  // namespace

#define GDPO_OBJECT(name, can_run) extern "C" int gdpo_bits_##name(gdpo_bits_line line, void* to);
#include "objects.inc"
#undef GDPO_OBJECT

int main() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
#define GDPO_OBJECT(name, can_run) run(#name, can_run, &gdpo_bits_##name);
#include "objects.inc"
  return differs;
}
