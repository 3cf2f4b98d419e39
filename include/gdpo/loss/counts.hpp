#pragma once
// Counts against what a call has seen: fewer cannot be those of the step that it belongs to.
#include <gdpo/core/errors.hpp>
#include <gdpo/loss/aggregate.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether two losses were divided by the same counts.
inline bool same_counts(const Normaliser& a, const Normaliser& b) {
  return a.tokens == b.tokens && a.rows == b.rows && a.non_empty_rows == b.non_empty_rows &&
         a.given == b.given;
}
/// The counts as the words of a message.
GDPO_COLD inline std::string counts_in_words(const Normaliser& n) {
  return std::string(contract::text(n.tokens) + " tokens, " + contract::text(n.rows) + " rows, " +
                     contract::text(n.non_empty_rows) + " non-empty rows, " +
                     contract::text(n.given) + " given");
}

/// A count of a step that a loss can be divided by, and what it counts. `given` is not among them:
/// it is a number of the caller's own.
struct StepCount {
  // The type has a name because nvcc puts a bare declarator of one in parentheses, of which g++
  // warns.
  using Member = double Normaliser::*;
  Over over;
  const char* name;
  Member count;
};
inline constexpr StepCount step_counts[] = {
    {Over::Tokens, "tokens", &Normaliser::tokens},
    {Over::Rows, "rows", &Normaliser::rows},
    {Over::NonEmptyRows, "non_empty_rows", &Normaliser::non_empty_rows}};

/// Throws if the count that divides is less than what has been seen. `over` is that of a
/// LossResult. A count of 0 is another mistake, or of a rank that has none.
GDPO_NOINLINE inline void check_seen(const char* function, index_t over, const Normaliser& n,
                                     const Normaliser& seen) {
  for (const StepCount& c : step_counts) {
    if (static_cast<index_t>(c.over) != over || !(n.*c.count > 0) || n.*c.count >= seen.*c.count)
      continue;
    contract::fail(function, contract::Text("normaliser.") + c.name,
                   contract::text(n.*c.count) + ", for a loss of " + contract::text(seen.*c.count),
                   "the counts of the whole step, of all its micro-batches and ranks; a number of "
                   "your own to divide by stands in normaliser.given, with aggregate.over = "
                   "Over::Given");
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
