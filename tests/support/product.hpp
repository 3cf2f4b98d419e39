// The library's estimators behind the settings of the oracle (reference/naive.hpp). One function
// that is not a template runs any estimator of the product of axes, so that the product is compiled
// only once (support/product.cpp) and any test can use it.
#pragma once
#include <cstdio>
#include <gdpo/runtime.hpp>
#include <reference/naive.hpp>
#include <set>
#include <string>

namespace product {

struct Outcome {
  std::vector<double> advantages, sums;
};

/// Calls gdpo::advantages_into with the estimator that the settings describe; groups are given by
/// id.
Outcome advantages(const naive::Settings& settings, const naive::Data& data,
                   gdpo::GroupReport* report = nullptr);

template <class Policy>
struct Of {
  using type = Policy;
};
/// Calls visit(Of<policy>, the oracle's name for it, its name as text) for every baseline of the
/// library. A new baseline is a line here and a formula in reference/naive.hpp; it then takes part
/// in the product of axes.
template <class Visit>
void for_each_baseline(const Visit& visit) {
  visit(Of<gdpo::baseline::Mean>{}, naive::Baseline::Mean, "Mean");
  visit(Of<gdpo::baseline::LeaveOneOut>{}, naive::Baseline::LeaveOneOut, "LeaveOneOut");
  visit(Of<gdpo::baseline::None>{}, naive::Baseline::None, "None");
  visit(Of<gdpo::baseline::Median>{}, naive::Baseline::Median, "Median");
  visit(Of<gdpo::baseline::TrimmedMean>{}, naive::Baseline::TrimmedMean, "TrimmedMean");
  visit(Of<gdpo::baseline::WinsorizedMean>{}, naive::Baseline::WinsorizedMean, "WinsorizedMean");
  visit(Of<gdpo::baseline::SecondBest>{}, naive::Baseline::SecondBest, "SecondBest");
  visit(Of<gdpo::baseline::LengthWeighted>{}, naive::Baseline::LengthWeighted, "LengthWeighted");
  visit(Of<gdpo::baseline::External>{}, naive::Baseline::External, "External");
  visit(Of<gdpo::baseline::LogMeanExp>{}, naive::Baseline::LogMeanExp, "LogMeanExp");
  visit(Of<gdpo::baseline::ShiftedMean>{}, naive::Baseline::ShiftedMean, "ShiftedMean");
  visit(Of<gdpo::baseline::BatchMean>{}, naive::Baseline::BatchMean, "BatchMean");
}

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

/// Calls visit(settings) for every combination of baseline, kind of scale, combine and renorm that
/// is tried.
template <class Visit>
void for_each_type(const Visit& visit) {
  using namespace naive;
  for_each_baseline([&](auto, Baseline b, const char*) {
    for (const Scale s :
         {Scale::None, Scale::Group, Scale::Batch, Scale::BatchCentered, Scale::Within,
          Scale::Shrunk, Scale::GroupMean, Scale::GroupOthers, Scale::GroupRms, Scale::BatchRms}) {
      if (!has_whole_product(b) && (s == Scale::Batch || s == Scale::Within)) continue;
      // property/advantage/shrunk_std_laws_test.cpp has the others.
      // Each of these belongs to the baseline about which it takes the std.
      if (s == Scale::GroupOthers && b != Baseline::LeaveOneOut) continue;
      if ((s == Scale::GroupRms || s == Scale::BatchRms) && b != Baseline::None) continue;
      if ((s == Scale::Shrunk || s == Scale::GroupMean) && b != Baseline::Mean) continue;
      for (const Combine c : {Combine::SumThenNormalize, Combine::NormalizeThenSum}) {
        for (const Renorm r : {Renorm::None, Renorm::Batch, Renorm::PerGroup, Renorm::Tokens}) {
          if (!is_tried(b, c, r)) continue;
          Settings e;
          e.baseline = b, e.scale = s, e.combine = c, e.renorm = r;
          visit(e);
        }
      }
    }
  });
}

namespace detail {
template <class From>
naive::Spread spread_of(const From& from) {
  naive::Spread spread;
  spread.ddof = from.ddof;
  spread.eps = from.eps;
  spread.eps_at = static_cast<naive::EpsAt>(from.eps_at);
  return spread;
}
inline void read_scale(const gdpo::scale::None&, naive::Settings& to) {
  to.scale = naive::Scale::None;
}
inline void read_scale(const gdpo::scale::StdDev& from, naive::Settings& to) {
  to.scale = from.of == gdpo::scale::Of::Group         ? naive::Scale::Group
             : from.of == gdpo::scale::Of::Batch       ? naive::Scale::Batch
             : from.of == gdpo::scale::Of::Within      ? naive::Scale::Within
             : from.of == gdpo::scale::Of::GroupOthers ? naive::Scale::GroupOthers
             : from.of == gdpo::scale::Of::GroupRms    ? naive::Scale::GroupRms
             : from.of == gdpo::scale::Of::BatchRms    ? naive::Scale::BatchRms
                                                       : naive::Scale::BatchCentered;
  to.scale_spread = spread_of(from);
}
inline void read_scale(const gdpo::scale::ShrunkStd& from, naive::Settings& to) {
  to.scale = naive::Scale::Shrunk;
  to.prior_dof = from.prior_dof;
  to.equal_groups = from.equal_groups == gdpo::EqualGroups::Include;
  to.scale_spread.eps = from.eps;
  to.scale_spread.eps_at = static_cast<naive::EpsAt>(from.eps_at);
}
inline void read_scale(const gdpo::scale::LeaveOneOutStd& from, naive::Settings& to) {
  to.scale = naive::Scale::Others;
  to.scale_spread = spread_of(from);
}
inline void read_scale(const gdpo::scale::GroupMean& from, naive::Settings& to) {
  to.scale = naive::Scale::GroupMean;
  to.scale_spread.eps = from.eps;
  to.any_mean = from.divide_by == gdpo::scale::DivideBy::AnyMean;
}
inline void read_scale(const gdpo::scale::NonzeroShare&, naive::Settings& to) {
  to.scale = naive::Scale::NonzeroShare;
}
template <class Baseline>
void read_baseline(const Baseline&, naive::Settings&) {}
inline void read_baseline(const gdpo::baseline::TrimmedMean& from, naive::Settings& to) {
  to.fraction = from.fraction;
}
inline void read_baseline(const gdpo::baseline::WinsorizedMean& from, naive::Settings& to) {
  to.fraction = from.fraction;
}
inline void read_baseline(const gdpo::baseline::LogMeanExp& from, naive::Settings& to) {
  to.tau = from.tau;
}
inline void read_baseline(const gdpo::baseline::ShiftedMean& from, naive::Settings& to) {
  to.shift = from.shift;
}
inline void read_baseline(const gdpo::baseline::BatchMean& from, naive::Settings& to) {
  to.others = from.leave_one_out;
}
inline void read_renorm(const gdpo::Renorm& from, naive::Settings& to) {
  using gdpo::RenormOver;
  to.renorm = from.over == RenormOver::None    ? naive::Renorm::None
              : from.over == RenormOver::Batch ? naive::Renorm::Batch
              : from.over == RenormOver::Group ? naive::Renorm::PerGroup
                                               : naive::Renorm::Tokens;
  if (from.over == RenormOver::None) return;
  to.renorm_spread = spread_of(from);
  to.renorm_spread.count_eps = from.count_eps;
  to.renorm_spread.keep_mean = from.keep_mean;
}
}  // namespace detail

/// The oracle's settings for an estimator of the library, without weights, gates, penalty and
/// bounds, which no preset sets.
template <class B, class S, class C, class R>
naive::Settings settings_of(const gdpo::GroupAdvantage<B, S, C, R>& e) {
  naive::Settings to;
  for_each_baseline([&](auto of, naive::Baseline b, const char*) {
    if (std::is_same_v<typename decltype(of)::type, B>) to.baseline = b;
  });
  detail::read_baseline(e.baseline, to);
  to.combine = std::is_same_v<C, gdpo::combine::SumThenNormalize>
                   ? naive::Combine::SumThenNormalize
                   : naive::Combine::NormalizeThenSum;
  detail::read_scale(e.scale, to);
  detail::read_renorm(e.renorm, to);
  to.entry = e.missing.entry == gdpo::MissingEntry::Skip   ? naive::Entry::Skip
             : e.missing.entry == gdpo::MissingEntry::Zero ? naive::Entry::Zero
                                                           : naive::Entry::Propagate;
  to.row = e.missing.row == gdpo::MissingRow::Keep              ? naive::Row::Keep
           : e.missing.row == gdpo::MissingRow::ExcludeUnscored ? naive::Row::ExcludeUnscored
                                                                : naive::Row::Exclude;
  to.singleton = e.singleton == gdpo::Singleton::Raw       ? naive::Singleton::Raw
                 : e.singleton == gdpo::Singleton::Nan     ? naive::Singleton::Nan
                 : e.singleton == gdpo::Singleton::Exclude ? naive::Singleton::Exclude
                                                           : naive::Singleton::Zero;
  return to;
}

inline const char* name(naive::Baseline of) {
  const char* found = nullptr;
  for_each_baseline([&](auto, naive::Baseline b, const char* name) {
    if (b == of) found = name;
  });
  return found;
}

/// The settings as text, enough to rebuild a failing case from an INFO line.
inline std::string describe(const naive::Settings& e) {
  const auto number = [](auto x) { return std::to_string(static_cast<int>(x)); };
  const auto real = [](double x) {
    char text[32];
    std::snprintf(text, sizeof text, "%.17g", x);
    return std::string(text);
  };
  const auto spread = [&](const naive::Spread& s) {
    return "{ddof " + std::to_string(s.ddof) + ", eps " + real(s.eps) + " at " + number(s.eps_at) +
           ", count_eps " + real(s.count_eps) + ", keep_mean " + number(s.keep_mean) + "}";
  };
  std::string weights;
  for (const double w : e.weights) weights += " " + real(w);
  return std::string("baseline ") + name(e.baseline) + " " + real(e.fraction) + " " + real(e.tau) +
         " " + real(e.shift) + " " + number(e.others) + ", scale " + number(e.scale) +
         spread(e.scale_spread) + " prior_dof " + real(e.prior_dof) + " equal_groups " +
         number(e.equal_groups) + " any_mean " + number(e.any_mean) + ", combine " +
         number(e.combine) + ", renorm " + number(e.renorm) + spread(e.renorm_spread) + ", entry " +
         number(e.entry) + ", row " + number(e.row) + ", singleton " + number(e.singleton) +
         ", penalty " + real(e.penalty_coef) + " on " + std::to_string(e.penalty_reward) +
         ", weights" + weights + ", gates " + std::to_string(e.gates.size()) + ", reward_clip " +
         real(e.reward_low) + " " + real(e.reward_high) + ", clip " + real(e.low) + " " +
         real(e.high);
}

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
