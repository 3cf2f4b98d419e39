#pragma once
#include <gdpo/loss/map.hpp>
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Over what a quantity of tokens is taken.
enum class Statistic { Token, SequenceMean, SequenceSum, SequenceMax };

}  // namespace prepass

namespace detail {

/// values at the row's valid tokens become their statistic over the row; Token: nothing changes. In double, in token order; a
/// NaN among them is the result.
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
