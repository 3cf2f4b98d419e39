#pragma once
#include <gdpo/logits/engine/sum_row.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// dL of one row of logits: g times the derivative of the log-prob of `target`, plus g_entropy times that of the entropy.
struct RowGradient {
  double g = 0, g_entropy = 0, logsumexp = 0, entropy = 0;
  index_t target = -1;  ///< less than 0: not among the entries
};

/// The gradient of a row as a line in d: out[j] = e^d ( slope d + constant ), where log p_j = d + u, and apart from it the target's.
struct GradientLine {
  double slope, constant, at_target;
};
/// x_target: the logit of the target, where there is one.
GDPO_DEVICE inline GradientLine gradient_line(const RowGradient& of, double x_target,
                                              double temperature, double u) {
  using math::mul;
  const double z_of_x = 1 / temperature, scale = mul(-z_of_x, std::exp(u));
  const double factor = of.g_entropy == 0 ? of.g : of.g + mul(of.g_entropy, of.entropy + u);
  // With 1 - p where p is near 1.
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

template <class U>
void fill_row(U* out, index_t n, double value) {
  U element;
  store(element, static_cast<float>(value));
  std::fill(out, out + n, element);
}

/// out[j] = ( g (onehot_j - p_j) - g_entropy p_j (log p_j + H) ) / temperature. p = e^(d + u) with d = (x - c) / temperature in
/// the lanes, c the logsumexp as a logit rounded to their scalar, and u what that lost: the error of p is its own |log p| times
/// 2^-22 (float). One read, one write; out may be x.
template <class V, class T, class U>
void gradient_row(const T* x, U* out, index_t n, double temperature, const RowGradient& of) {
  using S = math::scalar_t<V>;
  using math::fma, math::mul;
  if (math::not_finite(of.logsumexp)) return fill_row(out, n, math::nan());
  const double z_of_x = 1 / temperature;
  const S inverse = static_cast<S>(z_of_x), center = static_cast<S>(mul(of.logsumexp, temperature));
  const double u = mul(static_cast<double>(center), z_of_x) - of.logsumexp;
  // Before x may be overwritten.
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
