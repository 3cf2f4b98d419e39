#pragma once
// The moments of the returns and residuals of a row, on the host.
#include <gdpo/lanes/few.hpp>
#include <gdpo/value/engine/value_mask.hpp>
#include <gdpo/value/shared/centered_sums.hpp>
#include <gdpo/value/shared/check_value_loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Computes the CenteredSums of a row on the host. V is double or lanes of it.
///
/// Order of summation: token t of the row goes to lane t mod 16, and the lanes are added as a tree.
template <class V, class S>
class RowMoments {
 public:
  /// `value` and `error` are the sums of v and of v - R over the n valid tokens; n > 0.
  static CenteredSums of(const TokenRow<S>& row, index_t n, double value, double error) {
    CenteredSums sums = CenteredSums::about(value, error, n);
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
  static constexpr int quantities = CenteredSums::quantities;

  /// The sums in one register.
  struct Register {
    V rest[quantities]{}, square[quantities]{}, low[quantities], high[quantities];
  };

  static void run(const TokenRow<S>& row, CenteredSums& sums) {
    // The first valid token takes the place of masked ones, which changes no range.
    index_t first = 0;
    while (!row.valid(first)) ++first;
    const ValueRow<S> arrays(row);
    const S stand_in[2] = {arrays.values[first], arrays.returns[first]};
    const index_t left = row.length % lanes, whole = row.length - left;
    S values[lanes], targets[lanes];
    unsigned char mask[lanes];
    if (left > 0) {
      math::copy_padded(values, arrays.values + whole, left);
      math::copy_padded(targets, arrays.returns + whole, left);
      math::copy_padded(mask, row.mask ? row.mask + whole : math::all_ones, left);
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
      row.mask ? add<true>(arrays.values, arrays.returns, row.mask, lane, whole, stand_in, sums, r)
               : add<false>(arrays.values, arrays.returns, nullptr, lane, whole, stand_in, sums, r);
      if (lane < left) add<true>(values, targets, mask, lane, lanes, stand_in, sums, r);
    }
    for (int q = 0; q < quantities; ++q) {
      sums.rest[q] = math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return all[k].rest[q]; });
      sums.square[q] =
          math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return all[k].square[q]; });
      V low = all[0].low[q], high = all[0].high[q];
      for (const Register& r : all)
        low = (math::min)(low, r.low[q]), high = (math::max)(high, r.high[q]);
      sums.low[q] = least(low) + 0.0, sums.high[q] = -least(-high) + 0.0;  // 0 instead of -0
    }
  }

  static GDPO_INLINE double least(const V& x) {
    if constexpr (L::width == 1) {
      return x;
    } else {
      return math::tree_min(x);
    }
  }

  /// Adds the tokens lane, lane + 16, ... below `end`, each the first of a register.
  template <bool Masked>
  GDPO_NOINLINE static void add(const S* values, const S* targets, const unsigned char* mask,
                                index_t lane, index_t end, const S* stand_in,
                                const CenteredSums& sums, Register& total) {
    using math::constant, math::mul, math::select;
    const V zero = constant<V>(0.0);
    const V center[quantities] = {constant<V>(sums.center[0]), constant<V>(sums.center[1])};
    const V of_value = constant<V>(static_cast<double>(stand_in[0])),
            of_target = constant<V>(static_cast<double>(stand_in[1]));
    Register r = total;
    for (index_t t = lane; t < end; t += lanes) {
      V value = L::load(values + t), target = L::load(targets + t);
      auto valid = L::all_lanes();
      if constexpr (Masked) {
        valid = run_mask<V>(mask + t);
        value = select(valid, value, of_value), target = select(valid, target, of_target);
      }
      const V quantity[quantities] = {target, target - value};
      for (int q = 0; q < quantities; ++q) {
        V d = quantity[q] - center[q];
        if constexpr (Masked) d = select(valid, d, zero);
        r.rest[q] = r.rest[q] + d, r.square[q] = r.square[q] + mul(d, d);
        r.low[q] = (math::min)(r.low[q], quantity[q]),
        r.high[q] = (math::max)(r.high[q], quantity[q]);
      }
    }
    total = r;
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
