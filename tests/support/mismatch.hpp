// Compares mismatch reports bit by bit.
#pragma once
#include <gdpo/mismatch/report.hpp>
#include <iterator>
#include <string>
#include <vector>

namespace mismatch_support {

/// What a comparison looks at: everything, or all but where extremes are.
enum class Places { Compared, LeftOut };

/// The name of the first number that differs; empty if none does.
inline std::string differs(const gdpo::MismatchReport& a, const gdpo::MismatchReport& b,
                           Places places = Places::Compared) {
#define GDPO_X(name, ...) \
  if (a.name != b.name) return #name;
  GDPO_MISMATCH_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                                                                     \
  if (!std::equal(std::begin(a.name.limb), std::end(a.name.limb), std::begin(b.name.limb)) || \
      a.name.special != b.name.special)                                                       \
    return #name;
  GDPO_MISMATCH_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                                                                       \
  if (gdpo::math::bits_of(a.name.value) != gdpo::math::bits_of(b.name.value)) return #name;     \
  if (places == Places::Compared && (a.name.row != b.name.row || a.name.token != b.name.token)) \
    return "the place of " #name;
  GDPO_MISMATCH_EXTREMES(GDPO_X)
#undef GDPO_X
  for (const gdpo::detail::MismatchMetric& m : gdpo::detail::mismatch_metrics)
    if (gdpo::math::bits_of(m.of(a)) != gdpo::math::bits_of(m.of(b))) return m.name;
  return "";
}

}  // namespace mismatch_support
