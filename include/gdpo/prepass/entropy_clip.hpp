#pragma once
// EntropyClip: a pre-pass that drops tokens whose update would lower the entropy most (Clip-B,
// Clip-V).
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/loss/kl.hpp>
#include <gdpo/prepass/engine/exact_lanes.hpp>
#include <gdpo/prepass/engine/pick.hpp>
#include <map>
#include <string>

namespace gdpo {
/// What EntropyClip compares the measure of a token with.
enum class EntropyCenter {
  Batch,  ///< The mean of the measure over the valid tokens of the batch (Clip-B).
  Tags    ///< TokenBatch::tags, its mean over the vocabulary at each token (Clip-V).
};
/// The enumerators of EntropyCenter with their words.
GDPO_DATA_INLINE constexpr auto enumerators(EntropyCenter) {
  using E = Enumerator<EntropyCenter>;
  return std::array{E{"batch", EntropyCenter::Batch}, E{"tags", EntropyCenter::Tags}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Drops the tokens with A < 0 whose update would change the entropy most: outliers of a measure
/// that says how much the probability of a token moves the entropy of its distribution.
///
///     S_t = pi_t (H_t + log pi_t)      H: TokenBatch::entropies, pi = e^logp of `policy`
///     d_t = S_t - c_t                  c: the mean of S over the valid tokens of the batch, or the
///                                      caller's sum_v pi_v S_v of the position (`center`)
///     weight = 0 where A < 0 and d < -mu sd, else 1
///
/// sd is the standard deviation (of a population) of d over the valid tokens of the batch. It is
/// about their mean, also where c is the caller's and the mean of d is not 0. To raise pi_t changes
/// H by about -d_t, so d < 0 with A < 0, which lowers pi_t, lowers the entropy.
///
/// With `max_share` at most max(1, floor(max_share n)) of the n valid tokens are dropped for A < 0:
/// those with the smallest d, of equal d the first in the batch. `zero_advantage` drops tokens with
/// A = 0 by the same bound, and any number of them, as Trinity-RFT's Clip-V does; they have no
/// gradient in a surrogate, but the counts lose them.
///
/// A token whose d is NaN or infinite is not dropped and counts in no mean. If all S are equal,
/// Clip-B drops none. All sums are in double, of each row and then of the rows in their order, so
/// another order of the rows may change the last bit of the bound.
///
///     Clip-B   center = Batch, mu 2.5
///     Clip-V   center = Tags, mu 8.5, max_share 1e-4
///
/// Both are of arXiv 2602.03392; Trinity-RFT ClipBAdvantageFn and ClipVAdvantageFn, whose `necs`
/// are the tags. With Reach::Mask, the default, the dropped tokens leave the counts too, as there.
///
/// The batch is what one call of prepare() is given: in micro-batches each has its own bound. Needs
/// `entropies`, advantages, and the log-probs of `policy`. Time is linear in the number of tokens
/// on average.
struct EntropyClip {
  double mu = 2.5;  ///< Standard deviations below the center, at least 0; infinity: off.
  EntropyCenter center = EntropyCenter::Batch;  ///< What S is compared with.
  double max_share = 1;         ///< Largest share of the valid tokens that is dropped for A < 0.
  bool zero_advantage = false;  ///< Whether tokens with A = 0 are dropped too.
  /// Whose log-probs: Against::Old, old_logp or logp where the batch has none, or Against::Rollout.
  Against policy = Against::Old;
  Reach reach = Reach::Mask;  ///< What the decision acts on.

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    const Spread spread = measure(args);
    const double bound = bound_of(spread);
    index_t zero = 0;
    using V = math::Native<double>;
    for (index_t i = 0; i < args.rows.size(); ++i) {
      const TokenRow<S> row = args.rows(i);
      detail::LaneCount<V> lowest;
      detail::replace_lanes<V>(row, args.weights_of(i),
                               [&](auto lanes, index_t t, const auto& d) GDPO_INLINE_LAMBDA {
                                 using L = typename decltype(lanes)::type;
                                 const L key = key_of(L(d - math::constant<L>(spread.center)),
                                                      bound, detail::advantages_of<L>(row, t));
                                 lowest.add(math::both(detail::valid_lanes<L>(row, t),
                                                       key < math::constant<L>(-largest_finite)));
                                 return key;
                               });
      zero += lowest.total();
    }
    detail::pick_smallest<math::Native<double>>(
        args, static_cast<std::size_t>(zero + picks(spread.n)), 0, 1);
  }

  /// The measure over the valid tokens of a batch.
  struct Spread {
    double n = 0;         ///< Tokens that count.
    double mean = 0;      ///< Of S, or with EntropyCenter::Tags of S minus the tags.
    double variance = 0;  ///< Of the same, of a population.
    double center = 0;    ///< What is subtracted from it: the mean, or 0.
  };
  /// Measures a batch, and writes S, less the tags if they are the center, into the weights of its
  /// valid tokens: NaN for one that does not count.
  template <class S>
  Spread measure(const PrepassArgs<S>& args) const {
    const PrepassRows<S>& rows = args.rows;
    using V = math::Native<double>;
    const TokenBatch<S>& b = rows.batch();
    const bool of_rollout = policy == Against::Rollout;
    if (!rows.empty()) {
      need(rows.has_advantages(), of_rollout ? bool(b.rollout_logp) : b.old_logp || b.logp,
           bool(b.entropies), bool(b.tags));
    }
    Sums all;
    detail::sum_batch_rows(
        rows,
        [&](const TokenRow<S>& row, double* numbers) {
          const S* const logp = of_rollout     ? row.rollout_logp
                                : row.old_logp ? row.old_logp
                                               : row.logp;
          double* const d = args.weights_of(row.row);
          detail::LaneCount<V> counted;
          Sums ends;
          V low = math::constant<V>(math::infinity), high = math::constant<V>(-math::infinity);
          detail::write_lanes<V>(row, 0, numbers, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
            using L = typename decltype(lanes)::type;
            const L zero = math::constant<L>(0.0), nan = math::constant<L>(math::nan());
            const L measured = measure_of(
                L(math::Lanes<L>::load(logp + t)), L(math::Lanes<L>::load(row.entropies + t)),
                center == EntropyCenter::Tags ? L(math::Lanes<L>::load(row.tags + t)) : zero);
            const auto valid = detail::valid_lanes<L>(row, t);
            const L old = math::Lanes<L>::load(d + t);
            math::Lanes<L>::store(d + t,
                                  row.mask ? L(math::select(valid, measured, old)) : measured);
            const L counts = math::select(valid, measured, nan);
            counted.add(math::both(counts >= math::constant<L>(-largest_finite),
                                   counts <= math::constant<L>(largest_finite)));
            if constexpr (std::is_same_v<L, V>) {
              low = (math::min)(low, counts), high = (math::max)(high, counts);
            } else {
              ends.low = (math::min)(ends.low, counts), ends.high = (math::max)(ends.high, counts);
            }
            return L(math::select(math::is_nan(measured), zero, measured));
          });
          all.low = (math::min)(all.low, (math::min)(ends.low, detail::least_of_lanes(low)));
          all.high =
              (math::max)(all.high, (math::max)(ends.high, -detail::least_of_lanes(V(-high))));
          return counted.total();
        },
        [&all](double of_row, index_t n) { all.sum += of_row, all.n += static_cast<double>(n); });
    Spread spread = spread_of(all);
    if (all.n == 0) return spread;
    double squares = 0;
    detail::sum_batch_rows(
        rows,
        [&](const TokenRow<S>& row, double* numbers) {
          const double* const d = args.weights_of(row.row);
          detail::write_lanes<V>(row, 0, numbers, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
            using L = typename decltype(lanes)::type;
            return square_of(L(math::Lanes<L>::load(d + t)), spread);
          });
          return index_t{0};
        },
        [&squares](double of_row, index_t) { squares += of_row; });
    spread.variance = squares / all.n;
    return spread;
  }
  /// Sums of S less the tags over the tokens that count: of a row in the order of its tokens, of
  /// the batch in the order of the rows.
  struct Sums {
    double sum = 0,              ///< Of the numbers.
        n = 0,                   ///< How many there are.
        low = math::infinity,    ///< The smallest; infinity without any.
        high = -math::infinity;  ///< The largest; -infinity without any.
    /// Adds a valid token. NaN does not count.
    GDPO_INLINE void add(double d) {
      if (math::is_nan(d)) return;
      sum += d, n += 1;
      low = (math::min)(low, d), high = (math::max)(high, d);
    }
    /// Adds the next row.
    GDPO_INLINE void merge(const Sums& row) {
      sum += row.sum, n += row.n;
      low = (math::min)(low, row.low), high = (math::max)(high, row.high);
    }
  };
  /// Count, mean and center from the sums of a batch. The variance is 0.
  GDPO_INLINE Spread spread_of(const Sums& all) const {
    Spread spread;
    spread.n = all.n;
    if (all.n == 0) return spread;
    spread.mean = all.low == all.high ? all.low : all.sum / all.n;
    spread.center = center == EntropyCenter::Batch ? spread.mean : 0.0;
    return spread;
  }
  /// The squared distance of a token from the mean; 0 for one that does not count.
  template <class V>
  GDPO_INLINE static V square_of(const V& d, const Spread& spread) {
    const V off = d - math::constant<V>(spread.mean);
    return math::select(math::is_nan(d), math::constant<V>(0.0), math::mul(off, off));
  }
  /// S of a token less its tag; NaN if that is not finite.
  template <class V>
  GDPO_INLINE static V measure_of(const V& logp, const V& entropy, const V& tag) {
    const V d = math::mul(math::exp_parts(logp).exp, V(entropy + logp)) - tag;
    return math::select(math::not_finite(d), math::constant<V>(math::nan()), d);
  }
  /// Tokens with d below it are dropped: -mu sd.
  GDPO_INLINE double bound_of(const Spread& spread) const {
    if (mu == math::infinity) return -math::infinity;
    return -math::mul(mu, math::sqrt(spread.variance));
  }
  /// The tokens with the smallest keys are dropped; NaN: not a candidate.
  template <class V>
  GDPO_INLINE V key_of(const V& d, double bound, const V& advantage) const {
    const V nan = math::constant<V>(math::nan());
    const V of_zero =
        math::select(math::is_zero(advantage),
                     math::constant<V>(zero_advantage ? -math::infinity : math::nan()), nan);
    const V key = math::select(advantage < math::constant<V>(0.0), d, of_zero);
    return math::select(math::is_nan(d), nan, math::select(d < math::constant<V>(bound), key, nan));
  }
  /// How many of n tokens may be dropped for A < 0.
  GDPO_INLINE index_t picks(double n) const {
    const auto most = static_cast<index_t>(math::mul(max_share, n));
    return most < 1 ? 1 : most;
  }
  /// Throws unless the batch has the arrays that are read.
  void need(bool has_advantages, bool has_logp, bool has_entropies, bool has_tags) const {
    detail::need_advantages(has_advantages, "prepass::EntropyClip");
    const auto need_array = [](const char* array, bool there, const char* needed) {
      if (!there) contract::fail("gdpo::prepare", array, "no array", needed);
    };
    if (policy == Against::Rollout) {
      need_array("batch.rollout_logp", has_logp,
                 "the sampling policy's log-probs, because of prepass::EntropyClip");
    } else {
      detail::need_logp(has_logp, "prepass::EntropyClip without batch.old_logp");
    }
    need_array("batch.entropies", has_entropies,
               "the entropy of each token, because of prepass::EntropyClip");
    if (center == EntropyCenter::Tags)
      need_array("batch.tags", has_tags,
                 "the center of each token, because of EntropyCenter::Tags");
  }
  static constexpr const char* name = "entropy_clip";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("mu", s.mu, at_least(0).or_infinity(), "standard deviations below the center");
    field("center", s.center, "what the measure is compared with");
    field("max_share", s.max_share, at_least(0).at_most(1),
          "largest share of the tokens that is dropped for A < 0");
    field("zero_advantage", s.zero_advantage, "tokens with A = 0 are dropped too");
    field("policy", s.policy, "whose log-probs: old or rollout");
    field("reach", s.reach, "what the decision acts on");
  }
  /// Throws for another policy, and for Reach::Level.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_level(reach, function, path);
    if (policy == Against::Old || policy == Against::Rollout) return;
    contract::fail(function, path.text("policy"), detail::word_of(policy), "old or rollout");
  }

 private:
  static constexpr double largest_finite = (std::numeric_limits<double>::max)();
};

}  // namespace prepass

