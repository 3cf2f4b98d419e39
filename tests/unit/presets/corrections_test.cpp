// labels: sanitizers
// The corrections between sampler and trainer by name: what each compares, and its bounds, which
// the records of the trainers do not fix.
#include <cstdio>
#include <gdpo/runtime.hpp>
#include <map>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace corrections_test {

namespace {

namespace prepass = gdpo::prepass;
using gdpo::Reach;
using prepass::Estimator, prepass::Pair, prepass::Statistic, prepass::When;
constexpr double inf = gdpo::math::infinity;

std::string short_text(double x) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", x);
  return digits;
}
/// The settings of a name that are not the default of its type.
std::string given(const std::string& name) {
  return std::visit(
      [](const auto& pass) {
        const std::decay_t<decltype(pass)> standard{};
        std::map<std::string, std::string> of_type;
        const auto each = [](const auto& x, const auto& f) {
          gdpo::detail::walk_fields(x, {}, [&](const auto& path, const auto& member, const auto&) {
            using Member = std::decay_t<decltype(member)>;
            std::string value = "?";
            if constexpr (std::is_enum_v<Member>)
              value = gdpo::detail::word_of(member);
            else if constexpr (std::is_arithmetic_v<Member>)
              value = short_text(static_cast<double>(member));
            f(path.text(), value);
          });
        };
        each(standard, [&](const std::string& setting, const std::string& value) {
          of_type[setting] = value;
        });
        std::string line;
        each(pass, [&](const std::string& setting, const std::string& value) {
          if (of_type.at(setting) != value)
            line += (line.empty() ? "" : " ") + setting + "=" + value;
        });
        return line;
      },
      gdpo::runtime::prepass(name));
}

}  // namespace

TEST_CASE("corrections by name set what their trainers do", "[presets][prepass]") {
  const std::string clamp20 = "clamp.lo=-20 clamp.hi=20";
  const std::vector<std::pair<const char*, std::string>> expected{
      {"trl::off_policy_mask",
       "estimator=k1 pair=drift statistic=sequence_mean when=negative_advantage max=0.5 "
       "missing=no_difference"},
      {"verl::token_is", clamp20 + " clip.hi=2"},
      {"verl::sequence_is", "statistic=sequence_sum " + clamp20 + " clip.hi=2"},
      {"verl::token_icepop",
       "importance.clamp.lo=-20 importance.clamp.hi=20 gate.min=0.5 gate.max=5"},
      {"verl::sequence_is_normalized",
       "importance.statistic=sequence_sum importance.clamp.lo=-20 importance.clamp.hi=20 "
       "importance.clip.hi=2 mean_one.of=rows mean_one.count_eps=1e-08 mean_one.least=1e-08"},
      {"verl::dppo_tv", "estimator=probability_gain pair=update when=outward min=-0.2 max=0.2"},
      {"verl::dppo_kl",
       "estimator=signed_binary_kl pair=update when=outward min=-0.2 max=0.2 eps=1e-08"},
      {"ms_swift::off_policy_sequence_mask",
       "estimator=k1 pair=drift statistic=sequence_mean when=negative_advantage advantage=row "
       "max=0.5 reach=mask"},
      {"openrlhf::token_clip", "clip.lo=0.5 clip.hi=5"},
      {"openrlhf::seq_clip", "statistic=sequence_mean clip.lo=0.5 clip.hi=5"},
      {"openrlhf::token_mask_ratio", "gate.min=0.5 gate.max=5"},
      {"openrlhf::seq_mask_ratio", "gate.statistic=sequence_mean gate.min=0.5 gate.max=5"},
      {"openrlhf::seq_mask_tv",
       "gate.estimator=binary_total_variation gate.statistic=sequence_mean gate.max=0.1"},
      {"openrlhf::token_mask_binary_kl", "gate.estimator=binary_kl gate.max=0.05"},
      {"nemo_rl::seq_mask_tis",
       "gate.statistic=sequence_mean gate.min=0.999 gate.max=1.002 gate.count_eps=1e-08"},
      {"slime::tis", "clip.lo=0 clip.hi=2"},
      {"slime::opsm",
       "estimator=k1 pair=update statistic=sequence_mean when=negative_advantage max=0.0001"},
      {"skyrl::token_tis", clamp20 + " clip.hi=2"},
      {"skyrl::sequence_tis", "statistic=sequence_sum " + clamp20 + " clip.hi=5"},
      {"skyrl::geometric_mask", "statistic=sequence_mean min=0.99 max=1.01 reach=mask"},
      {"skyrl::product_mask", "statistic=sequence_sum min=0.5 max=2 reach=mask"},
      {"skyrl::rollout_is", "pair=drift min=0.8 max=1.2"},
      {"areal::token_clamp", "clip.hi=5"},
      {"areal::sequence_mask_kl_k3",
       "gate.estimator=reverse_k3 gate.statistic=sequence_mean gate.max=0.1"},
      {"areal::sequence_mask_ratio",
       "importance.statistic=sequence_mean gate.statistic=sequence_mean gate.max=5"},
      {"prime_rl::dppo_mask",
       "estimator=probability_gain pair=drift when=outward min=-0.2 max=0.2"},
      {"prime_rl::ipo_mask", "estimator=binary_total_variation pair=drift max=0.1"},
      {"prime_rl::ref_kl_mask", "estimator=probability_gain pair=drift min=-0.2"},
      {"open_instruct::rho_tv",
       "importance.clamp.lo=-10 importance.clamp.hi=10 importance.clip.hi=2 "
       "gate.estimator=ratio_deviation gate.statistic=sequence_mean gate.when=outward gate.max=0.1 "
       "gate.clamp.lo=-10 gate.clamp.hi=10"},
      {"torchrl::kl_mask", "estimator=k2 pair=update max=0.1 reach=mask"},
      {"trinity::sequence_masking",
       "estimator=k1 pair=update statistic=sequence_mean when=negative_advantage max=0.1 " +
           clamp20 + " count_eps=1e-10"},
      {"trinity::mask_clip", "pair=update when=outward min=0 max=1.28"},
      {"trinity::clip_b", "policy=rollout"},
      {"trinity::clip_v", "mu=8.5 center=tags max_share=0.0001 zero_advantage=1"},
      {"importance", ""},
      {"gate", ""},
      {"masked_importance", ""},
      {"mean_one", ""}};
  for (const auto& [name, settings] : expected) {
    INFO(name);
    CHECK(given(name) == settings);
  }
}

