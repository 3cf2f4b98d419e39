#pragma once
// The keys that trainers log a gate or a weight under, and the settings that give their numbers.
#include <gdpo/prepass/report.hpp>

GDPO_BEGIN_NAMESPACE

/// The settings with which a report has the numbers of a trainer.
inline GateReportSettings gate_report_settings(GateKeys keys) {
  GateReportSettings s;
  if (keys == GateKeys::Verl || keys == GateKeys::NemoRl) s.count_eps = 1e-8;
  s.empty_rows = keys == GateKeys::SkyRl;
  return s;
}

namespace detail {
namespace gate_list {

/// Which statistics a trainer logs under a key: any, of tokens alone, shared by tokens alone, or
/// any that has a lower bound.
enum class Of { Any, Tokens, Shared, LowerBound };
struct Key {
  GateKeys trainer;
  const char* name;  ///< After the name of the gate.
  double (GateReport::*of)() const;
  Of statistics = Of::Any;
};
using K = GateKeys;
using R = GateReport;
inline constexpr Key table[] = {
    {K::Verl, "_mean", &R::token_mean},
    {K::Verl, "_std", &R::bounded_std},
    {K::Verl, "_min", &R::token_min, Of::Tokens},
    {K::Verl, "_max", &R::token_max, Of::Tokens},
    {K::Verl, "_fraction_low", &R::token_fraction_low, Of::Tokens},
    {K::Verl, "_fraction_high", &R::token_fraction_high, Of::Tokens},
    {K::Verl, "_min", &R::row_min, Of::Shared},
    {K::Verl, "_max", &R::row_max, Of::Shared},
    {K::Verl, "_fraction_low", &R::row_fraction_low, Of::Shared},
    {K::Verl, "_fraction_high", &R::row_fraction_high, Of::Shared},
    {K::Verl, "_seq_mean", &R::row_mean},
    {K::Verl, "_seq_std", &R::row_std},
    {K::Verl, "_seq_min", &R::row_min},
    {K::Verl, "_seq_max", &R::row_max},
    {K::Verl, "_seq_max_deviation", &R::row_deviation},
    {K::Verl, "_seq_fraction_low", &R::row_fraction_low, Of::LowerBound},
    {K::Verl, "_seq_fraction_high", &R::row_fraction_high},
    {K::Verl, "_masked_fraction", &R::closed_share},
    {K::Verl, "_seq_masked_fraction", &R::rows_closing_share},
    {K::SkyRl, "_masked_ratio", &R::rows_closing_share},
    {K::SkyRl, "_under_low_ratio", &R::row_fraction_low},
    {K::SkyRl, "_over_high_ratio", &R::row_fraction_high},
    {K::NemoRl, "", &R::token_mean},
    {K::NemoRl, "_min", &R::token_min},
    {K::NemoRl, "_max", &R::token_max},
    {K::NemoRl, "_clamped", &R::bounded_mean},
    {K::NemoRl, "_clamped_min", &R::bounded_min},
    {K::NemoRl, "_clamped_max", &R::bounded_max},
    {K::OpenInstruct, "_frac", &R::closed_share},
    {K::OpenInstruct, "_low_frac", &R::closed_low_share},
    {K::OpenInstruct, "_high_frac", &R::closed_high_share},
    {K::PrimeRl, "", &R::closed_share},
    {K::PrimeRl, "_low", &R::closed_low_share},
    {K::PrimeRl, "_high", &R::closed_high_share}};

}  // namespace gate_list

}  // namespace detail
GDPO_END_NAMESPACE

namespace gdpo {
template <class Map>
GDPO_DATA_HOST_INLINE Map GateReport::to_map(GateKeys keys, const std::string& name) const {
  namespace g = detail::gate_list;
  Map map;
  for (const g::Key& key : g::table) {
    const bool there =
        key.statistics == g::Of::Any ||
        (key.statistics == g::Of::LowerBound ? !math::is_inf(lower)
                                             : (key.statistics == g::Of::Shared) == shared);
    if (key.trainer == keys && there) map[name + key.name] = (this->*key.of)();
  }
  return map;
}
}  // namespace gdpo