/// What an EntropyClip does to a batch, for logs.
struct EntropyClipReport {
  prepass::EntropyClip::Spread spread;  ///< Of the measure.
  index_t tokens = 0,                   ///< Valid tokens.
      dropped = 0,                      ///< Those of them that are dropped.
      negative = 0,                     ///< Valid tokens with A < 0.
      dropped_negative = 0,             ///< Those of them that are dropped.
      positive = 0,                     ///< Valid tokens with A > 0.
      dropped_positive = 0;             ///< Those of them that are dropped: 0.

  /// The numbers under Trinity-RFT's keys: frac_clipped, frac_clipped_pos and frac_clipped_neg, 0
  /// without such tokens; ES and varS, the mean and the variance of the measure, which Clip-B logs;
  /// stdD, its standard deviation, which Clip-V logs.
  template <class Map = std::map<std::string, double>>
  Map to_map() const {
    const auto share = [](index_t part, index_t whole) {
      return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
    };
    Map map;
    map["frac_clipped"] = share(dropped, tokens);
    map["frac_clipped_pos"] = share(dropped_positive, positive);
    map["frac_clipped_neg"] = share(dropped_negative, negative);
    map["ES"] = spread.mean, map["varS"] = spread.variance;
    map["stdD"] = math::sqrt(spread.variance);
    return map;
  }
};

