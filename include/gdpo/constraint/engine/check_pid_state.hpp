#pragma once
// The checks of a state that comes from outside, before a controller goes on from it.
#include <gdpo/constraint/pid_gains.hpp>
#include <gdpo/constraint/pid_state.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Checks set-point number c.
inline void check_set_point(const char* function, std::size_t c, const SetPoint& s) {
  const std::string name = "set_points[" + contract::text(static_cast<index_t>(c)) + "]";
  check_fields(function, name.c_str(), s);
}

/// Checks that constraint c keeps its bound: a multiplier says nothing about the other one.
inline void check_same_bound(const char* function, std::size_t c, Bound given, Bound needed) {
  if (given == needed) return;
  const auto name = [](Bound b) { return b == Bound::AtMost ? "AtMost" : "AtLeast"; };
  contract::fail(function, "set_points[" + contract::text(static_cast<index_t>(c)) + "].bound",
                 name(given),
                 contract::Text(name(needed)) +
                     ", because the multiplier of the other bound says nothing about this one");
}

/// Checks a state against a controller with these gains, whose histories have `history` entries in
/// all. A state that passes can be computed with: its arrays are finite and have the right lengths,
/// weights are from 0 to 1, counters have room to grow, and cursors point into their histories.
inline void check_state(const char* function, const PidState& state,
                        const std::vector<PidGains>& gains, std::size_t history) {
  using contract::text;
  const auto fail = [&](const char* name, const std::string& given, const std::string& needed) {
    contract::fail(function, contract::Text("state.") + name, given, needed);
  };
  const auto check_length = [&](const char* name, std::size_t given, std::size_t needed) {
    if (given == needed) return;
    fail(name, text(static_cast<index_t>(given)) + " entries",
         text(static_cast<index_t>(needed)) + ", for the " +
             text(static_cast<index_t>(gains.size())) +
             " constraints of this controller and their delays");
  };
  if (state.version != PidState::current_version) {
    fail("version", std::to_string(state.version), std::to_string(PidState::current_version));
  }
  check_length("set_points", state.set_points.size(), gains.size());
  for_each_field(state, [&](const char* name, const auto& field) {
    check_length(name, field.size(), std::strcmp(name, "history") == 0 ? history : gains.size());
    for (const auto x : field) {
      if (math::not_finite(static_cast<double>(x)))
        fail(name, text(static_cast<double>(x)), "a finite number");
    }
  });
  for (std::size_t c = 0; c < gains.size(); ++c) {
    const auto check_range = [&](const char* name, auto x, auto low, auto high) {
      if (x >= low && x <= high) return;
      fail(name, text(static_cast<double>(x)),
           "a number from " + text(static_cast<double>(low)) + " to " +
               text(static_cast<double>(high)));
    };
    constexpr double most = (std::numeric_limits<double>::max)();
    constexpr std::int64_t none = 0, many = std::int64_t{1} << 62;
    check_set_point(function, c, state.set_points[c]);
    check_range("lambda", state.lambda[c], 0.0, most);
    check_range("adam_v", state.adam_v[c], 0.0, most);
    check_range("p_weight", state.p_weight[c], 0.0, 1.0);
    check_range("adam_m_weight", state.adam_m_weight[c], 0.0, 1.0);
    check_range("adam_v_weight", state.adam_v_weight[c], 0.0, 1.0);
    check_range("cursor", state.cursor[c], none, std::int64_t{gains[c].d_delay - 1});
    check_range("updates", state.updates[c], none, many);
    check_range("held", state.held[c], none, many);
    check_range("saturated_steps", state.saturated_steps[c], none, many);
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
