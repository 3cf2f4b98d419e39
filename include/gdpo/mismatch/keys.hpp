#pragma once
// The keys that trainers log a mismatch under: one table, and the settings that give their numbers.
#include <gdpo/mismatch/report.hpp>

GDPO_BEGIN_NAMESPACE

/// The settings that count ratios above `bound` and below 1 / bound, of tokens and of rows; for a
/// bound below 1 the two change places. Needed: a number above 0.
inline MismatchSettings mismatch_settings_of_bound(double bound) {
  if (!(bound > 0)) {
    contract::fail("gdpo::mismatch_settings", "bound", contract::text(bound), "a number above 0");
  }
  MismatchSettings s;
  s.token_high = s.row_high = (math::max)(bound, 1 / bound);
  s.token_low = s.row_low = (math::min)(bound, 1 / bound);
  return s;
}
/// The settings with which a report has the numbers of a trainer.
///
/// bound: the trainer's threshold of ratios, as in mismatch_settings_of_bound: verl
/// rollout_is_threshold, ms-swift rollout_importance_sampling_threshold. For verl's pair
/// "low_high", set the bounds by hand.
inline MismatchSettings mismatch_settings(MismatchKeys keys, double bound = 2) {
  MismatchSettings s = mismatch_settings_of_bound(bound);
  const bool verl = keys == MismatchKeys::Verl || keys == MismatchKeys::VerlSequence,
             swift = keys == MismatchKeys::MsSwift || keys == MismatchKeys::MsSwiftSequence;
  s.empty_rows = verl || swift;
  if (verl || keys == MismatchKeys::NemoRl) s.count_eps = 1e-8;
  if (verl || swift) s.ess_eps = 1e-8;
  if (keys == MismatchKeys::Unsloth) s.clamp = 670;
  return s;
}

