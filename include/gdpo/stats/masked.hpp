#pragma once
#include <array>
#include <gdpo/math/settings.hpp>
#include <gdpo/stats/moments.hpp>
#include <gdpo/storage/storage.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE

// Means and moments of the values that a mask lets through, in double. Values and mask: views of rank 1 or
// 2, of one shape and any strides. Mask: any arithmetic type, 0 is out, and what stands there is not read (it may be
// NaN or anything); a null view ({}) lets all through. NaN among the values that count: NaN.
//   gdpo::masked_mean(gdpo::view(x, B, T), gdpo::view(mask, B, T))
// Order of summation: the values that count, row after row, as sum_rows adds them. Neither padding nor the place of the
// holes changes a bit, and packed tokens give the bits of padded ones. Nothing is allocated but the row means.
namespace detail {

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

template <class A, class B, int Rank>
void check_shape(const char* function, const char* name, const View<A, Rank>& given,
                 const View<B, Rank>& wanted, const char* owner) {
  for (int r = 0; r < Rank; ++r) {
    if (given.extent[r] != wanted.extent[r]) {
      contract::fail(function, name, contract::shape(Rank, given.extent),
                     contract::shape(Rank, wanted.extent) + ", the shape of " + owner);
    }
  }
}

template <class M>
GDPO_INLINE bool counts(const View<M, 2>& mask, index_t i, index_t j) {
  return !mask || !math::is_zero(load(mask(i, j)));
}

/// visit(const double* x, index_t n) for the values that count, row after row, in blocks of the grid of sum_rows.
template <class T, int Rank, class M, class Visit>
void visit_counted(const char* function, const View<T, Rank>& values, const View<M, Rank>& mask,
                   const Visit& visit) {
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

/// sum / (n + count_eps) over the n values that count; 0 where none does.
template <class T, int Rank, class M = const unsigned char>
double masked_mean(View<T, Rank> values, View<M, Rank> mask = {}, double count_eps = 0) {
  constexpr const char* function = "gdpo::masked_mean";
  detail::check_eps(function, "count_eps", count_eps);
  return detail::counted_sum(function, values, mask).mean(count_eps);
}

/// sum / denominator, for a count that is not this array's: of all micro-batches and ranks, or a constant.
template <class T, int Rank, class M = const unsigned char>
double masked_mean_over(View<T, Rank> values, View<M, Rank> mask, double denominator) {
  constexpr const char* function = "gdpo::masked_mean_over";
  if (!(denominator > 0) || math::not_finite(denominator)) {
    contract::fail(function, "denominator", contract::text(denominator),
                   "a finite number greater than 0");
  }
  return detail::counted_sum(function, values, mask).sum / denominator;
}

/// The masked_mean of each row; 0 for a row where nothing counts.
template <class T, class M = const unsigned char>
std::vector<double> masked_row_means(View<T, 2> values, View<M, 2> mask = {},
                                     double count_eps = 0) {
  return detail::row_means("gdpo::masked_row_means", values, mask, count_eps);
}
/// The mean of masked_row_means over all rows, those where nothing counts included; 0 without rows.
template <class T, class M = const unsigned char>
double masked_row_mean(View<T, 2> values, View<M, 2> mask = {}, double count_eps = 0) {
  const std::vector<double> means =
      detail::row_means("gdpo::masked_row_mean", values, mask, count_eps);
  return masked_mean(gdpo::view(means));
}

/// Count, mean, spread and range of the values that count: blocks of 4096 by two centred passes, merged in order. They
/// merge further, over micro-batches and ranks.
template <class T, int Rank, class M = const unsigned char>
Moments masked_moments(View<T, Rank> values, View<M, Rank> mask = {}) {
  return detail::counted_moments("gdpo::masked_moments", values, mask);
}

/// The variance that whiten_into (advantage/whiten.hpp) divides by: sum (x - mean)^2 / (n + count_eps) * n / (n - ddof), mean = sum x / (n +
/// count_eps); 0 where n <= ddof.
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
