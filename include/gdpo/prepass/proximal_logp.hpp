#pragma once
// proximal_logp: log-probs of the proximal policy, estimated from those of the sampler and of the
// policy being trained.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/prepass/engine/row_lanes.hpp>
#include <gdpo/stats/masked.hpp>

namespace gdpo {
/// How proximal_logp estimates; alpha, the share of the trained policy, is explained there.
enum class ProximalMethod {
  LogLinear,  ///< rollout_logp + alpha (logp - rollout_logp)
  Linear,     ///< log((1 - alpha) e^rollout_logp + alpha e^logp + 1e-10)
  Rollout     ///< rollout_logp
};
/// The enumerators of ProximalMethod with their words, those of AReaL.
GDPO_DATA_INLINE constexpr auto enumerators(ProximalMethod) {
  using E = Enumerator<ProximalMethod>;
  return std::array{E{"loglinear", ProximalMethod::LogLinear}, E{"linear", ProximalMethod::Linear},
                    E{"rollout", ProximalMethod::Rollout}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// proximal_logp of some tokens, in double, written over `logp`; `version` is that of each.
template <class V>
void proximal_logps(double* logp, const double* rollout, const double* version, index_t n,
                    double current, ProximalMethod method) {
  if (method == ProximalMethod::Rollout) {
    std::copy_n(rollout, n, logp);
    return;
  }
  for_each_lanes<V>(n, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
    using L = typename decltype(lanes)::type;
    using math::constant, math::select;
    const L zero = constant<L>(0.0), one = constant<L>(1.0), x = math::Lanes<L>::load(logp + t),
            q = math::Lanes<L>::load(rollout + t), v = math::Lanes<L>::load(version + t);
    const L age = constant<L>(current) - v;
    const L alpha = select(math::either(v < zero, age < one), zero, L((age - one) / age));
    const auto moves = alpha > zero;
    L y;
    if (method == ProximalMethod::LogLinear) {
      y = select(moves, math::fma(alpha, L(x - q), q), q);
    } else {
      const L p = math::mul(L(one - alpha), math::exp_parts(q).exp);
      const L both = select(moves, math::fma(alpha, math::exp_parts(x).exp, p), p);
      const auto is_nan = math::either(math::is_nan(q), math::both(moves, math::is_nan(x)));
      y = select(is_nan, constant<L>(math::nan()), L(both + constant<L>(1e-10)));
    }
    math::Lanes<L>::store(logp + t, y);
  });
  if (method == ProximalMethod::LogLinear) return;
  for (index_t t = 0; t < n; ++t) logp[t] = math::is_nan(logp[t]) ? logp[t] : std::log(logp[t]);
}

/// Some numbers of a row as doubles.
template <class V, class T>
void load_doubles(const View<T, 2>& from, index_t row, index_t first, index_t n, double* to) {
  using Stored = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Stored, float> || std::is_same_v<Stored, double>) {
    if (from.stride[1] == 1) {
      const Stored* const numbers = &from(row, first);
      for_each_lanes<V>(n, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        math::Lanes<L>::store(to + t, L(math::Lanes<L>::load(numbers + t)));
      });
      return;
    }
  }
  for (index_t t = 0; t < n; ++t) {
    if constexpr (std::is_integral_v<Stored>) {
      to[t] = static_cast<double>(from(row, first + t));
    } else {
      to[t] = load(from(row, first + t));
    }
  }
}

}  // namespace detail

/// Estimates old_logp where samples come from several older policies and no pass of the proximal
/// policy was made.
///
///     v = the number of the policy that sampled the token; below 0: no policy did (a prompt)
///     alpha = (current - 1 - v) / (current - v);  0 where v < 0 or v >= current
///
/// The proximal policy is the one before the current update, number current - 1. It is the share
/// alpha of the way from v to `current`, and its log-prob is interpolated by `method`. A token of
/// the last policy, v = current - 1, has alpha 0: its old_logp is rollout_logp.
///
///     const auto old = gdpo::proximal_logp(logp, rollout_logp, versions, step,
///                                          gdpo::ProximalMethod::LogLinear);
///
/// AReaL compute_prox_logp_approximations (prox_logp_method="loglinear").
///
/// Shapes: logp, rollout_logp (nats), versions (integers) and out are views of rank 1 or 2, of one
/// shape and with any strides; out is float or double and may be one of the others. Computed in
/// double and rounded once. A NaN shows at its token and at no other; where alpha is 0, logp is not
/// read. Other shapes throw invalid_input before anything is written. Allocates nothing.
template <class L, class Q, class V, int Rank, class R>
void proximal_logp_into(View<L, Rank> logp, View<Q, Rank> rollout_logp, View<V, Rank> versions,
                        std::int64_t current_version, ProximalMethod method, View<R, Rank> out) {
  constexpr const char* function = "gdpo::proximal_logp";
  static_assert(std::is_integral_v<V>, "versions are integers");
  static_assert(std::is_same_v<R, float> || std::is_same_v<R, double>,
                "log-probs are written as float or double");
  contract::check_array(function, "logp", logp);
  detail::check_shape(function, "rollout_logp", rollout_logp, logp, "logp");
  detail::check_shape(function, "versions", versions, logp, "logp");
  detail::check_shape(function, "out", out, logp, "logp");
  contract::check_apart(function, "out", Rank, out.extent, out.stride);
  const View<L, 2> x = detail::as_table(logp);
  const View<Q, 2> q = detail::as_table(rollout_logp);
  const View<V, 2> v = detail::as_table(versions);
  const View<R, 2> y = detail::as_table(out);
  using Lanes = math::Native<double>;
  constexpr index_t block = 256;
  double logps[block], rollouts[block], numbers[block];
  for (index_t i = 0; i < x.extent[0]; ++i) {
    for (index_t first = 0; first < x.extent[1]; first += block) {
      const index_t n = (std::min)(block, x.extent[1] - first);
      detail::load_doubles<Lanes>(x, i, first, n, logps);
      detail::load_doubles<Lanes>(q, i, first, n, rollouts);
      detail::load_doubles<Lanes>(v, i, first, n, numbers);
      detail::proximal_logps<Lanes>(logps, rollouts, numbers, n,
                                    static_cast<double>(current_version), method);
      for (index_t t = 0; t < n; ++t) y(i, first + t) = static_cast<R>(logps[t]);
    }
  }
}

/// The same in a new array, dense and row by row: of double where logp is, else of float.
template <class L, class Q, class V, int Rank>
auto proximal_logp(View<L, Rank> logp, View<Q, Rank> rollout_logp, View<V, Rank> versions,
                   std::int64_t current_version, ProximalMethod method) {
  using R = std::conditional_t<std::is_same_v<std::remove_const_t<L>, double>, double, float>;
  contract::check_array("gdpo::proximal_logp", "logp", logp);
  const View<L, 2> table = detail::as_table(logp);
  std::vector<R> out(static_cast<std::size_t>(table.extent[0] * table.extent[1]));
  View<R, Rank> to{out.data(), {}, {}};
  index_t stride = 1;
  for (int r = Rank; r-- > 0;) {
    to.extent[r] = logp.extent[r], to.stride[r] = stride;
    stride *= logp.extent[r];
  }
  proximal_logp_into(logp, rollout_logp, versions, current_version, method, to);
  return out;
}

GDPO_END_NAMESPACE
