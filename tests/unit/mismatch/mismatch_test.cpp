// labels: sanitizers
// The mismatch report: numbers by hand, places of extremes, conventions of trainers, keys, and what
// is refused.
#include "support/mismatch.hpp"

#include <gdpo/mismatch.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace mismatch_test {

namespace {

using gdpo::MismatchKeys, gdpo::MismatchReport, gdpo::MismatchSettings;
using mismatch_support::differs;

const double nan_ = std::nan(""), inf = std::numeric_limits<double>::infinity();

/// Two rows of three tokens; the log ratios are log 2, 0, -log 2 and 0, masked, log 4.
struct Step {
  std::vector<double> old_logp{-1, -2, -1 - std::log(2.0), -0.5, nan_, -1},
      rollout_logp{-1 - std::log(2.0), -2, -1, -0.5, inf, -1 - std::log(4.0)}, weights;
  std::vector<unsigned char> mask{1, 1, 1, 1, 0, 1}, completion{1, 1, 1, 1, 1, 1};

  gdpo::TokenBatch<double> batch() const {
    gdpo::TokenBatch<double> b;
    b.old_logp = gdpo::view(old_logp.data(), 2, 3);
    b.rollout_logp = gdpo::view(rollout_logp.data(), 2, 3);
    b.mask = gdpo::view(mask.data(), 2, 3);
    b.completion_mask = gdpo::view(completion.data(), 2, 3);
    if (!weights.empty()) b.weights = gdpo::view(weights.data(), 2, 3);
    return b;
  }
};

bool near_to(double a, double b) { return std::fabs(a - b) <= 1e-13 * (1 + std::fabs(b)); }

}  // namespace

TEST_CASE("numbers by hand", "[mismatch]") {
  STATIC_REQUIRE(std::is_trivially_copyable_v<MismatchReport>);
  const MismatchReport r = gdpo::mismatch(Step{}.batch());
  const double log2 = std::log(2.0);
  CHECK(r.rows == 2);
  CHECK(r.valid_rows == 2);
  CHECK(r.scored == 5);
  CHECK(r.tokens() == 5);
  CHECK(r.masked == 1);
  CHECK(near_to(r.kl(), -2 * log2 / 5));
  CHECK(near_to(r.k3_kl(), ((2 - 1 - log2) + (0.5 - 1 + log2) + (4 - 1 - 2 * log2)) / 5));
  CHECK(near_to(r.reverse_kl(), (2 * log2 - 0.5 * log2 + 4 * 2 * log2) / 5));
  CHECK(near_to(r.mult_prob_error(), (2 + 1 + 2 + 1 + 4) / 5.0));
  CHECK(near_to(r.ratio_mean(), (2 + 1 + 0.5 + 1 + 4) / 5));
  CHECK(near_to(r.chi2_token(), (4 + 1 + 0.25 + 1 + 16) / 5 - 1));
  CHECK(near_to(r.token_ess(), 8.5 * 8.5 / (5 * 22.25)));
  CHECK(near_to(r.product_mean(), (1 + 4) / 2.0));
  CHECK(near_to(r.geometric_mean(), (1 + 2) / 2.0));
  CHECK(near_to(r.mean_ppl_ratio(), (1 + 0.5) / 2));
  CHECK(r.tokens_high >= 1);
  MismatchSettings wide;
  wide.token_low = 0.6, wide.token_high = 3;
  CHECK(gdpo::mismatch(Step{}.batch(), wide).token_fraction_high() == 0.2);
  CHECK(gdpo::mismatch(Step{}.batch(), wide).token_fraction_low() == 0.2);
  CHECK(r.product_fraction_high() == 0.5);
  CHECK(r.dropped_share() == 1 / 6.0);
  CHECK(r.weighed == 0);
  CHECK(r.weight_ess() == 1);  // without weights they are 1
}

TEST_CASE("extremes have a place; of equal ones the first", "[mismatch]") {
  Step step;
  const MismatchReport r = gdpo::mismatch(step.batch(), {}, 100);
  CHECK(near_to(r.ratio_max.value, 4));
  CHECK(r.ratio_max.row == 101);
  CHECK(r.ratio_max.token == 2);
  CHECK(near_to(r.ratio_min.value, 0.5));
  CHECK(r.ratio_min.row == 100);
  CHECK(r.ratio_min.token == 2);
  CHECK(r.product_max.row == 101);
  CHECK(r.product_max.token == -1);
  step.old_logp = step.rollout_logp;
  const MismatchReport equal = gdpo::mismatch(step.batch());
  CHECK(equal.ratio_max.row == 0);
  CHECK(equal.ratio_max.token == 0);
  // The first of both, whatever the order of the merge.
  const MismatchReport later = gdpo::mismatch(step.batch(), {}, 7);
  CHECK(merge(later, equal).ratio_max.row == 0);
  CHECK(merge(equal, later).ratio_max.row == 0);
}

