#pragma once
// TeacherPrefix: a pre-pass that gives less weight to tokens behind a prefix on which teacher and
// policy disagree (IW-OPD).
#include <gdpo/prepass/shared/teacher_gap.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Weighs each token by how little teacher and policy have disagreed on the tokens before it.
///
///     a_t = teacher_logp - rollout_logp      old_logp, or else logp, without a rollout_logp
///     weight = 1 + gain (1 - sum_{s < t} abs a_s / max(sum_s abs a_s, eps))
///
/// The sums are over the valid tokens of the row. The first token has weight 1 + gain, and weights
/// fall to 1: the further a completion has left what the teacher would write, the less its
/// judgment of the next token is worth. An a that is NaN or infinite counts as 0. A row is one
/// sequence, whatever its segments.
///
/// IW-OPD, arXiv 2606.22600, with the advantages of `distillation_advantage`; TRL's IWOPDTrainer,
/// whose iw_opd_gamma is `gain` and iw_opd_epsilon `eps`.
///
/// Needs teacher_logp, and rollout_logp, old_logp or logp. Reach::Mask and Reach::Level are
/// refused, because these weights are no mask and no part of a ratio.
struct TeacherPrefix {
  double gain = 0.5;               ///< The weight of the first token is 1 + gain; at least 0.
  double eps = 1e-8;               ///< The sum that divides is at least this, in nats; more than 0.
  Reach reach = Reach::Surrogate;  ///< What the weights multiply.

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      if (row.length == 0) continue;
      need(row.logp, row.old_logp, row.rollout_logp, row.teacher_logp);
      const S* sampled = row.rollout_logp ? row.rollout_logp
                         : row.old_logp   ? row.old_logp
                                          : row.logp;
      const auto size = [&](index_t t) {
        return row.valid(t) ? size_of(detail::teacher_gap(row.teacher_logp[t], sampled[t])) : 0.0;
      };
      double total = 0, before = 0;
      for (index_t t = 0; t < row.length; ++t) total += size(t);
      double* w = args.weights_of(i);
      for (index_t t = 0; t < row.length; ++t) {
        if (row.valid(t)) w[t] = weight_of(before, total);
        before += size(t);
      }
    }
  }
  /// Throws unless the batch has the arrays that are read.
  static void need(bool has_logp, bool has_old, bool has_rollout, bool has_teacher) {
    detail::need_teacher(has_teacher, "prepass::TeacherPrefix");
    if (has_old || has_rollout) return;
    detail::need_logp(has_logp,
                      "prepass::TeacherPrefix without batch.rollout_logp and batch.old_logp");
  }
  /// What a valid token adds to the sums.
  GDPO_INLINE static double size_of(double gap) {
    if (math::not_finite(gap)) return 0.0;
    return gap < 0 ? -gap : gap;
  }
  /// The weight of a token from the sum before it and that of its row.
  GDPO_INLINE double weight_of(double before, double total) const {
    return math::fma(gain, 1 - before / (math::max)(total, eps), 1.0);
  }
  static constexpr const char* name = "teacher_prefix";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("gain", s.gain, at_least(0), "the weight of the first token is 1 + gain");
    field("eps", s.eps, more_than(0), "the sum that divides is at least this, in nats");
    field("reach", s.reach, "what the weights multiply");
  }
  /// Throws for Reach::Mask and Reach::Level.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_mask(reach, function, path);
    detail::refuse_level(reach, function, path);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
