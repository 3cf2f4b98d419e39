#pragma once
// MeanOne: weights divided by their mean over the batch.
#include <gdpo/prepass/engine/row_lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// What a mean of weights is a mean of.
enum class MeanOf {
  Tokens,  ///< Every valid token once.
  Rows     ///< Every row with a valid token once, by the mean weight of its valid tokens.
};
/// The enumerators of MeanOf with their words.
GDPO_DATA_INLINE constexpr auto enumerators(MeanOf) {
  using E = Enumerator<MeanOf>;
  return std::array{E{"tokens", MeanOf::Tokens}, E{"rows", MeanOf::Rows}};
}

/// Divides the weights of the surrogate by their mean over the batch, so that a correction does not
/// change the size of the step.
///
///     weight = 1 / (mean of TokenBatch::weights, as the pre-passes before this one left them)
///
/// Tokens that a pre-pass before this one dropped with Reach::Surrogate count with their weight 0;
/// those of Reach::Mask do not count. It takes also the weights into its mean that the caller had
/// set. Where the mean is at most `least`, or one of mean and 1 / mean is not finite, nothing is
/// divided.
///
/// With Reach::Entropy it divides TokenBatch::entropy_weights. With Reach::Level it divides the
/// weights of the pre-passes before it in the same call with that reach by their mean, before the
/// logs are taken; those that the caller had set do not count.
///
/// The mean is that of the batch given to prepare(), summed row by row in double. verl's
/// rollout_is_batch_normalize: Tokens for weights of tokens, Rows for those of rows, count_eps
/// and least 1e-8.
struct MeanOne {
  MeanOf of = MeanOf::Tokens;      ///< What the mean is a mean of.
  Reach reach = Reach::Surrogate;  ///< What is divided: the surrogate's weights, or the KL's too.
  double count_eps = 0;            ///< Added to each number of tokens, of the batch or of a row.
  double least = 0;                ///< A mean of at most this divides nothing.

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    detail::write_by_rows(*this, args);
  }
  /// begin() reads the weights of the batch.
  static bool reads_batch() { return true; }
  /// Finds the factor.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision& of_batch) const {
    double sum = 0, count = 0;
    detail::sum_batch_rows(
        rows,
        [](const TokenRow<S>& row, double* numbers) {
          detail::write_lanes<V>(row, 0, numbers, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
            using L = typename decltype(lanes)::type;
            return row.weights ? L(math::Lanes<L>::load(row.weights + t)) : math::constant<L>(1.0);
          });
          return row.count();
        },
        [&](double of_row, index_t valid) {
          if (valid == 0) return;
          const auto tokens = static_cast<double>(valid);
          sum += of == MeanOf::Rows ? of_row / (tokens + count_eps) : of_row;
          count += of == MeanOf::Rows ? 1.0 : tokens;
        });
    of_batch.number = factor_of(sum, count);
  }
  /// The weights of n rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision& of_batch, const TokenRow<S>*, int n, double* const*,
                  detail::RowWeights* weights) const {
    for (int r = 0; r < n; ++r) weights[r] = detail::weight_of_row(of_batch.number);
  }
  /// All tokens have one weight (Reach::Level).
  bool is_shared() const { return true; }
  /// 1 / (sum / count), with count_eps; or 1 where nothing is divided.
  GDPO_INLINE double factor_of(double sum, double count) const {
    if (of == MeanOf::Tokens) count += count_eps;
    if (!(sum > math::mul(least, count)) || math::not_finite(sum)) return 1.0;
    const double factor = count / sum;
    return math::not_finite(factor) ? 1.0 : factor;
  }
  static constexpr const char* name = "mean_one";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("of", s.of, "what the mean of the weights is a mean of");
    field("reach", s.reach, "which weights are divided");
    field("count_eps", s.count_eps, at_least(0), "added to the number of tokens of a mean");
    field("least", s.least, at_least(0), "a mean of at most this divides nothing");
  }
  /// Throws for Reach::Mask.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_mask(reach, function, path);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
