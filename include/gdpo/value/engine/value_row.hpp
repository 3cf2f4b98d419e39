#pragma once
// The value loss of one row on the host: the loops over its tokens, and what it adds to the tally.
#include <gdpo/lanes/few.hpp>
#include <gdpo/tokens/row_driver.hpp>
#include <gdpo/value/engine/value_mask.hpp>
#include <gdpo/value/engine/value_moments.hpp>
#include <gdpo/value/shared/check_value_loss.hpp>
#include <gdpo/value/shared/value_tally.hpp>
#include <gdpo/value/shared/value_term.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Computes the value loss of one row on the host, as RowDriver runs it: the loops over tokens. V
/// is S or lanes of S.
///
/// Order of summation, as in RowLoss: a row is cut into blocks of 1024 tokens, the last of them
/// shorter. Token t of a block goes to lane t mod 16, which adds at most 64 tokens in S. The 16
/// lanes are then added in double as a tree, and the sums of the blocks in their order. So the bits
/// do not depend on the width of V.
template <class Exec, class S, class Loss>
class RowValueLoss {
  template <class T>
  using LanesOf = std::conditional_t<std::is_same_v<Exec, Seq>, T, math::Native<T>>;
  using V = LanesOf<S>;
  using Metrics = std::remove_const_t<decltype(Loss::metrics)>;

 public:
  using L = math::Lanes<V>;
  static constexpr bool needs_scratch = false;

  RowValueLoss(const Loss& loss, const TokenBatch<S>&, ValueTally& tally)
      : formula_{loss.clip, loss.half, loss.delta}, clips_(clips<S>(loss.clip)), tally_(tally) {
    for (int q = 0; q < value_quantities; ++q) {
      low_[q] = math::constant<V>(math::infinity), high_[q] = math::constant<V>(-math::infinity);
    }
  }
  ~RowValueLoss() {
    if constexpr (Metrics::everything) {
      S low[L::width], high[L::width];
      for (int q = 0; q < value_quantities; ++q) {
        L::store(low, low_[q]), L::store(high, high_[q]);
        for (int j = 0; j < L::width; ++j)
          tally_.add_range(q, static_cast<double>(low[j]), static_cast<double>(high[j]));
      }
    }
  }
  RowValueLoss(const RowValueLoss&) = delete;
  RowValueLoss& operator=(const RowValueLoss&) = delete;

  NonFinite& bad_weights() { return tally_.metrics.non_finite.weights; }

  /// Computes one row. Without `gradient` it is not wanted; else every position of it is written,
  /// with exactly 0 where the mask is 0. Returns the sums of the row, not yet multiplied by its
  /// weight.
  ValueSums operator()(const WeighedRow<S>& weighed, S* gradient, RowMemory<S>&) {
    const TokenRow<S>& row = weighed.row;
    const double weight = weighed.weight;
    ValueSums sums;
    for (index_t begin = 0; begin < row.length; begin += block) {
      const index_t end = (std::min)(begin + block, row.length);
      Sums lanes[registers]{};
      const auto add = [&](const Tokens& tokens, index_t first, index_t last) {
        if (tokens.mask) {
          clips_ ? loop<true, true>(tokens, first, last, weight, lanes)
                 : loop<true, false>(tokens, first, last, weight, lanes);
        } else {
          clips_ ? loop<false, true>(tokens, first, last, weight, lanes)
                 : loop<false, false>(tokens, first, last, weight, lanes);
        }
      };
      const index_t whole = end - (end - begin) % math::logical_lanes;
      if (begin < whole) add({ValueRow<S>(row), row.mask, gradient}, begin, whole);
      if (whole < end) {
        const LastTokens last(row, gradient, whole, end - whole, clips_);
        add(last.tokens, 0, math::logical_lanes);
        if (gradient) math::copy_few(gradient + whole, last.gradient, end - whole);
      }
      const double error = total_of(lanes, &Sums::error), loss = total_of(lanes, &Sums::loss);
      const double inputs = clips_ ? total_of(lanes, &Sums::old_value) : 0.0;
      sums.sum[value_of_loss] += loss, sums.sum[value_of_error] += error;
      if constexpr (Metrics::means) {
        sums.sum[value_of_value] += total_of(lanes, &Sums::value);
        for (const Sums& one : lanes) sums.clipped += static_cast<double>(one.clipped.total());
      }
      if (math::not_finite(error) || math::not_finite(inputs))
        scan_non_finite(row, begin, end, gradient, sums);
    }
    return sums;
  }
  /// Adds the loss and the metrics of a row.
  void add(const RowSpan&, const WeighedRow<S>& weighed, const ValueSums& sums, RowMemory<S>&) {
    const index_t tokens = weighed.tokens;
    if (weighed.counts()) tally_.loss += math::mul(weighed.weight, sums.sum[value_of_loss]);
    tally_.add_row(tokens);
    if constexpr (Metrics::means) {
      for (int q = 0; q < value_quantities; ++q) tally_.add_quantity(q, sums, tokens);
      tally_.add_clipped(sums, tokens);
      if (tokens == 0) return;
      const CenteredSums centered = RowMoments<LanesOf<double>, S>::of(
          weighed.row, tokens, sums.sum[value_of_value], sums.sum[value_of_error]);
      ValueMetrics& m = tally_.metrics;
      m.returns = merge(m.returns, centered.moments(0, tokens));
      m.residuals = merge(m.residuals, centered.moments(1, tokens));
    }
  }

 private:
  using Mask = mask_t<V>;
  static constexpr int registers = math::logical_lanes / L::width;  // V for the 16 lanes
  static constexpr index_t block = 1024;                            // tokens

