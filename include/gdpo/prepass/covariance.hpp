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
/// ratio of NaN is not clipped. Without old_logp r = 1. All sums are in double, in the order of the
/// batch, so another order of the rows may change the last bit of c.
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
    const PrepassRows<S>& rows = args.rows;
    double advantages = 0, logps = 0, n = 0;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      need(rows, row);
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t) || !counts(row, t)) continue;
        advantages += row.advantage_of(t), logps += static_cast<double>(row.logp[t]), n += 1;
      }
    }
    const double mean_advantage = n > 0 ? advantages / n : 0, mean_logp = n > 0 ? logps / n : 0;
    std::uint64_t place = 0;
    for (index_t i = 0; i < rows.size(); ++i) {
      const TokenRow<S> row = rows(i);
      double* keys = args.weights_of(i);
      for (index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        ++place;
        const double c = math::mul(row.advantage_of(t) - mean_advantage,
                                   static_cast<double>(row.logp[t]) - mean_logp);
        if (!counts(row, t)) {
          keys[t] = math::nan();
        } else if (pick == CovariancePick::Top) {
          keys[t] = -c;
        } else {
          keys[t] = c > min && c < max && !clipped(row, t) ? random_number(place) : math::nan();
        }
      }
    }
    const auto most = static_cast<std::size_t>(math::mul(share, n));
    const double picked = keep == CovarianceKeep::Picked ? 1.0 : 0.0;
    detail::pick_smallest(args, (std::max)(most, std::size_t{1}), picked, 1.0 - picked);
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
  /// Throws unless min < max.
  void check_together(const char* function, const detail::FieldPath& path) const {
    if (min < max) return;
    contract::fail(function, path.text("min") + ", " + path.text("max"),
                   contract::text(min) + " and " + contract::text(max),
                   "min < max (infinite: off)");
  }

 private:
  template <class S>
  static void need(const PrepassRows<S>& rows, const TokenRow<S>& row) {
    if (row.length == 0) return;
    if (!rows.has_advantages()) {
      contract::fail("gdpo::prepare", "batch.advantages, batch.token_advantages", "neither",
                     "one of them, because of prepass::Covariance");
    }
    detail::need_logp(row.logp != nullptr, "prepass::Covariance");
  }
  template <class S>
  static bool counts(const TokenRow<S>& row, index_t t) {
    return !math::not_finite(row.advantage_of(t)) && !math::not_finite(row.logp[t]);
  }
  template <class S>
  bool clipped(const TokenRow<S>& row, index_t t) const {
    if (!row.old_logp) return false;
    const double x = static_cast<double>(row.logp[t]) - static_cast<double>(row.old_logp[t]);
    if (math::is_nan(x)) return false;
    const double a = row.advantage_of(t), r = math::exp_parts(x).exp;
    return (a > 0 && r > 1 + high) || (a < 0 && r < 1 - low);
  }
  /// Number `count` of splitmix64's sequence from the seed, as a double in [0, 1).
  double random_number(std::uint64_t count) const {
    std::uint64_t z = static_cast<std::uint64_t>(seed) + count * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return math::mul(static_cast<double>((z ^ (z >> 31)) >> 11), 0x1p-53);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
