#pragma once
// The checks of a policy loss: its settings, and that the batch has the arrays that they need.
#include <gdpo/loss/entropy.hpp>
#include <gdpo/loss/factor.hpp>
#include <gdpo/loss/kl.hpp>
#include <gdpo/tokens/check_counts.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Calls f with each aggregate that divides a part of the loss, besides the loss's: those of KL
/// terms that are on and have their own, and the mean over tokens of an EntropyBonus.
template <class Loss, class F>
GDPO_HOST_INLINE void for_each_other_aggregate(const Loss& loss, const F& f) {
  for_each_own_aggregate(loss.kl, f);
  const EntropyBonus entropy = entropy_of(loss);
  if (entropy.coef != 0 && entropy.mean == EntropyMean::Tokens) f(aggregate::token_mean());
}

/// Checks that the settings of a loss are in range.
template <class Loss>
void check_settings(const char* function, const Loss& loss) {
  check_fields(function, "level", loss.level);
  check_fields(function, "surrogate", loss.surrogate);
  check_fields(function, "aggregate", loss.aggregate);
  check_fields(function, "factor", loss.factor);
  for_each_kl(loss.kl, [&](const auto& kl) { check_fields(function, "kl", kl); });
  check_fields(function, "entropy", entropy_of(loss));
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
    if constexpr (has_own_factors_v<std::decay_t<decltype(kl)>>)
      kl.with_factors([&reads](const auto& factors) { add_reads(reads, factors); });
  });
  check_width(function, loss.aggregate, layout);
  check_group(function, loss.aggregate, batch, layout);
  for_each_own_aggregate(loss.kl, [&](const auto& own) {
    check_width(function, own, layout, "kl.aggregate.padded_width");
    check_group(function, own, batch, layout);
  });
  if (!decltype(Loss::level)::of_segment && batch.level_log_weights) {
    fail(function, "batch.level_log_weights", "an array, at level::Token",
         "none: they weigh the ratio of a segment; at level::Token weights do (Reach::Surrogate)");
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
  need(entropy_of(loss).coef != 0, batch.entropies, "batch.entropies",
       "the entropies of the tokens, which the bonus reads (entropy.coef is not 0)");
  need(reads.tags, batch.tags, "batch.tags", "one tag a token, which this loss reads");
  if (!batch.advantages && !batch.token_advantages && !reads_advantage(loss.surrogate))
    return reads;
  if (!batch.advantages == !batch.token_advantages) {
    fail(function, "batch.advantages, batch.token_advantages",
         batch.advantages ? "both" : "neither",
         "one of them: an advantage for each row, or for each token");
  }
  return reads;
}

}  // namespace detail
GDPO_END_NAMESPACE
