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

/// The gradient of a row as out[j] = e^d (slope d + constant), with log p_j = d + u; at_target is
/// the value at the target, which replaces that entry.
///
/// The gradient at j is (g (one_j - p_j) - g_entropy p_j (log p_j + H)) / T, where one_j is 1 at
/// the target and else 0. Away from the target, p_j = e^(d + u) gives -(e^u / T) e^d (g_entropy d +
/// g + g_entropy (H + u)).
struct GradientLine {
  double slope, constant, at_target;
};
/// The line of one row. x_target: the logit of the target; not used without a target.
GDPO_DEVICE inline GradientLine gradient_line(const RowGradient& of, double x_target,
                                              double temperature, double u) {
  using math::mul;
  const double z_of_x = 1 / temperature, scale = mul(-z_of_x, std::exp(u));
  const double factor = of.g_entropy == 0 ? of.g : of.g + mul(of.g_entropy, of.entropy + u);
  // At the target one_j - p_j = 1 - p = -expm1(log p): where p is near 1, that adds no error to the
  // one of log p.
  double at_target = 0;
  if (of.target >= 0) {
    const double log_p = mul(x_target, z_of_x) - of.logsumexp;
    at_target = mul(of.g, -std::expm1(log_p));
    if (of.g_entropy != 0 && !math::is_inf(log_p)) {
      at_target -= mul(of.g_entropy, mul(std::exp(log_p), log_p + of.entropy));
    }
    at_target = mul(at_target, z_of_x);
  }
  return {mul(scale, of.g_entropy), mul(scale, factor), at_target};
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
void gradient_row(const T* x, U* out, index_t n, double temperature, const RowGradient& of) {
  using S = math::scalar_t<V>;
  using math::fma, math::mul;
  if (math::not_finite(of.logsumexp)) return fill_row(out, n, math::nan());
  const double z_of_x = 1 / temperature;
  const S inverse = static_cast<S>(z_of_x), center = static_cast<S>(mul(of.logsumexp, temperature));
  const double u = mul(static_cast<double>(center), z_of_x) - of.logsumexp;
  // The logit of the target is read here, because out may be x.
  const GradientLine line =
      gradient_line(of, of.target >= 0 ? load(x[of.target]) : 0.0, temperature, u);

  const V reference = math::constant<V>(static_cast<double>(center)),
          to_z = math::constant<V>(static_cast<double>(inverse));
  const V constant_part = math::constant<V>(line.constant), slope = math::constant<V>(line.slope);
  const auto chunk = [&](const auto* from, auto* to) {
    for (int k = 0; k < LogitLanes<V>::registers;
         ++k, from += LogitLanes<V>::width, to += LogitLanes<V>::width) {
      const auto at = [&](int j) {
        return distance(math::load_lanes<V>(from + j * logit_lanes), reference, to_z);
      };
      const auto put = [&](int j, const V& d) {
        math::store_lanes(to + j * logit_lanes,
                          mul(math::exp_bounded(d), fma(slope, d, constant_part)));
      };
      const V a = at(0), b = at(1), c = at(2), d = at(3);
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
  if (of.target >= 0) store(out[of.target], line.at_target);
}

}  // namespace detail
GDPO_END_NAMESPACE
