#pragma once
// SecondMoment: a pre-pass that drops the tokens on which sampler and trainer differ most (M2PO).
#include <gdpo/prepass/engine/pick.hpp>
#include <gdpo/prepass/pair.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Drops the tokens with the largest (rollout - old)^2 until the mean of the rest is below a
/// threshold.
///
///     m = (rollout_logp - old)^2, in nats^2, at each valid token of the batch
///     weight = 1 on the largest set of tokens with the smallest m whose mean m < threshold, else 0
///
/// `old` is old_logp, or logp where the batch has none. At least one token stays, the one with the
/// smallest m, even where its m is not below the threshold. The mean is a sum from the smallest m
/// upward, in double. Of equal m, the first in the batch (row by row) stays longest, so the order
/// of the rows matters for these alone.
///
/// A token whose m is NaN is dropped and is in no mean; with `missing` NoDifference m is 0 where
/// rollout_logp is NaN. An infinite m is the largest. If no m is a number, every token is dropped.
///
/// M2PO, arXiv 2510.01161, whose threshold is 0.04; AReaL _apply_m2po_masking (m2_threshold). With
/// Reach::Mask, the default, the dropped tokens leave the counts too, as there.
///
/// The batch is what one call of prepare() is given: in micro-batches each has its own set.
///
/// Needs `rollout_logp`. It sorts: n log n in the number of tokens.
struct SecondMoment {
  double threshold = 0.04;    ///< In nats^2, more than 0; infinity: off.
  Reach reach = Reach::Mask;  ///< What the dropped tokens are left out of.
  /// What a NaN in rollout_logp means.
  MissingRollout missing = MissingRollout::Drop;

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    using V = math::Native<double>;
    const PrepassRows<S>& rows = args.rows;
    const TokenBatch<S>& b = rows.batch();
    if (!rows.empty()) {
      detail::need_pair(Pair::Mismatch, bool(b.logp), bool(b.old_logp), bool(b.rollout_logp),
                        "prepass::SecondMoment");
    }
    // The sum in the order of the tokens, of those that count.
    double sum = 0, n = 0;
    detail::sum_batch_rows(
        rows,
        [&](const TokenRow<S>& row, double* numbers) {
          const auto difference = detail::pair_of(Pair::Mismatch, missing, row);
          double* const m = args.weights_of(row.row);
          index_t numbers_of_row = 0;
          detail::write_lanes<V>(row, 0, numbers, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
            using L = typename decltype(lanes)::type;
            const L moment = moment_of(difference.template at<L>(t));
            math::Lanes<L>::store(m + t, L(math::select(detail::valid_lanes<L>(row, t), moment,
                                                        math::constant<L>(1.0))));
            return L(math::select(math::is_nan(moment), math::constant<L>(-1.0), moment));
          });
          for (index_t t = 0; t < row.length; ++t) {
            const bool counts = row.valid(t) && !(numbers[t] < 0);
            numbers_of_row += counts;
            numbers[t] = counts ? numbers[t] : 0.0;
          }
          return numbers_of_row;
        },
        [&](double of_row, index_t numbers) { sum += of_row, n += static_cast<double>(numbers); });
    const double stay = all_stay(sum, n) ? (std::max)(n, 1.0) : stays_of(args);
    detail::pick_smallest<V>(args, static_cast<std::size_t>(stay), 1, 0);
  }
  /// m of a token.
  template <class V>
  GDPO_INLINE static V moment_of(const detail::DifferenceOf<V>& d) {
    return math::mul(d.x, d.x);
  }
  /// Whether the n smallest m stay, whose sum is `sum`.
  GDPO_INLINE bool stays(double sum, double n) const {
    return threshold == math::infinity || sum / n < threshold;
  }
  static constexpr const char* name = "second_moment";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("threshold", s.threshold, more_than(0).or_infinity(),
          "the mean of the squared log ratios stays below it, in nats^2");
    field("reach", s.reach, "what the dropped tokens are left out of");
    field("missing", s.missing, "what a NaN in rollout_logp means");
  }
  /// Throws for Reach::Level.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_level(reach, function, path);
  }

 private:
  /// Whether all n tokens stay, by the sum of their m in any order. As m is never below 0, that is
  /// away from the sum from below by n rounding errors at most.
  bool all_stay(double sum, double n) const {
    constexpr double rounding = 0x1p-52;
    return threshold == math::infinity ||
           sum * (1 + 4 * (n + 1) * rounding) < 0.999999 * threshold * n;
  }
  /// How many tokens stay, whose m the weights are.
  template <class S>
  double stays_of(const PrepassArgs<S>& args) const {
    std::vector<double>& sorted = args.rows.scratch();
    sorted.clear();
    detail::visit_weights(args, [&](const double* m, const unsigned char* mask, index_t length) {
      for (index_t t = 0; t < length; ++t) {
        if ((!mask || mask[t] != 0) && !math::is_nan(m[t])) sorted.push_back(m[t]);
      }
    });
    std::sort(sorted.begin(), sorted.end());
    double sum = 0, n = 0, stay = 1;
    for (const double m : sorted) {
      sum += m, n += 1;
      if (stays(sum, n)) stay = n;
    }
    return stay;
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
