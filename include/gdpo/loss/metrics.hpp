#pragma once
// LossMetrics: what a policy loss measures, each metric a line of one list.
#include <gdpo/tokens/metric.hpp>
#include <map>
#include <string>

namespace gdpo {  // plain data, which is sent between ranks

/// What a loss call measured, over valid tokens.
///
/// merge() combines the metrics of two micro-batches or ranks.
struct LossMetrics {
  // Inlined in every build. Otherwise a program that links objects for several instruction sets
  // would keep one copy of the constructor, which some of its processors might not run.
  GDPO_DATA_HOST_INLINE LossMetrics() = default;

  // Numbers of tokens.
  /// The surrogate times w, the product of factors and weights. Empty in a loss without a
  /// surrogate.
  Metric surrogate;
  Metric kl;            ///< The first KL term that is on, without beta, weights and factors.
  Metric approx_kl_k1;  ///< old_logp - logp in nats, after the level's map.
  /// r - 1 - log r of the token's own ratio r, after the map: estimates KL(old || policy).
  Metric approx_kl_k3;
  /// TokenBatch::entropies. TRL logs the mean over tokens, ms-swift those over completions.
  Metric entropy;
  Metric ratio;  ///< The level's ratio.
  /// w surrogate + sum of beta w' kl over the KL terms: the loss over the row's weight W. A KL term
  /// with a weight W' of its own counts as W' / W.
  Metric loss;
  // Shares of the tokens.
  /// Term::low. For surrogate::Ratio: A < 0 and min(ratio, delta) < 1 - low.
  Metric clip_fraction_low;
  /// Term::high. For surrogate::Ratio: A > 0 and min(ratio, delta) > 1 + high.
  Metric clip_fraction_high;
  /// Term::outside: the ratio is outside the range, whatever the advantage.
  Metric clip_fraction_any;
  Metric dual_clip_fraction;  ///< Term::dual: the dual clip holds the loss.
  Metric log_ratio_bounded;   ///< The map or the bounds of the level hold the log ratio.
  Metric kl_bounded;          ///< A clamp of the first KL term that is on holds.
  Metric clip_fraction;       ///< clip_fraction_low + clip_fraction_high; TRL's region.
  // Numbers of rows.
  /// Number of tokens in the completion, before pre-passes drop some.
  Metric completion_length;
  /// 1 where TokenBatch::truncated is not 0; TRL's completions/clipped_ratio.
  Metric clipped_completions;
  /// 1 where a log-prob of the row's first token is positive, by more than rounding.
  Metric positive_logp;
  Moments advantage;            ///< Mean and spread of the advantages over the valid tokens.
  NonFiniteInputs non_finite;   ///< NaN and infinities among the inputs.
  index_t rows = 0;             ///< Number of rows.
  index_t empty_rows = 0;       ///< Rows without a valid token.
  index_t degenerate_rows = 0;  ///< Rows that have valid tokens, all of advantage 0.
  /// Threshold of prepass::TopEntropy, in nats; infinite if the pre-pass did not run.
  double entropy_threshold = std::numeric_limits<double>::infinity();
  /// There is one ratio and one advantage per row: a level::Sequence without segments, and
  /// advantages of rows.
  bool one_ratio_a_row = false;

