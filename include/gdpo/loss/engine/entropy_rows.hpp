#pragma once
// The entropy bonus of rows on the host: their sums and the gradient by the entropies.
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/loss/entropy.hpp>
#include <gdpo/tokens/row_driver.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Computes what an EntropyBonus adds to the loss, row by row.
template <class S>
class EntropyRows {
 public:
  EntropyRows() = default;
  EntropyRows(const EntropyBonus& bonus, const Normalizer& normalizer, const TokenOut<S>& gradient)
      : bonus_(bonus), normalizer_(&normalizer), gradient_(&gradient) {}

  /// Whether there is anything to compute or to write.
  bool on() const { return normalizer_ && (bonus_.coef != 0 || *gradient_); }

  /// Returns the part of the loss, and writes the gradient of the row. `counts`: the weight of the
  /// row is W_i; else W_i is 0. `bad` counts weights of tokens that are not finite.
  GDPO_NOINLINE double row(const RowSpan& span, const WeighedRow<S>& weighed, bool counts,
                           const Column& row_weights, NonFinite& bad) const {
    const TokenRow<S>& row = weighed.row;
    const double given = row_weights ? row_weights(span.row) : 1.0;
    const double scale = weighed.tokens > 0
                             ? bonus_.row_scale(counts ? weighed.weight : 0.0, given, *normalizer_)
                             : 0.0;
    const View<S, 1> out =
        *gradient_ ? gradient_->row(span.row, span.begin, span.length) : View<S, 1>{};
    if (!row.entropy_weights) {
      if (out) fill(out, row, entropy_slope(scale, 1.0));
      return scale == 0 ? 0.0 : math::mul(-scale, sum_of(row));
    }
    double lanes[math::logical_lanes] = {};
    for (index_t t = 0; t < span.length; ++t) {
      double weight = row.valid(t) && scale != 0 ? 1.0 : 0.0;
      if (weight != 0) {
        const auto stored = static_cast<double>(row.entropy_weights[t]);
        if (math::not_finite(stored)) note(bad, span.row, t);
        weight = entropy_weight(stored);
      }
      if (out) out(t) = static_cast<S>(entropy_slope(scale, weight));
      if (weight != 0) {
        double& lane = lanes[t % math::logical_lanes];
        lane += math::mul(weight, static_cast<double>(row.entropies[t]));
      }
    }
    const double sum = tree_sum(math::Pack<math::logical_lanes>::load(lanes));
    return scale == 0 ? 0.0 : math::mul(-scale, sum);
  }

 private:
  /// Writes the slope at each valid token, 0 at the others.
  static void fill(const View<S, 1>& out, const TokenRow<S>& row, double slope) {
    for (index_t t = 0; t < row.length; ++t) out(t) = row.valid(t) ? static_cast<S>(slope) : S(0);
  }
  /// The sum of the entropies of the valid tokens: in 16 lanes, which are added as a tree.
  static double sum_of(const TokenRow<S>& row) {
    using V = math::Native<double>;
    using L = math::Lanes<V>;
    constexpr int registers = math::logical_lanes / L::width;
    V sums[registers]{};
    const index_t whole = row.length - row.length % math::logical_lanes;
    for (index_t t = 0; t < whole; t += math::logical_lanes) {
      for (int k = 0; k < registers; ++k) {
        const index_t token = t + k * L::width;
        const auto valid = row.mask ? L::load_mask(row.mask + token) : L::all_lanes();
        sums[k] =
            sums[k] + math::select(valid, L::load(row.entropies + token), math::constant<V>(0.0));
      }
    }
    double lanes[math::logical_lanes];
    for (int k = 0; k < registers; ++k) L::store(lanes + k * L::width, sums[k]);
    for (index_t t = whole; t < row.length; ++t)
      if (row.valid(t)) lanes[t - whole] += static_cast<double>(row.entropies[t]);
    return tree_sum(math::Pack<math::logical_lanes>::load(lanes));
  }

  EntropyBonus bonus_;
  const Normalizer* normalizer_ = nullptr;
  const TokenOut<S>* gradient_ = nullptr;
};

}  // namespace detail
GDPO_END_NAMESPACE
