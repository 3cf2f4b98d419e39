#pragma once
// The renormalization of the advantages of tokens, in the layout of a batch of tokens.
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/value/engine/return_rows.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Moments of the advantages at the valid tokens, in the order of stats/masked.hpp: gathered row
/// after row into the blocks that sum_rows adds.
template <class S, class Estimator>
Moments advantage_moments(const ReturnRows<S, Estimator>& rows, ReturnScratch<S>& scratch) {
  Moments all;
  double block[grid_block];
  index_t n = 0;
  const auto flush = [&] {
    all = merge(all, moments_of(InRowOrder{}, block, nullptr, n));
    n = 0;
  };
  for (index_t i = 0; i < rows.layout().rows; ++i) {
    const RowSpan span = rows.layout()(i);
    const unsigned char* const mask = rows.mask(span, 0, scratch);
    const View<S, 1> advantages = rows.advantages(span);
    for (index_t t = 0; t < span.length; ++t) {
      if (mask && mask[t] == 0) continue;
      block[n++] = static_cast<double>(advantages(t));
      if (n == grid_block) flush();
    }
  }
  if (n > 0) flush();
  return all;
}

/// Replaces the advantages of a row by what the renormalization makes of them.
template <class S, class Estimator>
void apply_to_row(const ReturnRows<S, Estimator>& rows, index_t i, const Affine& affine,
                  ReturnScratch<S>& scratch) {
  const RowSpan span = rows.layout()(i);
  const unsigned char* const mask = rows.mask(span, 0, scratch);
  const View<S, 1> advantages = rows.advantages(span);
  for (index_t t = 0; t < span.length; ++t) {
    if (!mask || mask[t] != 0)
      advantages(t) = static_cast<S>(affine(static_cast<double>(advantages(t))));
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
