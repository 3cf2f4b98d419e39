#pragma once
// FutureKl: a pre-pass that weighs each token by how the policy has moved on it and what follows
// (FIPO).
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/prepass/statistic.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Weighs each token by the decayed sum of the log ratios from it to the end of the row.
///
///     x_t = logp - old_logp where the token is valid and e^x <= drop_above, else 0
///     F_t = x_t + gamma F_{t+1}, from the last place of the row
///     weight = clip(e^F_t);  where A < 0 and e^(logp - old_logp) > safety also within [0.8, 1]
///
/// A masked token adds nothing but is a place of the row, so the sum decays over a hole. x counts
/// as 0 where it is NaN or infinite; the token itself is then weighed by what follows. Without
/// old_logp all x are 0. A row is one sequence, whatever its segments.
///
/// FIPO, arXiv 2603.19835; ms-swift loss_type="fipo", with its options
///
///     gamma        2^(-1 / fipo_decay_rate): the weight of a token halves every fipo_decay_rate
///     clip         {1, 1 + fipo_clip_range}, or {1 - fipo_clip_range, 1 + fipo_clip_range} where
///                  fipo_clip_high_only is false
///     drop_above   delta
///     safety       fipo_safety_threshold
///
/// Needs `logp`; advantages unless safety is infinite. Reach::Mask is refused, because these
/// weights are no mask.
struct FutureKl {
  double gamma = 0.97857206208770013;  ///< Decay per place, 0 to 1; 2^(-1/32).
  Bounds clip{1, 1.2};                 ///< Bounds of the weight.
  double drop_above = math::infinity;  ///< Larger ratios add nothing; more than 0; infinity: off.
  /// Where A < 0 and the ratio is larger, the weight is within [0.8, 1]. More than 0; infinity:
  /// off.
  double safety = 4;
  Reach reach = Reach::Surrogate;  ///< What the weights multiply.

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      double* w = args.weights_of(i);
      write_estimates(row, rows.has_advantages(), w);
      for_each_weight(row, w, [w](index_t t, double weight) { w[t] = weight; });
    }
  }
  /// Writes the decayed sums F of the valid tokens of a row into w.
  template <class S>
  void write_estimates(const TokenRow<S>& row, bool has_advantages, double* w) const {
    if (row.length == 0) return;
    need(has_advantages, row.logp);
    double sum = 0;
    for (index_t t = row.length; t-- > 0;) {
      sum = math::fma(gamma, sum, added(log_ratio(row, t)));
      if (row.valid(t)) w[t] = sum;
    }
  }
  /// Calls use(t, weight) for the valid tokens of a row, whose sums w holds.
  template <class S, class Use>
  void for_each_weight(const TokenRow<S>& row, const double* w, const Use& use) const {
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t)) use(t, weight_of(w[t], log_ratio(row, t), row.advantage_of(t)));
    }
  }
  /// The number of a token in a gate_report(): its sum F itself.
  GDPO_INLINE double number_of(double sum) const { return sum; }
  /// Throws unless the batch has the arrays that are read.
  void need(bool has_advantages, bool has_logp) const {
    detail::need_logp(has_logp, "prepass::FutureKl");
    detail::need_advantages(safety == math::infinity || has_advantages,
                            "prepass::FutureKl::safety");
  }
  /// What a token with the log ratio x adds to the sum; x is 0 at masked tokens.
  GDPO_INLINE double added(double x) const {
    return !math::not_finite(x) && ratio_of(x) <= drop_above ? x : 0.0;
  }
  /// The weight of a token from its sum, its log ratio and its advantage.
  GDPO_INLINE double weight_of(double sum, double x, double advantage) const {
    const double weight = detail::bound(clip, math::exp_parts(sum).exp).value;
    return ratio_of(x) > safety && advantage < 0 ? detail::bound(Bounds{0.8, 1}, weight).value
                                                 : weight;
  }
  static constexpr const char* name = "future_kl";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("gamma", s.gamma, at_least(0).at_most(1), "decay of the sum per token");
    field("clip", s.clip, "bounds of the weight");
    field("drop_above", s.drop_above, more_than(0).or_infinity(), "larger ratios add nothing");
    field("safety", s.safety, more_than(0).or_infinity(),
          "where A < 0 and the ratio is larger, the weight is 0.8 to 1");
    field("reach", s.reach, "what the weights multiply");
  }
  /// Throws for Reach::Mask and Reach::Level.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_mask(reach, function, path);
    detail::refuse_level(reach, function, path);
  }

 private:
  /// logp - old_logp; 0 at masked tokens and without old_logp.
  template <class S>
  GDPO_INLINE static double log_ratio(const TokenRow<S>& row, index_t t) {
    return row.valid(t) && row.old_logp
               ? static_cast<double>(row.logp[t]) - static_cast<double>(row.old_logp[t])
               : 0.0;
  }
  GDPO_INLINE static double ratio_of(double x) {
    return math::is_nan(x) ? 0.0 : math::exp_parts(x).exp;
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
