#pragma once
// The checks of the counts that a loss is divided by: that they are counts, that they are not 0,
// and that they are not fewer than what the call has seen.
#include <gdpo/core/errors.hpp>
#include <gdpo/tokens/aggregate.hpp>
#include <gdpo/tokens/token_layout.hpp>
#include <string_view>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether two losses were divided by the same counts.
inline bool same_counts(const Normalizer& a, const Normalizer& b) {
  return a.tokens == b.tokens && a.rows == b.rows && a.non_empty_rows == b.non_empty_rows &&
         a.given == b.given;
}
/// The counts as the words of a message.
GDPO_COLD inline std::string counts_in_words(const Normalizer& n) {
  return std::string(contract::text(n.tokens) + " tokens, " + contract::text(n.rows) + " rows, " +
                     contract::text(n.non_empty_rows) + " non-empty rows, " +
                     contract::text(n.given) + " given");
}

/// A count of a step that a loss can be divided by, and what it counts. `given` is not among them:
/// it is a number of the caller's own.
struct StepCount {
  // The type has a name because nvcc puts a bare declarator of one in parentheses, of which g++
  // warns.
  using Member = double Normalizer::*;
  Over over;
  const char* name;
  Member count;
};
inline constexpr StepCount step_counts[] = {
    {Over::Tokens, "tokens", &Normalizer::tokens},
    {Over::Rows, "rows", &Normalizer::rows},
    {Over::NonEmptyRows, "non_empty_rows", &Normalizer::non_empty_rows}};

/// Throws if the count that divides is less than what has been seen. `over` is that of a
/// LossResult. A count of 0 is another mistake, or of a rank that has none.
GDPO_NOINLINE inline void check_seen(const char* function, index_t over, const Normalizer& n,
                                     const Normalizer& seen) {
  for (const StepCount& c : step_counts) {
    if (static_cast<index_t>(c.over) != over || !(n.*c.count > 0) || n.*c.count >= seen.*c.count)
      continue;
    contract::fail(function, contract::Text("normalizer.") + c.name,
                   contract::text(n.*c.count) + ", for a loss of " + contract::text(seen.*c.count),
                   "the counts of the whole step, of all its micro-batches and ranks; a number of "
                   "your own to divide by stands in normalizer.given, with aggregate.over = "
                   "Over::Given");
  }
}

/// The counts of the sum of two results: those of the result that has rows; where neither has,
/// those of `a`, unless all of them are 0. Throws where they are not of one step. `seen`: by both.
template <class Result>
void merge_counts(const Result& a, const Result& b, const Normalizer& seen, Result& sum) {
  if (a.metrics.rows > 0 && b.metrics.rows > 0 && !same_counts(a.normalizer, b.normalizer)) {
    contract::fail("gdpo::merge", "b.normalizer", counts_in_words(b.normalizer),
                   counts_in_words(a.normalizer) + ", the counts of the step, as in a");
  }
  const bool of_b = a.metrics.rows == 0 && (b.metrics.rows > 0 || same_counts(a.normalizer, {}));
  sum.normalizer = of_b ? b.normalizer : a.normalizer;
  sum.over = of_b ? b.over : a.over;
  if (a.metrics.rows > 0 && b.metrics.rows > 0)
    check_seen("gdpo::merge", sum.over, sum.normalizer, seen);
}

/// Whether an aggregate may read AggregateArgs::row.width. It then has a member
/// `bool reads_width() const`, which says whether it does with its present settings.
template <class A, class = void>
constexpr bool may_read_width_v = false;
template <class A>
constexpr bool may_read_width_v<A, std::void_t<decltype(std::declval<const A&>().reads_width())>> =
    true;
template <class A>
bool reads_width(const A& aggregate) {
  if constexpr (may_read_width_v<A>) {
    return aggregate.reads_width();
  } else {
    return false;
  }
}

/// Whether an aggregate may read AggregateArgs::row.group_tokens. It then has a member
/// `bool reads_group() const`, which says whether it does with its present settings.
template <class A, class = void>
constexpr bool may_read_group_v = false;
template <class A>
constexpr bool may_read_group_v<A, std::void_t<decltype(std::declval<const A&>().reads_group())>> =
    true;
template <class A>
bool reads_group(const A& aggregate) {
  if constexpr (may_read_group_v<A>) {
    return aggregate.reads_group();
  } else {
    return false;
  }
}

/// Whether an aggregate has a member `const char* divides_by_nothing(const Normalizer&) const`.
template <class A, class = void>
constexpr bool knows_its_count_v = false;
template <class A>
constexpr bool knows_its_count_v<
    A, std::enable_if_t<std::is_same_v<
           const char*, decltype(std::declval<const A&>().divides_by_nothing(Normalizer{}))>>> =
    true;
/// The name of the count that an aggregate divides by if that count is 0, else null.
template <class A>
const char* divides_by_nothing(const A& aggregate, const Normalizer& n) {
  if constexpr (knows_its_count_v<A>) {
    return aggregate.divides_by_nothing(n);
  } else {
    return nullptr;
  }
}

