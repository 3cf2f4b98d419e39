#pragma once
/// A controller's state as JSON, by nlohmann-json: `nlohmann::json(pid.state())` and `json.get<gdpo::PidState>()`. Numbers are
/// written so that they come back as the same bits.
#include <gdpo/constraint/pid_state.hpp>
#include <nlohmann/json.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

[[noreturn]] inline void fail_on_json(const char* key, const std::string& given,
                                      const char* needed) {
  contract::fail("gdpo::PidState from JSON", key, given, needed);
}

/// Whole numbers are not made of others: nlohmann would cut and wrap them.
template <class T>
void read_value(const nlohmann::json& json, const char* key, T& value) {
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
    if (!fits) fail_on_json(key, json.dump(), "a whole number");
  }
  json.get_to(value);
}
template <class T>
void read_value(const nlohmann::json& json, const char* key, std::vector<T>& values) {
  if (!json.is_array()) fail_on_json(key, json.dump(), "a list");
  values.resize(json.size());
  for (std::size_t i = 0; i < values.size(); ++i) read_value(json[i], key, values[i]);
}
template <class T>
void read(const nlohmann::json& json, const char* key, T& value) {
  const auto found = json.find(key);
  if (found == json.end()) fail_on_json(key, "nothing", "what to_json() wrote");
  read_value(*found, key, value);
}

}  // namespace detail

inline void to_json(nlohmann::json& json, const SetPoint& s) {
  json = {{"limit", s.limit}, {"scale", s.scale}, {"k", s.k}};
  json["bound"] = s.bound == Bound::AtMost ? "at_most" : "at_least";
  if (s.baseline.n == 0) return;  // its range would be infinite, which JSON has not
  json["baseline"]["n"] = s.baseline.n;
  detail::for_each_number(s.baseline,
                          [&](const char* name, double x) { json["baseline"][name] = x; });
}

inline void from_json(const nlohmann::json& json, SetPoint& to) {
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
  to = s;
}

inline void to_json(nlohmann::json& json, const PidState& state) {
  json = {{"version", state.version}, {"set_points", state.set_points}};
  detail::for_each_field(state, [&](const char* name, const auto& field) { json[name] = field; });
}

/// Errors: invalid_input for a version that is not this library's or a field that is not there; nlohmann's own for a value of
/// another type. PidLagrangian::restore checks the rest.
inline void from_json(const nlohmann::json& json, PidState& to) {
  PidState state;
  detail::read(json, "version", state.version);
  if (state.version != PidState::current_version) {
    detail::fail_on_json("version", std::to_string(state.version),
                         std::to_string(PidState::current_version).c_str());
  }
  detail::read(json, "set_points", state.set_points);
  detail::for_each_field(state,
                         [&](const char* name, auto& field) { detail::read(json, name, field); });
  to = std::move(state);
}

GDPO_END_NAMESPACE
