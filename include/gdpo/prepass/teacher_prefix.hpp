#pragma once
// TeacherPrefix: a pre-pass that gives less weight to tokens behind a prefix on which teacher and
// policy disagree (IW-OPD).
#include <gdpo/prepass/engine/row_lanes.hpp>
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
    detail::write_by_rows(*this, args);
  }
  /// Checks the arrays.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision&) const {
    const TokenBatch<S>& b = rows.batch();
    if (!rows.empty())
      need(bool(b.logp), bool(b.old_logp), bool(b.rollout_logp), bool(b.teacher_logp));
  }
  /// The weights of n rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision&, const TokenRow<S>* rows, int n, double* const* w,
                  detail::RowWeights* weights) const {
    double totals[detail::most_prepass_rows] = {};
    index_t lengths[detail::most_prepass_rows];
    for (int r = 0; r < n; ++r) {
      const TokenRow<S>& row = rows[r];
      const S* sampled = row.rollout_logp ? row.rollout_logp
                         : row.old_logp   ? row.old_logp
                                          : row.logp;
      lengths[r] = row.length;
      detail::write_lanes<V>(row, 0, w[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        return size_of(
            L(math::Lanes<L>::load(row.teacher_logp + t) - math::Lanes<L>::load(sampled + t)));
      });
    }
    detail::sum_rows_in_order(w, lengths, n, totals);
    detail::each_row(n, w, weights, [&](int r) {
      double before = 0;
      for (index_t t = 0; t < lengths[r]; ++t) {
        const double size = w[r][t];
        w[r][t] = before;
        before += size;
      }
      const double total = totals[r];
      detail::write_lanes<V>(rows[r], 1, w[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        return weight_of(L(math::Lanes<L>::load(w[r] + t)), math::constant<L>(total));
      });
    });
  }
  /// Throws unless the batch has the arrays that are read.
  static void need(bool has_logp, bool has_old, bool has_rollout, bool has_teacher) {
    detail::need_teacher(has_teacher, "prepass::TeacherPrefix");
    if (has_old || has_rollout) return;
    detail::need_logp(has_logp,
                      "prepass::TeacherPrefix without batch.rollout_logp and batch.old_logp");
  }
  /// What a valid token adds to the sums.
  template <class V>
  GDPO_INLINE static V size_of(const V& gap) {
    const V zero = math::constant<V>(0.0);
    return math::select(math::not_finite(gap), zero, math::select(gap < zero, V(-gap), gap));
  }
  /// The weight of a token from the sum before it and that of its row.
  template <class V>
  GDPO_INLINE V weight_of(const V& before, const V& total) const {
    const V one = math::constant<V>(1.0);
    const V share = before / (math::max)(total, math::constant<V>(eps));
    return math::fma(math::constant<V>(gain), V(one - share), one);
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
