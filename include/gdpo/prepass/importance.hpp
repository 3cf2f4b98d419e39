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
    detail::write_by_rows(*this, args);
  }
  /// Whether begin() reads the tokens of the batch.
  bool reads_batch() const { return detail::share_of(statistic) == detail::Share::Group; }
  /// Checks the arrays, and takes the statistics of groups.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision& of_batch) const {
    detail::check_groups(statistic, groups, rows.layout(), name);
    const TokenBatch<S>& b = rows.batch();
    if (!rows.empty()) need(true, bool(b.logp), bool(b.old_logp), bool(b.rollout_logp));
    detail::find_groups<V>(*this, rows, of_batch);
  }
  /// The weights of up to detail::most_prepass_rows rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision& of_batch, const TokenRow<S>* rows, int n,
                  double* const* w, detail::RowWeights* weights) const {
    if (statistic == Statistic::Token) {
      for (int r = 0; r < n; ++r) {
        const auto pair_of_row = detail::pair_of(pair, missing, rows[r]);
        detail::write_lanes<V>(rows[r], 1, w[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
          using L = typename decltype(lanes)::type;
          return weight_of(estimate_of(pair_of_row.template at<L>(t)));
        });
        weights[r] = {w[r], 1, 1};
      }
      return;
    }
    double shared[detail::most_prepass_rows];
    detail::share_statistics<V>(*this, of_batch, rows, n, w, shared);
    for (int r = 0; r < n; ++r) {
      if (detail::share_of(statistic) != detail::Share::Segment) {
        weights[r] = {nullptr, weight_of(shared[r]), shared[r]};
        continue;
      }
      detail::replace_lanes<V>(rows[r], w[r],
                               [&](auto, index_t, const auto& number)
                                   GDPO_INLINE_LAMBDA { return weight_of(number); });
      weights[r] = {w[r], 1, 1};
    }
  }
  /// Writes the statistics of the tokens of n rows, for a report.
  template <class V, class S>
  void write_statistics(const detail::BatchDecision& of_batch, const TokenRow<S>* rows, int n,
                        double* const* w) const {
    detail::write_statistics<V>(*this, of_batch, rows, n, w);
  }
  /// What gives the weights of a row from its statistics, for a report.
  struct OfRow {
    const Importance& pass;  ///< Its settings.
    /// The weights of tokens with these statistics.
    template <class V>
    GDPO_INLINE V weight(index_t, const V& statistic_of_token) const {
      return pass.weight_of(statistic_of_token);
    }
  };
  /// The same of a row.
  template <class S>
  OfRow of_row(const TokenRow<S>&) const {
    return {*this};
  }
  /// Writes the log ratios of the valid tokens of a row into w, and `masked` at the others.
  template <class V, class S>
  void write_estimates(const TokenRow<S>& row, double masked, double* w) const {
    const auto pair_of_row = detail::pair_of(pair, missing, row);
    detail::write_lanes<V>(row, masked, w, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
      return estimate_of(pair_of_row.template at<typename decltype(lanes)::type>(t));
    });
  }
  /// Throws unless the batch has the log-probs of the pair. Advantages are not read.
  void need(bool, bool has_logp, bool has_old, bool has_rollout) const {
    detail::need_pair(pair, has_logp, has_old, has_rollout, "prepass::Importance");
  }
  /// The log ratio of a token in nats, before the statistic.
  template <class V>
  GDPO_INLINE V estimate_of(const detail::DifferenceOf<V>& d) const {
    return detail::is_off(token_clamp) ? d.x : detail::bound_or_nan(token_clamp, d.x);
  }
  /// The ratio of a token before the clip, from its statistic in nats; NaN for NaN.
  template <class V>
  GDPO_INLINE V number_of(const V& statistic_of_token) const {
    return detail::ratio_of(detail::is_off(clamp)
                                ? statistic_of_token
                                : detail::bound_or_nan(clamp, statistic_of_token));
  }
  /// The weight of a token, from its statistic in nats.
  template <class V>
  GDPO_INLINE V weight_of(const V& statistic_of_token) const {
    return detail::finite_or_zero(detail::bound_or_nan(clip, number_of(statistic_of_token)));
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
