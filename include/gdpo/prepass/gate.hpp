#pragma once
// Gates: pre-passes that leave out tokens or rows by how far two policies differ.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/prepass/statistic.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Which two policies a gate compares, as the difference x of a token's log-probs in nats.
///
/// `old` is TokenBatch::old_logp, or logp where the batch has none.
enum class Pair {
  Mismatch,  ///< x = old - rollout: one policy, as the trainer and as the sampling engine see it.
  Update,    ///< x = logp - old: what the updates since have changed.
  Drift      ///< x = logp - rollout: both; x = logp - old where the batch has no rollout_logp.
};
/// The enumerators of Pair with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Pair) {
  using E = Enumerator<Pair>;
  return std::array{E{"mismatch", Pair::Mismatch}, E{"update", Pair::Update},
                    E{"drift", Pair::Drift}};
}
/// What a gate computes from the difference x.
///
/// Ratio takes the statistic of x and then the exponential. The others compute their estimate at
/// each token and take the statistic of that. With x = a - b, K1, K2 and K3 estimate KL(b || a)
/// from tokens that b sampled.
enum class Estimator {
  Ratio,          ///< e^statistic(x)
  K1,             ///< -x
  K2,             ///< x^2 / 2
  K3,             ///< e^x - 1 - x
  TotalVariation  ///< |e^x - 1|
};
/// The enumerators of Estimator with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Estimator) {
  using E = Enumerator<Estimator>;
  return std::array{E{"ratio", Estimator::Ratio}, E{"k1", Estimator::K1}, E{"k2", Estimator::K2},
                    E{"k3", Estimator::K3}, E{"total_variation", Estimator::TotalVariation}};
}
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
///     y = the estimate, taken over the token or the row (`statistic`)
///     weight = 0 if `when` holds and (y < min or y > max or y is NaN), else 1
///
/// NaN closes the gate only if min or max is finite: a gate without bounds is always open. With
/// `missing` NoDifference x is 0 where rollout_logp is NaN.
///
/// It covers IcePop (Ratio, Mismatch, Token), the token and sequence masks of TRL, ms-swift and
/// open-instruct, the mask of VACO (TotalVariation, Mismatch, SequenceMean, Outward) and
/// off_policy_sequence_mask().
///
/// Needs `rollout_logp` for Pair::Mismatch, and advantages unless `when` is Always. Needs `logp`
/// for Pair::Update and Drift, and where there is no old_logp.
struct Gate {
  Estimator estimator = Estimator::Ratio;          ///< What is computed from x.
  Pair pair = Pair::Mismatch;                      ///< The two policies that x compares.
  Statistic statistic = Statistic::Token;          ///< Token by token, or one number per row.
  When when = When::Always;                        ///< At which tokens the gate may close.
  GateAdvantage advantage = GateAdvantage::Token;  ///< The advantage that `when` looks at.
  double min = -math::infinity;                    ///< Smallest y that is let through.
  double max = math::infinity;                     ///< Largest y that is let through; > min.
  Bounds clamp{};                                  ///< Bounds of x, in nats. Off by default.
  double count_eps = 0;            ///< Added to the number of tokens in SequenceMean.
  Reach reach = Reach::Surrogate;  ///< What the decision acts on.
  /// What a NaN in rollout_logp means, where x is a difference from rollout_logp.
  MissingRollout missing = MissingRollout::Drop;

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      if (when != When::Always && !rows.has_advantages() && row.length > 0) {
        contract::fail("gdpo::prepare", "batch.advantages, batch.token_advantages", "neither",
                       "one of them, because of prepass::Gate::when");
      }
      if (pair == Pair::Mismatch && !row.rollout_logp && row.length > 0) {
        contract::fail(
            "gdpo::prepare", "batch.rollout_logp", "no array",
            "the sampling policy's log-probs, because of prepass::Gate on Pair::Mismatch");
      }
      if ((pair != Pair::Mismatch || !row.old_logp) && row.length > 0)
        detail::need_logp(row.logp != nullptr, "prepass::Gate on this pair");
      double* w = args.weights_of(i);
      for (index_t t = 0; t < row.length; ++t) {
        if (row.valid(t)) w[t] = estimate(difference(row, t));
      }
      detail::row_statistic(statistic, row, count_eps, w);
      const double row_advantage = advantage == GateAdvantage::Row ? row.mean_advantage() : 0.0;
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        const double value = estimator == Estimator::Ratio ? std::exp(w[t]) : w[t];
        const bool bounded = !math::is_inf(min) || !math::is_inf(max);
        bool closed = value < min || value > max || (bounded && math::is_nan(w[t]));
        const double a = advantage == GateAdvantage::Row ? row_advantage : row.advantage_of(t);
        if (when == When::NegativeAdvantage) {
          closed = closed && a < 0;
        } else if (when == When::Outward) {
          const double x = difference(row, t);
          closed = closed && (math::is_nan(x) || math::mul(a, x) > 0);
        }
        w[t] = closed ? 0.0 : 1.0;
      }
    }
  }
  static constexpr const char* name = "gate";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("estimator", s.estimator, "what is computed from the difference of log-probs");
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
  }
  /// Throws unless min < max.
  void check_together(const char* function, const detail::FieldPath& path) const {
    if (min < max) return;
    contract::fail(function, path.text("min") + ", " + path.text("max"),
                   contract::text(min) + " and " + contract::text(max),
                   "min < max (infinite: off)");
  }

 private:
  template <class S>
  double difference(const TokenRow<S>& row, index_t t) const {
    if (pair != Pair::Update && detail::without_difference(missing, row, t)) return 0.0;
    const S* old = row.old_logp ? row.old_logp : row.logp;
    const S* left = pair == Pair::Mismatch ? old : row.logp;
    const S* right = pair == Pair::Update || !row.rollout_logp ? old : row.rollout_logp;
    return detail::bound(clamp, static_cast<double>(left[t]) - static_cast<double>(right[t])).value;
  }
  double estimate(double x) const {
    switch (estimator) {
      case Estimator::Ratio:
        return x;
      case Estimator::K1:
        return -x;
      case Estimator::K2:
        return math::mul(math::mul(x, x), 0.5);
      case Estimator::K3:
        return math::exp_parts(x).k3;
      case Estimator::TotalVariation:
        return math::abs(math::exp_parts(x).expm1);
    }
    return x;
  }
};

/// DeepSeek-V3.2's off-policy sequence mask: drops rows that have A < 0 and drifted too far.
///
/// A row has drifted too far if its mean of rollout - logp, in nats per token, is above `max`. With
/// advantages of tokens, only the row's tokens with A < 0 are dropped. TRL
/// off_policy_mask_threshold, with MissingRollout::NoDifference since 1.11.0; in ms-swift with
/// Reach::Mask and GateAdvantage::Row.
inline Gate off_policy_sequence_mask(double max, Reach reach = Reach::Surrogate,
                                     GateAdvantage advantage = GateAdvantage::Token,
                                     MissingRollout missing = MissingRollout::Drop) {
  Gate gate;
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
