#include "params.hpp"

#include <algorithm>
#include <limits>

namespace conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

bool Params::has(const std::string& name) const {
  return values_.contains(name) && !values_.at(name).is_null();
}

const Json& Params::read(const std::string& name) {
  const auto it = values_.find(name);
  if (it == values_.end()) throw Unsupported(where_ + name + " is missing");
  read_.insert(name);
  return *it;
}

void Params::refuse(const std::string& name) const {
  throw Unsupported(where_ + name + " = " + values_.at(name).dump() + " is not mapped");
}

double Params::number(const std::string& name) {
  const Json& value = read(name);
  if (!value.is_number()) refuse(name);
  return value.get<double>();
}

int Params::integer(const std::string& name) {
  const Json& value = read(name);
  if (!value.is_number_integer()) refuse(name);
  return value.get<int>();
}

std::string Params::text(const std::string& name) {
  const Json& value = read(name);
  if (!value.is_string()) refuse(name);
  return value.get<std::string>();
}

bool Params::is_text(const std::string& name) const {
  return values_.contains(name) && values_.at(name).is_string();
}

bool Params::flag(const std::string& name) {
  const Json& value = read(name);
  if (!value.is_boolean()) refuse(name);
  return value.get<bool>();
}

std::vector<double> Params::numbers(const std::string& name) {
  const Json& value = read(name);
  const auto is_number = [](const Json& entry) { return entry.is_number(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_number)) refuse(name);
  return value.get<std::vector<double>>();
}

double Params::at_most(const std::string& name) { return has(name) ? number(name) : kInfinity; }

double Params::at_least(const std::string& name) { return has(name) ? number(name) : -kInfinity; }

gdpo::Bounds Params::interval(const std::string& name) {
  if (!has(name)) return {};
  const Json& value = read(name);
  const auto is_bound = [](const Json& entry) { return entry.is_number() || entry.is_null(); };
  if (!value.is_array() || value.size() != 2 || !std::all_of(value.begin(), value.end(), is_bound))
    refuse(name);
  return {value[0].is_null() ? -kInfinity : value[0].get<double>(),
          value[1].is_null() ? kInfinity : value[1].get<double>()};
}

Params Params::object(const std::string& name) {
  const Json& value = read(name);
  if (!value.is_object()) refuse(name);
  return Params(value, where_ + name + ".");
}

std::string Params::choice(const std::string& name, std::initializer_list<const char*> known) {
  const Json& value = read(name);
  if (std::none_of(known.begin(), known.end(), [&](const char* k) { return value == k; }))
    refuse(name);
  return value.get<std::string>();
}

std::string Params::choice(const std::string& name, std::initializer_list<const char*> known,
                           const char* absent) {
  return values_.contains(name) ? choice(name, known) : absent;
}

void Params::remark(const std::string& name) {
  if (!values_.contains(name)) return;
  if (!read(name).is_string()) refuse(name);
}

void Params::without_effect(std::initializer_list<const char*> names) {
  read_.insert(names.begin(), names.end());
}

void Params::of_preset(const std::string& name, double preset) {
  if (number(name) != preset) refuse(name);
}

void Params::of_preset(const std::string& name, gdpo::Bounds preset) {
  const gdpo::Bounds recorded = interval(name);
  if (recorded.lo != preset.lo || recorded.hi != preset.hi) refuse(name);
}

void Params::all_read() const {
  for (const auto& [name, value] : values_.items()) {
    if (value.is_null() || read_.count(name) != 0) continue;
    throw Unsupported(where_ + name + " = " + value.dump() + " is not mapped");
  }
}

void only(const Json& inputs, std::initializer_list<const char*> known) {
  for (const auto& [name, value] : inputs.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw Unsupported("input " + name + " is not mapped");
    }
  }
}

}  // namespace conformance
