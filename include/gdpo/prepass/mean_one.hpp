#pragma once
// MeanOne: weights divided by their mean over the batch.
#include <gdpo/prepass/args.hpp>

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
    const PrepassRows<S>& rows = args.rows;
    double sum = 0, count = 0;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      double of_row = 0, tokens = 0;
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        of_row += row.weights ? static_cast<double>(row.weights[t]) : 1.0;
        tokens += 1;
      }
      if (tokens <= 0) continue;
      sum += of == MeanOf::Rows ? of_row / (tokens + count_eps) : of_row;
      count += of == MeanOf::Rows ? 1.0 : tokens;
    }
    std::fill_n(args.weights, rows.positions(), factor_of(sum, count));
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
