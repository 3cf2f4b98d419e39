#pragma once
// Covariance: a pre-pass that picks tokens by how advantages and log-probs vary together (Clip-Cov,
// KL-Cov).
#include <cstdint>
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/prepass/engine/pick.hpp>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Which tokens Covariance picks.
enum class CovariancePick {
  Between,  ///< With min < c < max and a ratio that PPO does not clip; at random, if too many are.
  Top       ///< With the largest c.
};
/// The enumerators of CovariancePick with their words.
GDPO_DATA_INLINE constexpr auto enumerators(CovariancePick) {
  using E = Enumerator<CovariancePick>;
  return std::array{E{"between", CovariancePick::Between}, E{"top", CovariancePick::Top}};
}
/// Which tokens keep weight 1; the others get 0.
enum class CovarianceKeep {
  Rest,   ///< Those that are not picked.
  Picked  ///< Those that are picked.
};
/// The enumerators of CovarianceKeep with their words.
GDPO_DATA_INLINE constexpr auto enumerators(CovarianceKeep) {
  using E = Enumerator<CovarianceKeep>;
  return std::array{E{"rest", CovarianceKeep::Rest}, E{"picked", CovarianceKeep::Picked}};
}

/// Picks tokens by the covariance of advantage and log-prob, which drives the entropy down where it
/// is large.
///
///     c_t = (A_t - mean A) (logp_t - mean logp)      means over the n valid tokens of the batch
///     k = max(1, floor(share n))                     the number of picks, at most all candidates
///     Top:      the k tokens with the largest c
///     Between:  k of the tokens with min < c < max that PPO does not clip: all but those with
///               A > 0 and r > 1 + high, or A < 0 and r < 1 - low;  r = e^(logp - old_logp)
///     weight = 1 on the tokens that `keep` says, else 0
///
/// Of more than k candidates, Between takes those with the smallest hash(seed, j), where token j is
/// the j-th valid token of the batch (from 0, row by row): the 64 bits that splitmix64 gives for
/// the state seed + (j + 1) 0x9e3779b97f4a7c15, of which the upper 53 count. So the picks are the
/// same for padded and packed tokens and on every machine; a new seed in each step gives new ones.
/// With share 1 nothing is random. In Top, of equal c the first in the batch is picked.
///
/// A token whose A or logp is NaN or infinite is not among the n, in no mean and never picked. A
/// ratio of NaN is not clipped. Without old_logp r = 1. All sums are in double, of each
/// row and then of the rows in their order, so another order of the rows may change the last bit
/// of c.
///
///     Clip-Cov   Between, Rest, Reach::Surrogate: the picks leave the surrogate
///     KL-Cov     Top, Picked, Reach::Kl: the KL term acts on the picks alone
///
/// Both are of arXiv 2505.22617; verl compute_policy_loss_clip_cov and compute_policy_loss_kl_cov;
/// SkyRL policy_loss_type="clip_cov" and "kl_cov". The KL term of KL-Cov is Abs against the old
/// policy. Reach::Kl acts on all KL terms of the loss, one against a reference policy too.
///
/// The batch is what one call of prepare() is given: in micro-batches each has its own picks.
///
/// Needs `logp` and advantages. Time is linear in the number of tokens on average.
struct Covariance {
  CovariancePick pick = CovariancePick::Between;  ///< Which tokens are picked.
  CovarianceKeep keep = CovarianceKeep::Rest;     ///< Which tokens keep weight 1.
  double share = 2e-4;  ///< Share of the valid tokens that is picked, 0 to 1; at least one token.
  double min = 1;       ///< Between: only c above it, in units of the advantage times nats.
  double max = 5;       ///< Between: only c below it; > min.
  double low = 0.2;     ///< Between: PPO clips ratios below 1 - low where A < 0.
  double high = 0.2;    ///< Between: PPO clips ratios above 1 + high where A > 0.
  index_t seed = 0;     ///< Between: seed of the random picks, at least 0.
  Reach reach = Reach::Surrogate;  ///< What the decision acts on.

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    using V = math::Native<double>;
    const PrepassRows<S>& rows = args.rows;
    if (!rows.empty()) need(rows.has_advantages(), bool(rows.batch().logp));
    Sums all;
    for (const bool of_logps : {true, false}) {
      double& sum = of_logps ? all.logps : all.advantages;
      all.n = 0;
      detail::sum_batch_rows(
          rows,
          [of_logps](const TokenRow<S>& row, double* numbers) {
            detail::LaneCount<V> odd;
            detail::write_lanes<V>(row, 0, numbers, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
              using L = typename decltype(lanes)::type;
              const L a = detail::advantages_of<L>(row, t),
                      logp = math::Lanes<L>::load(row.logp + t);
              const auto is_odd = math::either(math::not_finite(a), math::not_finite(logp));
              odd.add(math::both(detail::valid_lanes<L>(row, t), is_odd));
              return L(math::select(is_odd, math::constant<L>(0.0), of_logps ? logp : a));
            });
            return row.count() - odd.total();
          },
          [&](double of_row, index_t n) { sum += of_row, all.n += static_cast<double>(n); });
    }
    index_t place = 0;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      write_keys<V>(row, all, place, args.weights_of(i));
    }
    const double picked = weight_of(true), rest = weight_of(false);
    detail::pick_smallest<V>(args, static_cast<std::size_t>(picks(all.n)), picked, rest);
  }
  /// Sums of advantages and log-probs over the tokens that count: of a row in the order of its
  /// tokens, of the batch in the order of the rows.
  struct Sums {
    double advantages = 0,  ///< Of advantages.
        logps = 0,          ///< Of log-probs, in nats.
        n = 0;              ///< How many tokens.
    /// Adds a valid token. One that is not finite does not count.
    GDPO_INLINE void add(double advantage, double logp) {
      if (math::not_finite(advantage) || math::not_finite(logp)) return;
      advantages += advantage, logps += logp, n += 1;
    }
    /// Adds the next row.
    GDPO_INLINE void merge(const Sums& row) {
      advantages += row.advantages, logps += row.logps, n += row.n;
    }
  };
  /// How many of n tokens are picked.
  GDPO_INLINE index_t picks(double n) const {
    const auto most = static_cast<index_t>(math::mul(share, n));
    return most < 1 ? 1 : most;
  }
  /// The weight of a token.
  GDPO_INLINE double weight_of(bool is_picked) const {
    return is_picked == (keep == CovarianceKeep::Picked) ? 1.0 : 0.0;
  }
  /// The tokens with the smallest keys are picked; NaN: not a candidate. `place` is the number of
  /// the token among the valid ones, from 1, and x its log ratio, 0 without old_logp.
  GDPO_INLINE double key_of(const Sums& all, double advantage, double logp, double x,
                            index_t place) const {
    if (math::not_finite(advantage) || math::not_finite(logp)) return math::nan();
    const double c = covariance_of(all, advantage, logp);
    if (pick == CovariancePick::Top) return -c;
    return c > min && c < max && !clipped(advantage, x) ? random_number(place) : math::nan();
  }
  /// c of a token.
  template <class V>
  GDPO_INLINE static V covariance_of(const Sums& all, const V& advantage, const V& logp) {
    return math::mul(V(advantage - math::constant<V>(all.advantages / all.n)),
                     V(logp - math::constant<V>(all.logps / all.n)));
  }
  /// Throws unless the batch has the arrays that are read.
  static void need(bool has_advantages, bool has_logp) {
    detail::need_advantages(has_advantages, "prepass::Covariance");
    detail::need_logp(has_logp, "prepass::Covariance");
  }
  static constexpr const char* name = "covariance";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("pick", s.pick, "which tokens are picked");
    field("keep", s.keep, "which tokens keep weight 1");
    field("share", s.share, at_least(0).at_most(1), "share of the tokens that is picked");
    field("min", s.min, anything(), "only larger covariances are picked");
    field("max", s.max, anything(), "only smaller covariances are picked");
    field("low", s.low, at_least(0).at_most(1).or_infinity(),
          "PPO clips the ratio to at least 1 - low");
    field("high", s.high, at_least(0).or_infinity(), "PPO clips the ratio to at most 1 + high");
    field("seed", s.seed, at_least(0), "seed of the random picks");
    field("reach", s.reach, "what the decision acts on");
  }
  /// Throws unless min < max, and for Reach::Level.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_level(reach, function, path);
    if (min < max) return;
    contract::fail(function, path.text("min") + ", " + path.text("max"),
                   contract::text(min) + " and " + contract::text(max),
                   "min < max (infinite: off)");
  }

 private:
  /// Writes the keys of the valid tokens of a row. `place`: how many valid tokens there were
  /// before.
  template <class V, class S>
  void write_keys(const TokenRow<S>& row, const Sums& all, index_t& place, double* keys) const {
    constexpr index_t block = 64;
    for (index_t begin = 0; begin < row.length; begin += block) {
      const index_t n = (std::min)(block, row.length - begin);
      // Of a block without candidates Between needs no more than the number of its tokens.
      detail::LaneCount<V> candidates;
      detail::for_each_lanes<V>(n, [&](auto lanes, index_t j) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        const index_t t = begin + j;
        const L nan = math::constant<L>(math::nan()), a = detail::advantages_of<L>(row, t),
                logp = math::Lanes<L>::load(row.logp + t), c = covariance_of(all, a, logp);
        const auto valid = detail::valid_lanes<L>(row, t);
        const auto odd = math::either(math::not_finite(a), math::not_finite(logp));
        const L key = pick == CovariancePick::Top ? L(math::select(odd, nan, L(-c))) : nan;
        candidates.add(
            math::both(valid, math::both(c > math::constant<L>(min), c < math::constant<L>(max))));
        const L old = math::Lanes<L>::load(keys + t);
        math::Lanes<L>::store(keys + t, row.mask ? L(math::select(valid, key, old)) : key);
      });
      if (pick == CovariancePick::Top) continue;
      if (candidates.total() == 0) {
        place += detail::count_mask(row.mask ? row.mask + begin : nullptr, n);
        continue;
      }
      for (index_t t = begin; t < begin + n; ++t) {
        if (!row.valid(t)) continue;
        const auto logp = static_cast<double>(row.logp[t]);
        const double x = row.old_logp ? logp - static_cast<double>(row.old_logp[t]) : 0.0;
        keys[t] = key_of(all, row.advantage_of(t), logp, x, ++place);
      }
    }
  }
  GDPO_INLINE bool clipped(double a, double x) const {
    if (math::is_nan(x)) return false;
    const double r = math::exp_parts(x).exp;
    return (a > 0 && r > 1 + high) || (a < 0 && r < 1 - low);
  }
  /// Number `count` of splitmix64's sequence from the seed, as a double in [0, 1).
  GDPO_INLINE double random_number(index_t count) const {
    std::uint64_t z =
        static_cast<std::uint64_t>(seed) + static_cast<std::uint64_t>(count) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return math::mul(static_cast<double>((z ^ (z >> 31)) >> 11), 0x1p-53);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
