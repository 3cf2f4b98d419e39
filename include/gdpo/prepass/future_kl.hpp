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
    detail::write_by_rows(*this, args);
  }
  /// Checks the arrays.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision&) const {
    if (!rows.empty()) need(rows.has_advantages(), bool(rows.batch().logp));
  }
  /// The weights of n rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision&, const TokenRow<S>* rows, int n, double* const* w,
                  detail::RowWeights* weights) const {
    write_statistics<V>({}, rows, n, w);
    detail::each_row(n, w, weights, [&](int r) {
      const OfRow<S> of_row{*this, rows[r]};
      detail::write_lanes<V>(rows[r], 1, w[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        return of_row.weight(t, L(math::Lanes<L>::load(w[r] + t)));
      });
    });
  }
  /// What gives the weights of a row from its sums.
  template <class S>
  struct OfRow {
    const FutureKl& pass;    ///< Its settings.
    const TokenRow<S>& row;  ///< The arrays of the row.
    /// The weights of the tokens from t on with these sums.
    template <class V>
    GDPO_INLINE V weight(index_t t, const V& sum) const {
      return pass.weight_of(sum, log_ratios<V>(row, t), detail::advantages_of<V>(row, t));
    }
  };
  /// The same of a row.
  template <class S>
  OfRow<S> of_row(const TokenRow<S>& row) const {
    return {*this, row};
  }
  /// Writes the decayed sums F of n rows into w, those at masked tokens too.
  template <class V, class S>
  void write_statistics(const detail::BatchDecision&, const TokenRow<S>* rows, int n,
                        double* const* w) const {
    index_t most = 0;
    for (int r = 0; r < n; ++r) {
      const TokenRow<S>& row = rows[r];
      detail::write_lanes<V>(row, 0, w[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        return added(log_ratios<typename decltype(lanes)::type>(row, t));
      });
      most = (std::max)(most, row.length);
    }
    // Rows side by side: each sum waits for the one behind it.
    double sums[detail::most_prepass_rows] = {};
    for (index_t back = 1; back <= most; ++back) {
      for (int r = 0; r < n; ++r) {
        const index_t t = rows[r].length - back;
        if (t < 0) continue;
        w[r][t] = sums[r] = math::fma(gamma, sums[r], w[r][t]);
      }
    }
  }
  /// The number of a token in a gate_report(): its sum F itself.
  template <class V>
  GDPO_INLINE V number_of(const V& sum) const {
    return sum;
  }
  /// Throws unless the batch has the arrays that are read.
  void need(bool has_advantages, bool has_logp) const {
    detail::need_logp(has_logp, "prepass::FutureKl");
    detail::need_advantages(safety == math::infinity || has_advantages,
                            "prepass::FutureKl::safety");
  }
  /// What a token with the log ratio x adds to the sum; x is 0 at masked tokens.
  template <class V>
  GDPO_INLINE V added(const V& x) const {
    const V zero = math::constant<V>(0.0), finite = math::select(math::not_finite(x), zero, x);
    if (drop_above == math::infinity) return finite;
    return math::select(ratio_of(x) <= math::constant<V>(drop_above), finite, zero);
  }
  /// The weight of a token from its sum, its log ratio and its advantage.
  template <class V>
  GDPO_INLINE V weight_of(const V& sum, const V& x, const V& advantage) const {
    const V weight = detail::bound(clip, math::exp_parts(sum).exp).value;
    if (safety == math::infinity) return weight;
    const auto unsafe =
        math::both(ratio_of(x) > math::constant<V>(safety), advantage < math::constant<V>(0.0));
    return math::select(unsafe, detail::bound(Bounds{0.8, 1}, weight).value, weight);
  }
  /// logp - old_logp of the tokens from t on; 0 at masked tokens and without old_logp.
  template <class V, class S>
  GDPO_INLINE static V log_ratios(const TokenRow<S>& row, index_t t) {
    const V zero = math::constant<V>(0.0);
    if (!row.old_logp) return zero;
    const V x = V(math::Lanes<V>::load(row.logp + t)) - math::Lanes<V>::load(row.old_logp + t);
    return row.mask ? V(math::select(detail::valid_lanes<V>(row, t), x, zero)) : x;
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
  template <class V>
  GDPO_INLINE static V ratio_of(const V& x) {
    return math::select(math::is_nan(x), math::constant<V>(0.0), math::exp_parts(x).exp);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
