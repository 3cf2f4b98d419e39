#pragma once
// GateReport: what gate_report() has measured, each number a line of a list, and how it merges.
#include <gdpo/core/fields.hpp>
#include <gdpo/stats/exact_sum.hpp>
#include <map>

// The lists. A GateReport has a member for each line of the first three, and merge() walks them.
//
// y is the number of a token: the estimate of a Gate after its statistic, or the ratio of an
// Importance before its clip. "Outside" is below the lower bound or above the upper one. v is y cut
// to the bounds, c is 1 for ratios and 0 for other estimates. "Measured" are the valid tokens whose
// y is finite. The number of a row is the mean of y over its measured tokens, which of a statistic
// of rows is y itself. "Rows that count" are those with a measured token; with
// GateReportSettings::empty_rows those without a valid token too, with the number c.

/// Counts: member, meaning.
#define GDPO_GATE_COUNTS(X)                                                       \
  X(rows, "rows")                                                                 \
  X(counted_rows, "rows that count")                                              \
  X(measured, "valid tokens whose y is finite")                                   \
  X(non_finite, "valid tokens whose y is NaN or infinite")                        \
  X(low, "measured tokens below the lower bound")                                 \
  X(high, "measured tokens above the upper bound")                                \
  X(closed, "valid tokens that get the weight 0")                                 \
  X(closed_low, "closed tokens below the lower bound")                            \
  X(closed_high, "closed tokens above the upper bound")                           \
  X(rows_low, "rows that count whose number is below the lower bound")            \
  X(rows_high, "rows that count whose number is above the upper bound")           \
  X(rows_closing, "rows that count with a token of weight 0; empty rows outside") \
  X(rows_closed, "rows that count, all of whose tokens get the weight 0; empty rows outside")

/// Sums: member, term. They are exact.
#define GDPO_GATE_SUMS(X)                               \
  X(distance, "y - c of each measured token")           \
  X(distance_square, "(y - c)^2")                       \
  X(bounded, "v - c")                                   \
  X(bounded_square, "(v - c)^2")                        \
  X(row_distance, "number - c of each row that counts") \
  X(row_distance_square, "(number - c)^2")

/// Extremes: member, min or max, the sign of the infinity without any number, of what.
#define GDPO_GATE_EXTREMES(X)                          \
  X(least, min, +, "the smallest y")                   \
  X(most, max, -, "the largest y")                     \
  X(row_least, min, +, "the smallest number of a row") \
  X(row_most, max, -, "the largest number of a row")

/// What follows from them: member function, meaning. All are 0 where nothing was measured.
#define GDPO_GATE_METRICS(X)                                                          \
  X(token_mean, "mean of y over tokens")                                              \
  X(token_std, "standard deviation of y over tokens, about the mean")                 \
  X(token_min, "smallest y")                                                          \
  X(token_max, "largest y")                                                           \
  X(bounded_mean, "mean over tokens of y cut to the bounds")                          \
  X(bounded_std, "standard deviation of y cut to the bounds, about its mean")         \
  X(bounded_min, "smallest y, cut to the bounds")                                     \
  X(bounded_max, "largest y, cut to the bounds")                                      \
  X(token_fraction_low, "share of the measured tokens below the lower bound")         \
  X(token_fraction_high, "share of the measured tokens above the upper bound")        \
  X(closed_share, "share of the valid tokens that get the weight 0")                  \
  X(open_share, "share of the valid tokens that are let through")                     \
  X(closed_low_share, "share of the valid tokens that get it below the lower bound")  \
  X(closed_high_share, "share of the valid tokens that get it above the upper bound") \
  X(row_mean, "mean of the numbers of rows")                                          \
  X(row_std, "standard deviation of the numbers of rows, of a sample (rows - 1)")     \
  X(row_min, "smallest number of a row")                                              \
  X(row_max, "largest number of a row")                                               \
  X(row_deviation, "largest distance of a row's number from c")                       \
  X(row_fraction_low, "share of the rows whose number is below the lower bound")      \
  X(row_fraction_high, "share of the rows whose number is above the upper bound")     \
  X(rows_closing_share, "share of the rows with a token of weight 0")                 \
  X(rows_closed_share, "share of the rows, all of whose tokens get the weight 0")