  /// The metrics under the keys that TRL and ms-swift log, each after `prefix`.
  ///
  /// What was not measured has no key. Clip fractions are shares of the rows if `one_ratio_a_row`,
  /// as in TRL, else of the tokens. `Map` is any type that maps strings to numbers. The function is
  /// a template, so that programs that log nothing do not compile it.
  template <class Map = std::map<std::string, double>>
  GDPO_DATA_HOST_INLINE Map to_map(const std::string& prefix = "") const;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

namespace detail {

// This type has a name, because nvcc writes parentheses around an unnamed one that g++ warns about.
using MetricMember = Metric LossMetrics::*;

namespace metric {

/// What a metric is of, and where it is added. Numbers and shares of tokens are added token by
/// token; those at the end of a row follow there from others (TokenTerms::finish).
enum Kind { Number, NumberAtEnd, Share, ShareAtEnd, OfRow };
/// The loop over tokens that adds a metric: the first, or the second. The ratio of a level of
/// segments is added once for the segment instead.
enum AddedIn { Ratios, Terms };
/// The smallest set of metrics that reports it. Loss is as Means, but the sum is always computed,
/// because the loss itself needs it.
enum KeptBy { Loss, Means, All };
/// When it is measured. WithBounds: at a level that has a map or bounds.
enum Where { Always, WithSurrogate, WithKl, WithEntropies, WithBounds };
/// What a key of to_map() holds: the mean over tokens; the mean, least or largest of the means of
/// rows; or the mean over tokens, but over rows if LossMetrics::one_ratio_a_row.
enum Value { Mean, RowMean, RowMin, RowMax, MeanOfShare };

/// A key of to_map(), and what it holds.
struct Key {
  const char* name = nullptr;
  Value value = Mean;
};
/// What must be known of a metric.
struct Facts {
  const char* name;     ///< That of the member.
  MetricMember member;  ///< Its place in the result.
  Kind kind;
  Key keys[4] = {};
  KeptBy kept_by = Means;
  Where where = Always;
  AddedIn added_in = Terms;
};
using M = LossMetrics;
/// All metrics, by kind. merge(), to_map(), every sum on the host and on devices, and the numbers
/// that Python has walk this list. To add a metric, write a documented member of LossMetrics, a
/// line here, and the statement that computes it (loss/shared/token_terms.hpp; for a metric of a
/// row Tally::add_row). Some ends of the ranges of numbers follow from others at the end of the
/// call (keeps_min and keeps_max in loss/shared/loss_tally.hpp).
// clang-format off
inline constexpr Facts list[] = {
    {"surrogate", &M::surrogate, Number, {}, Loss, WithSurrogate},
    {"kl", &M::kl, Number, {{"kl"}}, Loss, WithKl},
    {"approx_kl_k1", &M::approx_kl_k1, Number, {}, Means, Always, Ratios},
    {"approx_kl_k3", &M::approx_kl_k3, Number, {}, Means, Always, Ratios},
    {"entropy", &M::entropy, Number,
     {{"entropy"}, {"entropy/mean", RowMean}, {"entropy/max", RowMax}, {"entropy/min", RowMin}},
     Means, WithEntropies},
    {"ratio", &M::ratio, Number},
    {"loss", &M::loss, NumberAtEnd},
    {"clip_fraction_low", &M::clip_fraction_low, Share,
     {{"clip_ratio/low_mean", MeanOfShare}, {"clip_ratio/low_min", RowMin}}},
    {"clip_fraction_high", &M::clip_fraction_high, Share,
     {{"clip_ratio/high_mean", MeanOfShare}, {"clip_ratio/high_max", RowMax}}},
    {"clip_fraction_any", &M::clip_fraction_any, Share, {}, All},
    {"dual_clip_fraction", &M::dual_clip_fraction, Share, {}, All},
    {"log_ratio_bounded", &M::log_ratio_bounded, Share, {}, All, WithBounds},
    {"kl_bounded", &M::kl_bounded, Share, {}, All, WithKl},
    {"clip_fraction", &M::clip_fraction, ShareAtEnd, {{"clip_ratio/region_mean", MeanOfShare}}},
    {"completion_length", &M::completion_length, OfRow,
     {{"completions/mean_length", RowMean}, {"completions/min_length", RowMin},
      {"completions/max_length", RowMax}}},
    {"clipped_completions", &M::clipped_completions, OfRow,
     {{"completions/clipped_ratio", RowMean}}},
    {"positive_logp", &M::positive_logp, OfRow}};
// clang-format on

/// How many metrics stand before those of a kind.
GDPO_INLINE constexpr int before(Kind kind) {
  int n = 0;
  for (const Facts& facts : list) n += facts.kind < kind;
  return n;
}
/// The place of a metric in the list.
GDPO_INLINE constexpr int place_of(MetricMember member) {
  int q = 0;
  while (list[q].member != member) ++q;
  return q;
}
constexpr bool is_by_kind() {
  for (std::size_t q = 1; q < std::size(list); ++q)
    if (list[q].kind < list[q - 1].kind) return false;
  return true;
}
static_assert(is_by_kind(), "the list has the kinds in their order");

}  // namespace metric

static_assert(sizeof(LossMetrics) == std::size(metric::list) * sizeof(Metric) + sizeof(Moments) +
                                         sizeof(NonFiniteInputs) + 5 * sizeof(double),
              "a metric needs its line in the list");

}  // namespace detail

/// The metrics of two micro-batches or ranks together.
///
/// Sums and counts add. `one_ratio_a_row` stays true only if it is true in both; a side without
/// rows has no say. `entropy_threshold` is that of `a`, or that of `b` where `a` has none.
inline LossMetrics merge(const LossMetrics& a, const LossMetrics& b) {
  LossMetrics m = a;
  for (const detail::metric::Facts& facts : detail::metric::list)
    m.*facts.member = merge(a.*facts.member, b.*facts.member);
  for (int i = 0; i < detail::counted_inputs; ++i) {
    const auto counter = detail::input_counter(i);
    m.non_finite.*counter = merge(a.non_finite.*counter, b.non_finite.*counter);
  }
  m.advantage = merge(a.advantage, b.advantage);
  m.rows += b.rows;
  m.empty_rows += b.empty_rows;
  m.degenerate_rows += b.degenerate_rows;
  m.one_ratio_a_row =
      a.rows > 0 ? a.one_ratio_a_row && (b.rows == 0 || b.one_ratio_a_row) : b.one_ratio_a_row;
  if (math::is_inf(m.entropy_threshold)) m.entropy_threshold = b.entropy_threshold;
  return m;
}

namespace detail {
/// What a key of to_map() holds.
GDPO_COLD inline double value_of(metric::Value value, const Metric& x, bool one_ratio_a_row) {
  switch (value) {
    case metric::RowMean:
      return x.row_mean();
    case metric::RowMin:
      return x.rows > 0 ? x.row_min : 0.0;
    case metric::RowMax:
      return x.rows > 0 ? x.row_max : 0.0;
    case metric::MeanOfShare:
      return one_ratio_a_row ? x.row_mean() : x.mean();
    default:
      return x.mean();
  }
}
template <class Map>
Map trainer_keys(const LossMetrics& m, const std::string& prefix) {
  Map map;
  for (const metric::Facts& facts : metric::list) {
    const Metric& x = m.*facts.member;
    // With metrics::None the shares have no rows, so they get no keys. If the batch itself has no
    // rows, they are written as 0.
    const bool there = facts.kind < metric::Share   ? x.count > 0
                       : facts.kind < metric::OfRow ? x.rows > 0 || m.rows == 0
                                                    : x.rows > 0;
    for (const metric::Key& key : facts.keys) {
      if (there && key.name) map[prefix + key.name] = value_of(key.value, x, m.one_ratio_a_row);
    }
  }
  if (!math::is_inf(m.entropy_threshold)) map[prefix + "entropy/threshold"] = m.entropy_threshold;
  return map;
}
}  // namespace detail

GDPO_END_NAMESPACE

namespace gdpo {
template <class Map>
GDPO_DATA_HOST_INLINE Map LossMetrics::to_map(const std::string& prefix) const {
  return detail::trainer_keys<Map>(*this, prefix);
}
}  // namespace gdpo
