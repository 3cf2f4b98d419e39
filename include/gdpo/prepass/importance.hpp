#pragma once
// Importance: weights by the ratio of two policies, truncated or not.
#include <gdpo/prepass/statistic.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Truncated importance sampling: weights that correct for another policy having sampled.
///
/// The engine that sampled computes other log-probs than the trainer, for the same weights of the
/// model. Each token gets the weight
///
///     clip(exp(clamp(statistic(token_clamp(x)))))
///
/// where x is the difference of the pair, by default old - rollout, `old` being old_logp, or logp
/// where the batch has none, and `missing` says what a rollout_logp of NaN means. The weight is 0
/// where it is NaN, or infinite without a clip that holds it; exp is infinite above 700. One that a
/// float cannot hold becomes infinite; the loss drops the token and counts it in
/// NonFiniteInputs::weights.
///
/// TRL's vllm_importance_sampling_mode token_truncate (Token) and sequence_truncate (SequenceSum);
/// ms-swift (SequenceMean, Reach::SurrogateAndKl); open-instruct's rho (clamp +-10). With a Gate it
/// is a masked weight (prepass/chain.hpp), with MeanOne a normalized one.
///
/// The mean of old - rollout is -KL(rollout || old), a small negative number. Over thousands of
/// tokens SequenceSum adds it up, and the weight goes to 0; SequenceMean keeps it near 1.
///
/// With Reach::Level the weight is part of the ratio (prepass/prepare.hpp): of Token the product
/// over the tokens, of the other statistics the one number of the segment, row or group.
///
/// No gradient flows through a weight. Needs the arrays of the pair. Reach::Mask is refused,
/// because these weights are no mask.
struct Importance {
  Statistic statistic = Statistic::Token;  ///< Token by token, or one number per row.
  Bounds clamp{};                          ///< Bounds of the statistic, in nats. Off by default.
  Bounds clip{};                           ///< Bounds of the weight. Off by default.
  double count_eps = 0;                    ///< Added to the number of tokens in a mean.
  Reach reach = Reach::Surrogate;          ///< What the weights multiply.
  /// What a NaN in rollout_logp means.
  MissingRollout missing = MissingRollout::Drop;
  /// Bounds of the log ratio of each token, in nats, before the statistic. Off by default.
  Bounds token_clamp{};
  Pair pair = Pair::Mismatch;  ///< The two policies whose ratio is the weight.
  /// (B) Rows with the same number are one group; for the statistics of groups alone.
  Column groups{};

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    detail::for_each_statistic(
        args, statistic, count_eps, groups, name,
        [&](const TokenRow<S>& row, double* w) { write_estimates(row, true, w); },
        [&](const TokenRow<S>& row, double* w) {
          for_each_weight(row, w, [w](index_t t, double weight) { w[t] = weight; });
        });
  }
  /// Writes the log ratios of the valid tokens of a row into w.
  template <class S>
  void write_estimates(const TokenRow<S>& row, bool, double* w) const {
    if (row.length == 0) return;
    need(true, row.logp, row.old_logp, row.rollout_logp);
    const auto difference = detail::pair_of(pair, missing, row);
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t)) w[t] = estimate_of(difference(t));
    }
  }
  /// Calls use(t, weight) for the valid tokens of a row, whose statistics w holds.
  template <class S, class Use>
  void for_each_weight(const TokenRow<S>& row, const double* w, const Use& use) const {
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t)) use(t, weight_of(w[t]));
    }
  }
  /// Throws unless the batch has the log-probs of the pair. Advantages are not read.
  void need(bool, bool has_logp, bool has_old, bool has_rollout) const {
    detail::need_pair(pair, has_logp, has_old, has_rollout, "prepass::Importance");
  }
  /// The log ratio of a token in nats, before the statistic.
  GDPO_INLINE double estimate_of(const detail::Difference& d) const {
    return math::is_nan(d.x) ? d.x : detail::bound(token_clamp, d.x).value;
  }
  /// The ratio of a token before the clip, from its statistic in nats; NaN for NaN.
  GDPO_INLINE double number_of(double statistic_of_token) const {
    if (math::is_nan(statistic_of_token)) return statistic_of_token;
    return detail::ratio_of(detail::bound(clamp, statistic_of_token).value);
  }
  /// The weight of a token, from its statistic in nats.
  GDPO_INLINE double weight_of(double statistic_of_token) const {
    if (math::is_nan(statistic_of_token)) return 0.0;
    const double weight = detail::bound(clip, number_of(statistic_of_token)).value;
    return math::not_finite(weight) ? 0.0 : weight;
  }
  /// Whether all tokens of a segment, row or group have one weight (Reach::Level).
  bool is_shared() const { return statistic != Statistic::Token; }
  static constexpr const char* name = "importance";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("statistic", s.statistic, "token by token, or one number per row");
    field("clamp", s.clamp, "bounds of the statistic, in nats");
    field("clip", s.clip, "bounds of the weight");
    field("count_eps", s.count_eps, at_least(0), "added to the number of tokens of the mean");
    field("reach", s.reach, "what the weights multiply");
    field("missing", s.missing, "what a NaN in rollout_logp means");
    field("token_clamp", s.token_clamp, "bounds of each token's log ratio, in nats");
    field("pair", s.pair, "the two policies whose ratio is the weight");
    field("groups", s.groups, "equal for the rows of a group");
  }
  /// Throws for Reach::Mask.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_mask(reach, function, path);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
