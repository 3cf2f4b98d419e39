// Conditions on recorded cases, of which the lists in gaps.cpp and unlogged.cpp are made.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "golden.hpp"

namespace conformance {

using When = std::function<bool(const Case&)>;

// True of every case.
inline bool always(const Case&) { return true; }

// The parameter is there and not off.
inline When has(const std::string& name) {
  return [=](const Case& c) {
    const auto it = c.params.find(name);
    return it != c.params.end() && !it->is_null() && *it != false;
  };
}

// The parameter, or the member of it after a dot, has one of these values.
inline When is(const std::string& name, const std::vector<Json>& values) {
  return [=](const Case& c) {
    const std::size_t dot = name.find('.');
    const Json whole = c.params.value(name.substr(0, dot), Json());
    const Json value = dot == std::string::npos ? whole
                       : whole.is_object()      ? whole.value(name.substr(dot + 1), Json())
                                                : Json();
    return std::find(values.begin(), values.end(), value) != values.end();
  };
}

// The parameter is a number above 0.
inline When positive(const std::string& name) {
  return [=](const Case& c) { return c.params.value(name, 0.0) > 0; };
}

inline When input(const std::string& name) {
  return [=](const Case& c) { return c.inputs.contains(name); };
}

// Some token of the mask is not valid.
inline bool padded(const Case& c) {
  const std::vector<double> mask = array_of(c.inputs.at("response_mask")).data;
  return std::find(mask.begin(), mask.end(), 0.0) != mask.end();
}

// Some row or token has the advantage 0.
inline bool zero_advantage(const Case& c) {
  const std::vector<double> a = array_of(c.inputs.at("advantages")).data;
  return std::find(a.begin(), a.end(), 0.0) != a.end();
}

inline When before(const std::vector<int>& release) {
  return [=](const Case& c) { return !since(c, release); };
}

inline When operator&&(const When& a, const When& b) {
  return [=](const Case& c) { return a(c) && b(c); };
}

inline When operator||(const When& a, const When& b) {
  return [=](const Case& c) { return a(c) || b(c); };
}

inline When operator!(const When& a) {
  return [=](const Case& c) { return !a(c); };
}

}  // namespace conformance
