// The target of libFuzzer. It stops at an input whose call did not do what its contract says, and
// prints the input so that gdpo_fuzz_replay takes it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "fuzz/call.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const fuzz::Outcome o = fuzz::call(bytes, size);
  if (o.failure.empty()) return 0;
  std::fprintf(stderr, "%s: %s\n  gdpo_fuzz_replay %s\n", o.function, o.failure.c_str(),
               fuzz::digits_of(bytes, size).c_str());
  std::abort();
}
