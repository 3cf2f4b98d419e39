// Token arrays with a mask in any layout, and the formulas of masked reductions in long double.
#pragma once
#include <cmath>
#include <gdpo/advantage/multiplier.hpp>
#include <support/generators.hpp>
#include <vector>

namespace masked {

using gdpo::index_t;

/// A (rows, width) array in memory of its own: row-major, column-major, or with holes. The holes
/// hold NaN where T has one.
template <class T>
class Table {
 public:
  enum class Layout { RowMajor, ColumnMajor, Holes };
  Table(index_t rows, index_t width, Layout layout, const std::vector<double>& row_major)
      : rows_(rows), width_(width) {
    const index_t step = layout == Layout::Holes ? 3 : 1;
    row_ = layout == Layout::ColumnMajor ? 1 : step * width + (step - 1);
    column_ = layout == Layout::ColumnMajor ? rows : step;
    data_.resize(static_cast<std::size_t>(rows * width * step + rows * (step - 1) + 1), poison());
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < width; ++j) {
        data_[at(i, j)] = static_cast<T>(row_major[static_cast<std::size_t>(i * width + j)]);
      }
    }
  }
  gdpo::View<const T, 2> view() const { return {data_.data(), {rows_, width_}, {row_, column_}}; }
  gdpo::View<T, 2> view() { return {data_.data(), {rows_, width_}, {row_, column_}}; }
  /// The values in row-major order, as double.
  std::vector<double> values() const {
    std::vector<double> out;
    for (index_t i = 0; i < rows_; ++i) {
      for (index_t j = 0; j < width_; ++j) out.push_back(static_cast<double>(data_[at(i, j)]));
    }
    return out;
  }

 private:
  static T poison() {
    if constexpr (std::is_floating_point_v<T>) {
      return std::numeric_limits<T>::quiet_NaN();
    } else {
      return T(1);
    }
  }
  std::size_t at(index_t i, index_t j) const {
    return static_cast<std::size_t>(i * row_ + j * column_);
  }
  index_t rows_, width_, row_, column_;
  std::vector<T> data_;
};

/// Random values within 2 of an offset, each exact in float, and a random mask; both (rows, width)
/// in row-major order.
struct Data {
  index_t rows, width;
  std::vector<double> values, mask;
  /// The values whose mask is not 0.
  std::vector<double> counted() const {
    std::vector<double> out;
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (mask[k] != 0) out.push_back(values[k]);
    }
    return out;
  }
};
/// Arguments of random_data(). A struct, because random numbers in braces are drawn from left to
/// right, whereas the arguments of a function are evaluated in any order.
struct Shape {
  index_t rows, width;
  double density, offset = 0;
};
inline Data random_data(Random& random, const Shape& shape) {
  Data d{shape.rows, shape.width, {}, {}};
  for (index_t k = 0; k < shape.rows * shape.width; ++k) {
    d.values.push_back(
        static_cast<double>(static_cast<float>(shape.offset + 4 * random.uniform() - 2)));
    d.mask.push_back(random.chance(shape.density));
  }
  return d;
}

// ---- the formulas, applied to the values that the mask keeps ----

inline long double sum(const std::vector<double>& x) {
  long double s = 0;
  for (const double v : x) s += static_cast<long double>(v);
  return s;
}
inline long double mean(const std::vector<double>& x, double count_eps = 0) {
  return x.empty()
             ? 0
             : sum(x) / (static_cast<long double>(x.size()) + static_cast<long double>(count_eps));
}
inline long double variance(const std::vector<double>& x, int ddof, double count_eps = 0) {
  const auto n = static_cast<long double>(x.size());
  if (n <= ddof) return 0;
  const long double center = mean(x, count_eps);
  long double square = 0;
  for (const double v : x)
    square += (static_cast<long double>(v) - center) * (static_cast<long double>(v) - center);
  return square / (n + static_cast<long double>(count_eps)) * n / (n - ddof);
}
inline long double multiplier(long double v, double eps_given, gdpo::EpsAt at, bool known) {
  const auto eps = static_cast<long double>(eps_given);
  if (at == gdpo::EpsAt::None) return 1;
  if (at == gdpo::EpsAt::StdOrOne) return !known || v == 0 ? 1 : 1 / (std::sqrt(v) + eps);
  const long double d = at == gdpo::EpsAt::Std        ? std::sqrt(v) + eps
                        : at == gdpo::EpsAt::Var      ? std::sqrt(v + eps)
                        : at == gdpo::EpsAt::ClampStd ? std::max(std::sqrt(v), eps)
                                                      : std::sqrt(std::max(v, eps));
  return !known || d == 0 ? 0 : 1 / d;
}

}  // namespace masked
