#pragma once
#include <gdpo/loss/array_list.hpp>
#include <gdpo/stats/moments.hpp>
#include <map>
#include <string>

namespace gdpo {  // plain data: it crosses ranks

/// A mean that merges: sum and count over valid tokens, their range, and the means of the rows (a row without tokens counts
/// as 0). Quantities of rows (lengths) have only the second half.
/// Ranges leave NaN out; under -ffast-math they mean nothing where a token is NaN.
struct Metric {
  double sum = 0;
  double count = 0;
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity();
  double row_sum = 0;
  double rows = 0;
  double row_min = std::numeric_limits<double>::infinity(), row_max = -std::numeric_limits<double>::infinity();

  /// Over tokens; nothing counted: 0. count_eps: a trainer's 1e-8.
  GDPO_DATA_INLINE double mean(double count_eps = 0) const {
    return count + count_eps > 0 ? sum / (count + count_eps) : 0.0;
  }
  /// Over rows of the mean in the row.
  GDPO_DATA_INLINE double row_mean() const { return rows > 0 ? row_sum / rows : 0.0; }
};

/// NaN and infinities among the valid tokens of one input, and where the first stands (-1: none; after a merge: in the first
/// batch that has one).
struct NonFinite {
  index_t count = 0;
  index_t row = -1, token = -1;
};

/// NonFinite of every input, at valid tokens. `weights`: one that is not finite counts as 0.
struct NonFiniteInputs {
#define GDPO_X(in_batch, in_row, ...) NonFinite in_row;
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
};

/// What a loss call saw, over valid tokens. merge() gives that of two micro-batches or ranks.
struct LossMetrics {
  GDPO_DATA_HOST_INLINE LossMetrics() = default;  // inlined: plain data may stand in objects for several processors

  Metric loss;                 ///< w surrogate + sum beta w' kl of a token, before the row's weight
  Metric surrogate;            ///< w surrogate
  Metric kl;                   ///< the first KL term that is on, without beta and weights
  Metric clip_fraction;        ///< clipped either way; the sign of the advantage counts (TRL's region)
  Metric clip_fraction_low;    ///< ratio < 1 - low and A < 0
  Metric clip_fraction_high;   ///< ratio > 1 + high and A > 0; the ratio is after `delta`
  Metric clip_fraction_any;    ///< ratio outside 1 - low .. 1 + high, whatever the advantage
  Metric dual_clip_fraction;   ///< held by the dual clip
  Metric approx_kl_k1;         ///< old_logp - logp, after the level's map, nats
  Metric approx_kl_k3;         ///< ratio - 1 - log ratio of the token, after the map: an estimate of KL(old || policy)
  Metric ratio;                ///< of the level
  Metric log_ratio_bounded;    ///< share of tokens whose log ratio a map or a bound of the level holds
  Metric kl_bounded;           ///< share of tokens whose KL estimate a clamp holds (the first term that is on)
  Metric entropy;              ///< TokenBatch::entropies
  Metric completion_length;    ///< tokens of a row (rows only), before pre-passes
  Metric clipped_completions;  ///< TokenBatch::truncated (rows only): TRL's completions/clipped_ratio
  Moments advantage;           ///< over tokens; stddev(advantage)
  NonFiniteInputs non_finite;
  index_t rows = 0, empty_rows = 0;
  index_t degenerate_rows = 0;                                         ///< rows with tokens whose advantages are all 0
  double entropy_threshold = std::numeric_limits<double>::infinity();  ///< infinite: none
  bool one_ratio_a_row = false;  ///< a Sequence level without segments, advantages a row

