#pragma once
// TopEntropy: a pre-pass that keeps the tokens of high entropy.
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Keeps only the tokens of high entropy, the forking tokens of arXiv 2506.01939.
///
/// A token is kept if its entropy is at least the threshold: the `quantile` of the entropies of all
/// valid tokens of the batch, with linear interpolation as in torch.quantile. TRL's and ms-swift's
/// top_entropy_quantile is 1 - quantile. A token whose entropy is NaN is dropped and does not count
/// for the quantile. Without any entropy the threshold is infinite.
///
/// Needs `entropies`. The quantile takes time linear in the number of tokens on average.
struct TopEntropy {
  double quantile = 0.8;  ///< 0 to 1. 0.8 keeps the upper fifth.
  /// Threshold in nats that replaces the batch's own, for instance that of the whole step.
  /// Infinity: the batch's own.
  double threshold = math::infinity;
  Reach reach = Reach::Surrogate;  ///< What the decision acts on.

  template <class S>
  EntropyThreshold operator()(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    const double limit = threshold == math::infinity ? quantile_of(rows) : threshold;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      need(row.entropies != nullptr || row.length == 0);
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        args.weights_of(i)[t] = weight_of(static_cast<double>(row.entropies[t]), limit);
      }
    }
    return {limit};
  }
  /// The weight of a token.
  GDPO_INLINE static double weight_of(double entropy, double limit) {
    return !math::is_nan(entropy) && entropy >= limit ? 1.0 : 0.0;
  }
  /// Where the threshold is among n > 0 entropies in their order, from 0; between two of them, as a
  /// rule.
  GDPO_INLINE double place_of(double n) const { return math::mul(quantile, n - 1); }
  /// The threshold between two entropies that follow each other.
  GDPO_INLINE static double between(double low, double high, double fraction) {
    return low + math::mul(high - low, fraction);
  }
  /// Throws unless the batch has entropies.
  static void need(bool has_entropies) {
    if (!has_entropies)
      contract::fail("gdpo::prepare", "batch.entropies", "no array",
                     "the entropy of each token, because of prepass::TopEntropy");
  }
  static constexpr const char* name = "top_entropy";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("quantile", s.quantile, at_least(0).at_most(1), "0.8 keeps the upper fifth");
    field("threshold", s.threshold,
          anything().with_note("nats, or infinity: the batch's own quantile"),
          "nats, in place of the quantile of the batch");
    field("reach", s.reach, "what the decision acts on");
  }
  /// Throws for Reach::Level.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_level(reach, function, path);
  }

 private:
  /// The quantile of the batch; infinite where no valid token has an entropy.
  template <class S>
  double quantile_of(const PrepassRows<S>& rows) const {
    std::vector<double>& values = rows.scratch();
    values.clear();
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      need(row.entropies != nullptr || row.length == 0);
      for (index_t t = 0; t < row.length; ++t) {
        if (row.valid(t) && !math::is_nan(row.entropies[t]))
          values.push_back(static_cast<double>(row.entropies[t]));
      }
    }
    if (values.empty()) return math::infinity;
    const double place = place_of(static_cast<double>(values.size()));
    const auto below = static_cast<std::ptrdiff_t>(place);
    std::nth_element(values.begin(), values.begin() + below, values.end());
    const double low = values[static_cast<std::size_t>(below)];
    const auto above = values.begin() + below + 1;
    const double fraction = place - static_cast<double>(below);
    if (above == values.end() || fraction <= 0) return low;
    return between(low, *std::min_element(above, values.end()), fraction);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
