#pragma once
// RunningMoments: the mean and std of numbers over the steps of a run, such as rewards.
#include <gdpo/stats/moments.hpp>
#include <gdpo/update/shape_rewards.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether moments are those of finite numbers, whose spread is a double.
inline bool all_finite(const Moments& m) {
  for (const double x : {m.weight, m.mean, m.mean_low, m.m2, m.min, m.max})
    if (math::not_finite(x)) return false;
  return true;
}
/// Throws unless `m` may be the state of a run: empty, or the moments of finite numbers.
inline void check_running(
    const char* function, const char* name, const Moments& m,
    const char* needed = "those of an earlier update, or empty ones before the first") {
  const bool empty = m.n == 0 && m.weight == 0 && m.mean == 0 && m.mean_low == 0 && m.m2 == 0;
  if (empty || (m.n > 0 && all_finite(m) && m.weight > 0 && m.m2 >= 0 && m.min <= m.max)) return;
  using contract::text;
  contract::fail(function, name,
                 "moments of " + text(m.n) + " numbers, weight " + text(m.weight) + ", mean " +
                     text(m.mean) + " and " + text(m.mean_low) + ", m2 " + text(m.m2) + ", from " +
                     text(m.min) + " to " + text(m.max),
                 needed);
}
/// Throws unless `m` may be the moments of a step, in which there may be numbers that are not
/// finite.
inline void check_step(const char* function, const Moments& m) {
  if (m.n > 0 && !all_finite(m)) return;
  check_running(function, "step", m, "those of update::measure or ReturnScale::observe");
}

}  // namespace detail

namespace update {

/// The moments of the numbers of a step on this rank: of those that are there (not NaN) and used.
/// The same bits for every order of the rows. The moments of all ranks are dist::all_merge(comm,
/// moments), which merges in rank order.
///
/// values: (N), of any type. valid: (N) flags; a row with 0 is unused. Errors: invalid_input for
/// values that are not there, and for another number of flags.
inline Moments measure(const Column& values, const Column& valid = {}) {
  constexpr const char* function = "gdpo::update::measure";
  gdpo::detail::check_column(function, "values", values);
  if (valid) contract::check_entries(function, "valid", valid.size(), values.size());
  std::vector<double> there;
  for (index_t i = 0; i < values.size(); ++i) {
    const double x = values(i);
    if (!math::is_nan(x) && (!valid || !math::is_zero(valid(i)))) there.push_back(x);
  }
  return moments_of(AnyOrder{}, there.data(), nullptr, static_cast<index_t>(there.size()));
}

/// The running mean and std of numbers over the steps of a run. The state is a Moments that the
/// caller keeps and saves, empty before the first step:
///
///     gdpo::Moments state;
///     const gdpo::update::RunningMoments running;
///     running.update(state, gdpo::dist::all_merge(comm, gdpo::update::measure(rewards)));
///     gdpo::update::shape_rewards(rewards, {}, running.rule(state));  // (r - mean) / (std + eps)
///     batch.baseline = gdpo::View<const double, 1>{&state.mean, {N}, {0}};  // baseline::External
///
/// Shape the rewards or bind the baseline, not both. It is the reward normalization "running" of
/// ROLL and AReaL, and of trlx before them.
///
/// With `decay` 1 every number of the run counts the same, and the moments of a run are those of
/// any partition of its numbers into steps and ranks: counts and range exactly, mean and std within
/// 2^-44 relative (merge(), stats/moments.hpp). With less, what was there before a step counts
/// `decay` times as much after it.
struct RunningMoments {
  double decay = 1;               ///< How much the past counts after a step; above 0, at most 1.
  double eps = 1e-8;              ///< Added to the std, in units of the reward; at least 0.
  int ddof = 0;                   ///< Subtracted from the weight in the variance.
  double bound = math::infinity;  ///< The largest magnitude of a shaped reward; infinity: any.

  /// Takes the numbers of a step in, of all ranks. Returns whether it did: an empty step changes
  /// nothing, and neither does one with a number that is not finite, or with numbers so large that
  /// their spread is not (from about 1e154 on).
  ///
  /// Errors: invalid_input for settings out of range, and for a state or a step that is none.
  bool update(Moments& state, const Moments& step) const {
    constexpr const char* function = "gdpo::update::RunningMoments::update";
    check(function, state);
    gdpo::detail::check_step(function, step);
    if (step.n == 0) return false;
    Moments past = state;
    past.weight = math::mul(past.weight, decay), past.m2 = math::mul(past.m2, decay);
    const Moments next = merge(past, step);
    if (!detail::all_finite(next)) return false;
    state = next;
    return true;
  }
  /// The std of the numbers so far: sqrt(m2 / (weight - ddof)); 0 where that is unknown.
  double std(const Moments& state) const {
    check("gdpo::update::RunningMoments::std", state);
    return math::sqrt(detail::spread_of(state, ddof, 0).variance);
  }
  /// The rule that normalizes rewards by the numbers so far: (r - mean) / (std + eps), within
  /// +-bound. Before the first step it leaves rewards as they are but for the bound; where std +
  /// eps is 0 it only subtracts.
  shaping::Standardize rule(const Moments& state) const {
    const double divisor = std(state) + eps;
    return {state.mean, state.n > 0 && divisor > 0 ? divisor : 1.0, bound};
  }

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("decay", s.decay, more_than(0).at_most(1).with_note("1: all steps count the same"),
          "how much the past counts after a step");
    field("eps", s.eps, at_least(0), "added to the std");
    field("ddof", s.ddof, at_least(0), "subtracted from the weight in the variance");
    field("bound", s.bound, at_least(0).or_infinity(), "the largest magnitude of a shaped reward");
  }

 private:
  void check(const char* function, const Moments& state) const {
    gdpo::detail::check_fields(function, "", *this);
    gdpo::detail::check_running(function, "state", state);
  }
};

}  // namespace update
GDPO_END_NAMESPACE