TEST_CASE("an empty batch has zeros everywhere", "[mismatch]") {
  for (const bool rows : {false, true}) {
    for (const MismatchKeys keys : {MismatchKeys::Verl, MismatchKeys::Trl, MismatchKeys::NemoRl}) {
      MismatchSettings settings = gdpo::mismatch_settings(keys);
      settings.empty_rows = false;
      const std::vector<unsigned char> mask(6, 0);
      const std::vector<double> logp(6, -1);
      gdpo::TokenBatch<double> batch;
      const gdpo::index_t count = rows ? 2 : 0;
      batch.mask = gdpo::view(mask.data(), count, 3);
      batch.logp = gdpo::view(logp.data(), count, 3);
      batch.rollout_logp = gdpo::view(logp.data(), count, 3);
      const MismatchReport r = gdpo::mismatch(batch, settings);
      CHECK(r.rows == count);
      for (const gdpo::detail::MismatchMetric& metric : gdpo::detail::mismatch_metrics) {
        INFO(metric.name);
        CHECK(metric.of(r) == 0);
      }
      for (const auto& [name, value] : r.to_map(keys)) {
        INFO(name);
        CHECK(value == 0);
      }
      CHECK(differs(merge(r, r), r).empty() == !rows);
      CHECK(differs(merge(MismatchReport{}, r), r).empty());
    }
  }
}

TEST_CASE("missing log-probs and others that are not finite are left out and counted",
          "[mismatch]") {
  Step step;
  step.rollout_logp[0] = nan_, step.old_logp[1] = nan_, step.rollout_logp[3] = -inf;
  const MismatchReport r = gdpo::mismatch(step.batch());
  CHECK(r.missing == 1);
  CHECK(r.non_finite == 2);
  CHECK(r.scored == 2);
  CHECK(r.tokens() == 5);
  CHECK(r.missing_share() == 0.2);
  CHECK(near_to(r.ratio_mean(), (0.5 + 4) / 2));
  CHECK(near_to(r.product_mean(), (0.5 + 4) / 2));  // of what is left of the rows
}

TEST_CASE("logp stands in for old_logp", "[mismatch]") {
  const Step step;
  gdpo::TokenBatch<double> batch = step.batch();
  batch.logp = batch.old_logp, batch.old_logp = {};
  CHECK(differs(gdpo::mismatch(batch), gdpo::mismatch(step.batch())) == "");
}

TEST_CASE("weights: dropped tokens and rows, means of rows, and what is not finite", "[mismatch]") {
  Step step;
  step.weights = {0, 2, 1, nan_, 5, 0};
  const MismatchReport r = gdpo::mismatch(step.batch());
  CHECK(r.weighed == 5);
  CHECK(r.changed == 4);
  CHECK(r.dropped == 3);  // the NaN counts as 0
  CHECK(r.non_finite_weights == 1);
  CHECK(r.dropping_rows == 2);
  CHECK(r.dropped_rows == 1);
  CHECK(near_to(r.weight_mean(), 3 / 5.0));
  CHECK(near_to(r.weight_ess(), 9 / (5 * 5.0)));
  CHECK(near_to(r.row_weight_mean(), (1 + 0) / 2.0));
  CHECK(r.row_weight_deviation.value == 1);
  CHECK(r.row_weight_deviation.row == 1);
  CHECK(r.dropped_share() == (3 + 1) / 6.0);
  CHECK(r.dropped_row_share() == 0.5);
}

TEST_CASE("the clamp holds ratios, and no divergence", "[mismatch]") {
  const std::vector<double> old_logp{-1}, rollout_logp{-31};
  gdpo::TokenBatch<double> batch;
  batch.old_logp = gdpo::view(old_logp.data(), 1, 1);
  batch.rollout_logp = gdpo::view(rollout_logp.data(), 1, 1);
  const MismatchReport r = gdpo::mismatch(batch);
  CHECK(near_to(r.ratio_max.value, std::exp(20.0)));
  CHECK(near_to(r.k3_kl(), std::exp(30.0) - 31));
  CHECK(near_to(r.js_divergence(), std::log(std::cosh(15.0))));
  MismatchSettings off;
  off.clamp = inf;
  CHECK(near_to(gdpo::mismatch(batch, off).ratio_max.value, std::exp(30.0)));
}

TEST_CASE("rows without a token count only where the settings say so", "[mismatch]") {
  const std::vector<double> logp{-1, -2}, rollout{-1.5, 0};
  const std::vector<unsigned char> mask{1, 0};
  gdpo::TokenBatch<double> batch;
  batch.old_logp = gdpo::view(logp.data(), 2, 1);
  batch.rollout_logp = gdpo::view(rollout.data(), 2, 1);
  batch.mask = gdpo::view(mask.data(), 2, 1);
  CHECK(near_to(gdpo::mismatch(batch).mean_ppl(), std::exp(1.0)));
  MismatchSettings settings;
  settings.empty_rows = true;
  const MismatchReport r = gdpo::mismatch(batch, settings);
  CHECK(near_to(r.mean_ppl(), (std::exp(1.0) + 1) / 2));
  CHECK(near_to(r.product_mean(), (std::exp(0.5) + 1) / 2));
  CHECK(near_to(r.row_weight_mean(), 0.5));
  CHECK(r.row_weight_min.value == 0);
  CHECK(r.row_weight_min.row == 1);
  CHECK(r.scored_rows == 1);
  CHECK(r.counted_rows == 2);
}

