#pragma once
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

}  // namespace prepass

namespace detail {

/// Replaces the values of a row by their statistic over its valid tokens. Statistic::Token changes
/// nothing. Sums are in double and in the order of the tokens. If one of the values is NaN, so is
/// the statistic.
template <class S>
void row_statistic(prepass::Statistic of, const TokenRow<S>& row, double count_eps,
                   double* values) {
  using prepass::Statistic;
  if (of == Statistic::Token) return;
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
  const double value = nan                            ? math::nan()
                       : of == Statistic::SequenceSum ? sum
                       : of == Statistic::SequenceMax ? largest
                                                      : sum / (n + count_eps);
  for (index_t t = 0; t < row.length; ++t) values[t] = value;
}

}  // namespace detail
GDPO_END_NAMESPACE
