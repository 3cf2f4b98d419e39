#pragma once
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Only tokens whose entropy is at least the `quantile` of the batch's valid tokens (linear interpolation, as torch.quantile)
/// keep their weight: the forking tokens of arXiv 2506.01939. TRL and ms-swift top_entropy_quantile = 1 - quantile. A finite
/// `threshold`, from the whole step or another rank, replaces the batch's own. NaN entropies are no tokens of the quantile and
/// are dropped. Needs batch.entropies (nats).
struct TopEntropy {
  double quantile = 0.8;
  double threshold = math::infinity;
  Reach reach = Reach::Surrogate;

  template <class S>
  EntropyThreshold operator()(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    const double limit = threshold == math::infinity ? quantile_of(rows) : threshold;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      need(row.entropies != nullptr || row.length == 0);
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        const double entropy = static_cast<double>(row.entropies[t]);
        args.weights_of(i)[t] = !math::is_nan(entropy) && entropy >= limit ? 1.0 : 0.0;
      }
    }
    return {limit};
  }
  void check(const char* function) const {
    if (!(quantile >= 0 && quantile <= 1)) {
      contract::fail(function, "prepass::TopEntropy::quantile", contract::text(quantile), "0 to 1");
    }
    if (math::is_nan(threshold))
      contract::fail(function, "prepass::TopEntropy::threshold", "NaN",
                     "nats, or infinity: the batch's own quantile");
  }

 private:
  static void need(bool has_entropies) {
    if (!has_entropies)
      contract::fail("gdpo::prepare", "batch.entropies", "no array",
                     "the entropy of each token, because of prepass::TopEntropy");
  }
  /// Infinite where there are no tokens.
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
    const double place = math::mul(quantile, static_cast<double>(values.size() - 1));
    const auto below = static_cast<std::ptrdiff_t>(place);
    std::nth_element(values.begin(), values.begin() + below, values.end());
    const double low = values[static_cast<std::size_t>(below)];
    const auto above = values.begin() + below + 1;
    const double fraction = place - static_cast<double>(below);
    if (above == values.end() || fraction <= 0) return low;
    return low + math::mul(*std::min_element(above, values.end()) - low, fraction);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
