// The library's estimators behind the settings of the oracle (reference/naive.hpp). One function
// that is not a template runs any estimator of the product of axes, so that the product is compiled
// only once (support/product.cpp) and any test can use it.
#pragma once
#include <gdpo/advantage/explain.hpp>
#include <gdpo/runtime.hpp>
#include <reference/naive.hpp>
#include <set>
#include <string>

#include "support/generators.hpp"
#include "support/row_settings.hpp"

namespace product {

struct Outcome {
  std::vector<double> advantages, sums;
};

/// What a test wants besides the advantages: a report, and the explanation of every group.
struct Wanted {
  gdpo::GroupReport* report;
  std::vector<gdpo::Explanation>* explained;
  Wanted(gdpo::GroupReport* r = nullptr, std::vector<gdpo::Explanation>* e = nullptr)
      : report(r), explained(e) {}
};
/// Calls gdpo::advantages_into with the estimator that the settings describe; groups are given by
/// id.
Outcome advantages(const naive::Settings& settings, const naive::Data& data,
                   const Wanted& wanted = {});

template <class Policy>
struct Of {
  using type = Policy;
};
namespace detail {
/// The types of the baselines, the scales and the pairs of both in estimators with names.
template <class... E>
struct TypesOf {
  template <class... More>
  using Baselines = typename gdpo::runtime::detail::Distinct<std::variant<More...>,
                                                             decltype(E::baseline)...>::type;
  using Scales =
      typename gdpo::runtime::detail::Distinct<std::variant<>, decltype(E::scale)...>::type;
  template <class Baseline, class Scale>
  static constexpr bool has = ((std::is_same_v<decltype(E::baseline), Baseline> &&
                                std::is_same_v<decltype(E::scale), Scale>) ||
                               ...);
};
template <class... E, class... O>
TypesOf<E..., decltype(O::rows)...> types_of(const std::variant<E...>&, const std::variant<O...>&);
using Types = decltype(types_of(std::declval<gdpo::runtime::Estimator>(),
                                std::declval<gdpo::runtime::OutcomeAdvantage>()));
/// Four baselines are in no estimator with a name.
using Baselines = Types::Baselines<gdpo::baseline::Median, gdpo::baseline::TrimmedMean,
                                   gdpo::baseline::WinsorizedMean, gdpo::baseline::External>;
template <class Visit, class... P>
void for_each_of(const std::variant<P...>*, const Visit& visit) {
  (visit(Of<P>{}), ...);
}
}  // namespace detail
/// Calls visit(Of<policy>, the oracle's name for it) for every baseline of the library: those of
/// the list of presets. A new one takes part with its formula in reference/naive.hpp.
template <class Visit>
void for_each_baseline(const Visit& visit) {
  detail::for_each_of(static_cast<detail::Baselines*>(nullptr),
                      [&](auto of) { visit(of, baseline_of<typename decltype(of)::type>()); });
}
/// The same for every scale.
template <class Visit>
void for_each_scale(const Visit& visit) {
  detail::for_each_of(static_cast<detail::Types::Scales*>(nullptr), visit);
}
/// Whether the product has estimators of these two: those with a name, and each baseline with
/// StdDev and without a scale.
template <class Baseline, class Scale>
constexpr bool is_compiled_v =
    std::is_same_v<Scale, gdpo::scale::None> || std::is_same_v<Scale, gdpo::scale::StdDev> ||
    detail::Types::has<Baseline, Scale>;

/// Whether every combination of combine and renorm is tried with a baseline. With the others there
/// are two, which take all paths of the engine: SumThenNormalize without a renormalization, and
/// NormalizeThenSum with one over the batch; and fewer sets to scale by.
inline bool has_whole_product(naive::Baseline b) {
  return b == naive::Baseline::Mean || b == naive::Baseline::LeaveOneOut ||
         b == naive::Baseline::None;
}
inline bool is_tried(naive::Baseline b, naive::Combine c, naive::Renorm r) {
  return has_whole_product(b) ||
         r == (c == naive::Combine::SumThenNormalize ? naive::Renorm::None : naive::Renorm::Batch);
}

/// Whether a set to take a std of is tried with a baseline: the whole product, but for those that
/// belong to the baseline about which they take the std.
inline bool is_tried(naive::Baseline b, naive::Scale s) {
  using naive::Baseline, naive::Scale;
  if (s == Scale::GroupOthers) return b == Baseline::LeaveOneOut;
  if (s == Scale::GroupRms || s == Scale::BatchRms) return b == Baseline::None;
  return has_whole_product(b) || (s != Scale::Batch && s != Scale::Within);
}

/// Calls visit(settings) for every combination of baseline, kind of scale, combine and renorm that
/// is tried. property/advantage/shrunk_std_laws_test.cpp and robust_laws_test.cpp have others.
template <class Visit>
void for_each_type(const Visit& visit) {
  using namespace naive;
  for_each_baseline([&](auto of, Baseline b) {
    using BaselineType = typename decltype(of)::type;
    for_each_scale([&](auto of_scale) {
      using ScaleType = typename decltype(of_scale)::type;
      if constexpr (is_compiled_v<BaselineType, ScaleType>) {
        for (std::size_t kind = 0; kind < std::size(scales); ++kind) {
          const auto s = static_cast<Scale>(kind);
          if (!is_scale<ScaleType>(s) || !is_tried(b, s)) continue;
          for (const Combine c : {Combine::SumThenNormalize, Combine::NormalizeThenSum}) {
            for (const Renorm r : {Renorm::None, Renorm::Batch, Renorm::PerGroup, Renorm::Tokens}) {
              if (!is_tried(b, c, r)) continue;
              Settings e;
              e.baseline = b, e.scale = s, e.combine = c, e.renorm = r;
              visit(e);
            }
          }
        }
      }
    });
  });
}

/// A random batch, and all settings of `e` that are no choice of a type at random.
naive::Data random_case(Random& random, naive::Settings& e);

struct Preset {
  std::string name;
  naive::Settings settings;
};
/// Every estimator that has a name in gdpo::runtime, with the oracle's settings for it. Those with
/// the same settings stand there once, under the first of their names.
inline const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> list;
    std::set<std::string> settings;
    for (const std::string& name : gdpo::runtime::estimator_names()) {
      const Preset preset{name, std::visit([](const auto& e) { return settings_of(e); },
                                           gdpo::runtime::estimator(name))};
      if (settings.insert(describe(preset.settings)).second) list.push_back(preset);
    }
    return list;
  }();
  return all;
}

}  // namespace product
