#pragma once
// The numbers of a plan: those that are given, those that follow from them, and what is said where
// they do not fit the rows.
#include <algorithm>
#include <gdpo/core/errors.hpp>
#include <gdpo/update/plan_settings.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a plan must not cut: rows, or groups without those that are empty.
struct PlanUnits {
  std::vector<index_t> rows;      // (N) unit after unit
  std::vector<index_t> begin{0};  // (units + 1) where each unit begins in `rows`
  index_t longest = 0, shortest = 0;

  index_t count() const { return static_cast<index_t>(begin.size()) - 1; }
  /// Ends a unit whose rows have been appended.
  void end_unit() {
    const index_t end = static_cast<index_t>(rows.size()), length = end - begin.back();
    if (length == 0) return;
    longest = (std::max)(longest, length);
    shortest = shortest == 0 ? length : (std::min)(shortest, length);
    begin.push_back(end);
  }
};

/// Numbers of a plan that are given or have followed.
struct PlanNumbers {
  index_t mini_batches = 0, accumulation = 1;
  index_t per_step = 0;  // units of a mini-batch; under Spread at most that many
};

/// More than any number of rows, and small enough for sums of such numbers.
constexpr index_t plan_unlimited = index_t{1} << 60;
/// a b for numbers of at least 0, at most plan_unlimited.
inline index_t plan_times(index_t a, index_t b) {
  return b != 0 && a > plan_unlimited / b ? plan_unlimited : a * b;
}
/// a / b, rounded up.
inline index_t plan_quotient_up(index_t a, index_t b) { return a / b + (a % b != 0 ? 1 : 0); }
/// Where part i begins if n things are cut into parts that differ by at most one, the longer ones
/// first.
inline index_t plan_cut(index_t n, index_t parts, index_t i) {
  return n / parts * i + (std::min)(i, n % parts);
}

/// "1 rank", "2 ranks".
inline std::string plan_words(index_t n, const char* thing, const char* plural = "s") {
  return std::to_string(n) + " " + thing + (n == 1 ? "" : plural);
}
/// Throws because a number of units does not fit: it has to be `low` to `high` and a multiple.
[[noreturn]] GDPO_COLD inline void fail_plan_count(const char* function, const PlanUnits& units,
                                                   const update::PlanSettings& s, index_t low,
                                                   index_t high, index_t multiple) {
  using update::Remainder;
  using update::Whole;
  const char* unit = s.whole == Whole::Rows ? "row" : "group";
  const index_t n = units.count(), below = n / multiple * multiple;
  std::string needed;
  if (low == high) {
    needed = plan_words(low, unit);
  } else if (high < plan_unlimited) {
    needed = std::to_string(low) + " to " + plan_words(high, unit);
  } else if (multiple > 1) {
    needed = "a multiple of " + plan_words(multiple, unit) + ", such as " +
             (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + multiple);
  } else {
    needed = "at least " + plan_words(low, unit);
  }
  needed += ", for ";
  if (s.mini_batches > 0) needed += plan_words(s.mini_batches, "mini-batch", "es");
  const bool even = s.remainder == Remainder::Refuse || s.remainder == Remainder::Drop;
  if (even || (s.accumulation > 0 && s.micro_batch > 0)) {
    needed += (s.mini_batches > 0 ? " x " : "") + plan_words(s.ranks, "rank");
    if (s.accumulation > 0) needed += " x " + plan_words(s.accumulation, "micro-batch", "es");
    if (s.micro_batch > 0) needed += " x " + plan_words(s.micro_batch, "row");
  }
  if (s.whole != Whole::Rows) needed += " and groups of " + plan_words(units.longest, "row");
  if (s.remainder == Remainder::Refuse) needed += "; or another Remainder than Refuse";
  contract::fail(function, s.whole == Whole::Rows ? "rows" : "groups", plan_words(n, unit), needed);
}

/// Checks the number of rows and of their uses, so that no count that is made from them overflows.
inline void check_plan_rows(const char* function, index_t rows, const update::PlanSettings& s) {
  if (rows < 0) contract::fail(function, "rows", contract::text(rows), "a count of at least 0");
  contract::check_extents(function, "rows", 1, &rows);
  const index_t most = (index_t{1} << 48) / (std::max)(rows, index_t{1});
  if (s.epochs > most) {
    contract::fail(function, "epochs", contract::text(s.epochs),
                   "at most " + contract::text(most) + ", so that at most 2^48 rows are used");
  }
}

