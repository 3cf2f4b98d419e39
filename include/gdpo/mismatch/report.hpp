#pragma once
// MismatchReport: what mismatch() has measured, each number a line of a list, and how it merges.
#include <gdpo/mismatch/settings.hpp>
#include <gdpo/stats/exact_sum.hpp>
#include <map>

// The lists. A report has a member for each line of the first three: merge(), ranks, equality and
// tests walk them. To add a number, write its line, and the statement that computes it
// (mismatch/shared/mismatch_row.hpp).
//
// "Scored" are the valid tokens whose two log-probs are finite; all means over tokens are over
// them. "Rows that count" are those with a scored token; with MismatchSettings::empty_rows all.
// In these lists: o = old log-prob, q = that of the rollout, x = o - q in nats, n = scored tokens
// of the row + count_eps, w = weight of the token, 0 where it is not finite.

/// Counts: member, meaning.
#define GDPO_MISMATCH_COUNTS(X)                                                          \
  X(rows, "rows")                                                                        \
  X(valid_rows, "rows with a valid token")                                               \
  X(scored_rows, "rows with a scored token")                                             \
  X(counted_rows, "rows that count")                                                     \
  X(scored, "valid tokens with two finite log-probs")                                    \
  X(missing, "valid tokens whose rollout_logp is NaN: the sampling engine gave none")    \
  X(non_finite, "valid tokens with another log-prob that is NaN or infinite")            \
  X(masked, "tokens of completion_mask that mask has dropped")                           \
  X(masked_rows, "rows of completion_mask of which mask has left no token")              \
  X(weighed, "scored tokens of batches that have weights")                               \
  X(changed, "scored tokens whose weight is not 1")                                      \
  X(dropped, "scored tokens of weight 0")                                                \
  X(dropping_rows, "rows with a scored token of weight 0")                               \
  X(dropped_rows, "rows with scored tokens, all of weight 0")                            \
  X(non_finite_weights, "scored tokens whose weight is NaN or infinite")                 \
  X(tokens_low, "scored tokens whose ratio is below token_low")                          \
  X(tokens_high, "scored tokens whose ratio is above token_high")                        \
  X(products_low, "rows that count whose product of ratios is below row_low")            \
  X(products_high, "rows that count whose product of ratios is above row_high")          \
  X(geometrics_low, "rows that count whose geometric mean of ratios is below row_low")   \
  X(geometrics_high, "rows that count whose geometric mean of ratios is above row_high") \
  X(means_low, "rows that count whose mean of ratios is below row_low")                  \
  X(means_high, "rows that count whose mean of ratios is above row_high")

/// Sums: member, term. In the row they are doubles, added in the order of the tokens; the report
/// adds the rows exactly. Those of ratios and weights are of distances from 1, so that nothing
/// cancels where the policies agree.
#define GDPO_MISMATCH_SUMS(X) \
  GDPO_MISMATCH_TOKEN_SUMS(X) \
  GDPO_MISMATCH_ROW_SUMS(X)

/// Those of tokens: of ratios, then of weights.
#define GDPO_MISMATCH_TOKEN_SUMS(X) \
  GDPO_MISMATCH_RATIO_SUMS(X)       \
  GDPO_MISMATCH_WEIGHT_SUMS(X)
#define GDPO_MISMATCH_RATIO_SUMS(X)                                      \
  X(log_ratio, "x at each scored token")                                 \
  X(abs_log_ratio, "|x|")                                                \
  X(k3, "e^x - 1 - x")                                                   \
  X(reverse_k1, "e^clamp(x) x")                                          \
  X(reverse_k3, "e^-x - 1 + x")                                          \
  X(js, "log cosh(x / 2), an estimate of the Jensen-Shannon divergence") \
  X(prob_factor, "e^|x|")                                                \
  X(prob_distance, "|e^o - e^q|")                                        \
  X(ratio, "r - 1 with r = e^clamp(x)")                                  \
  X(ratio_square, "(r - 1)^2")
#define GDPO_MISMATCH_WEIGHT_SUMS(X)                                   \
  X(weight, "w - 1")                                                   \
  X(weight_square, "(w - 1)^2")                                        \
  X(bounded_weight, "v - 1 with v = w cut to token_low .. token_high") \
  X(bounded_weight_square, "(v - 1)^2")

