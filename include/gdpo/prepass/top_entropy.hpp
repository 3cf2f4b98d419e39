#pragma once
// TopEntropy: a pre-pass that keeps the tokens of high entropy.
#include <gdpo/prepass/engine/pick.hpp>

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
    return {detail::write_by_rows(*this, args).number};
  }
  /// Whether begin() reads the tokens of the batch.
  bool reads_batch() const { return threshold == math::infinity; }
  /// Finds the threshold.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision& of_batch) const {
    if (!rows.empty()) need(bool(rows.batch().entropies));
    of_batch.number = reads_batch() ? quantile_of<V>(rows) : threshold;
    of_batch.is_threshold = true;
  }
  /// The weights of n rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision& of_batch, const TokenRow<S>* rows, int n,
                  double* const* w, detail::RowWeights* weights) const {
    detail::each_row(n, w, weights, [&](int r) {
      detail::write_lanes<V>(rows[r], 1, w[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        return weight_of(L(math::Lanes<L>::load(rows[r].entropies + t)),
                         math::constant<L>(of_batch.number));
      });
    });
  }
  /// The weight of a token.
  template <class V>
  GDPO_INLINE static V weight_of(const V& entropy, const V& limit) {
    const V zero = math::constant<V>(0.0);
    return math::select(math::is_nan(entropy), zero,
                        math::select(entropy >= limit, math::constant<V>(1.0), zero));
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
  template <class V, class S>
  double quantile_of(const PrepassRows<S>& rows) const {
    const auto entropies = [&rows](const auto& visit) {
      for (index_t i = 0; i < rows.size(); ++i) {
        const TokenRow<S> row = rows(i);
        visit(row.entropies, row.mask, row.length);
      }
    };
    detail::Ranking<V, S, decltype(entropies)> ranking(entropies, rows);
    if (ranking.size() == 0) return math::infinity;
    const double place = place_of(static_cast<double>(ranking.size()));
    const auto below = static_cast<index_t>(place);
    const detail::Ranked at = ranking.at(below);
    const double fraction = place - static_cast<double>(below);
    if (below + 1 >= ranking.size() || fraction <= 0) return at.value;
    return between(at.value, at.next, fraction);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
