// labels: lanes, sanitizers
// The metrics of a loss call worked out by hand, their merge, and the keys that trainers log.
#include <set>

#include "support/catch.hpp"
#include "support/loss_calls.hpp"

namespace metrics_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;

/// Row 0 has ratios 2, 1, 1/2 and A = 1, row 1 has ratios 2, 1/2 and A = -1, and row 2 is empty.
Data by_hand() {
  const double log2 = std::log(2.0);
  Data d;
  d.rows = 3, d.width = 3;
  d.logp = {-1, -1, -1, -1, -1, -1, -1, -1, -1};
  d.old_logp = {-1 - log2, -1, -1 + log2, -1 - log2, -1 + log2, 7, 7, 7, 7};
  d.ref_logp = {-1, -1, -1, -1, -1 - log2, 7, 7, 7, 7};
  d.mask = {1, 1, 1, 1, 1, 0, 0, 0, 0};
  d.advantages = {1, -1, 5};
  d.entropies = {1, 2, 3, 4, 6, 99, 99, 99, 99};
  d.truncated = {1, 0, 0};
  return d;
}

void check_numbers(const gdpo::Metric& m, double sum, double count, double min, double max,
                   double row_sum, double row_min, double row_max) {
  CHECK(m.sum == Approx(sum).epsilon(1e-14));
  CHECK(m.count == count);
  CHECK(m.min == Approx(min).epsilon(1e-14));
  CHECK(m.max == Approx(max).epsilon(1e-14));
  CHECK(m.row_sum == Approx(row_sum).epsilon(1e-14));
  CHECK(m.rows == 3);
  CHECK(m.row_min == Approx(row_min).epsilon(1e-14));
  CHECK(m.row_max == Approx(row_max).epsilon(1e-14));
}

}  // namespace

TEST_CASE("every metric of five tokens, by hand", "[loss][metrics]") {
  auto loss = gdpo::grpo_loss;
  const Outcome o = loss_product::call<double>(loss, by_hand());
  const gdpo::LossMetrics& m = o.result.metrics;
  // Surrogates: -1.2 (clipped), -1, -0.5 where A = 1, and 2, 0.8 (clipped) where A = -1. In
  // statistics over rows a row without tokens counts as 0.
  std::set<const gdpo::Metric*> seen;
  const auto check = [&](const gdpo::Metric& metric, auto... numbers) {
    seen.insert(&metric);
    check_numbers(metric, numbers...);
  };
  check(m.surrogate, 0.1, 5, -1.2, 2, -0.9 + 1.4, -0.9, 1.4);
  const double k3 = 0.5 - 1 + std::log(2.0);  // ref - logp = -log 2
  check(m.kl, k3, 5, 0, k3, k3 / 2, 0, k3 / 2);
  check(m.loss, 0.1 + 0.04 * k3, 5, -1.2, 2, -0.9 + 1.4 + 0.02 * k3, -0.9, 1.4 + 0.02 * k3);
  check(m.clip_fraction, 2, 5, 0, 1, 1.0 / 3 + 0.5, 0, 0.5);
  check(m.clip_fraction_low, 1, 5, 0, 1, 0.5, 0, 0.5);
  check(m.clip_fraction_high, 1, 5, 0, 1, 1.0 / 3, 0, 1.0 / 3);
  check(m.clip_fraction_any, 4, 5, 0, 1, 2.0 / 3 + 1, 0, 1);
  check(m.dual_clip_fraction, 0, 5, 0, 0, 0, 0, 0);
  check(m.log_ratio_bounded, 0, 5, 0, 0, 0, 0, 0);
  check(m.kl_bounded, 0, 5, 0, 0, 0, 0, 0);
  check(m.ratio, 6, 5, 0.5, 2, 3.5 / 3 + 1.25, 0, 1.25);
  check(m.entropy, 16, 5, 1, 6, 7, 0, 5);
  const double up = 1 - std::log(2.0), down = std::log(2.0) - 0.5;  // ratio - 1 - log ratio
  check(m.approx_kl_k3, 2 * up + 2 * down, 5, 0, up, (up + down) * (1.0 / 3 + 0.5), 0,
        (up + down) / 2);
  CHECK(m.approx_kl_k1.sum == Approx(0).margin(1e-15));
  CHECK(m.approx_kl_k1.max == Approx(std::log(2.0)).epsilon(1e-15));
  CHECK(m.completion_length.row_mean() == Approx(5.0 / 3).epsilon(1e-15));
  CHECK(m.completion_length.row_min == 0);
  CHECK(m.completion_length.row_max == 3);
  CHECK(m.completion_length.count == 0);
  CHECK(m.clipped_completions.row_mean() == Approx(1.0 / 3).epsilon(1e-15));
  // Of the rows that have tokens. At masked ones the arrays hold 7.
  CHECK(m.positive_logp.row_sum == 0);
  CHECK(m.positive_logp.rows == 2);
  CHECK(m.positive_logp.count == 0);
  seen.insert({&m.approx_kl_k1, &m.completion_length, &m.clipped_completions, &m.positive_logp});
  for (const auto& metric : gdpo::detail::metric::list) {
    INFO(metric.name);
    CHECK(seen.count(&(m.*metric.member)) == 1);
  }
  CHECK(m.advantage.n == 5);
  CHECK(m.advantage.mean == Approx(0.2).epsilon(1e-14));
  CHECK(m.advantage.min == -1);
  CHECK(m.advantage.max == 1);
  CHECK(m.rows == 3);
  CHECK(m.empty_rows == 1);
  CHECK(m.degenerate_rows == 0);
  CHECK(o.result.normalizer.tokens == 5);
}