/// Those of rows.
#define GDPO_MISMATCH_ROW_SUMS(X)                                                \
  X(log_ppl, "-sum o / n of each row that counts")                               \
  X(ppl, "e^(-sum o / n)")                                                       \
  X(rollout_log_ppl, "-sum q / n")                                               \
  X(rollout_ppl, "e^(-sum q / n)")                                               \
  X(log_ppl_diff, "-sum x / n")                                                  \
  X(abs_log_ppl_diff, "|sum x / n|")                                             \
  X(ppl_ratio, "e^(-sum x / n)")                                                 \
  X(product, "p - 1 with p = e^clamp(sum x)")                                    \
  X(product_square, "(p - 1)^2")                                                 \
  X(whole_product, "p, which may be so small that p - 1 has none of its digits") \
  X(whole_product_square, "p^2")                                                 \
  X(geometric, "g - 1 with g = e^clamp(sum x / n)")                              \
  X(geometric_square, "(g - 1)^2")                                               \
  X(row_weight, "m - 1 with m = sum w / n")                                      \
  X(row_weight_square, "(m - 1)^2")

/// Extremes with their place: member, Least or Most, of what.
#define GDPO_MISMATCH_EXTREMES(X)                                           \
  X(abs_log_ratio_max, Most, "|x|")                                         \
  X(k3_max, Most, "e^x - 1 - x")                                            \
  X(ratio_min, Least, "the ratio of a token")                               \
  X(ratio_max, Most, "the ratio of a token")                                \
  X(weight_min, Least, "the weight of a scored token")                      \
  X(weight_max, Most, "the weight of a scored token")                       \
  X(product_min, Least, "the product of ratios of a row")                   \
  X(product_max, Most, "the product of ratios of a row")                    \
  X(geometric_min, Least, "the geometric mean of ratios of a row")          \
  X(geometric_max, Most, "the geometric mean of ratios of a row")           \
  X(log_ppl_diff_min, Least, "the difference of log-perplexities of a row") \
  X(log_ppl_diff_max, Most, "the difference of log-perplexities of a row")  \
  X(row_weight_min, Least, "the mean weight of a row")                      \
  X(row_weight_max, Most, "the mean weight of a row")                       \
  X(row_weight_deviation, Most, "the distance of a row's mean weight from 1")

/// What follows from them: member function, meaning. All are 0 for an empty batch.
#define GDPO_MISMATCH_METRICS(X)                                                             \
  X(kl, "KL(rollout || old) by k1, mean of -x in nats; may be negative")                     \
  X(k3_kl, "KL(rollout || old) by k3, mean of e^x - 1 - x in nats")                          \
  X(reverse_kl, "KL(old || rollout) by k1, importance-weighted: mean of r x in nats")        \
  X(reverse_k3_kl, "k3 with the two exchanged, mean of e^-x - 1 + x in nats")                \
  X(js_divergence, "Jensen-Shannon divergence, mean of log cosh(x / 2) in nats")             \
  X(abs_log_diff, "mean of |x| in nats")                                                     \
  X(mult_prob_error, "mean of e^|x|; 1 where the two agree")                                 \
  X(prob_diff, "mean of |e^o - e^q|, the probabilities of the sampled tokens")               \
  X(ratio_mean, "mean ratio of the tokens")                                                  \
  X(ratio_std, "standard deviation of the ratios of tokens, about their mean")               \
  X(chi2_token, "mean of r^2 - 1 over tokens")                                               \
  X(token_ess, "effective share of the tokens, by their ratios")                             \
  X(token_fraction_low, "share of scored tokens whose ratio is below token_low")             \
  X(token_fraction_high, "share of scored tokens whose ratio is above token_high")           \
  X(mean_log_ppl, "mean of the rows' log-perplexities under old, in nats")                   \
  X(mean_ppl, "mean of the rows' perplexities under old")                                    \
  X(mean_rollout_log_ppl, "mean of the rows' log-perplexities under the rollout, in nats")   \
  X(mean_rollout_ppl, "mean of the rows' perplexities under the rollout")                    \
  X(mean_log_ppl_diff, "mean over rows of log ppl(old) - log ppl(rollout), in nats")         \
  X(mean_abs_log_ppl_diff, "mean over rows of its absolute value, in nats")                  \
  X(mean_ppl_ratio, "mean over rows of ppl(old) / ppl(rollout)")                             \
  X(product_mean, "mean over rows of the product of ratios")                                 \
  X(product_std, "its standard deviation over rows, about the mean")                         \
  X(chi2_product, "mean over rows of the squared product - 1")                               \
  X(product_ess, "effective share of the rows, by their products")                           \
  X(product_fraction_low, "share of rows whose product is below row_low")                    \
  X(product_fraction_high, "share of rows whose product is above row_high")                  \
  X(geometric_mean, "mean over rows of the geometric mean of ratios")                        \
  X(geometric_std, "its standard deviation over rows, about the mean")                       \
  X(chi2_geometric, "mean over rows of the squared geometric mean - 1")                      \
  X(geometric_ess, "effective share of the rows, by their geometric means")                  \
  X(geometric_fraction_low, "share of rows whose geometric mean is below row_low")           \
  X(geometric_fraction_high, "share of rows whose geometric mean is above row_high")         \
  X(mean_fraction_low, "share of rows whose mean of ratios is below row_low")                \
  X(mean_fraction_high, "share of rows whose mean of ratios is above row_high")              \
  X(weight_mean, "mean weight of the tokens")                                                \
  X(weight_std, "standard deviation of the weights, about their mean")                       \
  X(weight_ess, "effective share of the tokens, by their weights")                           \
  X(bounded_weight_ess, "the same by the weights cut to token_low .. token_high")            \
  X(row_weight_mean, "mean over rows of the mean weight of the row")                         \
  X(row_weight_std, "its standard deviation over rows, of a sample (rows - 1)")              \
  X(row_weight_ess, "effective share of the rows, by their mean weights")                    \
  X(weight_dropped, "share of scored tokens of weight 0")                                    \
  X(rows_dropping, "share of the rows with scored tokens in which one has weight 0")         \
  X(dropped_share, "share of tokens that corrections took out: by weight 0, or of the mask") \
  X(dropped_row_share, "share of rows of which corrections left no token")                   \
  X(missing_share, "share of valid tokens without a rollout_logp")

