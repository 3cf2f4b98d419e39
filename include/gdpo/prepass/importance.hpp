#pragma once
#include <gdpo/prepass/statistic.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// The sampling engine's log-probs are not the trainer's: weight = clip(exp(clamp(statistic(old - rollout)))), truncated
/// importance sampling. `clip` off: the raw weight; NaN, and an infinity that no clip holds, are 0. TRL vllm_importance_sampling token_truncate
/// (Token) and sequence_truncate (SequenceSum); ms-swift (SequenceMean, reach SurrogateAndKl); open-instruct's rho (clamp +-10).
/// SequenceSum over thousands of tokens shrinks to 0 for a small bias a token; SequenceMean does not.
struct Importance {
  Statistic statistic = Statistic::Token;
  Bounds clamp{};  ///< of the log ratio, nats
  Bounds clip{};   ///< of the weight
  double count_eps = 0;
  Reach reach = Reach::Surrogate;

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      if (!row.rollout_logp && row.length > 0) {
        contract::fail("gdpo::prepare", "batch.rollout_logp", "no array",
                       "the sampling policy's log-probs, because of prepass::Importance");
      }
      double* w = args.weights_of(i);
      const S* old = row.old_logp ? row.old_logp : row.logp;
      for (index_t t = 0; t < row.length; ++t) {
        if (row.valid(t))
          w[t] = static_cast<double>(old[t]) - static_cast<double>(row.rollout_logp[t]);
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
  void check(const char* function) const {
    detail::check_bounds(function, "prepass::Importance::clamp", clamp);
    detail::check_eps(function, "prepass::Importance::count_eps", count_eps);
    detail::check_bounds(function, "prepass::Importance::clip", clip);
    if (reach == Reach::Denominator) {
      contract::fail(function, "prepass::Importance::reach",
                     "Denominator, which only takes tokens out",
                     "Surrogate or SurrogateAndKl: its weights are no mask");
    }
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
