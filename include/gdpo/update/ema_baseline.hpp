#pragma once
// EmaBaseline: a moving average of the rewards of each role, as the baseline of its next reward.
#include <cstdint>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/storage/column.hpp>
#include <vector>

namespace gdpo {
/// The state of an EmaBaseline: what a checkpoint has to keep, one number for each role.
struct EmaState {
  // Written out so that they can be forced inline, as in PidState.
  GDPO_DATA_HOST_INLINE EmaState() = default;                            ///< An empty state.
  GDPO_DATA_HOST_INLINE EmaState(const EmaState&) = default;             ///< Copies.
  GDPO_DATA_HOST_INLINE EmaState(EmaState&&) = default;                  ///< Moves.
  GDPO_DATA_HOST_INLINE EmaState& operator=(const EmaState&) = default;  ///< Copies.
  GDPO_DATA_HOST_INLINE EmaState& operator=(EmaState&&) = default;       ///< Moves.
  GDPO_DATA_HOST_INLINE ~EmaState() = default;

  std::vector<double> baseline;       ///< The average of each role.
  std::vector<std::int64_t> updates;  ///< How many rewards are in it.
};
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace update {

/// A baseline that moves with the rewards of its role: agents of a game, prompts of a data set.
///
///     out_i = b,  then  b = decay b + (1 - decay) x_i        in the order of the rows
///
/// Each row is compared with the average before it, so a baseline is never made of the row's own
/// reward. Role-conditioned advantage estimation (RAE, SPIRAL, arXiv 2506.24119); prime-rl's
/// RAEAlgorithm. The state is a value that the caller keeps and saves:
///
///     std::vector<double> baselines(rows);
///     ema.baselines_into(state, rewards, agents, gdpo::view(baselines));
///     batch.baseline = gdpo::view(baselines);  // gdpo::prime_rl::rae, baseline::External
///
/// Over ranks, gather the rows (dist::gather_rows, with keys for an order of your own) and let
/// every rank take all of them: the average depends on the order, and so every rank gets the same
/// bits.
struct EmaBaseline {
  double decay = 0.95;  ///< How much the average keeps; at least 0 and below 1.
  double start = 0;     ///< The baseline before the first reward, in units of the reward.

  static constexpr index_t most_roles = index_t{1} << 20;  ///< Roles are numbers below this.

  /// Writes the baseline of each row, and moves the averages.
  ///
  /// A missing reward (NaN), an infinite one and an unused row get the baseline of their role and
  /// move nothing. rewards: (N), of any type. roles: (N) numbers from 0 to below most_roles; a role
  /// that is new has the baseline `start`. out: (N); it may be the array of the rewards. valid: (N)
  /// flags; a row with 0 is unused.
  ///
  /// Errors, before anything is written or moved: invalid_input for settings out of range, shapes
  /// that do not fit, roles out of range, and a state that is none.
  template <class T>
  void baselines_into(EmaState& state, const Column& rewards, const IndexColumn& roles,
                      View<T, 1> out, const Column& valid = {}) const {
    constexpr const char* function = "gdpo::update::EmaBaseline::baselines_into";
    static_assert(std::is_floating_point_v<T>, "baselines are written as float or double");
    gdpo::detail::check_fields(function, "", *this);
    contract::check_written(function, "out", out);
    const index_t rows = rewards.size();
    check_columns(function, rows, rewards, roles, valid);
    contract::check_entries(function, "out", out.extent[0], rows);
    check_state(function, state);
    for (index_t i = 0; i < rows; ++i) {
      const auto role = static_cast<std::size_t>(roles(i));
      if (role >= state.baseline.size())
        state.baseline.resize(role + 1, start), state.updates.resize(role + 1, 0);
      double& b = state.baseline[role];
      const double x = rewards(i);  // before out(i) is written, which may be its place
      out(i) = static_cast<T>(b);
      if (math::not_finite(x) || (valid && math::is_zero(valid(i)))) continue;
      b = math::mul(decay, b) + math::mul(1 - decay, x);
      ++state.updates[role];
    }
  }

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("decay", s.decay, at_least(0).below(1), "how much the average keeps");
    field("start", s.start, finite(), "the baseline before the first reward");
  }

 private:
  static void check_columns(const char* function, index_t rows, const Column& rewards,
                            const IndexColumn& roles, const Column& valid) {
    gdpo::detail::check_column(function, "rewards", rewards);
    gdpo::detail::check_column(function, "roles", roles);
    contract::check_entries(function, "roles", roles.size(), rows);
    if (valid) contract::check_entries(function, "valid", valid.size(), rows);
    for (index_t i = 0; i < rows; ++i) {
      if (roles(i) >= 0 && roles(i) < most_roles) continue;
      contract::fail(function, "roles(" + contract::text(i) + ")", contract::text(roles(i)),
                     "a number from 0 to below " + contract::text(most_roles));
    }
  }
  static void check_state(const char* function, const EmaState& state) {
    if (state.updates.size() != state.baseline.size()) {
      contract::fail(function, "state",
                     contract::text(static_cast<index_t>(state.baseline.size())) +
                         " baselines and " +
                         contract::text(static_cast<index_t>(state.updates.size())) + " counts",
                     "one of each for every role");
    }
    for (std::size_t r = 0; r < state.baseline.size(); ++r) {
      const auto refuse = [&](const char* member, const contract::Text& given, const char* needed) {
        contract::fail(function,
                       contract::Text(member) + "[" + contract::text(static_cast<index_t>(r)) + "]",
                       given, needed);
      };
      if (math::not_finite(state.baseline[r]))
        refuse("state.baseline", contract::text(state.baseline[r]), "a finite number");
      if (state.updates[r] < 0)
        refuse("state.updates", contract::text(static_cast<index_t>(state.updates[r])),
               "a count of at least 0");
    }
  }
};

}  // namespace update
GDPO_END_NAMESPACE