namespace gdpo {  // plain data, which is sent between ranks

/// Trainers that log a mismatch of rollout and trainer, each under keys of its own.
enum class MismatchKeys {
  Verl,             ///< verl 0.9.1, "rollout_corr/...", with rollout_is of tokens.
  VerlSequence,     ///< The same with rollout_is = sequence: the product of a row.
  MsSwift,          ///< ms-swift 4.6.0, "rollout_correction/...", with a mode of tokens.
  MsSwiftSequence,  ///< The same with a mode of sequences: the geometric mean of a row.
  NemoRl,           ///< NeMo-RL, "token_mult_prob_error" and others.
  OpenRlhf,         ///< OpenRLHF 0.11.2, "vllm_kl".
  SkyRl,            ///< SkyRL 0.3.0, "is_ratio_...".
  Trl,              ///< TRL 1.16.0, "sampling/...".
  Unsloth           ///< unsloth-zoo 2026.10.9, "sampling/...".
};
/// The enumerators of MismatchKeys with their words.
GDPO_DATA_INLINE constexpr auto enumerators(MismatchKeys) {
  using E = Enumerator<MismatchKeys>;
  return std::array{
      E{"verl", MismatchKeys::Verl},        E{"verl_sequence", MismatchKeys::VerlSequence},
      E{"ms_swift", MismatchKeys::MsSwift}, E{"ms_swift_sequence", MismatchKeys::MsSwiftSequence},
      E{"nemo_rl", MismatchKeys::NemoRl},   E{"openrlhf", MismatchKeys::OpenRlhf},
      E{"skyrl", MismatchKeys::SkyRl},      E{"trl", MismatchKeys::Trl},
      E{"unsloth", MismatchKeys::Unsloth}};
}

/// An extreme number and where it is. Without one, value is 0 and the places are -1.
///
/// Of equal ones it is that of the smallest row, and in it of the smallest token.
struct PlacedNumber {
  double value = 0;    ///< The number.
  index_t row = -1;    ///< The row in its batch + the first_row given to mismatch().
  index_t token = -1;  ///< Its position in the row; -1 for a number of the whole row.
};

/// How far the log-probs of the sampling engine are from the trainer's. mismatch() makes it.
///
/// Members are counts (index_t), exact sums (ExactSum) and extremes with their place, as the lists
/// GDPO_MISMATCH_COUNTS, GDPO_MISMATCH_SUMS and GDPO_MISMATCH_EXTREMES say. Member functions are
/// what follows from them, a double each (GDPO_MISMATCH_METRICS):
///
///     const gdpo::MismatchReport r = gdpo::mismatch(batch);
///     r.scored, r.missing, r.log_ratio.value(), r.ratio_max.value, r.ratio_max.row
///     r.k3_kl(), r.token_ess(), r.mean_ppl_ratio(), r.chi2_product()
///
/// With sums a of w - 1 and b of (w - 1)^2 over n numbers, N = n + count_eps, and for numbers of
/// rows N = n:
///
///     mean = (n + a) / N,  variance = mean of w^2 - mean^2,  chi2 = mean of w^2 - 1
///     ess  = (mean + ess_eps)^2 / mean of w^2       (sum w)^2 / (n sum w^2) without eps, 0 to 1
///
/// It is about 9 kB and trivially copyable.
struct MismatchReport {
  GDPO_DATA_HOST_INLINE MismatchReport() = default;  // inlined for the reason LossMetrics gives

