#pragma once
// TeacherRatio: a pre-pass that weighs each token by how probable a teacher holds it (RLSD).
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/prepass/shared/teacher_gap.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Weighs each token by the ratio of a teacher to the policy that sampled, towards the sign of its
/// advantage.
///
///     x_t = teacher_logp - old_logp                   logp where the batch has no old_logp
///     weight = 1 - mix + mix clip(e^(sign(A) x_t))    1 where negative_only and A is not below 0
///
/// Where the reward was good, tokens that the teacher holds for more probable than the policy get
/// more of it; where it was bad, those that the teacher holds for less probable get more of the
/// blame. Weights are never negative, so no advantage changes its sign. The teacher may be the
/// policy itself that has been shown the right answer.
///
/// A token of which the teacher says nothing, so that x is NaN, keeps weight 1. An x of -infinity,
/// probability 0 of the teacher, or of infinity goes to the bounds of `clip`. sign(0) is 0.
///
/// RLSD; ms-swift apply_rlsd_reweight: mix is its lam (which a schedule may move from step to
/// step), clip {1 - clip_range, 1 + clip_range}, negative_only the option of that name.
///
/// Needs teacher_logp, advantages, and old_logp or logp. Reach::Mask and Reach::Level are refused,
/// because these weights are no mask and no part of a ratio.
struct TeacherRatio {
  double mix = 1;         ///< Share of the teacher in the weight, 0 to 1; 0: all weights are 1.
  Bounds clip{0.8, 1.2};  ///< Bounds of the teacher's ratio.
  bool negative_only = false;      ///< Whether only tokens with A < 0 are weighed.
  Reach reach = Reach::Surrogate;  ///< What the weights multiply.

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      if (row.length == 0) continue;
      need(rows.has_advantages(), row.logp, row.old_logp, row.teacher_logp);
      const S* sampled = row.old_logp ? row.old_logp : row.logp;
      double* w = args.weights_of(i);
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        w[t] = weight_of(detail::teacher_gap(row.teacher_logp[t], sampled[t]), row.advantage_of(t));
      }
    }
  }
  /// Throws unless the batch has the arrays that are read.
  static void need(bool has_advantages, bool has_logp, bool has_old, bool has_teacher) {
    detail::need_teacher(has_teacher, "prepass::TeacherRatio");
    detail::need_advantages(has_advantages, "prepass::TeacherRatio");
    if (!has_old) detail::need_logp(has_logp, "prepass::TeacherRatio without batch.old_logp");
  }
  /// The weight of a token from its x and its advantage.
  GDPO_INLINE double weight_of(double x, double advantage) const {
    const bool negative = advantage < 0;
    if (math::is_nan(x) || math::is_zero(mix) || (negative_only && !negative)) return 1.0;
    const double towards = negative ? -x : advantage > 0 ? x : 0.0;
    const double ratio = math::exp_or_zero(towards);
    return math::fma(mix, detail::bound(clip, ratio).value, 1 - mix);
  }
  static constexpr const char* name = "teacher_ratio";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("mix", s.mix, at_least(0).at_most(1), "share of the teacher in the weight");
    field("clip", s.clip, "bounds of the teacher's ratio");
    field("negative_only", s.negative_only, "whether only tokens with A < 0 are weighed");
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