namespace detail {
namespace mismatch_list {

/// When a key is there: always, if the batch had weights, or if the positions are known.
enum class Needs { Nothing, Weights, Positions };
/// Which trainers log it: a bit for each of MismatchKeys.
constexpr unsigned bit(MismatchKeys keys) { return 1u << static_cast<unsigned>(keys); }
using K = MismatchKeys;
constexpr unsigned verl = bit(K::Verl) | bit(K::VerlSequence),
                   swift = bit(K::MsSwift) | bit(K::MsSwiftSequence),
                   swift_tokens = bit(K::MsSwift), swift_rows = bit(K::MsSwiftSequence),
                   verl_tokens = bit(K::Verl), verl_rows = bit(K::VerlSequence),
                   nemo = bit(K::NemoRl), openrlhf = bit(K::OpenRlhf), skyrl = bit(K::SkyRl),
                   trl = bit(K::Trl), unsloth = bit(K::Unsloth);

/// Numbers of a report, and of the positions of the trainer's arrays.
struct Source {
  const MismatchReport& r;
  double positions;
};
struct Key {
  unsigned trainers;
  const char* name;  ///< After the trainer's prefix.
  double (*of)(const Source&);
  Needs needs = Needs::Nothing;
};
/// The standard deviation of r over positions, of which those that are not scored hold 0.
inline double padded_std(const Source& s) {
  const AboutOne x = ratios(s.r);
  const double zeros = s.positions - x.n, a = x.a - zeros, b = x.b + zeros, n = s.positions;
  const double v = n > 1 ? (b - math::mul(a, a) / n) / (n - 1) : 0.0;
  return v > 0 ? math::sqrt(v) : 0.0;
}
/// Whether some positions are not scored, so that a 0 stands there.
inline bool has_zeros(const Source& s) { return s.positions > static_cast<double>(s.r.scored); }

/// Shares of rows whose product is above or below the bounds, where rows without a token have the
/// product 0: verl takes the mean of a row's weights, which is 0 there, although it takes 1 for
/// them in rollout_is_ratio_fraction_*.
inline double products_above(const Source& s) {
  const MismatchReport& r = s.r;
  const index_t empty = r.settings.row_high < 1 ? r.counted_rows - r.scored_rows : 0;
  return share(r.products_high - empty, r.counted_rows);
}
inline double products_below(const Source& s) {
  const MismatchReport& r = s.r;
  const double low = r.settings.row_low;
  const index_t empty = low > 0 && low <= 1 ? r.counted_rows - r.scored_rows : 0;
  return share(r.products_low + empty, r.counted_rows);
}

#define GDPO_OF(...) [](const Source& s) -> double { return s.r.__VA_ARGS__; }
inline constexpr Key table[] = {
    {verl | swift, "training_ppl", GDPO_OF(mean_ppl())},
    {verl | swift, "training_log_ppl", GDPO_OF(mean_log_ppl())},
    {verl | swift, "kl", GDPO_OF(kl())},
    {verl | swift, "k3_kl", GDPO_OF(k3_kl())},
    {verl | swift, "rollout_ppl", GDPO_OF(mean_rollout_ppl())},
    {verl | swift, "rollout_log_ppl", GDPO_OF(mean_rollout_log_ppl())},
    {verl | swift, "log_ppl_diff", GDPO_OF(mean_log_ppl_diff())},
    {verl | swift, "log_ppl_abs_diff", GDPO_OF(mean_abs_log_ppl_diff())},
    {verl | swift, "log_ppl_diff_max", GDPO_OF(log_ppl_diff_max.value)},
    {verl | swift, "log_ppl_diff_min", GDPO_OF(log_ppl_diff_min.value)},
    {verl | swift, "ppl_ratio", GDPO_OF(mean_ppl_ratio())},
    {verl | swift, "chi2_token", GDPO_OF(chi2_token())},
    {verl, "chi2_seq", GDPO_OF(chi2_product())},
    {swift, "chi2_seq", GDPO_OF(chi2_geometric())},
    {verl, "rollout_is_mean", GDPO_OF(weight_mean()), Needs::Weights},
    {verl, "rollout_is_std", GDPO_OF(weight_std()), Needs::Weights},
    {verl_tokens, "rollout_is_max", GDPO_OF(weight_max.value), Needs::Weights},
    {verl_tokens, "rollout_is_min", GDPO_OF(weight_min.value), Needs::Weights},
    {verl_rows, "rollout_is_max", GDPO_OF(product_max.value), Needs::Weights},
    {verl_rows, "rollout_is_min", GDPO_OF(product_min.value), Needs::Weights},
    {verl_tokens, "rollout_is_ratio_fraction_high", GDPO_OF(token_fraction_high()), Needs::Weights},
    {verl_tokens, "rollout_is_ratio_fraction_low", GDPO_OF(token_fraction_low()), Needs::Weights},
    {verl_rows, "rollout_is_ratio_fraction_high", GDPO_OF(product_fraction_high()), Needs::Weights},
    {verl_rows, "rollout_is_ratio_fraction_low", GDPO_OF(product_fraction_low()), Needs::Weights},
    {verl, "rollout_is_eff_sample_size", GDPO_OF(weight_ess()), Needs::Weights},
    {verl, "rollout_is_seq_mean", GDPO_OF(row_weight_mean()), Needs::Weights},
    {verl, "rollout_is_seq_std", GDPO_OF(row_weight_std()), Needs::Weights},
    {verl, "rollout_is_seq_max", GDPO_OF(row_weight_max.value), Needs::Weights},
    {verl, "rollout_is_seq_min", GDPO_OF(row_weight_min.value), Needs::Weights},
    {verl, "rollout_is_seq_max_deviation", GDPO_OF(row_weight_deviation.value), Needs::Weights},
    {verl_tokens, "rollout_is_seq_fraction_high", GDPO_OF(mean_fraction_high()), Needs::Weights},
    {verl_tokens, "rollout_is_seq_fraction_low", GDPO_OF(mean_fraction_low()), Needs::Weights},
    {verl_rows, "rollout_is_seq_fraction_high", products_above, Needs::Weights},
    {verl_rows, "rollout_is_seq_fraction_low", products_below, Needs::Weights},
    {swift, "is_weight_mean", GDPO_OF(weight_mean()), Needs::Weights},
    {swift, "ess", GDPO_OF(bounded_weight_ess()), Needs::Weights},
    {swift_tokens, "clipped_frac", GDPO_OF(token_fraction_high()), Needs::Weights},
    {swift_rows, "clipped_frac", GDPO_OF(geometric_fraction_high()), Needs::Weights},
    {nemo, "token_mult_prob_error", GDPO_OF(mult_prob_error())},
    {nemo, "gen_kl_error", GDPO_OF(k3_kl())},
    {nemo, "policy_kl_error", GDPO_OF(reverse_k3_kl())},
    {nemo, "js_divergence_error", GDPO_OF(js_divergence())},
    {openrlhf, "vllm_kl", GDPO_OF(kl())},
    {skyrl, "is_ratio_mean", GDPO_OF(ratio_mean())},
    {skyrl, "is_ratio_std", padded_std, Needs::Positions},
    {skyrl, "is_ratio_max", [](const Source& s) { return (math::max)(s.r.ratio_max.value, 0.0); },
     Needs::Positions},
    {skyrl, "is_ratio_min",
     [](const Source& s) { return has_zeros(s) ? 0.0 : s.r.ratio_min.value; }, Needs::Positions},
    {trl, "sampling_logp_difference/mean", GDPO_OF(abs_log_diff())},
    {trl, "sampling_logp_difference/max", GDPO_OF(abs_log_ratio_max.value)},
    {trl, "importance_sampling_ratio/min", GDPO_OF(weight_min.value), Needs::Weights},
    {trl, "importance_sampling_ratio/mean", GDPO_OF(weight_mean()), Needs::Weights},
    {trl, "importance_sampling_ratio/max", GDPO_OF(weight_max.value), Needs::Weights},
    {unsloth, "rollout_kl_k1/mean", GDPO_OF(kl())},
    {unsloth, "rollout_kl_k3/mean", GDPO_OF(k3_kl())},
    {unsloth, "rollout_kl_k3/max", GDPO_OF(k3_max.value)},
    {unsloth, "importance_sampling_ess", GDPO_OF(weight_ess()), Needs::Weights},
    {unsloth, "importance_sampling_rejected_frac", GDPO_OF(weight_dropped()), Needs::Weights},
    {unsloth, "importance_sampling_rejected_seq_frac", GDPO_OF(rows_dropping()), Needs::Weights}};
#undef GDPO_OF

/// What the trainer puts before its keys.
inline const char* folder(MismatchKeys keys) {
  switch (keys) {
    case K::Verl:
    case K::VerlSequence:
      return "rollout_corr/";
    case K::MsSwift:
    case K::MsSwiftSequence:
      return "rollout_correction/";
    case K::Trl:
    case K::Unsloth:
      return "sampling/";
    default:
      return "";
  }
}

}  // namespace mismatch_list
}  // namespace detail
GDPO_END_NAMESPACE

namespace gdpo {
template <class Map>
GDPO_DATA_HOST_INLINE Map MismatchReport::to_map(MismatchKeys keys, const std::string& prefix,
                                                 index_t positions) const {
  namespace m = detail::mismatch_list;
  if (positions != 0 && positions < scored) {
    contract::fail("gdpo::MismatchReport::to_map", "positions", contract::text(positions),
                   "at least " + contract::text(scored) + ", the scored tokens; or 0: not known");
  }
  Map map;
  const m::Source source{*this, static_cast<double>(positions)};
  for (const m::Key& key : m::table) {
    if ((key.trainers & m::bit(keys)) == 0) continue;
    if (key.needs == m::Needs::Weights && weighed == 0) continue;
    if (key.needs == m::Needs::Positions && positions == 0) continue;
    map[prefix + m::folder(keys) + key.name] = key.of(source);
  }
  return map;
}
}  // namespace gdpo
