#pragma once
#include <gdpo/loss/array_list.hpp>
#include <gdpo/loss/metric_list.hpp>
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
  double min = std::numeric_limits<double>::infinity(),
         max = -std::numeric_limits<double>::infinity();
  double row_sum = 0;
  double rows = 0;
  double row_min = std::numeric_limits<double>::infinity(),
         row_max = -std::numeric_limits<double>::infinity();

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
  GDPO_DATA_HOST_INLINE LossMetrics() =
      default;  // inlined: plain data may stand in objects for several processors

  // What each is, the list says. Those of GDPO_ROW_METRICS are of rows only.
#define GDPO_X(name, ...) Metric name;
  GDPO_TOKEN_METRICS(GDPO_X)
  GDPO_ROW_METRICS(GDPO_X)
#undef GDPO_X
  Moments advantage;  ///< over tokens; stddev(advantage)
  NonFiniteInputs non_finite;
  index_t rows = 0, empty_rows = 0;
  index_t degenerate_rows = 0;  ///< rows with tokens whose advantages are all 0
  double entropy_threshold = std::numeric_limits<double>::infinity();  ///< infinite: none
  bool one_ratio_a_row = false;  ///< a Sequence level without segments, advantages a row

  /// The keys that TRL and ms-swift log, each with `prefix` before it; only what was measured. With one ratio and one
  /// advantage a row the clip fractions are of rows, as in TRL, else of tokens.
  /// A template, so that who logs nothing does not compile it. Map: any that maps strings to numbers.
  template <class Map = std::map<std::string, double>>
  GDPO_DATA_HOST_INLINE Map to_map(const std::string& prefix = "") const;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// What a loss call measures besides the loss; a parameter of PolicyLoss (with_metrics). What is not kept has count 0.
namespace metrics {
/// Everything in LossMetrics.
struct All {
  static constexpr bool means = true, everything = true;
};
/// The metrics that the list (loss/metric_list.hpp) says Means or Loss keeps, without ranges over tokens (those of rows stay).
struct Means {
  static constexpr bool means = true, everything = false;
};
/// Rows, lengths, advantages and inputs that are not finite only.
struct None {
  static constexpr bool means = false, everything = false;
};
}  // namespace metrics

template <class P, class = void>
constexpr bool is_metrics_v = false;
template <class P>
constexpr bool is_metrics_v<P, std::void_t<decltype(P::means), decltype(P::everything)>> = true;

GDPO_DEVICE inline Metric merge(const Metric& a, const Metric& b) {
  Metric m;
  m.sum = a.sum + b.sum, m.count = a.count + b.count;
  m.min = (math::min)(a.min, b.min), m.max = (math::max)(a.max, b.max);
  m.row_sum = a.row_sum + b.row_sum, m.rows = a.rows + b.rows;
  m.row_min = (math::min)(a.row_min, b.row_min), m.row_max = (math::max)(a.row_max, b.row_max);
  return m;
}
GDPO_DEVICE inline NonFinite merge(const NonFinite& a, const NonFinite& b) {
  return {a.count + b.count, a.count > 0 ? a.row : b.row, a.count > 0 ? a.token : b.token};
}

namespace detail {
GDPO_DEVICE inline void note(NonFinite& counter, index_t row, index_t token) {
  if (counter.count++ == 0) counter.row = row, counter.token = token;
}

/// note() of an input at one token, as a function of the input.
struct NoteAt {
  NonFiniteInputs& inputs;
  index_t row, token;
  GDPO_INLINE void operator()(NonFinite NonFiniteInputs::*input) const {
    note(inputs.*input, row, token);
  }
};

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
#define GDPO_X(name, ...) f(a.name, b.name);
  GDPO_TOKEN_METRICS(GDPO_X)
  GDPO_ROW_METRICS(GDPO_X)
#undef GDPO_X
  for (int i = 0; i < counted_inputs; ++i)
    f(a.non_finite.*input_counter(i), b.non_finite.*input_counter(i));
}
}  // namespace detail

inline LossMetrics merge(const LossMetrics& a, const LossMetrics& b) {
  LossMetrics m = a;
  detail::for_each_metric(m, b, [](auto& into, const auto& other) { into = merge(into, other); });
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
/// Writes a metric under its trainers' keys.
template <class Map>
struct TrainerKeys {
  const Metric& metric;
  const std::string& prefix;
  Map& to;

  void keys() const {}
  template <class Value, class... More>
  void keys(const char* key, const Value& value, const More&... more) const {
    to[prefix + key] = value(metric);
    keys(more...);
  }
};
template <class Map>
Map trainer_keys(const LossMetrics& m, const std::string& prefix) {
  Map map;
  const auto mean = [](const Metric& x) { return x.mean(); };
  const auto row_mean = [](const Metric& x) { return x.row_mean(); };
  const auto row_min = [](const Metric& x) { return x.rows > 0 ? x.row_min : 0.0; };
  const auto row_max = [](const Metric& x) { return x.rows > 0 ? x.row_max : 0.0; };
  const auto share = [&](const Metric& x) { return m.one_ratio_a_row ? x.row_mean() : x.mean(); };
#define GDPO_X(name, added_in, kept_by, where, its_keys) \
  if (m.name.count > 0) TrainerKeys<Map>{m.name, prefix, map}.its_keys;
  GDPO_TOKEN_SUMS(GDPO_X)
  GDPO_ROW_SUMS(GDPO_X)
#undef GDPO_X
  // Shares stay away with metrics::None; of a batch without rows they are 0.
#define GDPO_X(name, added_in, kept_by, where, its_keys) \
  if (m.name.rows > 0 || m.rows == 0) TrainerKeys<Map>{m.name, prefix, map}.its_keys;
  GDPO_TOKEN_COUNTS(GDPO_X)
  GDPO_ROW_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, its_keys) \
  if (m.name.rows > 0) TrainerKeys<Map>{m.name, prefix, map}.its_keys;
  GDPO_ROW_METRICS(GDPO_X)
#undef GDPO_X
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