namespace gdpo {  // plain data, which is sent between ranks

/// Conventions of a gate_report().
struct GateReportSettings {
  /// Added to the number of tokens that a mean over tokens, of the batch or of a row, is divided
  /// by. verl and NeMo-RL: 1e-8. The number of a row of a statistic of rows has none.
  double count_eps = 0;
  /// Whether rows without a valid token count among the rows. SkyRL counts them.
  bool empty_rows = false;

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("count_eps", s.count_eps, at_least(0), "added to the number of tokens of a mean");
    field("empty_rows", s.empty_rows, "rows without a token count among the rows");
  }
};

/// Trainers that log the numbers of a gate or a weight. `name` is that of GateReport::to_map().
enum class GateKeys {
  Verl,          ///< verl 0.9.1: name_mean, name_seq_mean, name_masked_fraction, ...
  SkyRl,         ///< SkyRL 0.3.0, of rows: name_masked_ratio, name_over_high_ratio, ...
  NemoRl,        ///< NeMo-RL: name, name_clamped, and the min and max of both.
  OpenInstruct,  ///< open-instruct: name_frac, name_low_frac, name_high_frac.
  PrimeRl        ///< prime-rl: name, name_low, name_high; one report for each row.
};
/// The enumerators of GateKeys with their words.
GDPO_DATA_INLINE constexpr auto enumerators(GateKeys) {
  using E = Enumerator<GateKeys>;
  return std::array{E{"verl", GateKeys::Verl}, E{"skyrl", GateKeys::SkyRl},
                    E{"nemo_rl", GateKeys::NemoRl}, E{"open_instruct", GateKeys::OpenInstruct},
                    E{"prime_rl", GateKeys::PrimeRl}};
}

/// What a gate compares with its bounds, or a weight with its clip. gate_report() makes it.
///
///     const gdpo::GateReport r = gdpo::gate_report(batch, gdpo::verl::seq_mean_k3);
///     r.row_mean(), r.row_max(), r.rows_closed_share(), r.measured, r.most
///
/// Members are counts (index_t), exact sums (ExactSum) and extremes, as the lists GDPO_GATE_COUNTS,
/// GDPO_GATE_SUMS and GDPO_GATE_EXTREMES say. Member functions are what follows from them, a double
/// each (GDPO_GATE_METRICS). With n numbers y and N = n + count_eps,
///
///     mean = sum y / N,  std = sqrt(sum y^2 / N - mean^2)
struct GateReport {
  GDPO_DATA_HOST_INLINE GateReport() = default;

  GateReportSettings settings;  ///< Those of the call. A merge refuses others.
  double lower = -std::numeric_limits<double>::infinity();  ///< Gate::min or Importance::clip.lo.
  double upper = std::numeric_limits<double>::infinity();   ///< Gate::max or Importance::clip.hi.
  double center = 0;                                        ///< c: 1 for ratios, else 0.
  bool shared = false;  ///< The statistic is one number for the tokens of a segment, row or group.
#define GDPO_X(name, ...) index_t name = 0;
  GDPO_GATE_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) ExactSum name;
  GDPO_GATE_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, end, start, ...) double name = start std::numeric_limits<double>::infinity();
  GDPO_GATE_EXTREMES(GDPO_X)
#undef GDPO_X

#define GDPO_X(name, ...) GDPO_DATA_HOST_INLINE double name() const;
  GDPO_GATE_METRICS(GDPO_X)
