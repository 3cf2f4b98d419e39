// labels: sanitizers
// The report of a gate or a weight: numbers by hand, conventions and keys of trainers, what is not
// finite, and what is refused.
#include <cmath>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/verl.hpp>
#include <map>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace gate_report_test {

namespace {

namespace prepass = gdpo::prepass;
using gdpo::GateKeys, gdpo::GateReport, gdpo::GateReportSettings;
using prepass::Estimator, prepass::Statistic, prepass::When;

const double nan_ = std::nan(""), inf = std::numeric_limits<double>::infinity();
const double log2_ = std::log(2.0);

/// Three rows of three tokens. The log ratios are log 2, 0, -log 2; log 4 after two masked tokens;
/// and none: the last row is empty.
struct Step {
  std::vector<double> old_logp{-1, -2, -1 - log2_, nan_, inf, -1, -1, -1, -1},
      rollout_logp{-1 - log2_, -2, -1, nan_, -1, -1 - 2 * log2_, -1, nan_, -1};
  std::vector<double> advantages{1, -1, -1};
  std::vector<unsigned char> mask{1, 1, 1, 0, 0, 1, 0, 0, 0};

  gdpo::TokenBatch<double> batch() const {
    gdpo::TokenBatch<double> b;
    b.old_logp = gdpo::view(old_logp.data(), 3, 3);
    b.rollout_logp = gdpo::view(rollout_logp.data(), 3, 3);
    b.mask = gdpo::view(mask.data(), 3, 3);
    b.advantages = gdpo::view(advantages);
    return b;
  }
};

prepass::Gate gate(Estimator estimator, Statistic statistic, double min, double max) {
  prepass::Gate g;
  g.estimator = estimator, g.statistic = statistic, g.min = min, g.max = max;
  return g;
}

bool near_to(double a, double b) { return std::fabs(a - b) <= 1e-14 * (1 + std::fabs(b)); }

}  // namespace

TEST_CASE("ratios of tokens by hand", "[gate_report]") {
  STATIC_REQUIRE(std::is_trivially_copyable_v<GateReport>);
  const GateReport r =
      gdpo::gate_report(Step{}.batch(), gate(Estimator::Ratio, Statistic::Token, 0.6, 3));
  CHECK(r.rows == 3);  // ratios 2, 1, 1/2 and 4
  CHECK(r.counted_rows == 2);
  CHECK(r.measured == 4);
  CHECK(r.low == 1);
  CHECK(r.high == 1);
  CHECK(r.closed == 2);
  CHECK(r.closed_share() == 0.5);
  CHECK(r.open_share() == 0.5);
  CHECK(r.token_fraction_low() == 0.25);
  CHECK(near_to(r.token_mean(), 7.5 / 4));
  CHECK(near_to(r.token_std(), std::sqrt(21.25 / 4 - 1.875 * 1.875)));
  CHECK(near_to(r.bounded_mean(), (2 + 1 + 0.6 + 3) / 4));
  CHECK(near_to(r.token_min(), 0.5));
  CHECK(near_to(r.token_max(), 4));
  CHECK(r.bounded_min() == 0.6);
  CHECK(r.bounded_max() == 3);
  CHECK(near_to(r.row_mean(), (3.5 / 3 + 4) / 2));
  CHECK(near_to(r.row_std(), (4 - 3.5 / 3) / std::sqrt(2.0)));
  CHECK(near_to(r.row_deviation(), 3));
  CHECK(r.row_fraction_high() == 0.5);
  CHECK(r.rows_closing_share() == 1);
  CHECK(r.rows_closed_share() == 0.5);
}