/// Finds the numbers that follow, and throws if those that are given do not fit the units.
inline PlanNumbers plan_numbers(const char* function, const PlanUnits& u,
                                const update::PlanSettings& s) {
  using contract::text;
  using update::Remainder;
  using update::Whole;
  const index_t units = u.count(), given = s.mini_batches, least = (std::max)(given, index_t{1});
  const bool in_step = s.whole == Whole::InStep, both = s.accumulation > 0 && s.micro_batch > 0,
             refuse = s.remainder == Remainder::Refuse,
             even = refuse || s.remainder == Remainder::Drop;
  PlanNumbers n{0, (std::max)(s.accumulation, index_t{1}), 0};
  if (units == 0) return n;
  if (refuse && u.shortest != u.longest) {
    contract::fail(function, "groups",
                   "groups of " + text(u.shortest) + " and of " + text(u.longest) + " rows",
                   "groups of one length, or another Remainder than Refuse");
  }
  // Pieces are what is cut over ranks and micro-batches: groups under InMicroBatch, otherwise rows.
  const index_t piece = s.whole == Whole::InMicroBatch ? u.longest : 1;
  const index_t fit = s.micro_batch / piece;  // pieces of a micro-batch
  if (s.micro_batch > 0 && fit == 0) {
    contract::fail(function, "micro_batch", text(s.micro_batch),
                   "at least " + text(piece) + ", the rows of the longest group, or Whole::InStep");
  }
  // The block: units that fill a mini-batch if both numbers are given; otherwise a mini-batch has a
  // multiple of this many units where all has to come out even.
  const index_t pieces =
      plan_times(plan_times(s.ranks, n.accumulation), (std::max)(fit, index_t{1}));
  index_t block = 1;
  if (both) {
    block = in_step ? pieces / u.longest : pieces;
    if (block == 0 || (refuse && in_step && pieces % u.longest != 0)) {
      contract::fail(function, "groups", "groups of " + text(u.longest) + " rows",
                     (block == 0 ? "at most " : "a divisor of ") + text(pieces) +
                         " rows, those of a mini-batch (ranks x accumulation x micro_batch)");
    }
  } else if (even && !in_step) {
    block = pieces;
  } else if (refuse) {
    block = pieces / std::gcd(pieces, u.longest);
  }
  const index_t blocks = plan_times(block, least);
  const bool short_last = both && given > 0 && s.remainder == Remainder::Keep;
  const index_t low = even         ? blocks
                      : short_last ? blocks - block + 1
                                   : least,
                high = !both || given == 0              ? plan_unlimited
                       : s.remainder == Remainder::Drop ? blocks + block - 1
                                                        : blocks,
                multiple = refuse ? blocks : 1;
  if (units < low || units > high || units % multiple != 0)
    fail_plan_count(function, u, s, low, high, multiple);

  n.mini_batches = given > 0 ? given : even ? units / block : plan_quotient_up(units, block);
  n.per_step = both   ? block
               : even ? units / blocks * block
                      : plan_quotient_up(units, n.mini_batches);
  if (s.remainder == Remainder::Keep && plan_quotient_up(units, n.per_step) != n.mini_batches) {
    contract::fail(function, "mini_batches", text(given),
                   "another number, since mini-batches of " + text(n.per_step) +
                       " are used up by " + text(plan_quotient_up(units, n.per_step)) +
                       ", or Remainder::Spread");
  }
  if (s.accumulation == 0 && fit > 0) {
    n.accumulation = plan_quotient_up(in_step ? plan_times(n.per_step, u.longest) : n.per_step,
                                      plan_times(s.ranks, fit));
  }
  return n;
}

/// An integer in 0 .. n - 1, each equally likely. The distributions of the standard library differ
/// between its implementations.
inline index_t plan_draw(std::mt19937_64& random, index_t n) {
  const auto range = static_cast<std::uint64_t>(n);
  const std::uint64_t skipped = (0 - range) % range;  // 2^64 mod n
  std::uint64_t bits = random();
  while (bits < skipped) bits = random();
  return static_cast<index_t>(bits % range);
}

}  // namespace detail
GDPO_END_NAMESPACE
