#pragma once
// Means and moments of the values that a mask selects.
#include <array>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/stats/moments.hpp>
#include <gdpo/storage/storage.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE

// Means and moments of the values that a mask selects, computed in double:
//
//   gdpo::masked_mean(gdpo::view(x, B, T), gdpo::view(mask, B, T))
//
// Shapes: values and mask are views of rank 1 or 2, of the same shape and with any strides; another
// shape of the mask throws invalid_input. The mask is of any arithmetic type. A value counts where
// the mask is not 0, once, whatever number stands there, also NaN; a null mask ({}) lets every
// value count. Values that do not count are not read: they may be NaN. A NaN that counts makes the
// result NaN.
//
// Order of summation: the values that count, one row after the other, as sum_rows adds them. So
// neither the padding nor the place of the holes changes a bit, and packed tokens give the bits
// of padded ones. Only the means of the rows need an allocation.
namespace detail {

/// A view of rank 1 or 2 as one of rank 2; rank 1 becomes a single row.
template <class T>
View<T, 2> as_table(const View<T, 1>& v) {
  return {v.data, {1, v.extent[0]}, {0, v.stride[0]}};
}
template <class T>
View<T, 2> as_table(const View<T, 2>& v) {
  return v;
}
template <class T>
View<T, 2> one_row(const View<T, 2>& v, index_t row) {
  return {v.data ? v.data + row * v.stride[0] : nullptr, {1, v.extent[1]}, {0, v.stride[1]}};
}

/// Throws invalid_input unless `given` is an array that has the shape of `wanted`. The message
/// calls them `name` and `owner`.
template <class A, class B, int Rank>
void check_shape(const char* function, const char* name, const View<A, Rank>& given,
                 const View<B, Rank>& wanted, const char* owner) {
  contract::check_array(function, name, given);
  for (int r = 0; r < Rank; ++r) {
    if (given.extent[r] != wanted.extent[r]) {
      contract::fail(function, name, contract::shape(Rank, given.extent),
                     contract::shape(Rank, wanted.extent) + ", the shape of " + owner);
    }
  }
}

/// Whether the value at (i, j) counts.
template <class M>
GDPO_INLINE bool counts(const View<M, 2>& mask, index_t i, index_t j) {
  return !mask || !math::is_zero(load(mask(i, j)));
}

/// Calls visit(const double* x, index_t n) with the values that count, row after row, gathered
/// into the blocks of 4096 that sum_rows adds.
template <class T, int Rank, class M, class Visit>
void visit_counted(const char* function, const View<T, Rank>& values, const View<M, Rank>& mask,
                   const Visit& visit) {
  contract::check_array(function, "values", values);
  if (mask) check_shape(function, "mask", mask, values, "values");
  const View<T, 2> x = as_table(values);
  const View<M, 2> m = as_table(mask);
  double block[grid_block];
  index_t n = 0;
  for (index_t i = 0; i < x.extent[0]; ++i) {
    for (index_t j = 0; j < x.extent[1]; ++j) {
      if (!counts(m, i, j)) continue;
      block[n++] = load(x(i, j));
      if (n < grid_block) continue;
      visit(block, n);
      n = 0;
    }
  }
  if (n > 0) visit(block, n);
}

inline double sum_of(const double* x, index_t n) {
  return sum_rows<1>(InRowOrder{}, x, nullptr, n,
                     [](const auto& value, const auto&) { return std::array{value}; })[0];
}

struct CountedSum {
  double sum = 0, count = 0;
  double mean(double count_eps) const { return count > 0 ? sum / (count + count_eps) : 0.0; }
};
template <class T, int Rank, class M>
CountedSum counted_sum(const char* function, const View<T, Rank>& values,
                       const View<M, Rank>& mask) {
  CountedSum s;
  visit_counted(function, values, mask, [&](const double* x, index_t n) {
    s.sum += sum_of(x, n);
    s.count += static_cast<double>(n);
  });
  return s;
}

template <class T, class M>
std::vector<double> row_means(const char* function, const View<T, 2>& values,
                              const View<M, 2>& mask, double count_eps) {
  check_eps(function, "count_eps", count_eps);
  contract::check_array(function, "values", values);
  if (mask) check_shape(function, "mask", mask, values, "values");
  std::vector<double> means;
  means.reserve(static_cast<std::size_t>(values.extent[0]));
  for (index_t i = 0; i < values.extent[0]; ++i) {
    means.push_back(counted_sum(function, one_row(values, i), one_row(mask, i)).mean(count_eps));
  }
  return means;
}

template <class T, int Rank, class M>
Moments counted_moments(const char* function, const View<T, Rank>& values,
                        const View<M, Rank>& mask) {
  Moments all;
  visit_counted(function, values, mask, [&](const double* x, index_t n) {
    all = merge(all, moments_of(InRowOrder{}, x, nullptr, n));
  });
  return all;
}

}  // namespace detail

