#pragma once
// The norm of gradients whose squares may leave the range of double, and their scaling.
#include <gdpo/update/engine/change_lanes.hpp>
#include <gdpo/update/engine/parameter_grid.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a part of the gradient adds to the norm; parts add up.
///
/// Squares are summed in three ranges, so that none overflows and none that counts is lost (Blue,
/// ACM TOMS 4, 1978): numbers above 2^500 are scaled by 2^-600 before they are squared, those below
/// 2^-500 by 2^600. Floats and narrower numbers are all in between.
struct NormParts {
  static constexpr double huge = 0x1p500, tiny = 0x1p-500, down = 0x1p-600, up = 0x1p600;
  double squares = 0, squares_of_large = 0, squares_of_small = 0;
  double largest = 0;  // magnitude
  std::int64_t nans = 0, infinities = 0;

  std::int64_t not_finite() const { return nans + infinities; }

  void operator+=(const NormParts& o) {
    squares += o.squares, squares_of_large += o.squares_of_large;
    squares_of_small += o.squares_of_small;
    largest = (math::max)(largest, o.largest);
    nans += o.nans, infinities += o.infinities;
  }
  bool operator==(const NormParts& o) const {
    return squares == o.squares && squares_of_large == o.squares_of_large &&
           squares_of_small == o.squares_of_small && largest == o.largest && nans == o.nans &&
           infinities == o.infinities;
  }
};

/// A norm as value * unit, where unit is 1, 2^600 or 2^-600: no norm of finite numbers overflows.
struct ScaledNorm {
  double value = 0, unit = 1;
  double norm() const { return math::mul(value, unit); }
};
/// The 2-norm. A smaller range than the one that decides is added where it still counts: its
/// squares are scaled to the units of the other.
inline ScaledNorm two_norm(const NormParts& p) {
  constexpr double down = NormParts::down, up = NormParts::up;
  if (p.squares_of_large > 0) {
    const double rest = math::mul(math::mul(p.squares, down), down);
    return {std::sqrt(p.squares_of_large + rest), up};
  }
  if (p.squares > 0) {
    const double rest = math::mul(math::mul(p.squares_of_small, down), down);
    return {std::sqrt(p.squares + rest), 1};
  }
  return {std::sqrt(p.squares_of_small), down};
}
/// The largest magnitude, scaled where adding something to it might overflow.
inline ScaledNorm max_norm_of(const NormParts& p) {
  constexpr double down = NormParts::down, up = NormParts::up;
  if (p.largest > NormParts::huge) return {math::mul(p.largest, down), up};
  return {p.largest, 1};
}

/// The sum of squares of a chunk: 16 lanes, element i in lane i mod 16, the lanes as a tree.
template <class S>
GDPO_NOINLINE double sum_of_squares(const S* x, index_t n) {
  ParameterLanes sum = ParameterLanes::all(0.0);
  // A float has 24 bits, so its square is exact in double, and fma adds what mul and + would.
  for_lanes(x, n, [&](const ParameterLanes& v) GDPO_INLINE_LAMBDA {
    if constexpr (std::is_same_v<S, float>) {
      sum = math::fma(v, v, sum);
    } else {
      sum = sum + math::mul(v, v);
    }
  });
  return tree_sum(sum);
}
/// The largest magnitude of a chunk; NaN where it has a number that is not finite.
template <class S>
GDPO_NOINLINE double largest_of(const S* x, index_t n) {
  ParameterLanes largest = ParameterLanes::all(0.0), faults = largest;
  for_lanes(x, n, [&](const ParameterLanes& v) GDPO_INLINE_LAMBDA {
    largest = (math::max)(largest, math::abs(v));
    faults = faults + (math::opaque(v) - v);  // 0, or NaN
  });
  if (math::is_nan(tree_sum(faults))) return math::nan();
  double lanes[math::logical_lanes], most = 0;
  largest.store(lanes);
  for (const double lane : lanes) most = (math::max)(most, lane);
  return most;
}

