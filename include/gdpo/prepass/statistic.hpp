#pragma once
// How a quantity of tokens is taken over a row.
#include <gdpo/loss/map.hpp>
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// How a quantity of the tokens is taken over the row: at each token, or as one number per row.
enum class Statistic {
  Token,         ///< The quantity of each token, for itself.
  SequenceMean,  ///< Sum over the row's valid tokens / (their number + count_eps).
  SequenceSum,   ///< Sum over the row's valid tokens.
  SequenceMax    ///< Largest of the row's valid tokens.
};
/// The enumerators of Statistic with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Statistic) {
  using E = Enumerator<Statistic>;
  return std::array{E{"token", Statistic::Token}, E{"sequence_mean", Statistic::SequenceMean},
                    E{"sequence_sum", Statistic::SequenceSum},
                    E{"sequence_max", Statistic::SequenceMax}};
}

/// What a token means whose rollout_logp is NaN, because the sampling engine has given none.
///
/// NonFiniteInputs::rollout_logp counts these tokens in either case.
enum class MissingRollout {
  /// It is dropped, and where the statistic is one number per row, the row is.
  Drop,
  /// The two policies do not differ at it: its log ratio is 0, so it has weight 1 and enters
  /// the statistic of its row as 0 (TRL since 1.11.0).
  NoDifference
};
/// The enumerators of MissingRollout with their words.
GDPO_DATA_INLINE constexpr auto enumerators(MissingRollout) {
  using E = Enumerator<MissingRollout>;
  return std::array{E{"drop", MissingRollout::Drop},
                    E{"no_difference", MissingRollout::NoDifference}};
}

}  // namespace prepass

namespace detail {

/// Whether token t has no rollout_logp and `missing` makes its log ratio 0.
template <class S>
bool without_difference(prepass::MissingRollout missing, const TokenRow<S>& row, index_t t) {
  return missing == prepass::MissingRollout::NoDifference && row.rollout_logp &&
         math::is_nan(row.rollout_logp[t]);
}

/// Replaces the values of a row by their statistic over its valid tokens. Statistic::Token changes
/// nothing. Sums are in double and in the order of the tokens. If one of the values is NaN, so is
/// the statistic.
template <class S>
void row_statistic(prepass::Statistic statistic, const TokenRow<S>& row, double count_eps,
                   double* values) {
  using prepass::Statistic;
  if (statistic == Statistic::Token) return;
  double sum = 0, largest = -math::infinity, n = 0;
  bool nan = false;
  for (index_t t = 0; t < row.length; ++t) {
    if (!row.valid(t)) continue;
    nan = nan || math::is_nan(values[t]);
    sum += values[t];
    largest = (math::max)(values[t], largest);
    n += 1;
  }
  if (n + count_eps <= 0) return;
  const double value = nan                                   ? math::nan()
                       : statistic == Statistic::SequenceSum ? sum
                       : statistic == Statistic::SequenceMax ? largest
                                                             : sum / (n + count_eps);
  for (index_t t = 0; t < row.length; ++t) values[t] = value;
}

}  // namespace detail
GDPO_END_NAMESPACE