#undef GDPO_X

  /// The numbers under the keys that a trainer logs for this gate or weight.
  ///
  /// `name` is what the trainer's keys begin with: verl "rollout_corr/rollout_rs_seq_mean_k3";
  /// SkyRL "geo_sequence_mask", "product_sequence_mask", "outlier_seq"; NeMo-RL "probs_ratio";
  /// open-instruct "val/rho_drop"; prime-rl "is_masked". They are the trainer's numbers if the
  /// report was made with gate_report_settings(keys). `Map` is any type that maps strings to
  /// numbers.
  template <class Map = std::map<std::string, double>>
  GDPO_DATA_HOST_INLINE Map to_map(GateKeys keys, const std::string& name) const;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {
namespace gate_list {

inline double share(index_t part, index_t whole, double eps = 0) {
  return whole > 0 ? static_cast<double>(part) / (static_cast<double>(whole) + eps) : 0.0;
}
/// Statistics of n numbers by sums of their distances from c.
struct About {
  double n, c, a, b, eps;
  About(const GateReport& r, const ExactSum& sum, const ExactSum& square, index_t count,
        double count_eps)
      : n(static_cast<double>(count)),
        c(r.center),
        a(sum.value()),
        b(square.value()),
        eps(count_eps) {}
  double mean() const { return n > 0 ? (a + math::mul(c, n)) / (n + eps) : 0.0; }
  /// sqrt(mean of y^2 - mean^2). The eps in the divisor counts as that many numbers 0.
  double std() const {
    if (!(n > 0)) return 0;
    const double d = n + eps, zeros = math::mul(c, eps), m = (a - zeros) / d;
    const double v = (b + math::mul(c, zeros)) / d - math::mul(m, m);
    return math::is_nan(v) || math::is_inf(b) ? math::infinity : v > 0 ? math::sqrt(v) : 0.0;
  }
  double sample_std() const {
    if (!(n > 1)) return 0;
    const double v = b - math::mul(a, a) / n;
    return math::is_nan(v) || math::is_inf(b) ? math::infinity
           : v > 0                            ? math::sqrt(v / (n - 1))
                                              : 0.0;
  }
};
inline About tokens(const GateReport& r) {
  return {r, r.distance, r.distance_square, r.measured, r.settings.count_eps};
}
inline About cut_tokens(const GateReport& r) {
  return {r, r.bounded, r.bounded_square, r.measured, r.settings.count_eps};
}
inline About rows(const GateReport& r) {
  return {r, r.row_distance, r.row_distance_square, r.counted_rows, 0};
}
inline double cut(const GateReport& r, double y) {
  return (math::max)((math::min)(y, r.upper), r.lower);
}
inline double of_measured(const GateReport& r, index_t part) {
  return share(part, r.measured, r.settings.count_eps);
}
inline double of_valid(const GateReport& r, index_t part) {
  return share(part, r.measured + r.non_finite, r.settings.count_eps);
}
inline double of_rows(const GateReport& r, index_t part) { return share(part, r.counted_rows); }

}  // namespace gate_list
}  // namespace detail
GDPO_END_NAMESPACE

