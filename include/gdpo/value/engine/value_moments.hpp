#pragma once
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/loss/engine/rows.hpp>
#include <gdpo/stats/moments.hpp>
#include <gdpo/value/engine/value_mask.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Sums over the valid tokens of a row from which the moments of two quantities come: of the
/// returns R, and of the residuals R - v. In double, with d = x - center of each,
///
///     mean = center + sum d / n,   m2 = sum d^2 - (sum d)^2 / n
///
/// The loops over the terms have the sums of v and of v - R already, so centers near the means are
/// known before this pass. Where one was not near enough, the pass is run again about the mean that
/// it has given. Hosts and devices both do so.
struct CentredSums {
  static constexpr int quantities = 2;
  double center[quantities] = {};
  double rest[quantities] = {}, square[quantities] = {};
  double low[quantities] = {math::infinity, math::infinity};
  double high[quantities] = {-math::infinity, -math::infinity};

  /// About the means of n tokens as the sums of v and v - R give them.
  GDPO_INLINE static CentredSums about(double value, double error, index_t n) {
    const double tokens = static_cast<double>(n);
    return about((value - error) / tokens, -error / tokens);
  }
  /// About two centers; one that is not finite is replaced by 0.
  GDPO_INLINE static CentredSums about(double of_returns, double of_residuals) {
    CentredSums s;
    s.center[0] = math::not_finite(of_returns) ? 0.0 : of_returns;
    s.center[1] = math::not_finite(of_residuals) ? 0.0 : of_residuals;
    return s;
  }
  /// The same quantities about the means that these sums give.
  GDPO_INLINE CentredSums about_means(index_t n) const {
    return about(moments(0, n).mean, moments(1, n).mean);
  }
  /// Adds the sums of other tokens about the same centers.
  GDPO_INLINE void add(const CentredSums& o) {
    for (int q = 0; q < quantities; ++q) {
      rest[q] += o.rest[q], square[q] += o.square[q];
      low[q] = (math::min)(low[q], o.low[q]), high[q] = (math::max)(high[q], o.high[q]);
    }
  }

  /// Whether (sum d)^2 / n is at most half of sum d^2, for both, so that their difference m2 loses
  /// one bit at the most.
  GDPO_INLINE bool near_enough(index_t n) const {
    for (int q = 0; q < quantities; ++q) {
      const double lost = math::mul(rest[q], rest[q] / static_cast<double>(n));
      if (low[q] != high[q] && lost > math::mul(0.5, square[q])) return false;
    }
    return true;
  }
  GDPO_INLINE Moments moments(int q, index_t n) const {
    Moments m;
    m.weight = static_cast<double>(n);
    if (math::is_nan(rest[q])) {
      m.mean = m.mean_low = m.m2 = m.min = m.max = math::nan();
    } else if (low[q] == high[q]) {
      m.mean = m.min = m.max = low[q];
    } else {
      m = moments_of_sums(m.weight, rest[q], square[q], center[q]);
      m.min = low[q], m.max = high[q];
    }
    m.n = n;
    return m;
  }
};

/// Computes the CentredSums of a row on the host. V is double or lanes of it.
///
/// Order of summation: token t of the row goes to lane t mod 16, and the lanes are added as a tree.
template <class V, class S>
class RowMoments {
 public:
  /// `value` and `error` are the sums of v and of v - R over the n valid tokens; n > 0.
  static CentredSums of(const TokenRow<S>& row, index_t n, double value, double error) {
    CentredSums sums = CentredSums::about(value, error, n);
    run(row, sums);
    if (sums.near_enough(n)) return sums;
    sums = sums.about_means(n);
    run(row, sums);
    return sums;
  }

 private:
  using L = math::Lanes<V>;
  static constexpr int lanes = math::logical_lanes;
  static constexpr int registers = lanes / L::width;  // V for the 16 lanes
  static constexpr int quantities = CentredSums::quantities;

  /// The sums in one register.
  struct Register {
    V rest[quantities]{}, square[quantities]{}, low[quantities], high[quantities];
  };

  static void run(const TokenRow<S>& row, CentredSums& sums) {
    // The first valid token takes the place of masked ones, which changes no range.
    index_t first = 0;
    while (!row.valid(first)) ++first;
    const S stand_in[2] = {row.logp[first], row.advantages[first]};
    const index_t left = row.length % lanes, whole = row.length - left;
    S values[lanes], targets[lanes];
    unsigned char mask[lanes];
    for (index_t j = 0; j < lanes; ++j) {
      const bool valid = j < left && row.valid(whole + j);
      values[j] = valid ? row.logp[whole + j] : stand_in[0];
      targets[j] = valid ? row.advantages[whole + j] : stand_in[1];
      mask[j] = valid;
    }
    Register all[registers];
    for (int k = 0; k < registers; ++k) {
      Register& r = all[k];
      for (int q = 0; q < quantities; ++q) {
        r.low[q] = math::constant<V>(math::infinity);
        r.high[q] = math::constant<V>(-math::infinity);
      }
      // Register by register: the sums of one fit into the registers of the processor.
      const index_t lane = k * L::width;
      row.mask ? add<true>(row.logp, row.advantages, row.mask, lane, whole, stand_in, sums, r)
               : add<false>(row.logp, row.advantages, nullptr, lane, whole, stand_in, sums, r);
      if (left > 0) add<true>(values, targets, mask, lane, lanes, stand_in, sums, r);
    }
    for (int q = 0; q < quantities; ++q) {
      sums.rest[q] = math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return all[k].rest[q]; });
      sums.square[q] =
          math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return all[k].square[q]; });
      double low[L::width], high[L::width];
      for (const Register& r : all) {
        L::store(low, r.low[q]), L::store(high, r.high[q]);
        for (int j = 0; j < L::width; ++j) {
          sums.low[q] = (math::min)(sums.low[q], low[j]) + 0.0;  // 0 instead of -0
          sums.high[q] = (math::max)(sums.high[q], high[j]) + 0.0;
        }
      }
    }
  }

  /// Adds the tokens lane, lane + 16, ... below `end`, each the first of a register.
  template <bool Masked>
  GDPO_NOINLINE static void add(const S* values, const S* targets, const unsigned char* mask,
                                index_t lane, index_t end, const S* stand_in,
                                const CentredSums& sums, Register& to) {
    using math::constant, math::mul, math::select;
    const V zero = constant<V>(0.0);
    const V center[quantities] = {constant<V>(sums.center[0]), constant<V>(sums.center[1])};
    const V of_value = constant<V>(static_cast<double>(stand_in[0])),
            of_target = constant<V>(static_cast<double>(stand_in[1]));
    Register r = to;
    for (index_t t = lane; t < end; t += lanes) {
      V value = L::load(values + t), target = L::load(targets + t);
      auto valid = L::all_lanes();
      if constexpr (Masked) {
        valid = run_mask<V>(mask + t);
        value = select(valid, value, of_value), target = select(valid, target, of_target);
      }
      const V of[quantities] = {target, target - value};
      for (int q = 0; q < quantities; ++q) {
        V d = of[q] - center[q];
        if constexpr (Masked) d = select(valid, d, zero);
        r.rest[q] = r.rest[q] + d, r.square[q] = r.square[q] + mul(d, d);
        r.low[q] = (math::min)(r.low[q], of[q]), r.high[q] = (math::max)(r.high[q], of[q]);
      }
    }
    to = r;
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