TEST_CASE("a statistic of rows is one number for the row", "[gate_report]") {
  // The means of k1 are 0 and -log 4; the row without tokens counts with 0, if it counts.
  const prepass::Gate k1 = gate(Estimator::K1, Statistic::SequenceMean, -1, 1);
  const GateReport r = gdpo::gate_report(Step{}.batch(), k1);
  CHECK(r.shared);
  CHECK(near_to(r.token_mean(), -2 * log2_ / 4));
  CHECK(near_to(r.row_mean(), -log2_));
  CHECK(near_to(r.row_deviation(), 2 * log2_));
  CHECK(r.rows_low == 1);
  CHECK(r.closed_low == 1);
  const GateReport all = gdpo::gate_report(Step{}.batch(), k1, {0, true});
  CHECK(all.counted_rows == 3);
  CHECK(near_to(all.row_mean(), -2 * log2_ / 3));
  CHECK(all.row_max() == 0);
  // A gate that does not let the number of nothing through closes at an empty row.
  const prepass::Gate positive = gate(Estimator::K1, Statistic::SequenceMean, 0.5, 1);
  CHECK(gdpo::gate_report(Step{}.batch(), positive, {0, true}).rows_closed == 3);
  CHECK(gdpo::gate_report(Step{}.batch(), positive).rows_closed == 2);
}

TEST_CASE("closed are the tokens where `when` holds, by the side of the bound", "[gate_report]") {
  prepass::Gate g = gate(Estimator::Ratio, Statistic::Token, 0.6, 1.5);
  g.when = When::Outward;  // row 0: A > 0, so that its ratio 2 closes; row 1: A < 0, and 4 does not
  const GateReport r = gdpo::gate_report(Step{}.batch(), g);
  CHECK(r.high == 2);
  CHECK(r.low == 1);
  CHECK(r.closed_high == 1);
  CHECK(r.closed_low == 0);
  g.when = When::NegativeAdvantage;
  CHECK(gdpo::gate_report(Step{}.batch(), g).closed_high == 1);
}

TEST_CASE("a weight is reported before its clip", "[gate_report]") {
  prepass::Importance weight;
  weight.clip = {0.6, 3};
  const GateReport r = gdpo::gate_report(Step{}.batch(), weight);
  CHECK(near_to(r.token_mean(), 7.5 / 4));
  CHECK(near_to(r.bounded_mean(), 6.6 / 4));  // that of the weights
  CHECK(r.token_fraction_high() == 0.25);
  CHECK(r.closed == 0);
}

TEST_CASE("the sums of FutureKl are reported in nats, with the logs of its clip", "[gate_report]") {
  Step step;
  auto batch = step.batch();  // log ratios log 2, 0, -log 2 in row 0, and log 4 in row 1
  batch.logp = batch.old_logp, batch.old_logp = batch.rollout_logp, batch.rollout_logp = {};
  prepass::FutureKl pass;
  pass.gamma = 0.5, pass.clip = {0.9, 2.5};
  const GateReport r = gdpo::gate_report(batch, pass);
  CHECK(near_to(r.token_mean(), log2_ * (0.75 - 0.5 - 1 + 2) / 4));
  CHECK(r.high == 1);  // e^F is 2^0.75, 2^-0.5, 1/2 and 4
  CHECK(r.low == 2);
  CHECK(near_to(r.bounded_max(), std::log(2.5)));
  CHECK(near_to(r.bounded_min(), std::log(0.9)));
  pass.clip = {0, inf};
  CHECK(gdpo::gate_report(batch, pass).upper == inf);
  CHECK(gdpo::gate_report(batch, pass).lower == -inf);
}

TEST_CASE("numbers that are not finite are counted and left out", "[gate_report]") {
  Step step;
  step.rollout_logp[1] = nan_, step.rollout_logp[2] = -inf;
  const prepass::Gate g = gate(Estimator::Ratio, Statistic::Token, 0.5, 3);
  const GateReport r = gdpo::gate_report(step.batch(), g);
  CHECK(r.measured == 2);
  CHECK(r.non_finite == 2);
  CHECK(r.closed == 3);
  CHECK(r.closed_share() == 0.75);
  CHECK(near_to(r.token_mean(), 3));
  const std::vector<unsigned char> none(9, 0);
  gdpo::TokenBatch<double> empty = step.batch();
  empty.mask = gdpo::view(none.data(), 3, 3);
  for (const gdpo::detail::GateMetric& metric : gdpo::detail::gate_metrics) {
    INFO(metric.name);
    CHECK(metric.of(gdpo::gate_report(empty, g)) == 0);
    CHECK(metric.of(GateReport{}) == 0);
  }
}

