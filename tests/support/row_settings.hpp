// Estimators over rows as the oracle (reference/naive.hpp) knows them, and back; the oracle's data
// as a batch, and back. The names of policies and settings are those of the library, so that a new
// one has no line here.
#pragma once
#include <cstdio>
#include <gdpo/advantages.hpp>
#include <reference/naive.hpp>
#include <vector>

#include "support/oracle_settings.hpp"

namespace product {

/// The place of a type in a list of names; it throws where the list lacks it.
template <class Policy, std::size_t n>
int number_of(const char* axis, const char* const (&names)[n]) {
  const std::string type = gdpo::detail::type_name<Policy>();
  for (std::size_t i = 0; i < n; ++i)
    if (type == std::string(axis) + names[i]) return static_cast<int>(i);
  throw std::logic_error("the oracle (reference/naive.hpp) does not know " + type);
}
/// The oracle's baseline of a type.
template <class Policy>
naive::Baseline baseline_of() {
  static const int number = number_of<Policy>("baseline::", naive::baselines);
  return static_cast<naive::Baseline>(number);
}
/// The oracle's scale of a type: the first of StdDev.
template <class Policy>
naive::Scale scale_of() {
  static const int number = number_of<Policy>("scale::", naive::scales);
  return static_cast<naive::Scale>(number);
}
/// Whether the type has that scale.
template <class Policy>
bool is_scale(naive::Scale scale) {
  const auto name = [](naive::Scale s) {
    return std::string_view(naive::scales[static_cast<std::size_t>(s)]);
  };
  return name(scale) == name(scale_of<Policy>());
}

namespace detail {
/// Copies all settings of an estimator but lists; `renorm.over` must be the same on both sides,
/// because it decides which other settings there are. The oracle has no rule for infinite rewards,
/// and one for unused rows.
template <class Estimator, class Settings, class Copy>
void copy_rows(Estimator& e, Settings& settings, const Copy& copy) {
  int infinite = 0, unused = 0;
  const auto known = [&](const auto& f) {
    naive::Settings::settings(settings, f);
    f("missing.infinite", infinite), f("missing.unused", unused);
  };
  const auto places = [&known](gdpo::RenormOver over) {
    std::remove_const_t<Estimator> any;
    any.renorm.over = over;
    return oracle::places(any, known, "naive.hpp");
  };
  static const std::vector<int> all = places(gdpo::RenormOver::Batch),
                                without_renorm = places(gdpo::RenormOver::None);
  const bool renorms = e.renorm.over != gdpo::RenormOver::None;
  oracle::copy_settings(e, known, renorms ? all : without_renorm, copy);
}
}  // namespace detail

/// The oracle's settings for an estimator of the library.
template <class B, class S, class C, class R>
naive::Settings settings_of(const gdpo::GroupAdvantage<B, S, C, R>& e) {
  naive::Settings to;
  to.baseline = baseline_of<B>(), to.scale = scale_of<S>();
  to.combine = std::is_same_v<C, gdpo::combine::SumThenNormalize>
                   ? naive::Combine::SumThenNormalize
                   : naive::Combine::NormalizeThenSum;
  detail::copy_rows(e, to, oracle::to_oracle);
  to.weights.assign(e.weights.begin(), e.weights.end());
  for (const gdpo::Gate& gate : e.gates)
    to.gates.push_back(
        {static_cast<int>(gate.reward), static_cast<int>(gate.given), gate.at_least});
  return to;
}
/// The estimator of that type with the oracle's settings.
template <class Estimator>
Estimator estimator_of(const naive::Settings& from) {
  Estimator e;
  e.renorm.over = static_cast<gdpo::RenormOver>(from.renorm);
  detail::copy_rows(e, from, oracle::to_library);
  e.weights = from.weights;
  std::vector<gdpo::Gate> gates;
  for (const naive::Gate& gate : from.gates)
    gates.push_back({gate.reward, gate.given, gate.at_least});
  e.gates = gates;
  return e;
}

/// The settings as text, enough to rebuild a failing case from an INFO line.
inline std::string describe(const naive::Settings& e) {
  std::string text = std::string("baseline ") +
                     naive::baselines[static_cast<std::size_t>(e.baseline)] + ", scale " +
                     naive::scales[static_cast<std::size_t>(e.scale)] + ", combine " +
                     std::to_string(static_cast<int>(e.combine));
  const auto add = [&text](const char* name, const auto& number) {
    char line[64];
    std::snprintf(line, sizeof line, " %s=%.17g", name, static_cast<double>(number));
    text += line;
  };
  naive::Settings::settings(e, add);
  for (const double w : e.weights) add("weight", w);
  for (const naive::Gate& g : e.gates)
    add("gate", g.reward), add("given", g.given), add("at_least", g.at_least);
  return text;
}

/// Random settings for a policy of estimators, or a renormalization.
template <class Policy>
void random_settings(Random& random, Policy& policy) {
  oracle::random_policy(random, policy, [&](const gdpo::Range& range, double present) {
    if (random.chance(0.4)) return present;
    for (int tries = 0; tries < 1000; ++tries) {
      const double x = random.pick({0.0, 0.0, 1e-6, 1e-4, 0.1, 0.25, 0.3, 0.49, 0.7, 1.0, 1.0, 2.0,
                                    6.0, -0.1, gdpo::math::infinity});
      if (gdpo::detail::fits(range, x)) return x;
    }
    return present;
  });
}

/// The oracle's data as a batch. The columns are those that it has.
template <class Groups>
gdpo::RewardBatch<double, Groups> batch_of(const naive::Data& d, const Groups& groups) {
  gdpo::RewardBatch<double, Groups> batch{gdpo::view(d.rewards.data(), d.rows, d.reward_count),
                                          groups};
  if (!d.tokens.empty()) batch.tokens = gdpo::view(d.tokens);
  if (!d.valid.empty()) batch.valid = gdpo::view(d.valid);
  if (!d.penalty.empty()) batch.penalty = gdpo::view(d.penalty);
  if (!d.external.empty()) batch.baseline = gdpo::view(d.external);
  return batch;
}
/// Some rows of the data, with all columns.
inline naive::Data rows_of(const naive::Data& d, const std::vector<int>& rows) {
  naive::Data part;
  part.rows = static_cast<int>(rows.size()), part.reward_count = d.reward_count;
  for (const int row : rows) {
    const auto i = static_cast<std::size_t>(row), n = static_cast<std::size_t>(d.reward_count);
    for (std::size_t c = 0; c < n; ++c) part.rewards.push_back(d.rewards[i * n + c]);
    part.ids.push_back(d.ids[i]);
    for (const auto member :
         {&naive::Data::tokens, &naive::Data::valid, &naive::Data::penalty, &naive::Data::external})
      if (!(d.*member).empty()) (part.*member).push_back((d.*member)[i]);
  }
  return part;
}
/// A batch as the oracle's data; groups without ids are numbered.
template <class Batch>
naive::Data data_of(const Batch& batch) {
  naive::Data d;
  d.rows = static_cast<int>(batch.rewards.extent[0]);
  d.reward_count = static_cast<int>(batch.rewards.extent[1]);
  d.ids.resize(static_cast<std::size_t>(d.rows));
  for (gdpo::index_t g = 0; g < batch.groups.count(d.rows); ++g) {
    for (gdpo::index_t k = 0; k < batch.groups.length(g); ++k) {
      long long& id = d.ids[static_cast<std::size_t>(batch.groups.row(g, k))];
      id = g;
      if constexpr (std::is_same_v<decltype(batch.groups), gdpo::ById>) id = batch.groups.ids()(g);
    }
  }
  for (int i = 0; i < d.rows; ++i) {
    for (int c = 0; c < d.reward_count; ++c) d.rewards.push_back(batch.rewards(i, c));
    if (batch.tokens) d.tokens.push_back(batch.tokens(i));
    if (batch.valid) d.valid.push_back(batch.valid(i));
    if (batch.penalty) d.penalty.push_back(batch.penalty(i));
    if (batch.baseline) d.external.push_back(batch.baseline(i));
  }
  return d;
}

}  // namespace product
