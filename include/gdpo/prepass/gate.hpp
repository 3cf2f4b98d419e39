#pragma once
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/prepass/statistic.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Which two policies a gate compares: x = of - against.
enum class Pair {
  Mismatch,  ///< old - rollout: the trainer's and the engine's idea of the same policy
  Update,    ///< logp - old
  Drift      ///< logp - rollout; without rollout_logp: logp - old
};
/// What it makes of x.
enum class Estimator {
  Ratio,          ///< exp(statistic(x)); of the others the statistic is taken of the estimate
  K1,             ///< -x
  K2,             ///< x^2 / 2
  K3,             ///< e^x - 1 - x
  TotalVariation  ///< |e^x - 1|
};
/// Which tokens a gate may close.
enum class When {
  Always,
  NegativeAdvantage,  ///< A < 0, of the token or the row (GateAdvantage)
  Outward             ///< A x > 0: the update would push this token further out
};
enum class GateAdvantage { Token, Row };

/// Weight 1 inside [min, max] or where `when` says harmless, else 0. One policy for IcePop (Ratio, Mismatch, Token), every token
/// and sequence mask of TRL, ms-swift and open-instruct, the off-policy sequence mask (below) and VACO's (TotalVariation,
/// Mismatch, SequenceMean, Outward). NaN estimates close the gate where min or max is set.
struct Gate {
  Estimator estimator = Estimator::Ratio;
  Pair pair = Pair::Mismatch;
  Statistic statistic = Statistic::Token;
  When when = When::Always;
  GateAdvantage advantage = GateAdvantage::Token;
  double min = -math::infinity, max = math::infinity;
  Bounds clamp{};  ///< of x, nats
  double count_eps = 0;
  Reach reach = Reach::Surrogate;

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
  void check(const char* function) const {
    detail::check_bounds(function, "prepass::Gate::clamp", clamp);
    detail::check_eps(function, "prepass::Gate::count_eps", count_eps);
    if (!(min < max) || math::is_nan(min) || math::is_nan(max)) {
      contract::fail(function, "prepass::Gate::min, prepass::Gate::max",
                     contract::text(min) + " and " + contract::text(max),
                     "min < max (infinite: off)");
    }
  }

 private:
  template <class S>
  double difference(const TokenRow<S>& row, index_t t) const {
    const S* old = row.old_logp ? row.old_logp : row.logp;
    const S* of = pair == Pair::Mismatch ? old : row.logp;
    const S* against = pair == Pair::Update || !row.rollout_logp ? old : row.rollout_logp;
    return detail::bound(clamp, static_cast<double>(of[t]) - static_cast<double>(against[t])).value;
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

/// DeepSeek-V3.2's off-policy sequence mask: a row with A < 0 whose mean drift (rollout - logp, nats a token) is above `max` is
/// dropped. TRL off_policy_mask_threshold; ms-swift with reach Denominator and the row's mean advantage.
inline Gate off_policy_sequence_mask(double max, Reach reach = Reach::Surrogate,
                                     GateAdvantage advantage = GateAdvantage::Token) {
  Gate gate;
  gate.estimator = Estimator::K1;
  gate.pair = Pair::Drift;
  gate.statistic = Statistic::SequenceMean;
  gate.when = When::NegativeAdvantage;
  gate.advantage = advantage;
  gate.max = max;
  gate.reach = reach;
  return gate;
}

}  // namespace prepass
GDPO_END_NAMESPACE
