// Rows of logits: those that models give, and those that break careless kernels.
#pragma once
#include <algorithm>
#include <cstring>
#include <gdpo/logits.hpp>
#include <string>
#include <vector>

#include "support/generators.hpp"

namespace logit_cases {

inline double normal(Random& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform())) *
         std::cos(6.283185307179586 * random.uniform());
}

/// What a row looks like. Masked rows have logits of minus infinity; LateSpike has its largest
/// logit at the end, so that a running maximum changes at the last step; Offset is far from 0.
enum class Kind {
  Normal,
  Peaked,
  Constant,
  Coarse,
  Offset,
  Ascending,
  Descending,
  LateSpike,
  Masked,
  LeadingMasked
};
constexpr Kind all_kinds[] = {Kind::Normal, Kind::Peaked,       Kind::Constant,   Kind::Coarse,
                              Kind::Offset, Kind::Ascending,    Kind::Descending, Kind::LateSpike,
                              Kind::Masked, Kind::LeadingMasked};

/// A random row of one kind. At least one logit is finite.
inline std::vector<float> row(Random& random, Kind kind, int vocabulary) {
  const auto n = static_cast<std::size_t>(vocabulary);
  const double sd = random.pick({0.3, 1.0, 2.5, 6.0});
  constexpr float masked = -std::numeric_limits<float>::infinity();
  std::vector<float> x(n);
  for (std::size_t j = 0; j < n; ++j) {
    const double along = static_cast<double>(j) / static_cast<double>(n);
    const double value = kind == Kind::Constant     ? 1.7
                         : kind == Kind::Coarse     ? 0.25 * random.below(40)
                         : kind == Kind::Offset     ? 3e4 + sd * normal(random)
                         : kind == Kind::Ascending  ? 400 * along
                         : kind == Kind::Descending ? -400 * along
                                                    : sd * normal(random);
    x[j] = static_cast<float>(value);
    if (kind == Kind::Masked && random.chance(0.7)) x[j] = masked;
    if (kind == Kind::LeadingMasked && j < 2 * n / 3) x[j] = masked;
  }
  const auto any = static_cast<std::size_t>(random.below(vocabulary));
  if (kind == Kind::Peaked) x[any] = 20;
  if (kind == Kind::Masked) x[any] = 0.5f;
  if (kind == Kind::Constant) x[any] = 2.04f;
  if (kind == Kind::LateSpike) x[n - 1] = 200;
  return x;
}

/// The type in which a gradient is stored to see the gradient's own error: double for double, else
/// float.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The numbers x as T stores them.
template <class T>
std::vector<T> stored(const std::vector<float>& x) {
  std::vector<T> to(x.size());
  for (std::size_t j = 0; j < x.size(); ++j) gdpo::store(to[j], x[j]);
  return to;
}

/// Whether two arrays have the same bits. All NaN are equal: which bits a NaN has is the
/// processor's choice.
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  const auto equal = [](const T& x, const T& y) {
    return std::memcmp(static_cast<const void*>(&x), &y, sizeof x) == 0 ||
           (std::isnan(static_cast<double>(gdpo::load(x))) &&
            std::isnan(static_cast<double>(gdpo::load(y))));
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

}  // namespace logit_cases