  /// The sums of one register. `error` and `old_value` are not finite if an input is not.
  struct Sums {
    V loss{}, value{}, error{}, old_value{};
    typename L::Count clipped;
  };
  using SumOf = V Sums::*;

  /// What a loop reads and writes. Without a gradient it is null.
  struct Tokens {
    ValueRow<S> row;
    const unsigned char* mask;
    S* gradient;
  };
  /// A copy of the last tokens of a row, which do not fill all lanes, with masked ones behind them.
  struct LastTokens {
    static constexpr int lanes = math::logical_lanes;
    S values[lanes], old_values[lanes], returns[lanes];
    mutable S gradient[lanes];
    unsigned char mask[lanes];
    Tokens tokens;

    LastTokens(const TokenRow<S>& from, S* to, index_t begin, index_t n, bool clips)
        : tokens{ValueRow<S>(from), mask, to ? gradient : nullptr} {
      ValueRow<S>& row = tokens.row;
      math::copy_padded(values, row.values + begin, n);
      math::copy_padded(returns, row.returns + begin, n);
      if (clips) math::copy_padded(old_values, row.old_values + begin, n);
      math::copy_padded(mask, from.mask ? from.mask + begin : math::all_ones, n);
      row.values = values, row.old_values = old_values, row.returns = returns;
    }
    LastTokens(const LastTokens&) = delete;
    LastTokens& operator=(const LastTokens&) = delete;
  };
  GDPO_NOINLINE static double total_of(const Sums (&sums)[registers], SumOf member) {
    return math::sum_lanes<V>([&](int k) GDPO_INLINE_LAMBDA { return sums[k].*member; });
  }

  template <bool Masked, bool Clips>
  GDPO_NOINLINE void loop(const Tokens& tokens, index_t begin, index_t end, double weight,
                          Sums* sums) {
    // The loop reads copies, so that the compiler keeps what is the same for all tokens in
    // registers.
    const ValueFormula formula = formula_;
    const ValueRow<S> row = tokens.row;
    const unsigned char* const mask = tokens.mask;
    S* const gradient = tokens.gradient;
    const V w = math::constant<V>(weight), zero = math::constant<V>(0.0);
    V low[value_quantities], high[value_quantities];
    Sums local[registers];
    for (int k = 0; k < registers; ++k) local[k] = sums[k];
    for (int q = 0; q < value_quantities; ++q) low[q] = low_[q], high[q] = high_[q];
    for (index_t t = begin; t < end; t += math::logical_lanes) {
      for (int k = 0; k < registers; ++k) {
        const index_t first = t + k * L::width;
        Mask valid = L::all_lanes();
        if constexpr (Masked) valid = run_mask<V>(mask + first);
        const auto where_valid = [&](const V& x) GDPO_INLINE_LAMBDA {
          if constexpr (Masked) return V(math::select(valid, x, zero));
          return x;
        };
        const V value = L::load(row.values + first);
        V old_value = zero;
        if constexpr (Clips) old_value = L::load(row.old_values + first);
        const ValueTerm<V> term =
            formula.template operator()<Clips, V>(value, old_value, L::load(row.returns + first));
        Sums& s = local[k];
        s.loss = s.loss + where_valid(term.loss), s.error = s.error + where_valid(term.error);
        if constexpr (Clips) s.old_value = s.old_value + where_valid(old_value);
        if constexpr (Metrics::means) {
          s.value = s.value + where_valid(value);
          if constexpr (Clips) s.clipped.add(math::both(valid, term.clipped));
        }
        if constexpr (Metrics::everything) {
          const V quantity[value_quantities] = {term.loss, value, term.error};
          for (int q = 0; q < value_quantities; ++q) {
            V least = quantity[q], most = quantity[q];
            if constexpr (Masked) {
              least = math::select(valid, least, math::constant<V>(math::infinity));
              most = math::select(valid, most, math::constant<V>(-math::infinity));
            }
            low[q] = (math::min)(low[q], least), high[q] = (math::max)(high[q], most);
          }
        }
        if (gradient) L::store(gradient + first, where_valid(math::mul(w, term.slope)));
      }
    }
    for (int k = 0; k < registers; ++k) sums[k] = local[k];
    for (int q = 0; q < value_quantities; ++q) low_[q] = low[q], high_[q] = high[q];
  }

  /// Looks one by one at the tokens of a block in which some input is not finite. It counts such
  /// inputs, and writes NaN where the loops may have lost one: under -ffast-math a comparison with
  /// NaN may come out either way.
  GDPO_COLD void scan_non_finite(const TokenRow<S>& row, index_t begin, index_t end, S* gradient,
                                 ValueSums& sums) {
    ValueNonFinite& counters = tally_.metrics.non_finite;
    const ValueRow<S> arrays(row);
    for (index_t t = begin; t < end; ++t) {
      if (!row.valid(t)) continue;
      const S value = arrays.values[t], target = arrays.returns[t];
      const S old_value = clips_ ? arrays.old_values[t] : S(0);
      if (math::not_finite(value)) note(counters.values, row.row, t);
      if (math::not_finite(target)) note(counters.returns, row.row, t);
      if (math::not_finite(old_value)) note(counters.old_values, row.row, t);
      if (!math::is_nan(static_cast<S>(value - target)) && !math::is_nan(old_value)) continue;
      sums.sum[value_of_loss] = math::nan();
      if (gradient) gradient[t] = math::nan<S>();
    }
  }

  const ValueFormula formula_;
  const bool clips_;
  ValueTally& tally_;
  V low_[value_quantities], high_[value_quantities];
};

}  // namespace detail
GDPO_END_NAMESPACE
