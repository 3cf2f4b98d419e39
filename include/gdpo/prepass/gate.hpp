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
    detail::write_by_rows(*this, args);
  }
  /// Whether begin() reads the tokens of the batch.
  bool reads_batch() const { return detail::share_of(statistic) == detail::Share::Group; }
  /// Checks the arrays, and takes the statistics of groups.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision& of_batch) const {
    detail::check_groups(statistic, groups, rows.layout(), name);
    const TokenBatch<S>& b = rows.batch();
    if (!rows.empty())
      need(rows.has_advantages(), bool(b.logp), bool(b.old_logp), bool(b.rollout_logp));
    detail::find_groups<V>(*this, rows, of_batch);
  }
  /// The weights of up to detail::most_prepass_rows rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision& of_batch, const TokenRow<S>* rows, int n,
                  double* const* w, detail::RowWeights* weights) const {
    double shared[detail::most_prepass_rows] = {};
    if (statistic != Statistic::Token)
      detail::share_statistics<V>(*this, of_batch, rows, n, w, shared);
    for (int r = 0; r < n; ++r) {
      const OfRow<S> of_row(*this, rows[r]);
      weights[r] = {w[r], 1, 1};
      if (statistic == Statistic::Token) {
        detail::write_lanes<V>(rows[r], 1, w[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
          using L = typename decltype(lanes)::type;
          const auto d = of_row.pair.template at<L>(t);
          return weight_of(estimate_of(d), d, of_row.template advantages<L>(t));
        });
      } else if (detail::share_of(statistic) == detail::Share::Segment) {
        detail::replace_lanes<V>(
            rows[r], w[r], [&](auto lanes, index_t t, const auto& number) GDPO_INLINE_LAMBDA {
              return of_row.template weight<typename decltype(lanes)::type>(t, number);
            });
      } else if (when == When::Always || (when == When::NegativeAdvantage && of_row.shares)) {
        weights[r] = {nullptr, weight_of(shared[r], {}, of_row.shared), shared[r]};
      } else {
        detail::write_lanes<V>(rows[r], shared[r], w[r],
                               [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
                                 using L = typename decltype(lanes)::type;
                                 return of_row.template weight<L>(t, math::constant<L>(shared[r]));
                               });
      }
    }
  }
  /// Writes the statistics of the tokens of n rows, for a report.
  template <class V, class S>
  void write_statistics(const detail::BatchDecision& of_batch, const TokenRow<S>* rows, int n,
                        double* const* w) const {
    detail::write_statistics<V>(*this, of_batch, rows, n, w);
  }
  /// What gives the weights of a row from its statistics, for a report.
  template <class S>
  auto of_row(const TokenRow<S>& row) const {
    return OfRow<S>(*this, row);
  }
  /// Writes the estimates of the valid tokens of a row into w, and `masked` at the others.
  template <class V, class S>
  void write_estimates(const TokenRow<S>& row, double masked, double* w) const {
    const auto pair_of_row = detail::pair_of(pair, missing, row);
    detail::write_lanes<V>(row, masked, w, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
      return estimate_of(pair_of_row.template at<typename decltype(lanes)::type>(t));
    });
  }
  /// What weights of a row are decided from, besides their statistics.
  template <class S>
  struct OfRow {
    const Gate& gate;           ///< Its settings.
    const TokenRow<S>& row;     ///< The arrays of the row.
    detail::PairOfRow<S> pair;  ///< The log-probs that it compares.
    bool shares;                ///< Whether all tokens have one advantage.
    double shared;              ///< That advantage.
    /// Of row r.
    OfRow(const Gate& g, const TokenRow<S>& r)
        : gate(g),
          row(r),
          pair(detail::pair_of(g.pair, g.missing, r)),
          shares(g.when == When::Always || g.advantage == GateAdvantage::Row || !r.advantages),
          shared(g.when != When::Always && g.advantage == GateAdvantage::Row ? r.mean_advantage()
                                                                             : r.advantage) {}
    /// The advantages that `when` looks at, from token t on.
    template <class V>
    GDPO_INLINE V advantages(index_t t) const {
      return shares ? math::constant<V>(shared) : math::Lanes<V>::load(row.advantages + t);
    }
    /// The weights of the tokens from t on with these statistics.
    template <class V>
    GDPO_INLINE V weight(index_t t, const V& statistic_of_token) const {
      detail::DifferenceOf<V> d{};
      if (gate.when == When::Outward) d = pair.template at<V>(t);
      return gate.weight_of(statistic_of_token, d, advantages<V>(t));
    }
  };
  /// Throws unless the batch has the arrays that the gate reads.
  void need(bool has_advantages, bool has_logp, bool has_old, bool has_rollout) const {
    detail::need_advantages(when == When::Always || has_advantages, "prepass::Gate::when");
    detail::need_pair(pair, has_logp, has_old, has_rollout, "prepass::Gate");
  }
  /// The estimate of a token, before the statistic.
  template <class V>
  GDPO_INLINE V estimate_of(const detail::DifferenceOf<V>& d) const {
    return detail::estimate(estimator, d, detail::bound(clamp, d.x).value, eps);
  }
  /// The number y that is compared with the bounds, from the statistic of a token.
  template <class V>
  GDPO_INLINE V number_of(const V& statistic_of_token) const {
    return estimator == Estimator::Ratio ? detail::ratio_of(statistic_of_token)
                                         : statistic_of_token;
  }
  /// 1 where the token is let through, else 0. `a` is the advantage that `when` looks at.
  template <class V>
  GDPO_INLINE V weight_of(const V& statistic_of_token, const detail::DifferenceOf<V>& d,
                          const V& a) const {
    const V one = math::constant<V>(1.0);
    if (math::is_inf(min) && math::is_inf(max)) return one;
    const V open = detail::is_between(number_of(statistic_of_token), min, max);
    if (when == When::Always) return open;
    const V zero = math::constant<V>(0.0);
    if (when == When::NegativeAdvantage) return math::select(a < zero, open, one);
    const V x = detail::bound(clamp, d.x).value;
    return math::select(math::either(math::is_nan(d.x), math::mul(a, x) > zero), open, one);
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
