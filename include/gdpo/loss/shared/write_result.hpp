#pragma once
// Makes the LossResult of a call from its sums.
#include <gdpo/loss/factor.hpp>
#include <gdpo/loss/kl.hpp>
#include <gdpo/loss/loss_result.hpp>
#include <gdpo/loss/shared/loss_tally.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a result needs besides the sums of the call.
struct ResultTraits {
  /// Some KL term has beta != 0; the batch has entropies; LossMetrics::one_ratio_a_row.
  bool has_kl, has_entropy, one_ratio_a_row;
  bool has_surrogate;  ///< The loss has a surrogate.
  bool of_segment;     ///< The ratio is that of a segment, and the formulas run on double.
  bool in_float;       ///< The batch is of float.
  /// The loss did not read rollout_logp, so the result reports `rollout`, which prepare() counted.
  bool keeps_rollout;
  index_t over;              ///< LossResult::over.
  NonFinite rollout;         ///< TokenBatch::rollout_non_finite.
  double entropy_threshold;  ///< TokenBatch::entropy_threshold.
};
template <class S, class Loss>
ResultTraits traits_of(const Loss& loss, const TokenBatch<S>& batch, const TokenReads& reads) {
  using Level = std::decay_t<decltype(loss.level)>;
  bool has_kl = false;
  for_each_kl(loss.kl, [&](const auto& kl) { has_kl = has_kl || kl.beta != 0; });
  ResultTraits traits;
  traits.has_kl = has_kl;
  traits.has_surrogate = !adds_nothing(loss.surrogate);
  traits.has_entropy = static_cast<bool>(batch.entropies);
  traits.one_ratio_a_row =
      Level::of_segment && !Level::straight_through && !batch.segments && !batch.token_advantages;
  traits.of_segment = Level::of_segment;
  traits.in_float = std::is_same_v<S, float>;
  traits.keeps_rollout = !reads.rollout;
  traits.over = over_of(loss.aggregate);
  traits.rollout = batch.rollout_non_finite;
  traits.entropy_threshold = batch.entropy_threshold;
  return traits;
}

/// Writes the ends of the range over tokens of `ratio` or approx_kl_k3 that no loop keeps
/// (keeps_min, keeps_max). The log ratios of the tokens are low to high. S is the batch's scalar,
/// and V the type that the formulas ran on.
template <class S, class V>
GDPO_INLINE void complete_range(Metric& m, int q, double low, double high) {
  const auto at_low = parts_of_ratio<S>(static_cast<V>(low)),
             at_high = parts_of_ratio<S>(static_cast<V>(high));
  const bool is_ratio = q == of_metric<&LossMetrics::ratio>;
  const double a = static_cast<double>(is_ratio ? at_low.exp : at_low.k3),
               b = static_cast<double>(is_ratio ? at_high.exp : at_high.k3);
  if (!keeps_min(q)) m.min = (math::min)(a, b);
  if (!keeps_max(q)) m.max = (math::max)(a, b);
}

/// What the list says about writing metric q. A device reads the list at constant places alone.
struct WrittenMetric {
  MetricMember member;
  metric::KeptBy kept_by;
  metric::Where where;
};
template <int q>
GDPO_INLINE WrittenMetric written_metric() {
  constexpr metric::Facts facts = metric::list[q];
  return {facts.member, facts.kept_by, facts.where};
}
/// The same for a place that is known when the call runs.
GDPO_INLINE WrittenMetric written_metric(int q) {
  WrittenMetric facts{};
  with_places<metrics_of_tokens>(
      [&](auto... place) { ((q == place ? void(facts = written_metric<place>()) : void()), ...); });
  return facts;
}

/// Whether a set of metrics has those of this kind.
template <class Metrics>
GDPO_INLINE constexpr bool has_metric(metric::KeptBy kept_by) {
  return kept_by == metric::All ? Metrics::everything : Metrics::means;
}
/// Writes the metric of quantity q into the result, or an empty one if the call did not measure it.
template <class Metrics>
GDPO_INLINE void write_metric(LossResult& r, int q, const WrittenMetric& facts, const Tally& total,
                              const ResultTraits& traits) {
  const bool there = facts.where == metric::WithKl          ? traits.has_kl
                     : facts.where == metric::WithSurrogate ? traits.has_surrogate
                     : facts.where == metric::WithEntropies ? traits.has_entropy
                                                            : true;
  Metric& m = r.metrics.*facts.member;
  m = has_metric<Metrics>(facts.kept_by) && there ? total.metric(q, Metrics::everything) : Metric{};
  if constexpr (Metrics::everything) {
    constexpr int k1 = of_metric<&LossMetrics::approx_kl_k1>;
    const bool complete = (keeps_min(q) && keeps_max(q)) ||
                          (q == of_metric<&LossMetrics::ratio> && traits.of_segment);
    const double low = -total.max[k1], high = -total.min[k1];
    if (complete || !(low <= high))
      return;  // low > high: no token, or the log ratio of each is NaN
    if (!traits.in_float) {
      complete_range<double, double>(m, q, low, high);
    } else if (traits.of_segment) {
      complete_range<float, double>(m, q, low, high);
    } else {
      complete_range<float, float>(m, q, low, high);
    }
  }
}
/// Writes everything but the metrics of tokens.
GDPO_INLINE void write_others(LossResult& r, const Tally& total, const Normalizer& normalizer,
                              const ResultTraits& traits) {
  r.policy_loss = total.policy_loss;
  r.kl_loss = total.kl_loss;
  r.entropy_loss = total.entropy_loss;
  r.loss = total.policy_loss + total.kl_loss + total.entropy_loss;
  r.normalizer = normalizer;
  r.over = traits.over;
  LossMetrics& m = r.metrics;
  with_places<row_metrics>([&](auto... k) {
    ((m.*written_metric<metrics_of_tokens + k>().member = total.of_row[k]), ...);
  });
  m.advantage = total.advantage;
  m.non_finite = total.non_finite;
  m.rows = total.rows, m.empty_rows = total.empty_rows, m.degenerate_rows = total.degenerate_rows;
  m.entropy_threshold = traits.entropy_threshold;
  m.one_ratio_a_row = traits.one_ratio_a_row;
  if (traits.keeps_rollout) m.non_finite.rollout_logp = traits.rollout;
}
template <class Metrics>
GDPO_NOINLINE LossResult loss_result(const Tally& total, const Normalizer& normalizer,
                                     const ResultTraits& traits) {
  LossResult r;
  for (int q = 0; q < metrics_of_tokens; ++q) {
    const metric::Facts& facts = metric::list[q];
    if (has_metric<Metrics>(facts.kept_by))
      write_metric<Metrics>(r, q, {facts.member, facts.kept_by, facts.where}, total, traits);
  }
  write_others(r, total, normalizer, traits);
  return r;
}

}  // namespace detail
GDPO_END_NAMESPACE