TEST_CASE("keys of trainers; what was not measured has none", "[mismatch]") {
  Step step;
  const MismatchReport without = gdpo::mismatch(step.batch());
  const auto keys = [](const MismatchReport& r, MismatchKeys of, gdpo::index_t positions = 0) {
    std::vector<std::string> names;
    for (const auto& entry : r.to_map(of, "", positions)) names.push_back(entry.first);
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(keys(without, MismatchKeys::OpenRlhf) == Names{"vllm_kl"});
  CHECK(keys(without, MismatchKeys::SkyRl) == Names{"is_ratio_mean"});
  CHECK(keys(without, MismatchKeys::SkyRl, 6) ==
        Names{"is_ratio_max", "is_ratio_mean", "is_ratio_min", "is_ratio_std"});
  CHECK(keys(without, MismatchKeys::Trl) ==
        Names{"sampling/sampling_logp_difference/max", "sampling/sampling_logp_difference/mean"});
  CHECK(keys(without, MismatchKeys::Verl).size() == 13);
  CHECK(keys(without, MismatchKeys::MsSwift).size() == 13);
  CHECK(keys(without, MismatchKeys::Unsloth).size() == 3);
  CHECK(keys(without, MismatchKeys::NemoRl).size() == 4);
  step.weights = {1, 1, 1, 1, 1, 1};
  const MismatchReport with = gdpo::mismatch(step.batch());
  CHECK(keys(with, MismatchKeys::Trl).size() == 5);
  CHECK(keys(with, MismatchKeys::Verl).size() == 13 + 14);
  CHECK(keys(with, MismatchKeys::VerlSequence) == keys(with, MismatchKeys::Verl));
  CHECK(keys(with, MismatchKeys::MsSwiftSequence) == keys(with, MismatchKeys::MsSwift));
  CHECK(with.to_map(MismatchKeys::Unsloth, "train/").count("train/sampling/rollout_kl_k3/max") ==
        1);
  // Padding is 0 in SkyRL's arrays: 2, 1, 1/2, 1, 0, 4.
  const auto padded = with.to_map(MismatchKeys::SkyRl, "", 6);
  CHECK(padded.at("is_ratio_min") == 0);
  CHECK(near_to(padded.at("is_ratio_std"), std::sqrt((22.25 - 8.5 * 8.5 / 6) / 5)));
}

TEST_CASE("what mismatch and merge refuse", "[mismatch]") {
  const Step step;
  gdpo::TokenBatch<double> batch = step.batch();
  batch.rollout_logp = {};
  CHECK(message_of([&] { gdpo::mismatch(batch); }) ==
        "gdpo::mismatch: batch.rollout_logp: given no array; needed: the sampling policy's "
        "log-probs");
  batch = step.batch(), batch.old_logp = {};
  CHECK(message_of([&] { gdpo::mismatch(batch); }) ==
        "gdpo::mismatch: batch.old_logp, batch.logp: given neither; needed: one of them, to "
        "compare with rollout_logp");
  MismatchSettings settings;
  settings.token_low = 3;
  CHECK(message_of([&] { gdpo::mismatch(step.batch(), settings); }) ==
        "gdpo::mismatch: settings.token_low: given 3; needed: at most settings.token_high");
  settings = {}, settings.clamp = 0;
  CHECK(message_of([&] {
          gdpo::mismatch(step.batch(), settings);
        }).find("gdpo::mismatch: settings.clamp: given 0") == 0);
  settings = {}, settings.count_eps = 1e-8;
  const MismatchReport a = gdpo::mismatch(step.batch()), b = gdpo::mismatch(step.batch(), settings);
  CHECK(message_of([&] { merge(a, b); }).find("gdpo::merge: settings: given token_low 0.5") == 0);
  CHECK(differs(merge(a, MismatchReport{}), a) == "");
  CHECK(message_of([&] { gdpo::mismatch(step.batch(), {}, -1); }) ==
        "gdpo::mismatch: first_row: given -1; needed: 0 or more");
  for (const double bound : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(message_of([&] {
            gdpo::mismatch_settings(gdpo::MismatchKeys::Verl, bound);
          }).find("gdpo::mismatch_settings: bound: given ") == 0);
  }
  CHECK(gdpo::mismatch_settings(gdpo::MismatchKeys::Verl, 0.5).token_high == 2);
  for (const gdpo::index_t positions : {gdpo::index_t{-1}, a.scored - 1}) {
    CHECK(message_of([&] {
            a.to_map(gdpo::MismatchKeys::SkyRl, "", positions);
          }).find("gdpo::MismatchReport::to_map: positions: given ") == 0);
  }
}

}  // namespace mismatch_test