/// The mean of the n values that count: sum / (n + count_eps); 0 where none counts.
template <class T, int Rank, class M = const unsigned char>
double masked_mean(View<T, Rank> values, View<M, Rank> mask = {}, double count_eps = 0) {
  constexpr const char* function = "gdpo::masked_mean";
  detail::check_eps(function, "count_eps", count_eps);
  return detail::counted_sum(function, values, mask).mean(count_eps);
}

/// The sum of the values that count over a given denominator: sum / denominator.
/// The denominator is a count from elsewhere: that of all micro-batches and ranks, or a constant.
/// One that is not finite and greater than 0 throws invalid_input.
template <class T, int Rank, class M = const unsigned char>
double masked_mean_over(View<T, Rank> values, View<M, Rank> mask, double denominator) {
  constexpr const char* function = "gdpo::masked_mean_over";
  if (!(denominator > 0) || math::not_finite(denominator)) {
    contract::fail(function, "denominator", contract::text(denominator),
                   "a finite number greater than 0");
  }
  return detail::counted_sum(function, values, mask).sum / denominator;
}

/// The `masked_mean` of each row, (B); 0 for a row where nothing counts. Allocates the result.
template <class T, class M = const unsigned char>
std::vector<double> masked_row_means(View<T, 2> values, View<M, 2> mask = {},
                                     double count_eps = 0) {
  return detail::row_means("gdpo::masked_row_means", values, mask, count_eps);
}
/// The mean of `masked_row_means` over all rows; 0 without rows.
/// A row where nothing counts enters as 0. Allocates the means of the rows.
template <class T, class M = const unsigned char>
double masked_row_mean(View<T, 2> values, View<M, 2> mask = {}, double count_eps = 0) {
  const std::vector<double> means =
      detail::row_means("gdpo::masked_row_mean", values, mask, count_eps);
  return masked_mean(gdpo::view(means));
}

/// Count, mean, spread and range of the values that count.
/// Blocks of 4096 values, each by two centered passes, merged in order. The result merges further,
/// over micro-batches and ranks (`merge`).
template <class T, int Rank, class M = const unsigned char>
Moments masked_moments(View<T, Rank> values, View<M, Rank> mask = {}) {
  return detail::counted_moments("gdpo::masked_moments", values, mask);
}

/// The variance from which `whiten_into` (advantage/whiten.hpp) takes its multiplier:
///
///     mean     = sum x / (n + count_eps)
///     variance = sum (x - mean)^2 / (n + count_eps) * n / (n - ddof)
///
/// It is 0 where n <= ddof: the spread is then unknown.
template <class T, int Rank, class M = const unsigned char>
double masked_variance(View<T, Rank> values, View<M, Rank> mask = {}, int ddof = 1,
                       double count_eps = 0) {
  constexpr const char* function = "gdpo::masked_variance";
  detail::check_ddof(function, "ddof", ddof);
  detail::check_eps(function, "count_eps", count_eps);
  return detail::spread_of(detail::counted_moments(function, values, mask), ddof, count_eps)
      .variance;
}

GDPO_END_NAMESPACE
