// labels: none
// The settings of every struct of the library: what fits each of them, said here a second time;
// that numbers and enumerators beyond it are refused by name; and that no member is left out.
#include <cmath>
#include <gdpo/advantage/robust_baseline.hpp>
#include <gdpo/advantage/robust_scale.hpp>
#include <gdpo/advantage/shrunk_std.hpp>
#include <gdpo/gdpo.hpp>
#include <gdpo/loss/any_kl.hpp>

#include "support/catch.hpp"
#include "support/member_count.hpp"
#include "support/message.hpp"

namespace fields_test {

namespace {

using namespace gdpo;
using gdpo::detail::FieldInfo, gdpo::detail::FieldPath;

/// What fits a setting, in the words of messages; empty for what is not a single value.
template <class T>
std::string what_fits(const T& member, const FieldInfo& info) {
  if constexpr (std::is_enum_v<T>) {
    std::string words;
    for (const auto& e : enumerators(member))
      words += (words.empty() ? "" : " | ") + std::string(e.word);
    return words;
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return gdpo::detail::needed(info.range, std::is_integral_v<T>);
  } else {
    return "";
  }
}
/// Values just beyond what fits.
template <class T>
std::vector<T> beyond(const T& member, const FieldInfo& info) {
  const Range& r = info.range;
  std::vector<T> values;
  if constexpr (std::is_enum_v<T>) {
    static_cast<void>(member);
    int last = 0;
    for (const auto& e : enumerators(T{})) last = (std::max)(last, static_cast<int>(e.value));
    for (const int value : {-1, last + 1, 99}) values.push_back(static_cast<T>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    const double inf = gdpo::math::infinity;
    if (!r.nan) values.push_back(std::nan(""));
    if (!r.infinity || r.open_above) values.push_back(inf);
    if (!r.infinity || r.low > -inf) values.push_back(-inf);
    if (r.low > -inf) values.push_back(r.open ? r.low : std::nextafter(r.low, -inf));
    if (r.high < inf) values.push_back(r.open_above ? r.high : std::nextafter(r.high, inf));
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    if (std::isfinite(r.low)) values.push_back(static_cast<T>(r.low) - 1);
    if (std::isfinite(r.high)) values.push_back(static_cast<T>(r.high) + 1);
  }
  return values;
}

struct Setting {
  std::string path;
  const char* fits;
};
using Settings = std::vector<Setting>;
/// The settings of a member of that name.
Settings within(const std::string& name, Settings settings) {
  for (Setting& s : settings) s.path = name + "." + s.path;
  return settings;
}
Settings joined(const std::vector<Settings>& lists) {
  Settings all;
  for (const Settings& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}
/// Checks the settings of a struct: `expected` has each of them, in the order of its list.
template <class T>
void settings(const T& good, const Settings& expected) {
  const auto said = [](const T& x) {
    return message_of([&] { gdpo::detail::check_fields("test", "s", x); });
  };
  CHECK(said(good) == "no error");

  // No member is left out.
  std::size_t fields = 0;
  T::fields(good, [&fields](const auto&...) { ++fields; });
  CHECK(fields == test::member_count<T>());

  std::size_t n = 0;
  T copy = good;
  gdpo::detail::walk_fields(
      copy, {}, [&](const FieldPath& path, auto& member, const FieldInfo& info) {
        const std::string name = path.text(), fits = what_fits(member, info);
        INFO(name);
        CHECK(std::string(info.meaning) != "");
        if (fits.empty()) return;
        REQUIRE(n < expected.size());
        CHECK(name == expected[n].path);
        CHECK(fits == expected[n].fits);
        ++n;
        const auto before = member;
        for (const auto& bad : beyond(member, info)) {
          member = bad;
          const std::string message = said(copy);
          INFO(message);
          // The message begins with the names of the settings that it is about.
          const std::string about = message.substr(0, message.find(": given ")) + ",";
          CHECK(about.find(" s." + name + ",") != std::string::npos);
          CHECK(message.find("; needed: ") != std::string::npos);
        }
        member = before;
      });
  CHECK(n == expected.size());
}

// What fits several settings.
const char* const eps_at = "std | var | clamp_std | clamp_var | none | std_or_one";
const char* const mode =
    "seq-mean-token-mean | token-mean | seq-mean-token-sum | seq-mean-token-sum-norm | token-sum | "
    "group-mean-token-mean";
const char* const against = "ref | old | teacher | rollout | data";
const char* const statistic =
    "token | segment_mean | segment_sum | segment_max | segment_log_mean_exp | sequence_mean | "
    "sequence_sum | sequence_max | sequence_log_mean_exp | group_mean | group_sum | group_max | "
    "group_log_mean_exp";
const char* const reach = "none | surrogate | surrogate_and_kl | kl | entropy | level | mask";
const char* const pair = "mismatch | update | drift";
const char* const steps = "valid | row | row_reward_on_valid | turns";
const char* const start = "zero | bias_corrected | first_value | after_first";
const char* const ddof = "at least 0 (0: population)";
const char* const or_0 = "a finite number of at least 0 (0: off)";
const char* const least_0 = "a finite number of at least 0";
const char* const inverse = "a finite number that is more than 0 (its inverse too)";
const char* const or_infinity = "at least 0 (infinity: off)";
const char* const more_than_0 = "more than 0 (infinity: off)";
const char* const or_follows = "at least 0 (0: follows from the others)";
const char* const part = "0 to below 1";
const char* const share = "0 to 1 (a share)";
const char* const unit = "0 to 1";
const char* const flag = "true or false";
const char* const of_scale =
    "group | batch | batch_centered | within | group_others | group_rms | batch_rms";
const char* const finite = "a finite number";
const char* const number = "a number";
const char* const over_of_renorm = "none | batch | group | tokens";
const char* const norm = "none | sum | diff";

// The settings of structs that are members of several others.
const Settings bounds{{"lo", number}, {"hi", number}};
const Settings aggregate{{"mode", mode},
                         {"over", "tokens | rows | non_empty_rows | given"},
                         {"count_eps", least_0},
                         {"scale", finite},
                         {"row_count_eps", least_0},
                         {"constant", number},
                         {"padded_width", flag}};
const Settings k3 = joined(
    {{{"beta", or_0}, {"against", against}}, within("input", bounds), within("output", bounds)});
const Settings ratio{{"low", "0 to 1 (the ratio is clipped to 1 - low), or infinity: off"},
                     {"high", or_infinity},
                     {"delta", "more than 0 (infinity: off)"},
                     {"dual", "more than 1 (infinity: off)"}};
const Settings std_dev{{"of", of_scale}, {"ddof", ddof}, {"eps", least_0}, {"eps_at", eps_at}};
const Settings second{{"over", over_of_renorm}, {"ddof", ddof},         {"eps", least_0},
                      {"eps_at", eps_at},       {"count_eps", least_0}, {"keep_mean", flag}};
const Settings missing{{"entry", "skip | zero | propagate | reject"},
                       {"row", "exclude | exclude_unscored | keep"},
                       {"infinite", "propagate | missing | nan_to_num | reject"},
                       {"unused", "compare | exclude"}};
const Settings row_penalty{{"coef", finite}, {"reward", "at least -1 (-1: the sum)"}};
const Settings token_penalty = joined({{{"coef", finite}}, within("kl", k3)});
const Settings estimator = joined({within("scale", std_dev),
                                   within("renorm", second),
                                   within("missing", missing),
                                   {{"singleton", "zero | raw | exclude | error | nan"}},
                                   within("penalty", row_penalty),
                                   within("reward_clip", bounds),
                                   within("clip", bounds)});

}  // namespace

TEST_CASE("settings: losses", "[fields]") {
  settings(surrogate::Ratio{}, ratio);
  settings(map::Clamp{}, bounds);
  settings(level::Token<map::Clamp>{}, within("map", bounds));
  const Settings segment =
      joined({within("map", bounds), {{"statistic.count_eps", least_0}}, within("bounds", bounds)});
  settings(level::Sequence<map::Clamp>{}, segment);
  settings(level::SequenceToken<map::Clamp>{}, segment);
  settings(map::TrustRegion{}, {{"low", or_infinity}, {"high", or_infinity}});
  settings(surrogate::Soft{}, {{"tau_pos", "a finite number that is more than 0"},
                               {"tau_neg", "a finite number that is more than 0"}});
  settings(surrogate::Clipped{},
           {{"low", "0 to 1 (the ratio is clipped to 1 - low), or infinity: off"},
            {"high", or_infinity}});
  settings(surrogate::PositiveReinforce{},
           {{"low", "0 to 1 (the ratio is clipped to 1 - low), or infinity: off"},
            {"dual", "more than 1 (infinity: off)"}});
  settings(surrogate::LogRatio{}, {{"epsilon", or_infinity}});
  settings(surrogate::Likelihood{}, {{"floor", or_0}});
  settings(factor::SoftGate{}, {{"tau_pos", "a finite number that is more than 0"},
                                {"tau_neg", "a finite number that is more than 0"}});
  settings(factor::Ring{}, {{"low", "0 to 1 (infinity: off)"},
                            {"high", or_infinity},
                            {"low_prime", "0 to 1 (infinity: off)"},
                            {"high_prime", or_infinity},
                            {"min_ratio", least_0},
                            {"max_ratio", more_than_0},
                            {"temp", "at least 0.01 (infinity: off)"}});
  settings(factor::Probability{}, {{"decay", unit}});
  settings(factor::SignedRatio{}, {{"positive_min", least_0},
                                   {"positive_max", more_than_0},
                                   {"negative_min", least_0},
                                   {"negative_max", more_than_0},
                                   {"threshold", finite}});
  settings(
      factor::Gamma{},
      {{"k_pos", least_0}, {"lambda_pos", least_0}, {"k_neg", least_0}, {"lambda_neg", least_0}});
  settings(Kl<kl::K3>{}, k3);
  settings(Kl<kl::K3, kl::ClippedImportanceWeighted>{},
           joined({k3, {{"max_weight", more_than_0}}}));
  settings(AnyKl{}, {{"estimator", "k1 | abs | k2 | k3 | forward_k1"},
                     {"gradient",
                      "direct | straight_through_k2 | score_function | importance_weighted | "
                      "importance_weighted_k2 | clipped_importance_weighted"},
                     {"beta", or_0},
                     {"against", against},
                     {"input.lo", number},
                     {"input.hi", number},
                     {"output.lo", number},
                     {"output.hi", number},
                     {"max_weight", more_than_0},
                     {"factor", "none | teacher_gate"},
                     {"gate_beta", least_0}});
  settings(Kl<kl::ForwardK1, kl::ImportanceWeightedK2, Factors<factor::TeacherGate>, Aggregate>{},
           joined({k3,
                   {{"max_weight", more_than_0}, {"gate_beta", least_0}},
                   within("aggregate", aggregate)}));
  settings(Aggregate{}, aggregate);
  settings(
      PolicyLoss<>{},
      joined({within("surrogate", ratio),
              within("kl", k3),
              within("aggregate", aggregate),
              {{"entropy.coef", "a finite number (0: off)"}, {"entropy.mean", "loss | tokens"}}}));
}

TEST_CASE("settings: a detached factor", "[fields]") {
  settings(factor::ClippedRatio{},
           {{"min_ratio", least_0}, {"max_ratio", "more than 0 (infinity: off)"}});
}

TEST_CASE("settings: estimators", "[fields]") {
  settings(scale::StdDev{}, std_dev);
  settings(scale::LeaveOneOutStd{}, {{"ddof", ddof}, {"eps", least_0}, {"eps_at", eps_at}});
  settings(scale::ShrunkStd{},
           {{"prior_dof", "at least 0 (NaN: from_batch), or infinity: the batch alone"},
            {"equal_groups", "exclude | include"},
            {"eps", least_0},
            {"eps_at", eps_at}});
  settings(scale::Mad{}, {{"eps", least_0}, {"eps_at", eps_at}, {"at_zero", "std | zero"}});
  settings(scale::Iqr{}, {{"eps", least_0}, {"eps_at", eps_at}, {"at_zero", "std | zero"}});
  settings(scale::GroupMean{}, {{"eps", least_0}, {"divide_by", "positive_means | any_mean"}});
  settings(baseline::LogMeanExp{}, {{"tau", "a finite number that is more than 0"}});
  settings(baseline::ShiftedMean{}, {{"shift", finite}});
  settings(baseline::BatchMean{}, {{"leave_one_out", flag}});
  settings(baseline::TrimmedMean{}, {{"fraction", "0 to below 0.5"}});
  settings(baseline::WinsorizedMean{}, {{"fraction", "0 to below 0.5"}});
  settings(renorm::batch(), second);
  settings(Missing{}, missing);
  settings(penalty::Row{}, row_penalty);
  settings(penalty::Token<>{}, token_penalty);
  settings(Gdpo{}, estimator);
}

TEST_CASE("settings: pre-passes", "[fields]") {
  settings(prepass::Gate{}, {{"estimator",
                              "ratio | k1 | k2 | k3 | reverse_k3 | ratio_deviation | "
                              "probability_gain | binary_total_variation | binary_kl | "
                              "reverse_binary_kl | signed_binary_kl"},
                             {"pair", pair},
                             {"statistic", statistic},
                             {"when", "always | negative_advantage | outward"},
                             {"advantage", "token | row"},
                             {"min", number},
                             {"max", number},
                             {"clamp.lo", number},
                             {"clamp.hi", number},
                             {"count_eps", least_0},
                             {"reach", reach},
                             {"missing", "drop | no_difference"},
                             {"eps", least_0}});
  settings(prepass::Importance{}, {{"statistic", statistic},
                                   {"clamp.lo", number},
                                   {"clamp.hi", number},
                                   {"clip.lo", number},
                                   {"clip.hi", number},
                                   {"count_eps", least_0},
                                   {"reach", reach},
                                   {"missing", "drop | no_difference"},
                                   {"token_clamp.lo", number},
                                   {"token_clamp.hi", number},
                                   {"pair", pair}});
  settings(prepass::MeanOne{},
           {{"of", "tokens | rows"}, {"reach", reach}, {"count_eps", least_0}, {"least", least_0}});
  settings(prepass::TopEntropy{},
           {{"quantile", unit},
            {"threshold", "a number (nats, or infinity: the batch's own quantile)"},
            {"reach", reach}});
  settings(prepass::SecondMoment{}, {{"threshold", "more than 0 (infinity: off)"},
                                     {"reach", reach},
                                     {"missing", "drop | no_difference"}});
  settings(prepass::Covariance{}, {{"pick", "between | top"},
                                   {"keep", "rest | picked"},
                                   {"share", unit},
                                   {"min", number},
                                   {"max", number},
                                   {"low", "0 to 1 (infinity: off)"},
                                   {"high", or_infinity},
                                   {"seed", "at least 0"},
                                   {"reach", reach}});
  settings(prepass::EntropyClip{}, {{"mu", or_infinity},
                                    {"center", "batch | tags"},
                                    {"max_share", unit},
                                    {"zero_advantage", flag},
                                    {"policy", "ref | old | teacher | rollout | data"},
                                    {"reach", reach}});
  settings(prepass::FutureKl{}, {{"gamma", unit},
                                 {"clip.lo", number},
                                 {"clip.hi", number},
                                 {"drop_above", "more than 0 (infinity: off)"},
                                 {"safety", "more than 0 (infinity: off)"},
                                 {"reach", reach}});
  settings(prepass::TeacherRatio{}, {{"mix", unit},
                                     {"clip.lo", number},
                                     {"clip.hi", number},
                                     {"negative_only", flag},
                                     {"reach", reach}});
  settings(prepass::TeacherPrefix{},
           {{"gain", least_0}, {"eps", "a finite number that is more than 0"}, {"reach", reach}});
  settings(prepass::Overlong{}, {{"reach", reach}});
  settings(prepass::DegenerateGroups{}, {{"reach", reach}});
}

TEST_CASE("settings: distillation from logits", "[fields]") {
  settings(DistillationLoss{},
           joined({{{"beta", unit},
                    {"rest", "drop | renormalize | tail"},
                    {"teacher_temperature", "a finite number that is more than 0"},
                    {"min_logp", number}},
                   within("bounds", bounds),
                   within("aggregate", aggregate)}));
}

TEST_CASE("settings: the critic's side", "[fields]") {
  const Settings gae{{"gamma", unit},
                     {"lambda", unit},
                     {"lambda_returns", "0 to 1 (NaN: lambda)"},
                     {"length_alpha", or_0},
                     {"steps", steps}};
  settings(returns::Gae{}, gae);
  settings(returns::RewardToGo{}, {{"gamma", unit}, {"steps", steps}});
  settings(TokenAdvantage<>{}, joined({within("returns", gae),
                                       within("penalty", token_penalty),
                                       within("reward_clip", bounds),
                                       {{"renorm.over", over_of_renorm}}}));
  settings(ValueLoss<>{}, joined({{{"clip", "at least 0 (infinity: no clip)"}, {"half", flag}},
                                  within("aggregate", aggregate),
                                  {{"delta", "more than 0 (infinity: off)"}}}));
}

TEST_CASE("settings: constraints", "[fields]") {
  settings(AdaptiveKl{}, {{"target", "a finite number that is more than 0"},
                          {"horizon", "a finite number that is more than 0"},
                          {"min_error", finite},
                          {"max_error", finite}});
  settings(PidGains{}, {{"form", "positional | velocity | adam | rms_prop | log"},
                        {"kp", finite},
                        {"ki", finite},
                        {"kd", finite},
                        {"p_ema", part},
                        {"p_start", start},
                        {"d_ema", part},
                        {"d_delay", "1 to 65536 (as many measurements are kept)"},
                        {"d_start", start},
                        {"integral_max", or_infinity},
                        {"anti_windup", "none | conditional"},
                        {"lambda_init", finite},
                        {"lambda_max", or_infinity},
                        {"beta1", part},
                        {"beta2", part},
                        {"adam_eps", "at least 0 (infinity: no step)"}});
  settings(SetPoint{},
           {{"limit", finite}, {"scale", inverse}, {"bound", "at_most | at_least"}, {"k", number}});
  settings(Constraint{}, {{"reward", "at least 0"},
                          {"lambda", least_0},
                          {"limit", finite},
                          {"scale", inverse},
                          {"bound", "at_most | at_least"},
                          {"signal", "linear | hinge | indicator"}});
  settings(placement::Composite{}, {{"reward", "at least -1 (-1: the only one, or the sum)"}});
  settings(placement::NormalizeThenCombine{}, {{"norm", norm}});
  settings(placement::FixedScale{}, {{"norm", norm}});
  settings(placement::AdvantageMix{}, {{"norm", norm}});
  settings(Constrained<>{}, joined({within("estimator", estimator), {{"placement.norm", norm}}}));
}

TEST_CASE("settings: diagnosis", "[fields]") {
  settings(DiagnoseSettings{}, {{"first_step", flag},
                                {"later_step", flag},
                                {"whole_step", flag},
                                {"log_ratio_surrogate", flag},
                                {"first_step_ratio", or_infinity},
                                {"clip_fraction_min", share},
                                {"clip_fraction_max", share},
                                {"near_ratio", or_infinity},
                                {"positive_logp", share},
                                {"dead_groups", share},
                                {"truncated", "more than 0 and at most 1 (a share)"},
                                {"entropy_floor", "a finite number of at least 0 (nats)"},
                                {"first_entropy", "a finite number of at least 0 (nats)"},
                                {"entropy_share", share},
                                {"rollout_kl", or_infinity},
                                {"mult_prob_error", "at least 1 (infinity: off)"},
                                {"effective_sample_size", share},
                                {"dropped", share}});
}

TEST_CASE("settings: the mismatch report", "[fields]") {
  settings(MismatchSettings{}, {{"token_low", least_0},
                                {"token_high", or_infinity},
                                {"row_low", least_0},
                                {"row_high", or_infinity},
                                {"clamp", "more than 0 (infinity: off)"},
                                {"count_eps", least_0},
                                {"ess_eps", least_0},
                                {"empty_rows", flag}});
}

TEST_CASE("settings: the report of a gate", "[fields]") {
  settings(GateReportSettings{}, {{"count_eps", least_0}, {"empty_rows", flag}});
}

TEST_CASE("settings: steps of training", "[fields]") {
  settings(update::PlanSettings{}, {{"epochs", "at least 1"},
                                    {"mini_batches", or_follows},
                                    {"accumulation", or_follows},
                                    {"micro_batch", or_follows},
                                    {"ranks", "at least 1"},
                                    {"remainder", "refuse | drop | keep | spread"},
                                    {"whole", "rows | in_step | in_micro_batch"},
                                    {"shuffle", "never | once | every_epoch"},
                                    {"seed", "an integer"}});
  settings(update::ClipSettings{},
           {{"norm", "two | max"}, {"on_non_finite", "skip | zero | throw"}, {"eps", least_0}});
  settings(update::PackSettings{}, {{"oversize", "refuse | alone"}});
  settings(update::cost::Attention{}, {{"linear", least_0}, {"quadratic", least_0}});
  settings(update::GroupSelection{},
           joined({{{"flat_in", "every_reward | sum | reward | given"}, {"reward", "an integer"}},
                   within("missing", missing),
                   {{"min_std", least_0},
                    {"top_p", "more than 0 and at most 1 (1: all)"},
                    {"wanted", "at least 0 (0: all that pass)"},
                    {"max_attempts", "at least 0 (0: no limit)"},
                    {"give_up", "keep_short | keep_first | refuse"}}}));
  settings(update::Refresh{}, {{"every", "at least 0 (0: never)"}, {"tau", unit}});
  settings(update::shaping::Clip{}, {{"min", number}, {"max", number}});
  settings(update::shaping::Affine{}, {{"scale", finite}, {"offset", finite}});
  settings(
      update::shaping::SoftOverlong{10, 5},
      {{"max_length", "a finite number that is more than 0 (tokens of the longest completion)"},
       {"buffer", "a finite number that is more than 0"},
       {"penalty", least_0},
       {"clamp", flag}});
  settings(update::shaping::LengthTarget{}, {{"target", least_0}, {"alpha", least_0}});
  settings(update::shaping::LengthLimit{},
           {{"limit", least_0}, {"alpha", least_0}, {"delta", unit}});
  settings(update::shaping::LengthAtMost{}, {{"limit", least_0}});
}

}  // namespace fields_test