TEST_CASE("the rejections of verl and unsloth-zoo differ in what they reach",
          "[presets][prepass]") {
  int seen = 0;
  const std::pair<const char*, Statistic> statistics[] = {{"token", Statistic::Token},
                                                          {"seq_sum", Statistic::SequenceSum},
                                                          {"seq_mean", Statistic::SequenceMean},
                                                          {"seq_max", Statistic::SequenceMax}};
  const std::pair<const char*, Estimator> estimators[] = {
      {"k1", Estimator::K1}, {"k2", Estimator::K2}, {"k3", Estimator::K3}};
  for (const auto& [of, statistic] : statistics) {
    for (const auto& [word, estimator] : estimators) {
      if (statistic == Statistic::SequenceMax && estimator == Estimator::K1) continue;
      for (const std::string trainer : {"verl", "unsloth_zoo"}) {
        const std::string name = trainer + "::" + of + "_" + word;
        INFO(name);
        const auto gate = std::get<prepass::Gate>(gdpo::runtime::prepass(name));
        const bool verl = trainer == "verl";
        CHECK(gate.statistic == statistic);
        CHECK(gate.estimator == estimator);
        CHECK(gate.pair == Pair::Mismatch);
        CHECK(gate.when == When::Always);
        CHECK(gate.clamp.lo == -20);
        CHECK(gate.clamp.hi == 20);
        CHECK(gate.reach == (verl ? Reach::Mask : Reach::SurrogateAndKl));
        CHECK((gate.missing == prepass::MissingRollout::NoDifference) == !verl);
        if (estimator == Estimator::K1) {  // natural logarithms of 0.5 and 2, or 0.999 and 1.001
          const double hi = statistic == Statistic::SequenceMean ? 1.001 : 2;
          CHECK(std::abs(gate.max - std::log(hi)) < 2e-16);
          const double lo = statistic == Statistic::SequenceMean ? 0.999 : 0.5;
          CHECK(std::abs(gate.min - std::log(lo)) < 2e-16);
        } else {
          CHECK(gate.min == -inf);
          CHECK(gate.max == (statistic == Statistic::SequenceMean ? 0.01 : 0.1));
        }
        ++seen;
      }
    }
  }
  CHECK(seen == 22);
}

TEST_CASE("verl's bypass mode and a chain's parts are set by a line", "[presets][prepass]") {
  const auto weight = std::get<prepass::Importance>(
      gdpo::runtime::configured_prepass("verl::token_is pair=update clip.hi=1.5"));
  CHECK(weight.pair == Pair::Update);
  CHECK(weight.clip.hi == 1.5);
  const auto rejection = std::get<prepass::Gate>(gdpo::runtime::configured_prepass(
      "unsloth_zoo::seq_mean_k3 pair=update reach=mask max=0.05"));
  CHECK(rejection.pair == Pair::Update);
  CHECK(rejection.reach == Reach::Mask);
  CHECK(rejection.max == 0.05);
  const auto masked = std::get<prepass::MaskedImportance>(gdpo::runtime::configured_prepass(
      "trl::token_mask max=2 importance.pair=update gate.pair=update"));
  CHECK(masked.rest.first.max == 2);
  CHECK(masked.first.pair == Pair::Update);
  CHECK(masked.rest.first.pair == Pair::Update);
  CHECK(message_of([] {
          gdpo::runtime::configured_prepass("trl::token_mask pair=update");
        }).find("one of importance.pair, gate.pair") != std::string::npos);
}

}  // namespace corrections_test