/// The parts of a chunk, number by number, where a plain sum of squares would not do.
template <class S>
GDPO_COLD NormParts classified(const S* x, index_t n) {
  NormParts p;
  for (index_t i = 0; i < n; ++i) {
    const double v = static_cast<double>(x[i]), a = math::abs(v);
    if (math::not_finite(v)) {
      ++(math::is_nan(v) ? p.nans : p.infinities);
      continue;
    }
    p.largest = (math::max)(p.largest, a);
    const double scaled = math::mul(a, a > NormParts::huge   ? NormParts::down
                                       : a < NormParts::tiny ? NormParts::up
                                                             : 1.0);
    (a > NormParts::huge   ? p.squares_of_large
     : a < NormParts::tiny ? p.squares_of_small
                           : p.squares) += math::mul(scaled, scaled);
  }
  return p;
}

/// The parts of a chunk for the 2-norm. The plain sum of squares is taken where it can be: between
/// these bounds nothing has overflowed, and what was lost below 2^-1022 is less than a rounding.
template <class S>
NormParts squares_of(const S* x, index_t n) {
  NormParts p;
  p.squares = sum_of_squares(x, n);
  const bool finite = !math::not_finite(p.squares);
  if (finite && p.squares > 0x1p-900 && p.squares < 0x1p900) return p;
  if (math::is_zero(p.squares) && math::is_zero(largest_of(x, n))) return p;
  return classified(x, n);
}
/// The parts of a chunk for the max-norm.
template <class S>
NormParts largest_parts(const S* x, index_t n) {
  NormParts p;
  p.largest = largest_of(x, n);
  return math::not_finite(p.largest) ? classified(x, n) : p;
}

/// The sum of n parts as a tree: the two halves are summed, then added.
inline NormParts tree_of(const NormParts* parts, index_t n) {
  if (n == 0) return {};
  if (n == 1) return parts[0];
  NormParts sum = tree_of(parts, n / 2);
  sum += tree_of(parts + n / 2, n - n / 2);
  return sum;
}

/// Measures all arrays in one read; the result has the parts of each. Chunks are added in their
/// order within a unit, units as a tree.
template <class Exec>
std::vector<NormParts> parts_of_norms(const Exec& exec, const ParameterList& views,
                                      const ParameterGrid& grid,
                                      const std::vector<index_t>& elements, bool max_norm) {
  std::vector<NormParts> unit_parts(static_cast<std::size_t>(grid.units())), array_parts;
  grid.for_each(exec, elements, [&](index_t unit, std::size_t array, index_t first, index_t n) {
    NormParts sum;
    for_each_chunk(views[array], first, n, [&](const auto* x, index_t m) {
      sum += max_norm ? largest_parts(x, m) : squares_of(x, m);
      return false;
    });
    unit_parts[static_cast<std::size_t>(unit)] = sum;
  });
  for (std::size_t array = 0; array < views.size(); ++array)
    array_parts.push_back(
        tree_of(unit_parts.data() + grid.first_unit(array), grid.units_of(array)));
  return array_parts;
}

/// Multiplies all elements by both factors, or sets them to 0 where the first one is 0: one read
/// and one write. Each product is computed in double.
template <class Exec>
void scale_elements(const Exec& exec, const ParameterList& views, const ParameterGrid& grid,
                    const std::vector<index_t>& elements, double first_factor,
                    double second_factor) {
  const auto a = ParameterLanes::all(first_factor), b = ParameterLanes::all(second_factor);
  const bool clear = first_factor == 0, twice = second_factor != 1;
  grid.for_each(exec, elements, [&](index_t, std::size_t array, index_t first, index_t n) {
    for_each_chunk(views[array], first, n, [&](auto* x, index_t m) {
      if (clear) {
        std::fill(x, x + m, 0);
      } else if (twice) {
        change_lanes<double>(
            m,
            [&](const ParameterLanes& g)
                GDPO_INLINE_LAMBDA { return math::mul(math::mul(g, a), b); },
            x);
      } else {
        change_lanes<double>(
            m, [&](const ParameterLanes& g) GDPO_INLINE_LAMBDA { return math::mul(g, a); }, x);
      }
      return true;
    });
  });
}

}  // namespace detail
GDPO_END_NAMESPACE
