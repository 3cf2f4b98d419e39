// labels: sanitizers
// Random calls, half of them with misuses, as tests/fuzz decodes them from bytes: each is refused
// with a message, and writes nothing, or gives the result of plain loops. The decoder knows from
// the contracts which of the two it must be. Under the address sanitizer this also shows an access
// of one element too many.
#include <map>

#include "fuzz/call.hpp"
#include "support/catch.hpp"
#include "support/generators.hpp"

namespace misuse_test {

TEST_CASE("random calls are refused or right, and never anything else", "[misuse]") {
  constexpr std::uint64_t seed = 20260614;
  constexpr int calls = 20000, largest = 120;
  INFO("seed " << seed);
  struct Seen {
    int computed = 0, refused = 0, skipped = 0;
  };
  std::map<std::string, Seen> seen;
  for (const char* name : fuzz::functions()) seen[name] = {};
  Random random(seed);
  unsigned char bytes[largest];
  for (int i = 0; i < calls; ++i) {
    const auto size = static_cast<std::size_t>(random.below(largest + 1));
    for (std::size_t k = 0; k < size; ++k) bytes[k] = static_cast<unsigned char>(random.bits());
    const fuzz::Outcome o = fuzz::call(bytes, size);
    if (!o.failure.empty()) {
      FAIL_CHECK(o.function << ": " << o.failure << "\n  gdpo_fuzz_replay "
                            << fuzz::digits_of(bytes, size));
    }
    Seen& of = seen[o.function];
    ++(o.did == fuzz::Did::Computed  ? of.computed
       : o.did == fuzz::Did::Refused ? of.refused
                                     : of.skipped);
  }
  // The test is empty without calls of each kind.
  for (const auto& [name, of] : seen) {
    INFO(name << ": " << of.computed << " computed, " << of.refused << " refused, " << of.skipped
              << " skipped");
    CHECK(of.computed >= 100);
    CHECK(of.refused >= 25);
    CHECK(of.skipped * 10 <= of.computed + of.refused);
  }
}

}  // namespace misuse_test