  /// The keys that TRL and ms-swift log, each with `prefix` before it; only what was measured. With one ratio and one
  /// advantage a row the clip fractions are of rows, as in TRL, else of tokens.
  GDPO_DATA_HOST_INLINE std::map<std::string, double> to_map(const std::string& prefix = "") const;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

GDPO_DEVICE inline Metric merge(const Metric& a, const Metric& b) {
  return {
      a.sum + b.sum,         a.count + b.count, (math::min)(a.min, b.min),         (math::max)(a.max, b.max),
      a.row_sum + b.row_sum, a.rows + b.rows,   (math::min)(a.row_min, b.row_min), (math::max)(a.row_max, b.row_max)};
}
GDPO_DEVICE inline NonFinite merge(const NonFinite& a, const NonFinite& b) {
  return {a.count + b.count, a.count > 0 ? a.row : b.row, a.count > 0 ? a.token : b.token};
}

namespace detail {
GDPO_DEVICE inline void note(NonFinite& counter, index_t row, index_t token) {
  if (counter.count++ == 0) counter.row = row, counter.token = token;
}

#define GDPO_ONE_MORE(...) +1
constexpr int counted_inputs = 0 GDPO_COUNTED_INPUTS(GDPO_ONE_MORE);
#undef GDPO_ONE_MORE
/// The counter of input `number`, from 0 to counted_inputs - 1.
GDPO_INLINE auto input_counter(int number) -> NonFinite NonFiniteInputs::* {
  int before = 0;
#define GDPO_X(in_batch, in_row, ...) \
  if (number == before++) return &NonFiniteInputs::in_row;
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
  return nullptr;
}

/// f of every pair of members of the same name.
template <class F>
void for_each_metric(LossMetrics& a, const LossMetrics& b, const F& f) {
  for (auto member :
       {&LossMetrics::loss, &LossMetrics::surrogate, &LossMetrics::kl, &LossMetrics::clip_fraction,
        &LossMetrics::clip_fraction_low, &LossMetrics::clip_fraction_high, &LossMetrics::clip_fraction_any,
        &LossMetrics::dual_clip_fraction, &LossMetrics::approx_kl_k1, &LossMetrics::approx_kl_k3, &LossMetrics::ratio,
        &LossMetrics::log_ratio_bounded, &LossMetrics::kl_bounded, &LossMetrics::entropy,
        &LossMetrics::completion_length, &LossMetrics::clipped_completions}) {
    f(a.*member, b.*member);
  }
  for (int i = 0; i < counted_inputs; ++i) f(a.non_finite.*input_counter(i), b.non_finite.*input_counter(i));
}
}  // namespace detail

inline LossMetrics merge(const LossMetrics& a, const LossMetrics& b) {
  LossMetrics m = a;
  detail::for_each_metric(m, b, [](auto& into, const auto& other) { into = merge(into, other); });
  m.advantage = merge(a.advantage, b.advantage);
  m.rows += b.rows;
  m.empty_rows += b.empty_rows;
  m.degenerate_rows += b.degenerate_rows;
  m.one_ratio_a_row = a.rows > 0 ? a.one_ratio_a_row && (b.rows == 0 || b.one_ratio_a_row) : b.one_ratio_a_row;
  if (math::is_inf(m.entropy_threshold)) m.entropy_threshold = b.entropy_threshold;
  return m;
}

namespace detail {
inline std::map<std::string, double> trainer_keys(const LossMetrics& m, const std::string& prefix) {
  std::map<std::string, double> map;
  const auto put = [&](const std::string& key, double value) { map[prefix + key] = value; };
  const auto mean = [&](const Metric& share) { return m.one_ratio_a_row ? share.row_mean() : share.mean(); };
  if (m.clip_fraction.rows > 0 || m.rows == 0) {  // not with metrics::None; of a batch without rows 0
    const bool any = m.clip_fraction.rows > 0;
    put("clip_ratio/low_mean", mean(m.clip_fraction_low));
    put("clip_ratio/low_min", any ? m.clip_fraction_low.row_min : 0.0);
    put("clip_ratio/high_mean", mean(m.clip_fraction_high));
    put("clip_ratio/high_max", any ? m.clip_fraction_high.row_max : 0.0);
    put("clip_ratio/region_mean", mean(m.clip_fraction));
  }
  if (m.kl.count > 0) put("kl", m.kl.mean());
  if (m.entropy.count > 0) {
    put("entropy", m.entropy.mean());           // TRL: over tokens
    put("entropy/mean", m.entropy.row_mean());  // ms-swift: over completions
    put("entropy/max", m.entropy.row_max);
    put("entropy/min", m.entropy.row_min);
  }
  if (!math::is_inf(m.entropy_threshold)) put("entropy/threshold", m.entropy_threshold);
  if (m.completion_length.rows > 0) {
    put("completions/mean_length", m.completion_length.row_mean());
    put("completions/min_length", m.completion_length.row_min);
    put("completions/max_length", m.completion_length.row_max);
  }
  if (m.clipped_completions.rows > 0) put("completions/clipped_ratio", m.clipped_completions.row_mean());
  return map;
}
}  // namespace detail

GDPO_END_NAMESPACE

namespace gdpo {
GDPO_DATA_HOST_INLINE std::map<std::string, double> LossMetrics::to_map(const std::string& prefix) const {
  return detail::trainer_keys(*this, prefix);
}
}  // namespace gdpo