TEST_CASE("the keys of trainers", "[gate_report]") {
  const Step step;
  const auto batch = step.batch();
  const std::string name = "rollout_corr/rollout_rs_seq_mean_k3";
  prepass::Gate k3 = gdpo::verl::seq_mean_k3;
  const GateReport r = gdpo::gate_report(batch, k3, gdpo::gate_report_settings(GateKeys::Verl));
  const auto verl = r.to_map(GateKeys::Verl, name);
  CHECK(verl.size() == 14);
  CHECK(verl.at(name + "_seq_mean") == r.row_mean());
  CHECK(verl.at(name + "_max") == r.row_max());
  CHECK(verl.at(name + "_fraction_high") == r.row_fraction_high());
  CHECK(verl.count(name + "_seq_fraction_low") == 0);  // k3 has no lower bound
  k3 = gdpo::verl::token_k1;
  const GateReport tokens = gdpo::gate_report(batch, k3);
  const auto of_tokens = tokens.to_map(GateKeys::Verl, "x");
  CHECK(of_tokens.size() == 15);
  CHECK(of_tokens.at("x_max") == tokens.token_max());
  CHECK(of_tokens.at("x_fraction_high") == tokens.token_fraction_high());
  const std::map<std::string, double> dropped = tokens.to_map(GateKeys::OpenInstruct, "rho");
  CHECK(dropped == std::map<std::string, double>{{"rho_frac", tokens.closed_share()},
                                                 {"rho_low_frac", tokens.closed_low_share()},
                                                 {"rho_high_frac", tokens.closed_high_share()}});
  CHECK(tokens.to_map(GateKeys::NemoRl, "r").at("r") == tokens.token_mean());
  CHECK(tokens.to_map(GateKeys::SkyRl, "g").at("g_masked_ratio") == tokens.rows_closing_share());
  CHECK(tokens.to_map(GateKeys::PrimeRl, "m").at("m_low") == tokens.closed_low_share());
  CHECK(gdpo::gate_report_settings(GateKeys::SkyRl).empty_rows);
  CHECK(gdpo::gate_report_settings(GateKeys::NemoRl).count_eps == 1e-8);
}

TEST_CASE("settings out of range, missing arrays and reports of two gates are refused",
          "[gate_report]") {
  const Step step;
  const auto batch = step.batch();
  const auto message = [&](const prepass::Gate& g, const GateReportSettings& settings = {}) {
    return message_of([&] { gdpo::gate_report(batch, g, settings); });
  };
  CHECK(message(gate(Estimator::K1, Statistic::Token, 1, 0)).find("gdpo::gate_report") == 0);
  CHECK(message({}, {-1, false}).find("settings.count_eps") != std::string::npos);
  prepass::Gate update;
  update.pair = prepass::Pair::Update;
  CHECK(message(update).find("batch.logp") != std::string::npos);
  const GateReport a = gdpo::gate_report(batch, gate(Estimator::K1, Statistic::Token, -1, 1)),
                   b = gdpo::gate_report(batch, gate(Estimator::K1, Statistic::Token, -1, 2));
  CHECK(message_of([&] { gdpo::merge(a, b); }).find("one gate") != std::string::npos);
  CHECK(gdpo::merge(GateReport{}, b).measured == b.measured);
  CHECK(gdpo::merge(b, GateReport{}).measured == b.measured);
}

}  // namespace gate_report_test
