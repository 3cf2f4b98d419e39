#pragma once
// The gradient by the logits of one row.
#include <gdpo/logits/shared/sum_row.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What the gradient of one row starts from: g = d L / d logp of the target, g_entropy = d L / d
/// entropy, and logsumexp and entropy of the row.
struct RowGradient {
  double g = 0, g_entropy = 0, logsumexp = 0, entropy = 0;
  index_t target = -1;  ///< Column of the target; below 0: not among the entries.
};

/// The gradient of a row as out[j] = e^d (slope d + constant), with log p_j = d + u;
/// target_gradient is the value at the target, which replaces that entry.
///
/// The gradient at j is (g (one_j - p_j) - g_entropy p_j (log p_j + H)) / T, where one_j is 1 at
/// the target and else 0. Away from the target, p_j = e^(d + u) gives -(e^u / T) e^d (g_entropy d +
/// g + g_entropy (H + u)).
struct GradientLine {
  double slope, constant, target_gradient;
};
/// The line of one row. x_target: the logit of the target; not used without a target.
GDPO_DEVICE inline GradientLine gradient_line(const RowGradient& row, double x_target,
                                              double temperature, double u) {
  using math::mul;
  const double z_of_x = 1 / temperature, scale = mul(-z_of_x, std::exp(u));
  const double factor = row.g_entropy == 0 ? row.g : row.g + mul(row.g_entropy, row.entropy + u);
  // At the target one_j - p_j = 1 - p = -expm1(log p): where p is near 1, that adds no error to the
  // one of log p.
  double target_gradient = 0;
  if (row.target >= 0) {
    const double log_p = mul(x_target, z_of_x) - row.logsumexp;
    target_gradient = mul(row.g, -std::expm1(log_p));
    if (row.g_entropy != 0 && !math::is_inf(log_p)) {
      target_gradient -= mul(row.g_entropy, mul(std::exp(log_p), log_p + row.entropy));
    }
    target_gradient = mul(target_gradient, z_of_x);
  }
  return {mul(scale, row.g_entropy), mul(scale, factor), target_gradient};
}

/// Sets all n entries to `value`.
template <class U>
void fill_row(U* out, index_t n, double value) {
  U element;
  store(element, static_cast<float>(value));
  std::fill(out, out + n, element);
}

/// Writes the gradient of one row (GradientLine) in one read of x and one write of out, which may
/// be x. In the lanes d = (x - c) / temperature, where c is logsumexp * temperature rounded to
/// their scalar. u, in double, is what that rounding lost, so that p = e^(d + u) does not carry it.
template <class V, class T, class U>
void gradient_row(const T* x, U* out, index_t n, double temperature, const RowGradient& row) {
  using S = math::scalar_t<V>;
  using math::fma, math::mul;
  if (math::not_finite(row.logsumexp)) return fill_row(out, n, math::nan());
  const double z_of_x = 1 / temperature;
  const S inverse = static_cast<S>(z_of_x),
          center = static_cast<S>(mul(row.logsumexp, temperature));
  const double u = mul(static_cast<double>(center), z_of_x) - row.logsumexp;
  // The logit of the target is read here, because out may be x.
  const GradientLine line =
      gradient_line(row, row.target >= 0 ? load(x[row.target]) : 0.0, temperature, u);

  const V reference = math::constant<V>(static_cast<double>(center)),
          scale = math::constant<V>(static_cast<double>(inverse));
  const V constant_part = math::constant<V>(line.constant), slope = math::constant<V>(line.slope);
  const auto chunk = [&](const auto* source, auto* destination) {
    for (int k = 0; k < LogitLanes<V>::registers;
         ++k, source += LogitLanes<V>::width, destination += LogitLanes<V>::width) {
      const auto get = [&](int j) {
        return distance(math::load_lanes<V>(source + j * logit_lanes), reference, scale);
      };
      const auto put = [&](int j, const V& d) {
        math::store_lanes(destination + j * logit_lanes,
                          mul(math::exp_bounded(d), fma(slope, d, constant_part)));
      };
      const V a = get(0), b = get(1), c = get(2), d = get(3);
      put(0, a), put(1, b), put(2, c), put(3, d);
    }
  };
  index_t i = 0;
  for (; i + logit_chunk <= n; i += logit_chunk) chunk(x + i, out + i);
  if (i < n) {
    S tail[logit_chunk] = {};
    U result[logit_chunk];
    for (int j = 0; i + j < n; ++j) tail[j] = static_cast<S>(load(x[i + j]));
    chunk(static_cast<const S*>(tail), result);
    std::copy(result, result + (n - i), out + i);
  }
  if (row.target >= 0) store(out[row.target], line.target_gradient);
}

}  // namespace detail
GDPO_END_NAMESPACE