TEST_CASE("clips count whatever the weight; bounds of maps, levels and KL terms have counters",
          "[loss][metrics]") {
  Data d = by_hand();
  d.weights.assign(9, 0);
  CHECK(loss_product::call<double>(gdpo::grpo_loss, d).result.metrics.clip_fraction.sum == 2);
  gdpo::PolicyLoss<gdpo::level::Token<gdpo::map::Clamp>> clamped;
  clamped.level.map = {-0.5, 0.75};
  clamped.kl.output.hi = 0.1;
  const gdpo::LossMetrics m = loss_product::call<double>(clamped, d).result.metrics;
  CHECK(m.log_ratio_bounded.sum == 2);
  CHECK(m.kl_bounded.sum == 1);
  auto dual = gdpo::grpo_loss;
  dual.surrogate.dual = 1.5;
  CHECK(loss_product::call<double>(dual, d).result.metrics.dual_clip_fraction.sum == 1);
}

/// A batch of one row with these log ratios.
Data of_log_ratios(const std::vector<double>& log_ratios) {
  Data d;
  d.rows = 1, d.width = static_cast<int>(log_ratios.size());
  for (const double x : log_ratios) d.logp.push_back(x), d.old_logp.push_back(0);
  d.ref_logp = d.old_logp;
  d.advantages = {1};
  return d;
}

TEST_CASE("a ratio far below 1 is its own mean, in float too", "[loss][metrics]") {
  const gdpo::Metric ratio =
      loss_product::call<float>(gdpo::grpo_loss, of_log_ratios({-15})).result.metrics.ratio;
  CHECK(ratio.mean() == Approx(std::exp(-15)).epsilon(1e-6));
  CHECK(ratio.mean() == ratio.min);
  CHECK(ratio.mean() == ratio.max);
  CHECK(ratio.row_mean() == ratio.mean());
}

TEST_CASE("ranges of ratios leave NaN out; infinite log ratios saturate", "[loss][metrics]") {
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto metrics = [](const auto& loss, const std::vector<double>& log_ratios) {
    return loss_product::call<float>(loss, of_log_ratios(log_ratios)).result.metrics;
  };
  const gdpo::LossMetrics some = metrics(gdpo::grpo_loss, {0.5, nan, -1});
  CHECK(std::isnan(some.ratio.sum));
  CHECK(some.ratio.min == Approx(std::exp(-1)).epsilon(1e-6));
  CHECK(some.ratio.max == Approx(std::exp(0.5)).epsilon(1e-6));
  CHECK(some.approx_kl_k3.max == Approx(std::exp(-1)).epsilon(1e-6));
  for (const gdpo::LossMetrics& none :
       {metrics(gdpo::grpo_loss, {nan}), metrics(gdpo::gspo_loss, {nan})}) {
    for (const gdpo::Metric& m : {none.ratio, none.approx_kl_k1, none.approx_kl_k3}) {
      CHECK(std::isnan(m.sum));
      CHECK((m.min == infinite && m.max == -infinite));
    }
  }
  const gdpo::LossMetrics two = metrics(gdpo::grpo_loss, {-infinite, 0, infinite});
  CHECK(two.ratio.min == Approx(std::exp(-80)).epsilon(1e-6));
  CHECK(two.ratio.max == Approx(std::exp(80)).epsilon(1e-6));
  CHECK(two.ratio.sum == Approx(std::exp(80)).epsilon(1e-6));
  CHECK((two.approx_kl_k3.min == 0 && two.approx_kl_k3.max == infinite));
}