/// LossResult::over: which count an aggregate divides by. An aggregate of the caller's own that
/// does not say it gives -1.
template <class A>
index_t over_of(const A& aggregate) {
  const auto divides = [&](Over over, double Normalizer::*count) -> index_t {
    Normalizer n;
    n.tokens = n.rows = n.non_empty_rows = n.given = 1;
    n.*count = 0;
    return divides_by_nothing(aggregate, n) ? static_cast<index_t>(over) : -1;
  };
  for (const StepCount& c : step_counts) {
    if (const index_t over = divides(c.over, c.count); over >= 0) return over;
  }
  return divides(Over::Given, &Normalizer::given);
}

/// The counts of a batch as far as its shape says them, 0 where it does not: the rows, and the
/// tokens of padded rows without a mask.
inline Normalizer counts_of_shape(const TokenLayout& layout, bool masked) {
  Normalizer n;
  n.rows = static_cast<double>(layout.rows);
  if (!masked && !layout.offsets) n.tokens = static_cast<double>(layout.tokens);
  return n;
}

/// Throws because the count of this name, which an aggregate divides by, is 0. `of_groups`: it is
/// the number of groups.
[[noreturn]] GDPO_COLD inline void fail_without_count(const char* function, const char* name,
                                                      bool of_groups) {
  if (of_groups) {
    contract::fail(function, name, "0",
                   "the number of groups of the step: gdpo::count(batch, groups), summed over its "
                   "micro-batches and ranks");
  }
  if (std::string_view(name) == given_count) {
    contract::fail(function, name, "0",
                   "more than 0: a count that the caller sets, because count() does not know it; "
                   "in TRL and ms-swift inputs[\"num_items_in_batch\"], the completion tokens of "
                   "the step over all processes (on one process: normalizer.given = "
                   "normalizer.tokens)");
  }
  contract::fail(function, name, "0",
                 "more than 0 for a batch with tokens: the loss or a term of it divides by it");
}

/// Checks that every count of a normalizer is finite and at least 0, and that it is not that of a
/// batch whose mask prepare() has changed since. That does not concern an aggregate that divides by
/// nothing, by a count of the caller's own, or by the rows, whose number no pre-pass changes.
/// `over`: over_of(aggregate).
GDPO_NOINLINE inline void check_normalizer(const char* function, index_t over, const Normalizer& n,
                                           const Prepared& prepared) {
  const std::pair<const char*, double> counts[] = {{"tokens", n.tokens},
                                                   {"rows", n.rows},
                                                   {"non_empty_rows", n.non_empty_rows},
                                                   {"given", n.given}};
  for (const auto& [name, value] : counts) {
    if (!(value >= 0) || math::not_finite(value)) {
      contract::fail(function, contract::Text("normalizer.") + name, contract::text(value),
                     "a count: finite, at least 0");
    }
  }
  if (over < 0 || over == static_cast<index_t>(Over::Given) ||
      over == static_cast<index_t>(Over::Rows)) {
    return;
  }
  const CountedBatch& counted = n.counted;
  const bool as_counted =
      counted.mask_changes >= 0 && counted.tokens == n.tokens && counted.rows == n.rows;
  if (as_counted && counted.mask_changes < prepared.mask_changes) {
    contract::fail(function, "normalizer", "counts from before prepare() changed the mask",
                   "the counts of the prepared batch (prepare, count, loss), or a sum if these are "
                   "meant: gdpo::Normalizer{} + counts");
  }
}

/// Throws unless these are the counts of a step that has this batch, as far as its shape tells.
/// `prepared` is that of the batch, `masked` whether it has a mask.
inline void check_step_counts(const char* function, index_t over, const Normalizer& n,
                              const Prepared& prepared, const TokenLayout& layout, bool masked) {
  check_normalizer(function, over, n, prepared);
  check_seen(function, over, n, counts_of_shape(layout, masked));
}
/// Throws where an aggregate reads the padded width of a packed batch.
template <class Aggregate>
void check_width(const char* function, const Aggregate& aggregate, const TokenLayout& layout,
                 const char* argument = "aggregate.padded_width") {
  if (!reads_width(aggregate) || !layout.offsets) return;
  contract::fail(function, argument, "true, with a packed batch",
                 "a constant: packed tokens have no padded width");
}
/// Throws where an aggregate reads the tokens of groups, which the batch does not have.
template <class Aggregate, class Batch>
void check_group(const char* function, const Aggregate& aggregate, const Batch& batch,
                 const TokenLayout& layout) {
  if (!reads_group(aggregate) || batch.group_tokens || layout.tokens == 0) return;
  contract::fail(function, "batch.group_tokens", "no array",
                 "the tokens of the group of each row (gdpo::count_group_tokens), because the "
                 "aggregate is a mean over groups");
}

}  // namespace detail
GDPO_END_NAMESPACE
