#pragma once
// The moments of each column of an array, in two walks along its rows.
#include <gdpo/advantage/workspace.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Walks over the rows of an array (N, columns), which adds up each column as sum_rows does. Row i
/// of a block goes to lane i mod 16, so 16 rows lie in memory like the lanes of all columns.
class ColumnWalk {
 public:
  static constexpr int lanes = grid_lanes;
  using Lanes = math::Pack<lanes>;

  ColumnWalk(index_t rows, index_t columns, std::vector<double>& memory)
      : rows_(rows), columns_(columns), memory_(memory) {
    memory_.resize(as_size(columns * (5 * lanes + 3)));
  }

  /// Calls write(c, moments) with the moments that moments_of gives of each column whose sum is
  /// finite. Of the others, in which a number may be NaN, it calls nothing.
  template <class T, class Write>
  void operator()(const T* x, const Write& write) {
    std::fill_n(array(0), lanes * columns_, math::infinity);
    std::fill_n(array(1), lanes * columns_, -math::infinity);
    std::fill_n(array(2), lanes * columns_, 0.0);
    walk<false>(x);
    for (index_t c = 0; c < columns_; ++c) {
      totals(2)[c] = totals(0)[c] / static_cast<double>(rows_);
      for (index_t lane = 0; lane < lanes; ++lane) array(2)[lane * columns_ + c] = totals(2)[c];
    }
    walk<true>(x);
    for (index_t c = 0; c < columns_; ++c) {
      if (math::not_finite(totals(2)[c])) continue;
      Moments m;
      for (index_t i = c; i < lanes * columns_; i += columns_) {
        m.min = (math::min)(m.min, array(0)[i]);
        m.max = (math::max)(m.max, array(1)[i]);
      }
      if (m.max == 0 && rows_ >= 8) m.max = -0.0;  // as range_of() has it
      m.n = rows_, m.weight = static_cast<double>(rows_);
      if (m.min == m.max) {
        m.mean = m.min;
      } else {
        const Moments about = moments_of_sums(m.weight, totals(0)[c], totals(1)[c], totals(2)[c]);
        m.mean = about.mean, m.mean_low = about.mean_low, m.m2 = about.m2;
      }
      write(c, m);
    }
  }

 private:
  /// Writes to totals(0) the sums of x - center and, with `squares`, to totals(1) those of its
  /// squares; without them the range of the lanes to array(0) and array(1). The centers are in
  /// array(2).
  template <bool squares, class T>
  GDPO_NOINLINE void walk(const T* x) {
    std::fill_n(totals(0), 2 * columns_, 0.0);
    for (index_t begin = 0; begin < rows_; begin += grid_block) {
      const index_t end = (std::min)(rows_, begin + grid_block), steps = (end - begin) / lanes,
                    step = lanes * columns_;
      const T* const block = x + begin * columns_;
      std::fill_n(array(3), 2 * step, 0.0);
      // All columns of a few steps, which stay in the cache.
      for (index_t s = 0; s < steps; s += 32) {
        const index_t n = (std::min<index_t>)(32, steps - s);
        for (index_t i = 0; i < step; i += lanes)
          add_lanes<squares>(block + s * step + i, n, step, i);
      }
      for (index_t i = steps * step; i < (end - begin) * columns_; ++i)
        add_number<squares>(gdpo::load(block[i]), i - steps * step);
      for (index_t c = 0; c < columns_; ++c) {
        totals(0)[c] += tree_of_lanes(array(3) + c);
        if constexpr (squares) totals(1)[c] += tree_of_lanes(array(4) + c);
      }
    }
  }
  /// The lanes i .. i + 15 of all whole steps of a block.
  template <bool squares, class T>
  GDPO_HOST_INLINE void add_lanes(const T* x, index_t steps, index_t step, index_t i) {
    Lanes low = Lanes::load(array(0) + i), high = Lanes::load(array(1) + i);
    const Lanes center = Lanes::load(array(2) + i);
    Lanes rest = Lanes::load(array(3) + i), square = Lanes::load(array(4) + i);
    for (index_t s = 0; s < steps; ++s, x += step) {
      const Lanes value = Lanes::load(x);
      if constexpr (squares) {
        const Lanes d = value - center;
        rest = rest + d, square = square + mul(d, d);
      } else {
        low = (math::min)(low, value), high = (math::max)(high, value);
        rest = rest + value;
      }
    }
    if constexpr (!squares) low.store(array(0) + i), high.store(array(1) + i);
    rest.store(array(3) + i), square.store(array(4) + i);
  }
  /// A number of lane i behind the whole steps of a block.
  template <bool squares>
  void add_number(double x, index_t i) {
    if constexpr (!squares) {
      array(0)[i] = (math::min)(array(0)[i], x), array(1)[i] = (math::max)(array(1)[i], x);
    }
    const double d = x - array(2)[i];
    array(3)[i] = array(3)[i] + d;
    array(4)[i] = array(4)[i] + math::mul(d, d);
  }
  double tree_of_lanes(const double* x) const {
    double column[lanes];
    for (index_t lane = 0; lane < lanes; ++lane) column[lane] = x[lane * columns_];
    return tree_sum(Lanes::load(column));
  }

  /// (16, columns) each: low, high, center, and the two sums.
  double* array(index_t i) const { return memory_.data() + i * lanes * columns_; }
  /// (columns) each: the two sums, and the center.
  double* totals(index_t i) const { return array(5) + i * columns_; }

  index_t rows_, columns_;
  std::vector<double>& memory_;
};

}  // namespace detail
GDPO_END_NAMESPACE
