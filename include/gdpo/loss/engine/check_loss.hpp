#pragma once
#include <gdpo/loss/counts.hpp>
#include <gdpo/loss/engine/rows.hpp>
#include <gdpo/loss/factor.hpp>
#include <gdpo/loss/kl.hpp>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace detail {

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

/// Checks that the settings of a loss are in range.
template <class Loss>
void check_settings(const char* function, const Loss& loss) {
  check_fields(function, "level", loss.level);
  check_fields(function, "surrogate", loss.surrogate);
  check_fields(function, "aggregate", loss.aggregate);
  check_fields(function, "factor", loss.factor);
  for_each_kl(loss.kl, [&](const auto& kl) { check_fields(function, "kl", kl); });
}

/// Adds the arrays that a policy declares that it reads; of several, those of the chosen one.
template <class P>
void add_reads(TokenReads& reads, const P& policy) {
  if constexpr (is_chosen_v<P>) {
    policy.visit([&reads](const auto& chosen) { add_reads(reads, chosen); });
  } else {
    reads.ref = reads.ref || reads_ref_v<P>;
    reads.rollout = reads.rollout || reads_rollout_v<P>;
    reads.teacher = reads.teacher || reads_teacher_v<P>;
    reads.tags = reads.tags || reads_tag_v<P>;
  }
}

/// Checks that the settings of a loss are in range and that the batch has the arrays they need.
/// Returns which of the optional arrays the loss reads.
template <class S, class Loss>
TokenReads check_loss(const char* function, const Loss& loss, const TokenBatch<S>& batch,
                      const TokenLayout& layout) {
  using contract::fail;
  check_settings(function, loss);
  TokenReads reads = TokenReads::none();
  add_reads(reads, loss.level.map), add_reads(reads, loss.surrogate), add_reads(reads, loss.factor);
  bool reads_old = false;
  for_each_kl(loss.kl, [&](const auto& kl) {
    if (kl.beta == 0) return;
    reads_old = reads_old || kl.against == Against::Old;
    reads.ref = reads.ref || kl.against == Against::Ref;
    reads.rollout = reads.rollout || kl.against == Against::Rollout;
    reads.teacher = reads.teacher || kl.against == Against::Teacher;
  });
  if (reads_width(loss.aggregate) && batch.offsets) {
    fail(function, "aggregate.padded_width", "true, with a packed batch",
         "a constant: packed tokens have no padded width");
  }
  if (layout.tokens == 0) return reads;  // nothing will be read
  const auto need = [function](bool wanted, const auto& tokens, const char* name, const char* why) {
    if (wanted && !tokens) fail(function, name, "no array", why);
  };
  need(reads.ref, batch.ref_logp, "batch.ref_logp",
       "the reference policy's log-probs, which this loss reads (kl.beta is not 0)");
  need(reads_old, batch.old_logp, "batch.old_logp",
       "the old policy's log-probs, because a KL term is against them");
  need(reads.rollout, batch.rollout_logp, "batch.rollout_logp",
       "the sampling policy's log-probs, which this loss reads");
  need(reads.teacher, batch.teacher_logp, "batch.teacher_logp",
       "the teacher's log-probs, which this loss reads");
  need(reads.tags, batch.tags, "batch.tags", "one tag a token, which this loss reads");
  if (!batch.advantages == !batch.token_advantages) {
    fail(function, "batch.advantages, batch.token_advantages",
         batch.advantages ? "both" : "neither",
         "one of them: an advantage for each row, or for each token");
  }
  return reads;
}

/// Whether an aggregate has a member `const char* divides_by_nothing(const Normaliser&) const`.
template <class A, class = void>
constexpr bool knows_its_count_v = false;
template <class A>
constexpr bool knows_its_count_v<
    A, std::enable_if_t<std::is_same_v<
           const char*, decltype(std::declval<const A&>().divides_by_nothing(Normaliser{}))>>> =
    true;
/// The name of the count that an aggregate divides by if that count is 0, else null.
template <class A>
const char* divides_by_nothing(const A& aggregate, const Normaliser& n) {
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
  const auto divides = [&](Over over, double Normaliser::*count) -> index_t {
    Normaliser n;
    n.tokens = n.rows = n.non_empty_rows = n.given = 1;
    n.*count = 0;
    return divides_by_nothing(aggregate, n) ? static_cast<index_t>(over) : -1;
  };
  for (const StepCount& c : step_counts) {
    if (const index_t over = divides(c.over, c.count); over >= 0) return over;
  }
  return divides(Over::Given, &Normaliser::given);
}

/// The counts of a batch as far as its shape says them, 0 where it does not: the rows, and the
/// tokens of padded rows without a mask.
inline Normaliser counts_of_shape(const TokenLayout& layout, bool masked) {
  Normaliser n;
  n.rows = static_cast<double>(layout.rows);
  if (!masked && !layout.offsets) n.tokens = static_cast<double>(layout.tokens);
  return n;
}

/// Throws because the count of this name, which an aggregate divides by, is 0.
[[noreturn]] GDPO_COLD inline void fail_without_count(const char* function, const char* name) {
  if (name == given_count) {
    contract::fail(function, name, "0",
                   "more than 0: a count that the caller sets, because count() does not know it; "
                   "in TRL and ms-swift inputs[\"num_items_in_batch\"], the completion tokens of "
                   "the step over all processes (on one process: normaliser.given = "
                   "normaliser.tokens)");
  }
  contract::fail(function, name, "0",
                 "the count that the aggregate divides by, more than 0 for a batch with tokens");
}

/// Checks that every count of a normaliser is finite and at least 0, and that it is not that of a
/// batch whose mask prepare() has changed since. That does not concern an aggregate that divides by
/// nothing, by a count of the caller's own, or by the rows, whose number no pre-pass changes.
template <class Aggregate>
void check_normaliser(const char* function, const Aggregate& aggregate, const Normaliser& n,
                      const Prepared& prepared) {
  const std::pair<const char*, double> counts[] = {{"tokens", n.tokens},
                                                   {"rows", n.rows},
                                                   {"non_empty_rows", n.non_empty_rows},
                                                   {"given", n.given}};
  for (const auto& [name, value] : counts) {
    if (!(value >= 0) || math::not_finite(value)) {
      contract::fail(function, contract::Text("normaliser.") + name, contract::text(value),
                     "a count: finite, at least 0");
    }
  }
  const index_t over = over_of(aggregate);
  if (over < 0 || over == static_cast<index_t>(Over::Given) ||
      over == static_cast<index_t>(Over::Rows)) {
    return;
  }
  const CountedBatch& counted = n.counted;
  const bool as_counted =
      counted.mask_changes >= 0 && counted.tokens == n.tokens && counted.rows == n.rows;
  if (as_counted && counted.mask_changes < prepared.mask_changes) {
    contract::fail(function, "normaliser", "counts from before prepare() changed the mask",
                   "the counts of the prepared batch (prepare, count, loss), or a sum if these are "
                   "meant: gdpo::Normaliser{} + counts");
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
