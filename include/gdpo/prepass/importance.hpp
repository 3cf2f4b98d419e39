#pragma once
// Truncated importance sampling against the log-probs of the sampling engine.
#include <gdpo/prepass/statistic.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Truncated importance sampling: weights that correct for the sampling engine's own log-probs.
///
/// The engine that sampled computes other log-probs than the trainer, for the same weights of the
/// model. Each token gets the weight
///
///     clip(exp(clamp(statistic(token_clamp(old - rollout)))))
///
/// where `old` is old_logp, or logp where the batch has none, and `missing` says what a
/// rollout_logp of NaN means. The weight is 0 where it is NaN, or infinite without a clip that
/// holds it. One that a float cannot hold becomes infinite; the loss drops the token and counts it
/// in NonFiniteInputs::weights.
///
/// TRL's vllm_importance_sampling_mode token_truncate (Token) and sequence_truncate (SequenceSum);
/// ms-swift (SequenceMean, Reach::SurrogateAndKl); open-instruct's rho (clamp +-10).
///
/// The mean of old - rollout is -KL(rollout || old), a small negative number. Over thousands of
/// tokens SequenceSum adds it up, and the weight goes to 0; SequenceMean keeps it near 1.
///
/// Needs `rollout_logp`. Reach::Mask is refused, because these weights are no mask.
struct Importance {
  Statistic statistic = Statistic::Token;  ///< Token by token, or one number per row.
  Bounds clamp{};                          ///< Bounds of the statistic, in nats. Off by default.
  Bounds clip{};                           ///< Bounds of the weight. Off by default.
  double count_eps = 0;                    ///< Added to the number of tokens in SequenceMean.
  Reach reach = Reach::Surrogate;          ///< What the weights multiply.
  /// What a NaN in rollout_logp means.
  MissingRollout missing = MissingRollout::Drop;
  /// Bounds of the log ratio of each token, in nats, before the statistic. Off by default.
  Bounds token_clamp{};

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      if (!row.rollout_logp && row.length > 0) {
        contract::fail("gdpo::prepare", "batch.rollout_logp", "no array",
                       "the sampling policy's log-probs, because of prepass::Importance");
      }
      if (!row.old_logp && row.length > 0)
        detail::need_logp(row.logp != nullptr, "prepass::Importance without batch.old_logp");
      double* w = args.weights_of(i);
      const S* old = row.old_logp ? row.old_logp : row.logp;
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        const double x = static_cast<double>(old[t]) - static_cast<double>(row.rollout_logp[t]);
        w[t] = detail::without_difference(missing, row, t) ? 0.0
               : math::is_nan(x)                           ? x
                                                           : detail::bound(token_clamp, x).value;
      }
      detail::row_statistic(statistic, row, count_eps, w);
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        const bool nan = math::is_nan(w[t]);
        const double weight = detail::bound(clip, std::exp(detail::bound(clamp, w[t]).value)).value;
        w[t] = nan || math::not_finite(weight) ? 0.0 : weight;
      }
    }
  }
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
  }
  /// Throws for Reach::Mask.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_mask(reach, function, path);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