/// Measures what an EntropyClip does to a batch, as for prepare(), before it. It runs on the
/// calling thread and allocates room for the batch. `reach` is not looked at. Errors: as prepare(),
/// whose name the messages of missing arrays have.
template <class S>
EntropyClipReport entropy_clip_report(const TokenBatch<S>& batch,
                                      const prepass::EntropyClip& pass) {
  constexpr const char* function = "gdpo::entropy_clip_report";
  const detail::TokenLayout layout = detail::layout_of(function, batch, detail::NeedsLogp::No);
  detail::check_fields(function, pass);
  PrepassMemory<S> memory;
  memory.reserve(layout.longest);
  memory.pass.assign(static_cast<std::size_t>(layout.tokens), 1.0);
  const PrepassRows<S> rows(batch, layout, memory);
  const PrepassArgs<S> args{rows, memory.pass.data()};
  EntropyClipReport report;
  report.spread = pass.measure(args);
  std::fill(memory.pass.begin(), memory.pass.end(), 1.0);
  pass(args);
  for (index_t i = 0; i < rows.size(); ++i) {
    const TokenRow<S> row = rows(i);
    const double* const weights = args.weights_of(i);
    for (index_t t = 0; t < row.length; ++t) {
      if (!row.valid(t)) continue;
      const bool drops = math::is_zero(weights[t]);
      const double a = row.advantage_of(t);
      ++report.tokens, report.dropped += drops;
      report.negative += a < 0, report.dropped_negative += a < 0 && drops;
      report.positive += a > 0, report.dropped_positive += a > 0 && drops;
    }
  }
  return report;
}

GDPO_END_NAMESPACE
