#pragma once
// ReturnScale: the running std of discounted returns, by which rewards are divided.
#include <gdpo/update/running_moments.hpp>
#include <vector>

namespace gdpo {
/// The state of a ReturnScale: what a checkpoint has to keep.
struct ReturnScaleState {
  // Written out so that they can be forced inline, as in PidState.
  GDPO_DATA_HOST_INLINE ReturnScaleState() = default;                         ///< An empty state.
  GDPO_DATA_HOST_INLINE ReturnScaleState(const ReturnScaleState&) = default;  ///< Copies.
  GDPO_DATA_HOST_INLINE ReturnScaleState(ReturnScaleState&&) = default;       ///< Moves.
  GDPO_DATA_HOST_INLINE ReturnScaleState& operator=(const ReturnScaleState&) =
      default;                                                                      ///< Copies.
  GDPO_DATA_HOST_INLINE ReturnScaleState& operator=(ReturnScaleState&&) = default;  ///< Moves.
  GDPO_DATA_HOST_INLINE ~ReturnScaleState() = default;

  Moments moments;              ///< Of the returns so far, without the prior.
  std::vector<double> returns;  ///< The discounted sum of each episode that goes on, on this rank.
};
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace update {

/// Divides rewards by the running std of their discounted returns, so that a critic sees returns of
/// order 1 whatever the unit of the reward. The mean is not subtracted: that would change what the
/// best policy is. It is the reward normalization of VecNormalize in Stable-Baselines3.
///
///     G_e = gamma G_e + r_e            for each episode e, then its moments are taken in
///     r_e / sqrt(var + eps)            within +-bound
///     G_e = 0                          where the episode has ended
///
/// A step of E episodes side by side, over ranks:
///
///     const gdpo::Moments mine = scale.observe(state, rewards, ended);
///     scale.update(state, gdpo::dist::all_merge(comm, mine));
///     gdpo::update::shape_rewards(rewards, {}, scale.rule(state));
///
/// Every rank has its own episodes, and all have the same moments. For rows of one reward each,
/// every episode ends at once, and the scale is that of the rewards.
struct ReturnScale {
  double gamma = 0.99;  ///< The discount, from 0 to 1.
  double eps = 1e-8;    ///< Added to the variance, in squared units of the reward; at least 0.
  double prior =
      1e-4;           ///< Weight of numbers of mean 0 and variance 1 before the first; at least 0.
  double bound = 10;  ///< The largest magnitude of a shaped reward; infinity: any.

  /// Takes a step of the episodes of this rank, and returns the moments of their returns.
  ///
  /// A missing reward (NaN) leaves its episode as it is, and an infinite one starts it anew:
  /// neither is in the moments. rewards: (E), the same number in every call. ended: (E) flags; not
  /// 0: the episode ends with this reward. Absent: none ends.
  ///
  /// Errors, before anything moves: invalid_input for settings out of range, shapes that do not
  /// fit, another number of episodes than before, and a state that is none.
  Moments observe(ReturnScaleState& state, const Column& rewards, const Column& ended = {}) const {
    constexpr const char* function = "gdpo::update::ReturnScale::observe";
    check(function, state);
    const index_t n = rewards.size();
    gdpo::detail::check_column(function, "rewards", rewards);
    if (ended) contract::check_entries(function, "ended", ended.size(), n);
    if (state.returns.empty()) state.returns.assign(static_cast<std::size_t>(n), 0.0);
    if (static_cast<index_t>(state.returns.size()) != n) {
      contract::fail(function, "rewards", contract::text(n) + " entries",
                     "one for each of the " +
                         contract::text(static_cast<index_t>(state.returns.size())) + " episodes");
    }
    std::vector<double> seen;
    for (index_t e = 0; e < n; ++e) {
      double& sum = state.returns[static_cast<std::size_t>(e)];
      const double reward = rewards(e);
      if (!math::is_nan(reward)) {
        sum = math::mul(gamma, sum) + reward;
        if (math::not_finite(sum))
          sum = 0;
        else
          seen.push_back(sum);
      }
      if (ended && !math::is_zero(ended(e))) sum = 0;
    }
    return moments_of(AnyOrder{}, seen.data(), nullptr, static_cast<index_t>(seen.size()));
  }
  /// Takes the returns of a step in, of all ranks. Returns whether it did, as RunningMoments does.
  bool update(ReturnScaleState& state, const Moments& step) const {
    check("gdpo::update::ReturnScale::update", state);
    return RunningMoments{}.update(state.moments, step);
  }
  /// What rewards are divided by: sqrt(var + eps), with the population variance of the returns so
  /// far and the prior; 1 where that is 0, and before the first return if there is no prior.
  double scale(const ReturnScaleState& state) const {
    check("gdpo::update::ReturnScale::scale", state);
    // -1 and 1 have the mean 0 and the variance 1.
    Moments known;
    if (prior > 0) known.n = 2, known.weight = known.m2 = prior, known.min = -1, known.max = 1;
    known = merge(known, state.moments);
    if (known.n == 0) return 1;
    const double std = math::sqrt(detail::spread_of(known, 0, 0).variance + eps);
    return std > 0 ? std : 1.0;
  }
  /// The rule that divides rewards by it: r / scale, within +-bound.
  shaping::Standardize rule(const ReturnScaleState& state) const {
    return {0, scale(state), bound};
  }

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("gamma", s.gamma, at_least(0).at_most(1), "the discount");
    field("eps", s.eps, at_least(0), "added to the variance");
    field("prior", s.prior, at_least(0), "weight of mean 0 and variance 1 before the first");
    field("bound", s.bound, at_least(0).or_infinity(), "the largest magnitude of a shaped reward");
  }

 private:
  void check(const char* function, const ReturnScaleState& state) const {
    gdpo::detail::check_fields(function, "", *this);
    gdpo::detail::check_running(function, "state.moments", state.moments);
    for (std::size_t e = 0; e < state.returns.size(); ++e) {
      if (!math::not_finite(state.returns[e])) continue;
      contract::fail(function, "state.returns[" + contract::text(static_cast<index_t>(e)) + "]",
                     contract::text(state.returns[e]), "a finite number");
    }
  }
};

}  // namespace update
GDPO_END_NAMESPACE
