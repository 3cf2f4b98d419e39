#pragma once
// Checks of a column of counts: tokens, turns, draws.
#include <gdpo/lanes/pack.hpp>
#include <gdpo/storage/column.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The first row whose number is not a count: negative, infinite or NaN. `rows` if there is none.
GDPO_NOINLINE inline index_t first_without_count(const Column& column, index_t rows) {
  constexpr index_t block = 512, N = math::native_width<double>;
  using Lanes = math::Pack<N>;
  double counts[block];
  for (index_t begin = 0; begin < rows; begin += block) {
    const index_t n = rows - begin < block ? rows - begin : block;
    column.copy_rows(begin, n, counts);
    for (index_t i = n; i % N != 0; ++i) counts[i] = 0;
    for (index_t i = 0; i < n; i += N) {
      const Lanes count = Lanes::load(counts + i);
      if (!any(either(not_finite(count), count < Lanes::all(0.0)))) continue;
      for (index_t row = begin + i;; ++row) {
        if (!(column(row) >= 0) || math::not_finite(column(row))) return row;
      }
    }
  }
  return rows;
}

/// Throws unless the numbers of `rows` rows of a column are counts. Only the host can read them.
inline void check_count_column(const char* function, const char* name, const Column& column,
                               index_t rows) {
  const index_t i = first_without_count(column, rows);
  if (i == rows) return;
  contract::fail(function, contract::Text(name) + "(" + contract::text(i) + ")",
                 contract::text(column(i)), "a count of at least 0");
}

}  // namespace detail
GDPO_END_NAMESPACE