  MismatchSettings settings;  ///< Those of the call. A merge refuses others.
#define GDPO_X(name, ...) index_t name = 0;
  GDPO_MISMATCH_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) ExactSum name;
  GDPO_MISMATCH_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) PlacedNumber name;
  GDPO_MISMATCH_EXTREMES(GDPO_X)
#undef GDPO_X

  /// Number of valid tokens.
  GDPO_DATA_INLINE index_t tokens() const { return scored + missing + non_finite; }
#define GDPO_X(name, ...) GDPO_DATA_HOST_INLINE double name() const;
  GDPO_MISMATCH_METRICS(GDPO_X)
#undef GDPO_X

  /// The metrics under the keys that a trainer logs, each after `prefix`.
  ///
  /// They are the trainer's numbers if the report was made with mismatch_settings(keys, bound), and
  /// on a batch that prepare() has given the trainer's correction. What was not measured has no
  /// key, such as statistics of weights for a batch without weights. gdpo/mismatch.hpp has the
  /// table. `Map` is any type that maps strings to numbers.
  ///
  /// `positions`: number of elements of the trainer's token arrays, padding included (rows x
  /// width). SkyRL's is_ratio_std, _max and _min include the zeros of padding; they have a key
  /// only if this is given.
  template <class Map = std::map<std::string, double>>
  GDPO_DATA_HOST_INLINE Map to_map(MismatchKeys keys, const std::string& prefix = "",
                                   index_t positions = 0) const;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {
namespace mismatch_list {

/// Which of two numbers an extreme keeps.
enum class End { Least, Most };

GDPO_INLINE PlacedNumber extreme_of(End end, const PlacedNumber& a, const PlacedNumber& b) {
  if (a.row < 0) return b;
  if (b.row < 0) return a;
  if (a.value < b.value) return end == End::Least ? a : b;
  if (b.value < a.value) return end == End::Least ? b : a;
  const bool first = a.row < b.row || (a.row == b.row && a.token <= b.token);
  return first ? a : b;
}

inline double share(index_t part, index_t of, double eps = 0) {
  return of > 0 ? static_cast<double>(part) / (static_cast<double>(of) + eps) : 0.0;
}
/// Sum / (n + eps); 0 where n is 0.
inline double mean(const ExactSum& sum, index_t n, double eps = 0) {
  return n > 0 ? sum.value() / (static_cast<double>(n) + eps) : 0.0;
}

/// Statistics of n numbers w, by sums of their distances from 1.
struct AboutOne {
  double n, a, b, eps;
  double sum, squares;  ///< Of w and w^2.
  AboutOne(const ExactSum& first, const ExactSum& second, index_t count, double count_eps = 0)
      : n(static_cast<double>(count)), a(first.value()), b(second.value()), eps(count_eps) {
    sum = n + a, squares = n + 2 * a + b;
  }
  double divisor() const { return n + eps; }
  double mean() const { return n > 0 ? sum / divisor() : 0.0; }
  /// Mean of w^2 - 1. The eps in the divisor counts as that many numbers 0.
  double chi2() const { return n > 0 ? (2 * a + b - eps) / divisor() : 0.0; }
  double square() const { return n > 0 ? squares / divisor() : 0.0; }
  /// sqrt(mean of w^2 - mean^2), by the distances from 1 or from 0, whichever are the smaller ones.
  double std() const {
    if (!(n > 0)) return 0;
    const double d = divisor();
    const double v = sum + sum < n
                         ? math::mul(squares, d) - math::mul(sum, sum)
                         : (math::mul(b, d) - math::mul(a, a)) + math::mul(eps, n + 2 * a);
    return v > 0 ? math::sqrt(v / math::mul(d, d)) : 0.0;
  }
  /// That of a sample of n numbers.
  double sample_std() const {
    if (!(n > 1)) return 0;
    const double v = sum + sum < n ? squares - math::mul(sum, sum) / n : b - math::mul(a, a) / n;
    return v > 0 ? math::sqrt(v / (n - 1)) : 0.0;
  }
  double ess(double ess_eps) const {
    const double all = square(), m = mean() + ess_eps;
    return all > 0 ? math::mul(m, m) / all : 0.0;
  }
};
inline AboutOne ratios(const MismatchReport& r) {
  return {r.ratio, r.ratio_square, r.scored, r.settings.count_eps};
}
inline AboutOne weights(const MismatchReport& r) {
  return {r.weight, r.weight_square, r.scored, r.settings.count_eps};
}
inline AboutOne bounded_weights(const MismatchReport& r) {
  return {r.bounded_weight, r.bounded_weight_square, r.scored, r.settings.count_eps};
}
inline AboutOne products(const MismatchReport& r) {
  AboutOne x(r.product, r.product_square, r.counted_rows);
  x.sum = r.whole_product.value(), x.squares = r.whole_product_square.value();
  return x;
}
inline AboutOne geometrics(const MismatchReport& r) {
  return {r.geometric, r.geometric_square, r.counted_rows};
}
inline AboutOne row_weights(const MismatchReport& r) {
  return {r.row_weight, r.row_weight_square, r.counted_rows};
}
inline double of_tokens(const MismatchReport& r, const ExactSum& sum) {
  return mean(sum, r.scored, r.settings.count_eps);
}
inline double of_tokens(const MismatchReport& r, index_t part) {
  return share(part, r.scored, r.settings.count_eps);
}
inline double of_rows(const MismatchReport& r, const ExactSum& sum) {
  return mean(sum, r.counted_rows);
}
inline double of_rows(const MismatchReport& r, index_t part) { return share(part, r.counted_rows); }
/// 0 in place of -0.
inline double negated(double x) { return 0.0 - x; }

}  // namespace mismatch_list

/// A line of GDPO_MISMATCH_METRICS, for programs that go through all of them.
struct MismatchMetric {
  const char* name;
  double (*of)(const MismatchReport&);
  const char* meaning;
};

}  // namespace detail
GDPO_END_NAMESPACE

