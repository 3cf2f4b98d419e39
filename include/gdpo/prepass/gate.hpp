#pragma once
// Gates: pre-passes that leave out tokens or rows by how far two policies differ.
#include <gdpo/prepass/statistic.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// At which tokens a gate may close.
enum class When {
  Always,             ///< At every token.
  NegativeAdvantage,  ///< Where A < 0.
  Outward             ///< Where A x > 0: the update would push the token further away. Or x is NaN.
};
/// The enumerators of When with their words.
GDPO_DATA_INLINE constexpr auto enumerators(When) {
  using E = Enumerator<When>;
  return std::array{E{"always", When::Always}, E{"negative_advantage", When::NegativeAdvantage},
                    E{"outward", When::Outward}};
}
/// Whose advantage A is in `When`.
enum class GateAdvantage {
  Token,  ///< The token's own.
  Row     ///< The mean over the row's valid tokens.
};
/// The enumerators of GateAdvantage with their words.
GDPO_DATA_INLINE constexpr auto enumerators(GateAdvantage) {
  using E = Enumerator<GateAdvantage>;
  return std::array{E{"token", GateAdvantage::Token}, E{"row", GateAdvantage::Row}};
}

/// A mask by bounds: weight 0 where an estimate is outside [min, max] and `when` holds, else 1.
///
///     x = difference of the pair, clamped to `clamp`
///     y = the estimate, taken over the token, segment, row or group (`statistic`)
///     weight = 0 if `when` holds and (y < min or y > max or y is NaN), else 1
///
/// NaN closes the gate only if min or max is finite: a gate without bounds is always open. With
/// `missing` NoDifference x is 0 where rollout_logp is NaN.
///
/// It covers IcePop (Ratio, Mismatch, Token), the token and sequence masks of TRL, ms-swift and
/// open-instruct, verl's and unsloth's rejections (K1, K2, K3), OpenRLHF's gatings (Ratio,
/// BinaryKl, BinaryTotalVariation), the mask of VACO (RatioDeviation, Mismatch, SequenceMean,
/// Outward), DPPO (ProbabilityGain or SignedBinaryKl, Update or Drift, Token, Outward, [-low,
/// high]), and off_policy_sequence_mask().
///
/// Needs the arrays of the pair, and advantages unless `when` is Always.
struct Gate {
  Estimator estimator = Estimator::Ratio;          ///< What is computed from the pair.
  Pair pair = Pair::Mismatch;                      ///< The two policies that are compared.
  Statistic statistic = Statistic::Token;          ///< Token by token, or one number per row.
  When when = When::Always;                        ///< At which tokens the gate may close.
  GateAdvantage advantage = GateAdvantage::Token;  ///< The advantage that `when` looks at.
  double min = -math::infinity;                    ///< Smallest y that is let through.
  double max = math::infinity;                     ///< Largest y that is let through; > min.
  Bounds clamp{};                                  ///< Bounds of x, in nats. Off by default.
  double count_eps = 0;                            ///< Added to the number of tokens in a mean.
  Reach reach = Reach::Surrogate;                  ///< What the decision acts on.
  /// What a NaN in rollout_logp means, where x is a difference from rollout_logp.
  MissingRollout missing = MissingRollout::Drop;
  /// Added to the probabilities 1 - p and 1 - q of all other tokens in the logarithm of the binary
  /// KL estimates.
  double eps = 0;
  /// (B) Rows with the same number are one group; for the statistics of groups alone.
  Column groups{};

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    const bool has_advantages = args.rows.has_advantages();
    detail::for_each_statistic(
        args, statistic, count_eps, groups, name,
        [&](const TokenRow<S>& row, double* w) { write_estimates(row, has_advantages, w); },
        [&](const TokenRow<S>& row, double* w) {
          for_each_weight(row, w, [w](index_t t, double weight) { w[t] = weight; });
        });
  }
  /// Writes the estimates of the valid tokens of a row into w.
  template <class S>
  void write_estimates(const TokenRow<S>& row, bool has_advantages, double* w) const {
    if (row.length == 0) return;
    need(has_advantages, row.logp, row.old_logp, row.rollout_logp);
    const auto difference = detail::pair_of(pair, missing, row);
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t)) w[t] = estimate_of(difference(t));
    }
  }
  /// Calls use(t, weight) for the valid tokens of a row, whose statistics w holds.
  template <class S, class Use>
  void for_each_weight(const TokenRow<S>& row, const double* w, const Use& use) const {
    if (row.length == 0) return;
    const auto difference = detail::pair_of(pair, missing, row);
    const double row_advantage = advantage == GateAdvantage::Row ? row.mean_advantage() : 0.0;
    for (index_t t = 0; t < row.length; ++t) {
      if (!row.valid(t)) continue;
      const double a = advantage == GateAdvantage::Row ? row_advantage : row.advantage_of(t);
      use(t, weight_of(w[t], difference(t), a));
    }
  }
  /// Throws unless the batch has the arrays that the gate reads.
  void need(bool has_advantages, bool has_logp, bool has_old, bool has_rollout) const {
    detail::need_advantages(when == When::Always || has_advantages, "prepass::Gate::when");
    detail::need_pair(pair, has_logp, has_old, has_rollout, "prepass::Gate");
  }
  /// The estimate of a token, before the statistic.
  GDPO_INLINE double estimate_of(const detail::Difference& d) const {
    return detail::estimate(estimator, d, detail::bound(clamp, d.x).value, eps);
  }
  /// The number y that is compared with the bounds, from the statistic of a token.
  GDPO_INLINE double number_of(double statistic_of_token) const {
    return estimator == Estimator::Ratio ? detail::ratio_of(statistic_of_token)
                                         : statistic_of_token;
  }
  /// 1 where the token is let through, else 0. `a` is the advantage that `when` looks at.
  GDPO_INLINE double weight_of(double statistic_of_token, const detail::Difference& d,
                               double a) const {
    const double y = number_of(statistic_of_token);
    const bool bounded = !math::is_inf(min) || !math::is_inf(max);
    bool closed = y < min || y > max || (bounded && math::is_nan(statistic_of_token));
    if (when == When::NegativeAdvantage) {
      closed = closed && a < 0;
    } else if (when == When::Outward) {
      const double x = detail::bound(clamp, d.x).value;
      closed = closed && (math::is_nan(x) || math::mul(a, x) > 0);
    }
    return closed ? 0.0 : 1.0;
  }
  /// Whether all tokens of a segment, row or group have one weight (Reach::Level).
  bool is_shared() const {
    return statistic != Statistic::Token &&
           (when == When::Always ||
            (when == When::NegativeAdvantage && advantage == GateAdvantage::Row));
  }
  static constexpr const char* name = "gate";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("estimator", s.estimator, "what is computed from the log-probs of the pair");
    field("pair", s.pair, "the two policies that are compared");
    field("statistic", s.statistic, "token by token, or one number per row");
    field("when", s.when, "at which tokens the gate may close");
    field("advantage", s.advantage, "the advantage that `when` looks at");
    field("min", s.min, anything(), "the smallest estimate that is let through");
    field("max", s.max, anything(), "the largest estimate that is let through");
    field("clamp", s.clamp, "bounds of the difference, in nats");
    field("count_eps", s.count_eps, at_least(0), "added to the number of tokens of the mean");
    field("reach", s.reach, "what the decision acts on");
    field("missing", s.missing, "what a NaN in rollout_logp means");
    field("eps", s.eps, at_least(0), "added to 1 - p and 1 - q in the binary KL estimates");
    field("groups", s.groups, "equal for the rows of a group");
  }
  /// Throws unless min < max.
  void check_together(const char* function, const detail::FieldPath& path) const {
    if (min < max) return;
    contract::fail(function, path.text("min") + ", " + path.text("max"),
                   contract::text(min) + " and " + contract::text(max),
                   "min < max (infinite: off)");
  }
};

/// DeepSeek-V3.2's off-policy sequence mask: drops rows that have A < 0 and drifted too far.
///
/// A row has drifted too far if its mean of rollout - logp, in nats per token, is above `max`. With
/// advantages of tokens, only the row's tokens with A < 0 are dropped. TRL
/// off_policy_mask_threshold, with MissingRollout::NoDifference since 1.11.0; in ms-swift with
/// Reach::Mask and GateAdvantage::Row.
constexpr Gate off_policy_sequence_mask(double max, Reach reach = Reach::Surrogate,
                                        GateAdvantage advantage = GateAdvantage::Token,
                                        MissingRollout missing = MissingRollout::Drop) {
  Gate gate{};
  gate.estimator = Estimator::K1;
  gate.pair = Pair::Drift;
  gate.statistic = Statistic::SequenceMean;
  gate.when = When::NegativeAdvantage;
  gate.advantage = advantage;
  gate.max = max;
  gate.reach = reach;
  gate.missing = missing;
  return gate;
}

}  // namespace prepass
GDPO_END_NAMESPACE
