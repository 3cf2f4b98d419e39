#pragma once
// TeacherRatio: a pre-pass that weighs each token by how probable a teacher holds it (RLSD).
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/prepass/engine/row_lanes.hpp>
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
    detail::write_by_rows(*this, args);
  }
  /// Checks the arrays.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision&) const {
    const TokenBatch<S>& b = rows.batch();
    if (!rows.empty())
      need(rows.has_advantages(), bool(b.logp), bool(b.old_logp), bool(b.teacher_logp));
  }
  /// The weights of n rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision&, const TokenRow<S>* rows, int n, double* const* w,
                  detail::RowWeights* weights) const {
    detail::each_row(n, w, weights, [&](int r) {
      const TokenRow<S>& row = rows[r];
      const S* sampled = row.old_logp ? row.old_logp : row.logp;
      detail::write_lanes<V>(row, 1, w[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        const L x =
            L(math::Lanes<L>::load(row.teacher_logp + t)) - math::Lanes<L>::load(sampled + t);
        return weight_of(x, detail::advantages_of<L>(row, t));
      });
    });
  }
  /// Throws unless the batch has the arrays that are read.
  static void need(bool has_advantages, bool has_logp, bool has_old, bool has_teacher) {
    detail::need_teacher(has_teacher, "prepass::TeacherRatio");
    detail::need_advantages(has_advantages, "prepass::TeacherRatio");
    if (!has_old) detail::need_logp(has_logp, "prepass::TeacherRatio without batch.old_logp");
  }
  /// The weight of a token from its x and its advantage.
  template <class V>
  GDPO_INLINE V weight_of(const V& x, const V& advantage) const {
    const V zero = math::constant<V>(0.0), one = math::constant<V>(1.0);
    const auto negative = advantage<zero, positive = advantage> zero;
    const V towards = math::select(negative, V(-x), math::select(positive, x, zero));
    const V ratio = math::exp_or_zero(towards);
    const V weight = math::fma(math::constant<V>(mix), detail::bound(clip, ratio).value,
                               math::constant<V>(1 - mix));
    const V weighed = math::select(math::is_nan(x), one, weight);
    if (math::is_zero(mix)) return one;
    return negative_only ? V(math::select(negative, weighed, one)) : weighed;
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