namespace gdpo {

// Doxygen knows them from their declarations.
/// \cond
#define GDPO_METRIC(name, ...)                                \
  GDPO_DATA_HOST_INLINE double MismatchReport::name() const { \
    namespace m = detail::mismatch_list;                      \
    [[maybe_unused]] const MismatchReport& r = *this;         \
    return __VA_ARGS__;                                       \
  }
GDPO_METRIC(kl, m::negated(m::of_tokens(r, log_ratio)))
GDPO_METRIC(k3_kl, m::of_tokens(r, k3))
GDPO_METRIC(reverse_kl, m::of_tokens(r, reverse_k1))
GDPO_METRIC(reverse_k3_kl, m::of_tokens(r, reverse_k3))
GDPO_METRIC(js_divergence, m::of_tokens(r, js))
GDPO_METRIC(abs_log_diff, m::of_tokens(r, abs_log_ratio))
GDPO_METRIC(mult_prob_error, m::of_tokens(r, prob_factor))
GDPO_METRIC(prob_diff, m::of_tokens(r, prob_distance))
GDPO_METRIC(ratio_mean, m::ratios(r).mean())
GDPO_METRIC(ratio_std, m::ratios(r).std())
GDPO_METRIC(chi2_token, m::ratios(r).chi2())
GDPO_METRIC(token_ess, m::ratios(r).ess(settings.ess_eps))
GDPO_METRIC(token_fraction_low, m::of_tokens(r, tokens_low))
GDPO_METRIC(token_fraction_high, m::of_tokens(r, tokens_high))
GDPO_METRIC(mean_log_ppl, m::of_rows(r, log_ppl))
GDPO_METRIC(mean_ppl, m::of_rows(r, ppl))
GDPO_METRIC(mean_rollout_log_ppl, m::of_rows(r, rollout_log_ppl))
GDPO_METRIC(mean_rollout_ppl, m::of_rows(r, rollout_ppl))
GDPO_METRIC(mean_log_ppl_diff, m::of_rows(r, log_ppl_diff))
GDPO_METRIC(mean_abs_log_ppl_diff, m::of_rows(r, abs_log_ppl_diff))
GDPO_METRIC(mean_ppl_ratio, m::of_rows(r, ppl_ratio))
GDPO_METRIC(product_mean, m::products(r).mean())
GDPO_METRIC(product_std, m::products(r).std())
GDPO_METRIC(chi2_product, m::products(r).chi2())
GDPO_METRIC(product_ess, m::products(r).ess(settings.ess_eps))
GDPO_METRIC(product_fraction_low, m::of_rows(r, products_low))
GDPO_METRIC(product_fraction_high, m::of_rows(r, products_high))
GDPO_METRIC(geometric_mean, m::geometrics(r).mean())
GDPO_METRIC(geometric_std, m::geometrics(r).std())
GDPO_METRIC(chi2_geometric, m::geometrics(r).chi2())
GDPO_METRIC(geometric_ess, m::geometrics(r).ess(settings.ess_eps))
GDPO_METRIC(geometric_fraction_low, m::of_rows(r, geometrics_low))
GDPO_METRIC(geometric_fraction_high, m::of_rows(r, geometrics_high))
GDPO_METRIC(mean_fraction_low, m::of_rows(r, means_low))
GDPO_METRIC(mean_fraction_high, m::of_rows(r, means_high))
GDPO_METRIC(weight_mean, m::weights(r).mean())
GDPO_METRIC(weight_std, m::weights(r).std())
GDPO_METRIC(weight_ess, m::weights(r).ess(settings.ess_eps))
GDPO_METRIC(bounded_weight_ess, m::bounded_weights(r).ess(settings.ess_eps))
GDPO_METRIC(row_weight_mean, m::row_weights(r).mean())
GDPO_METRIC(row_weight_std, m::row_weights(r).sample_std())
GDPO_METRIC(row_weight_ess, m::row_weights(r).ess(settings.ess_eps))
GDPO_METRIC(weight_dropped, m::of_tokens(r, dropped))
GDPO_METRIC(rows_dropping, m::share(dropping_rows, scored_rows))
GDPO_METRIC(dropped_share, m::share(dropped + masked, tokens() + masked))
GDPO_METRIC(dropped_row_share, m::share(dropped_rows + masked_rows, valid_rows + masked_rows))
GDPO_METRIC(missing_share, m::share(missing, tokens()))
#undef GDPO_METRIC
/// \endcond

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// All lines of GDPO_MISMATCH_METRICS.
inline constexpr MismatchMetric mismatch_metrics[] = {
#define GDPO_X(name, meaning) {#name, [](const MismatchReport& r) { return r.name(); }, meaning},
    GDPO_MISMATCH_METRICS(GDPO_X)
#undef GDPO_X
};

/// Adds `part` to `sum`; both have the lists' members, sums of a part may be doubles or ExactSums.
template <class Part>
GDPO_INLINE void add_mismatch(MismatchReport& sum, const Part& part) {
  using mismatch_list::End;
#define GDPO_X(name, ...) sum.name += part.name;
  GDPO_MISMATCH_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) sum.name.add(part.name);
  GDPO_MISMATCH_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, end, ...) sum.name = mismatch_list::extreme_of(End::end, sum.name, part.name);
  GDPO_MISMATCH_EXTREMES(GDPO_X)
#undef GDPO_X
}

}  // namespace detail

/// The report of two micro-batches or ranks together.
///
/// It has the bits of the report of all their rows, in any order and partition: counts are
/// integers, sums are exact, and of equal extremes the first place stays. Give mismatch() the
/// number of the first row of each batch, if places should be those of the whole step.
///
/// A side without rows changes nothing. Reports with different settings throw invalid_input.
inline MismatchReport merge(const MismatchReport& a, const MismatchReport& b) {
  if (a.rows == 0) return b;
  if (b.rows == 0) return a;
  if (!detail::same_settings(a.settings, b.settings)) {
    contract::fail(
        "gdpo::merge", "settings",
        detail::settings_in_words(a.settings) + " and " + detail::settings_in_words(b.settings),
        "reports with the same settings");
  }
  MismatchReport sum = a;
  detail::add_mismatch(sum, b);
  return sum;
}

GDPO_END_NAMESPACE