TEST_CASE("rows whose advantages are all 0 are counted as degenerate", "[loss][metrics]") {
  Data d = by_hand();
  d.advantages = {0, -1, 0};
  CHECK(loss_product::call<float>(gdpo::grpo_loss, d).result.metrics.degenerate_rows == 1);
  d.advantages.clear();
  d.token_advantages = {0, 0, 0, 0, 0, 9, 9, 9, 9};
  CHECK(loss_product::call<float>(gdpo::gspo_loss, d).result.metrics.degenerate_rows == 2);
}

TEST_CASE("the first number that is not finite, of each input, before and after a merge",
          "[loss][metrics]") {
  Data d = by_hand();
  d.logp[1] = -std::numeric_limits<double>::infinity();
  d.old_logp[4] = d.old_logp[3] = std::nan("");
  d.logp[8] = std::nan("");  // masked
  const gdpo::LossMetrics m = loss_product::call<double>(gdpo::grpo_loss, d).result.metrics;
  CHECK(
      (m.non_finite.logp.count == 1 && m.non_finite.logp.row == 0 && m.non_finite.logp.token == 1));
  CHECK((m.non_finite.old_logp.count == 2 && m.non_finite.old_logp.row == 1 &&
         m.non_finite.old_logp.token == 0));
  CHECK((m.non_finite.ref_logp.count == 0 && m.non_finite.ref_logp.row == -1));
  Data others = by_hand();
  others.teacher_logp = others.rollout_logp = others.ref_logp;
  others.teacher_logp[2] = others.rollout_logp[1] = others.entropies[0] = std::nan("");
  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kls<gdpo::Kl<>, gdpo::Kl<>>>
      both_read;
  both_read.kl.first.against = gdpo::Against::Teacher,
  both_read.kl.rest.first.against = gdpo::Against::Rollout;
  const gdpo::LossMetrics o = loss_product::call<double>(both_read, others).result.metrics;
  CHECK((o.non_finite.teacher_logp.count == 1 && o.non_finite.teacher_logp.token == 2));
  CHECK((o.non_finite.rollout_logp.count == 1 && o.non_finite.rollout_logp.token == 1));
  CHECK((o.non_finite.entropies.count == 1 && o.non_finite.entropies.token == 0));
  const gdpo::LossMetrics clean =
                              loss_product::call<double>(gdpo::grpo_loss, by_hand()).result.metrics,
                          merged = merge(clean, m), twice = merge(m, m);
  CHECK((merged.non_finite.logp.count == 1 && merged.non_finite.logp.token == 1));
  const gdpo::NonFinite first{2, 5, 6}, second{3, 7, 8}, both = gdpo::merge(first, second);
  CHECK((both.count == 5 && both.row == 5 && both.token == 6));
  CHECK((twice.non_finite.old_logp.count == 4 && twice.non_finite.old_logp.row == 1));
}

