#pragma once
/// \file
/// Adapter for trainers that keep checkpoints as JSON with the library nlohmann-json.
/// It converts the state of a PidLagrangian:
///
///     const nlohmann::json json = pid.state();
///     pid.restore(json.get<gdpo::PidState>());
///
/// and the states of update::RunningMoments (gdpo::Moments), update::EmaBaseline (gdpo::EmaState)
/// and update::ReturnScale (gdpo::ReturnScaleState).
///
/// Numbers come back as the same bits. For binary checkpoints, `to_bytes`
/// (constraint/pid_state.hpp) needs no other library.
#include <gdpo/constraint/pid_state.hpp>
#include <gdpo/update/ema_baseline.hpp>
#include <gdpo/update/return_scale.hpp>
#include <nlohmann/json.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What messages call the conversion of a state.
constexpr const char *pid_from_json = "gdpo::PidState from JSON",
                     *moments_from_json = "gdpo::Moments from JSON",
                     *ema_from_json = "gdpo::EmaState from JSON",
                     *return_scale_from_json = "gdpo::ReturnScaleState from JSON";

/// Throws `invalid_input` about the value of `key`.
[[noreturn]] inline void fail_on_json(const char* key, const std::string& given, const char* needed,
                                      const char* function = pid_from_json) {
  contract::fail(function, key, given, needed);
}

/// Reads one value. A number must be one in JSON too, which writes null for NaN and infinity. A
/// whole number must be whole there and fit T: nlohmann-json would cut off the fraction of another
/// number, and wrap a number that is too large.
template <class T>
void read_value(const nlohmann::json& json, const char* key, T& value, const char* function) {
  if constexpr (std::is_integral_v<T>) {
    constexpr auto most = static_cast<std::uint64_t>((std::numeric_limits<T>::max)());
    bool fits = false;
    if (json.is_number_unsigned()) {
      fits = json.get<std::uint64_t>() <= most;
    } else if (json.is_number_integer()) {
      const auto x = json.get<std::int64_t>();
      fits = x < 0 ? std::is_signed_v<T> &&
                         x >= static_cast<std::int64_t>((std::numeric_limits<T>::min)())
                   : static_cast<std::uint64_t>(x) <= most;
    }
    if (!fits) fail_on_json(key, json.dump(), "a whole number", function);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number()) fail_on_json(key, json.dump(), "a number", function);
  }
  json.get_to(value);
}
/// Reads a list of values.
template <class T>
void read_value(const nlohmann::json& json, const char* key, std::vector<T>& values,
                const char* function) {
  if (!json.is_array()) fail_on_json(key, json.dump(), "a list", function);
  values.resize(json.size());
  for (std::size_t i = 0; i < values.size(); ++i) read_value(json[i], key, values[i], function);
}
/// Reads the value of `key`, which must be there.
template <class T>
void read(const nlohmann::json& json, const char* key, T& value,
          const char* function = pid_from_json) {
  const auto member = json.find(key);
  if (member == json.end()) fail_on_json(key, "nothing", "what to_json() wrote", function);
  read_value(*member, key, value, function);
}

}  // namespace detail

/// Writes moments as a JSON object; found by nlohmann-json. Empty ones have their count alone,
/// because JSON has no infinity.
inline void to_json(nlohmann::json& json, const Moments& m) {
  json = {{"n", m.n}};
  if (m.n == 0) return;
  detail::for_each_number(m, [&](const char* name, double x) { json[name] = x; });
}
/// Reads moments. Errors: `invalid_input` for a missing member, a count that is no whole number,
/// and another value that is no number. Whether they are those of a run, the first use of them
/// checks.
inline void from_json(const nlohmann::json& json, Moments& out) {
  constexpr const char* function = detail::moments_from_json;
  Moments m;
  detail::read(json, "n", m.n, function);
  if (m.n != 0) {
    detail::for_each_number(
        m, [&](const char* name, double& x) { detail::read(json, name, x, function); });
  }
  out = m;
}

/// Writes the state of an EmaBaseline as a JSON object; found by nlohmann-json.
inline void to_json(nlohmann::json& json, const EmaState& state) {
  json = {{"baseline", state.baseline}, {"updates", state.updates}};
}
/// Reads the state of an EmaBaseline. Errors: as for moments, and for a list that is none.
inline void from_json(const nlohmann::json& json, EmaState& out) {
  EmaState state;
  detail::read(json, "baseline", state.baseline, detail::ema_from_json);
  detail::read(json, "updates", state.updates, detail::ema_from_json);
  out = std::move(state);
}

/// Writes the state of a ReturnScale as a JSON object; found by nlohmann-json.
inline void to_json(nlohmann::json& json, const ReturnScaleState& state) {
  json = {{"moments", state.moments}, {"returns", state.returns}};
}
/// Reads the state of a ReturnScale. Errors: as for an EmaState.
inline void from_json(const nlohmann::json& json, ReturnScaleState& out) {
  ReturnScaleState state;
  detail::read(json, "moments", state.moments, detail::return_scale_from_json);
  detail::read(json, "returns", state.returns, detail::return_scale_from_json);
  out = std::move(state);
}

/// Writes a set-point as a JSON object; found by nlohmann-json.
inline void to_json(nlohmann::json& json, const SetPoint& s) {
  json = {{"limit", s.limit}, {"scale", s.scale}, {"k", s.k}};
  json["bound"] = s.bound == Bound::AtMost ? "at_most" : "at_least";
  if (s.baseline.n > 0) json["baseline"] = s.baseline;
}

/// Reads a set-point. Errors: `invalid_input` for a missing member, an unknown bound, a count that
/// is no whole number, and another value that is no number; nlohmann-json throws its own for a
/// bound that is no word.
inline void from_json(const nlohmann::json& json, SetPoint& out) {
  SetPoint s;
  std::string bound;
  detail::read(json, "limit", s.limit);
  detail::read(json, "scale", s.scale);
  detail::read(json, "k", s.k);
  detail::read(json, "bound", bound);
  if (bound != "at_most" && bound != "at_least") {
    detail::fail_on_json("bound", "\"" + bound + "\"", "\"at_most\" or \"at_least\"");
  }
  s.bound = bound == "at_most" ? Bound::AtMost : Bound::AtLeast;
  if (const auto baseline = json.find("baseline"); baseline != json.end()) {
    detail::read(*baseline, "n", s.baseline.n);
    detail::for_each_number(s.baseline,
                            [&](const char* name, double& x) { detail::read(*baseline, name, x); });
  }
  out = s;
}

/// Writes the state of a controller as a JSON object; found by nlohmann-json.
inline void to_json(nlohmann::json& json, const PidState& state) {
  json = {{"version", state.version}, {"set_points", state.set_points}};
  detail::for_each_field(state, [&](const char* name, const auto& field) { json[name] = field; });
}

/// Reads the state of a controller. Errors: `invalid_input` for another version, a missing member,
/// a list that is none, a count that is no whole number, and another value that is no number.
/// `PidLagrangian::restore` checks whether the numbers suit a controller.
inline void from_json(const nlohmann::json& json, PidState& out) {
  PidState state;
  detail::read(json, "version", state.version);
  if (state.version != PidState::current_version) {
    detail::fail_on_json("version", std::to_string(state.version),
                         std::to_string(PidState::current_version).c_str());
  }
  detail::read(json, "set_points", state.set_points);
  detail::for_each_field(state,
                         [&](const char* name, auto& field) { detail::read(json, name, field); });
  out = std::move(state);
}

GDPO_END_NAMESPACE
