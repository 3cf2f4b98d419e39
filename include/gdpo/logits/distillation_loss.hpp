#pragma once
// DistillationLoss: which divergence between the probabilities of a teacher and of the policy is
// minimized, and what is done with the tokens that the teacher does not list.
#include <gdpo/loss/map.hpp>
#include <gdpo/tokens/aggregate.hpp>

namespace gdpo {
/// What becomes of the probability outside of the teacher's k tokens.
enum class Rest {
  /// Nothing: the sum is over the k tokens with the probabilities that they have. It is no
  /// divergence, and may be negative (verl).
  Drop,
  /// The probabilities of the k tokens are divided by their sums, those of teacher and policy each,
  /// so the tokens outside have no gradient (ms-swift, TRL's SDPO without its tail).
  Renormalize,
  /// All tokens outside are one more token, with what is left of probability (TRL's
  /// loss_add_tail).
  Tail
};
/// The enumerators of Rest with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Rest) {
  using E = Enumerator<Rest>;
  return std::array{E{"drop", Rest::Drop}, E{"renormalize", Rest::Renormalize},
                    E{"tail", Rest::Tail}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The divergence of a position between p, the probabilities of a teacher, and q, those of the
/// policy, over the k tokens that the teacher lists:
///
///     beta = 0       L = sum p (log p - log q)        forward KL
///     beta = 1       L = sum q (log q - log p)        reverse KL
///     0 < beta < 1   L = sum beta p (log p - log m) + (1 - beta) q (log q - log m)
///                    m = (1 - beta) q + beta p        generalized Jensen-Shannon divergence
///
/// GKD, arXiv 2306.13649, whose beta this is, as in TRL, Liger, unsloth and ms-swift. Between 0 and
/// 1 it vanishes towards both ends, and the two ends themselves are the KL divergences. The loss is
/// the sum of L over the positions, with the weights that `aggregate` gives:
///
///     gdpo::DistillationLoss forward;                            // forward KL, mean over tokens
///     gdpo::DistillationLoss gkd{0.5, gdpo::Rest::Tail};         // Jensen-Shannon of k + 1 tokens
///
/// distillation_from_logits() (logits/distill.hpp) runs it.
struct DistillationLoss {
  double beta = 0;         ///< 0: forward KL, 1: reverse KL, between: Jensen-Shannon.
  Rest rest = Rest::Drop;  ///< What becomes of the tokens outside of the k.
  /// The teacher's log-probs are divided by it, more than 0. Other than 1 only with
  /// Rest::Renormalize: without the teacher's other tokens it cannot be normalized otherwise. That
  /// of the policy is LogitBatch::temperature.
  double teacher_temperature = 1;
  /// Log-probs of both are at least this, in nats, at most 0; below it the policy has no gradient;
  /// -infinity: off. With Rest::Renormalize after the division.
  double min_logp = -math::infinity;
  Bounds bounds{};  ///< Of L of a position; outside it has no gradient. Off by default.
  Aggregate aggregate = gdpo::aggregate::token_mean();  ///< What the loss is divided by.

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("beta", s.beta, at_least(0).at_most(1), "0: forward KL, 1: reverse KL");
    field("rest", s.rest, "what becomes of the tokens that the teacher does not list");
    field("teacher_temperature", s.teacher_temperature, more_than(0),
          "the teacher's log-probs are divided by it");
    field("min_logp", s.min_logp, anything(), "log-probs are at least this, in nats");
    field("bounds", s.bounds, "bounds of the loss of a position");
    field("aggregate", s.aggregate, "what the loss is divided by");
  }
  /// Throws for a teacher_temperature that cannot be applied, and a min_logp above 0.
  void check_together(const char* function, const detail::FieldPath& path) const {
    if (teacher_temperature != 1 && rest != Rest::Renormalize) {
      contract::fail(function, path.text("teacher_temperature"),
                     contract::text(teacher_temperature), "1, or rest = renormalize");
    }
    if (min_logp > 0) {
      contract::fail(function, path.text("min_logp"), contract::text(min_logp),
                     "at most 0 (-infinity: off)");
    }
  }
};

GDPO_END_NAMESPACE