TEST_CASE("each input that is not finite is counted once, under its own name", "[loss][metrics]") {
  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio,
                   gdpo::Kls<gdpo::Kl<>, gdpo::Kl<>, gdpo::Kl<>>>
      loss;
  loss.kl.rest.first.against = gdpo::Against::Teacher,
  loss.kl.rest.rest.first.against = gdpo::Against::Rollout;
  Data data = by_hand();
  data.teacher_logp = data.rollout_logp = data.ref_logp;
  data.weights.assign(9, 1);
  const auto counted = [&](const char* name, std::vector<double> Data::*array,
                           gdpo::NonFinite gdpo::NonFiniteInputs::*own) {
    INFO(name);
    Data d = data;
    if (array == &Data::token_advantages) d.token_advantages.assign(9, 1), d.advantages.clear();
    (d.*array)[4] = std::nan("");
    const gdpo::LossMetrics m = loss_product::call<double>(loss, d).result.metrics;
    for (int i = 0; i < gdpo::detail::counted_inputs; ++i) {
      const auto input = gdpo::detail::input_counter(i);
      CHECK((m.non_finite.*input).count == (input == own ? 1 : 0));
    }
    CHECK(((m.non_finite.*own).row == 1 && (m.non_finite.*own).token == 1));
  };
#define GDPO_X(in_batch, in_row, ...) \
  counted(#in_batch, &Data::in_batch, &gdpo::NonFiniteInputs::in_row);
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
}

TEST_CASE("means of nothing are 0; count_eps is a trainer's 1e-8", "[loss][metrics]") {
  const gdpo::Metric none, some{6, 3, 1, 3, 2, 1, 2, 2};
  CHECK(none.mean() == 0);
  CHECK(none.row_mean() == 0);
  CHECK(some.mean() == 2);
  CHECK(some.mean(1) == 1.5);
  CHECK(merge(none, some).min == 1);
  CHECK(merge(some, none).row_max == 2);
}

TEST_CASE("keys as trainers write them", "[loss][metrics]") {
  const gdpo::LossMetrics m = loss_product::call<double>(gdpo::grpo_loss, by_hand()).result.metrics;
  const std::map<std::string, double> map = m.to_map("train/");
  const std::map<std::string, double> expected{{"train/clip_ratio/low_mean", 0.2},
                                               {"train/clip_ratio/low_min", 0},
                                               {"train/clip_ratio/high_mean", 0.2},
                                               {"train/clip_ratio/high_max", 1.0 / 3},
                                               {"train/clip_ratio/region_mean", 0.4},
                                               {"train/kl", (std::log(2.0) - 0.5) / 5},
                                               {"train/entropy", 3.2},
                                               {"train/entropy/mean", 7.0 / 3},
                                               {"train/entropy/max", 5},
                                               {"train/entropy/min", 0},
                                               {"train/completions/mean_length", 5.0 / 3},
                                               {"train/completions/min_length", 0},
                                               {"train/completions/max_length", 3},
                                               {"train/completions/clipped_ratio", 1.0 / 3}};
  for (const auto& [key, value] : expected) {
    INFO(key);
    REQUIRE(map.count(key) == 1);
    CHECK(map.at(key) == Approx(value).epsilon(1e-14));
  }
  CHECK(map.size() == expected.size());
}

TEST_CASE("with one ratio and one advantage a row, clip fractions are logged as those of rows",
          "[loss][metrics]") {
  Data d = by_hand();
  d.mask = {1, 1, 1, 1, 0, 0, 1, 1, 0};
  d.old_logp = {-2, -2, -2, -2, 7, 7, -1, -1, 7};
  d.ref_logp = d.old_logp;
  // Row 0 is clipped from above. Row 1 has its ratio outside as well, but with the other sign of A.
  d.advantages = {1, -1, 1};
  auto gspo = gdpo::gspo_loss;
  const gdpo::LossMetrics m = loss_product::call<double>(gspo, d).result.metrics;
  CHECK(m.one_ratio_a_row);
  CHECK(m.to_map().at("clip_ratio/high_mean") == Approx(1.0 / 3).epsilon(1e-15));
  CHECK(m.clip_fraction_high.mean() == 0.5);  // the mean over tokens
  CHECK(merge(m, gdpo::LossMetrics{}).one_ratio_a_row);
  CHECK(merge(gdpo::LossMetrics{}, m).one_ratio_a_row);
  CHECK(!merge(m, loss_product::call<double>(gdpo::grpo_loss, d).result.metrics).one_ratio_a_row);
  CHECK(!loss_product::call<double>(gdpo::gspo_token_loss, d).result.metrics.one_ratio_a_row);
  CHECK(loss_product::call<double>(gdpo::gspo_token_loss, d)
            .result.metrics.to_map()
            .at("clip_ratio/high_mean") == 0.5);
  d.segments.assign(9, 1);
  CHECK(!loss_product::call<double>(gspo, d).result.metrics.one_ratio_a_row);
}

TEST_CASE("lengths are of the completion mask where there is one", "[loss][metrics]") {
  const Data d = by_hand();
  const loss_product::Arrays<float> arrays(d);
  gdpo::TokenBatch<float> batch = arrays.batch();
  const std::vector<int> completion{1, 1, 1, 1, 1, 1, 1, 0, 0};
  batch.completion_mask = gdpo::view(completion.data(), 3, 3);
  const gdpo::LossMetrics m = gdpo::grpo_loss(batch, gdpo::count(batch)).metrics;
  CHECK(m.completion_length.row_sum == 7);
  CHECK(m.completion_length.row_min == 1);
  CHECK(m.loss.count == 5);
}

TEST_CASE("what was not measured has no key", "[loss][metrics]") {
  Data d = by_hand();
  d.entropies.clear(), d.truncated.clear();
  const std::map<std::string, double> map =
      loss_product::call<float>(gdpo::dapo_loss, d).result.metrics.to_map();
  for (const char* key :
       {"kl", "entropy", "entropy/mean", "entropy/threshold", "completions/clipped_ratio"})
    CHECK(map.count(key) == 0);
  CHECK(map.count("clip_ratio/region_mean") == 1);
  CHECK(map.count("completions/mean_length") == 1);
}

}  // namespace metrics_test