namespace gdpo {

// Doxygen knows them from their declarations.
/// \cond
#define GDPO_METRIC(name, ...)                            \
  GDPO_DATA_HOST_INLINE double GateReport::name() const { \
    namespace g = detail::gate_list;                      \
    const GateReport& r = *this;                          \
    return __VA_ARGS__;                                   \
  }
GDPO_METRIC(token_mean, g::tokens(r).mean())
GDPO_METRIC(token_std, least<most || r.settings.count_eps> 0 ? g::tokens(r).std() : 0.0)
GDPO_METRIC(token_min, r.measured > 0 ? least : 0.0)
GDPO_METRIC(token_max, r.measured > 0 ? most : 0.0)
GDPO_METRIC(bounded_mean, g::cut_tokens(r).mean())
GDPO_METRIC(bounded_std, least<most || r.settings.count_eps> 0 ? g::cut_tokens(r).std() : 0.0)
GDPO_METRIC(bounded_min, r.measured > 0 ? g::cut(r, least) : 0.0)
GDPO_METRIC(bounded_max, r.measured > 0 ? g::cut(r, most) : 0.0)
GDPO_METRIC(token_fraction_low, g::of_measured(r, low))
GDPO_METRIC(token_fraction_high, g::of_measured(r, high))
GDPO_METRIC(closed_share, g::of_valid(r, closed))
GDPO_METRIC(open_share, g::of_valid(r, r.measured + r.non_finite - r.closed))
GDPO_METRIC(closed_low_share, g::of_valid(r, closed_low))
GDPO_METRIC(closed_high_share, g::of_valid(r, closed_high))
GDPO_METRIC(row_mean, g::rows(r).mean())
GDPO_METRIC(row_std, row_least < row_most ? g::rows(r).sample_std() : 0.0)
GDPO_METRIC(row_min, r.counted_rows > 0 ? row_least : 0.0)
GDPO_METRIC(row_max, r.counted_rows > 0 ? row_most : 0.0)
GDPO_METRIC(row_deviation, r.counted_rows > 0 ? (math::max)(math::abs(row_least - center),
                                                            math::abs(row_most - center))
                                              : 0.0)
GDPO_METRIC(row_fraction_low, g::of_rows(r, rows_low))
GDPO_METRIC(row_fraction_high, g::of_rows(r, rows_high))
GDPO_METRIC(rows_closing_share, g::of_rows(r, rows_closing))
GDPO_METRIC(rows_closed_share, g::of_rows(r, rows_closed))
#undef GDPO_METRIC
/// \endcond

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// A line of GDPO_GATE_METRICS, for programs that go through all of them.
struct GateMetric {
  const char* name;
  double (*of)(const GateReport&);
  const char* meaning;
};
/// All lines of GDPO_GATE_METRICS.
inline constexpr GateMetric gate_metrics[] = {
#define GDPO_X(name, meaning) {#name, [](const GateReport& r) { return r.name(); }, meaning},
    GDPO_GATE_METRICS(GDPO_X)
#undef GDPO_X
};

/// Whether both reports are of one gate and one convention.
inline bool same_gate(const GateReport& a, const GateReport& b) {
  return a.settings.count_eps == b.settings.count_eps &&
         a.settings.empty_rows == b.settings.empty_rows && a.lower == b.lower &&
         a.upper == b.upper && a.center == b.center && a.shared == b.shared;
}
/// What must be the same in both, in words, for messages.
GDPO_COLD inline std::string gate_in_words(const GateReport& r) {
  return "bounds " + contract::text(r.lower) + " and " + contract::text(r.upper) + ", count_eps " +
         contract::text(r.settings.count_eps) + ", empty_rows " +
         contract::text(static_cast<double>(r.settings.empty_rows)) +
         (r.center > 0 ? ", a ratio" : "") + (r.shared ? ", shared" : ", of tokens");
}

}  // namespace detail

/// The report of two micro-batches or ranks together: the bits of one report of all their rows, in
/// any order and partition, unless the statistic is of groups that are cut.
///
/// A side without rows changes nothing. Reports with other settings or bounds throw invalid_input,
/// and so do one of ratios and one of something else, or of tokens and of rows. Give it reports of
/// one gate: those of two gates alike in all of this cannot be told apart.
inline GateReport merge(const GateReport& a, const GateReport& b) {
  if (a.rows == 0) return b;
  if (b.rows == 0) return a;
  if (!detail::same_gate(a, b)) {
    contract::fail("gdpo::merge", "settings",
                   detail::gate_in_words(a) + "; " + detail::gate_in_words(b),
                   "reports of one gate with the same settings");
  }
  GateReport sum = a;
#define GDPO_X(name, ...) sum.name += b.name;
  GDPO_GATE_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) sum.name.add(b.name);
  GDPO_GATE_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, end, ...) sum.name = (math::end)(a.name, b.name);
  GDPO_GATE_EXTREMES(GDPO_X)
#undef GDPO_X
  return sum;
}

GDPO_END_NAMESPACE
