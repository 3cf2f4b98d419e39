// Every pre-pass and every preset of one: the weights, masks and counters that it writes, and the
// loss of the batch after it. Ratios are computed by the C library's exp, so their kind is "libm".
#pragma once
#include <gdpo/prepass.hpp>
#include <gdpo/presets/all.hpp>

#include "hash.hpp"
#include "inputs.hpp"
#include "losses.hpp"

namespace {

class Prepasses {
 public:
  explicit Prepasses(const Lines& lines) : line_(lines) {}

  void all() {
    const auto pass = [&](const std::string& name, const auto& p) { on_shapes("loss", name, p); };
    gdpo::presets::for_each_prepass([&](const auto& preset) { pass(preset.name, preset.value); });
    for (const gdpo::Reach reach :
         {gdpo::Reach::Surrogate, gdpo::Reach::SurrogateAndKl, gdpo::Reach::Mask}) {
      const std::string where = reach == gdpo::Reach::Surrogate        ? "/surrogate"
                                : reach == gdpo::Reach::SurrogateAndKl ? "/surrogate_and_kl"
                                                                       : "/denominator";
      gates(where, reach);
      gdpo::prepass::TopEntropy entropy;
      entropy.reach = reach;
      on_shapes("loss", "top_entropy" + where, entropy);
      entropy.threshold = 1.125;
      on_shapes("loss", "top_entropy_threshold" + where, entropy);
      for (const char* shape : both) {
        std::vector<unsigned char> flags;
        for (int i = 0; i < shape_of(shape).rows; ++i) flags.push_back(i % 3 == 1);
        gdpo::prepass::Overlong overlong;
        overlong.truncated = gdpo::view(flags);
        overlong.reach = reach;
        on_shape(shape, "loss", "overlong" + where, overlong);
        gdpo::prepass::DegenerateGroups degenerate;
        degenerate.degenerate = gdpo::view(flags);
        degenerate.reach = reach;
        on_shape(shape, "loss", "degenerate_groups" + where, degenerate);
      }
    }
    on_shapes("loss", "weight_then_mask", gdpo::trl::sequence_mask);
    gdpo::prepass::TopEntropy first;
    first.reach = gdpo::Reach::Mask;
    on_shapes("loss", "entropy_then_weight", first, gdpo::ms_swift::token_truncate);
    for (const auto statistic :
         {gdpo::prepass::Statistic::Token, gdpo::prepass::Statistic::SegmentSum}) {
      gdpo::prepass::Importance ratio;
      ratio.statistic = statistic, ratio.reach = gdpo::Reach::Level;
      on_shapes("loss", std::string("weight/level") + (ratio.is_shared() ? "_shared" : ""), ratio);
    }
  }

  void gates(const std::string& where, gdpo::Reach reach) {
    using gdpo::prepass::Estimator, gdpo::prepass::Pair, gdpo::prepass::Statistic,
        gdpo::prepass::When;
    constexpr std::pair<const char*, Estimator> estimators[] = {
        {"ratio", Estimator::Ratio},
        {"k1", Estimator::K1},
        {"k2", Estimator::K2},
        {"k3", Estimator::K3},
        {"ratio_deviation", Estimator::RatioDeviation},
        {"reverse_k3", Estimator::ReverseK3},
        {"probability_gain", Estimator::ProbabilityGain},
        {"binary_total_variation", Estimator::BinaryTotalVariation},
        {"binary_kl", Estimator::BinaryKl}};
    constexpr std::pair<const char*, Pair> pairs[] = {
        {"mismatch", Pair::Mismatch}, {"update", Pair::Update}, {"drift", Pair::Drift}};
    constexpr std::pair<const char*, Statistic> statistics[] = {{"token", Statistic::Token},
                                                                {"mean", Statistic::SequenceMean},
                                                                {"sum", Statistic::SequenceSum},
                                                                {"max", Statistic::SequenceMax}};
    constexpr std::pair<const char*, When> times[] = {{"always", When::Always},
                                                      {"negative", When::NegativeAdvantage},
                                                      {"outward", When::Outward}};
    // The cases cover each value of each setting, and each estimator with each pair, but not their
    // whole product.
    std::size_t k = 0;
    for (const auto& [estimator, of] : estimators) {
      for (const auto& [pair, compared] : pairs) {
        gdpo::prepass::Gate gate;
        const auto& [statistic, over] = statistics[k % 4];
        const auto& [time, when] = times[k / 2 % 3];
        gate.estimator = of;
        gate.pair = compared;
        gate.statistic = over;
        gate.when = when;
        gate.advantage =
            k % 2 == 0 ? gdpo::prepass::GateAdvantage::Token : gdpo::prepass::GateAdvantage::Row;
        gate.min = of == Estimator::Ratio ? 0.984375 : -gdpo::math::infinity;
        gate.max = of == Estimator::Ratio ? 1.015625 : 0.00390625;
        if (k % 5 == 4) gate.clamp = {-0.03125, 0.03125};
        gate.reach = reach;
        on_shapes(
            "loss",
            std::string("gate/") + estimator + "/" + pair + "/" + statistic + "/" + time + where,
            gate);
        ++k;
        // About half of the tokens pass, so that another estimate gives another mask.
        gdpo::prepass::Gate tight;
        tight.estimator = of;
        tight.pair = compared;
        tight.max = of == Estimator::Ratio            ? 1.00390625
                    : of == Estimator::K1             ? 0.00390625
                    : of == Estimator::RatioDeviation ? 0.015625
                                                      : 0.000244140625;
        tight.reach = reach;
        on_shapes("loss", std::string("gate/") + estimator + "/" + pair + "/tight" + where, tight);
      }
    }
    const auto sequence = gdpo::prepass::off_policy_sequence_mask(0.0078125, reach);
    on_shapes("loss", "gate/off_policy_sequence_mask" + where, sequence);
  }

  static constexpr const char* both[] = {"full", "full_packed"};
  template <class... Passes>
  void on_shapes(const char* kind, const std::string& name, const Passes&... passes) {
    for (const char* shape : both) on_shape(shape, kind, name, passes...);
  }
  template <class... Passes>
  void on_shape(const char* shape, const char* kind, const std::string& name,
                const Passes&... passes) {
    const Tokens<float> tokens(shape_of(shape));
    gdpo::PrepassMemory<float> memory;
    const gdpo::TokenBatch<float> prepared = gdpo::prepare(tokens.batch(), memory, passes...);
    Hash hash;
    const auto every_token = [&](const auto& array) {
      if (!array) return hash.add(-1.0);
      const bool packed = array.rank() == 1;
      for (index_t i = 0; i < (packed ? 1 : array.extent(0)); ++i) {
        for (index_t t = 0; t < array.extent(packed ? 0 : 1); ++t)
          hash.add(static_cast<double>(array.at(i, 0, t)));
      }
    };
    every_token(prepared.mask);
    every_token(prepared.weights);
    every_token(prepared.kl_weights);
    every_token(prepared.completion_mask);
    add(hash, prepared.rollout_non_finite);
    hash.add(prepared.entropy_threshold);
    line_(kind, "prepass." + name + "." + shape, hash);
    if (prepared.level_log_weights) {
      every_token(prepared.level_log_weights);
      add_loss(hash, gdpo::gspo_loss, prepared, tokens);
    } else {
      add_loss(hash, gdpo::grpo_loss, prepared, tokens);
    }
    line_(kind, "prepass." + name + "/loss." + shape, hash);
  }

  Lines line_;
};

}  // namespace
