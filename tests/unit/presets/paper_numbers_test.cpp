// labels: sanitizers
// Numbers that papers and GitHub issues print, and the groups in which GRPO and GDPO differ.
// Rewards and advantages are of order 1, so the tolerance is tolerance::formula; a number that is
// quoted with few digits is compared to half its last digit.
#include <gdpo/advantages.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/presets/per_group.hpp>
#include <gdpo/presets/textbook.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/presets/verl.hpp>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace paper_numbers_test {

namespace {

using Vector = std::vector<double>;

template <class Estimator>
Vector run(const Vector& rewards, gdpo::index_t reward_count, gdpo::index_t group,
           const Estimator& e, gdpo::GroupReport* report = nullptr) {
  const auto rows = static_cast<gdpo::index_t>(rewards.size()) / reward_count;
  return gdpo::advantages(gdpo::view(rewards.data(), rows, reward_count), gdpo::groups_of(group), e,
                          report);
}

const auto gdpo_sums = gdpo::before_renorm(gdpo::Gdpo{});
const double r2 = std::sqrt(2.0), h = std::sqrt(0.5);

}  // namespace

TEST_CASE("two rollouts, two binary rewards: the paper's toy example", "[paper]") {
  const Vector one_apart{0, 0, 0, 1}, both_apart{0, 0, 1, 1}, above{0, 1, 1, 1};
  for (const Vector& group : {one_apart, both_apart, above}) {
    CHECK(deviation(run(group, 2, 2, gdpo::Grpo{}), Vector{-h, h}, tolerance::formula) == "");
  }
  CHECK(deviation(run(one_apart, 2, 2, gdpo::DrGrpo{}), Vector{-0.5, 0.5}, tolerance::formula) ==
        "");
  CHECK(deviation(run(both_apart, 2, 2, gdpo::DrGrpo{}), Vector{-1, 1}, tolerance::formula) == "");
  CHECK(deviation(run(one_apart, 2, 2, gdpo_sums), Vector{-h, h}, tolerance::formula) == "");
  CHECK(deviation(run(both_apart, 2, 2, gdpo_sums), Vector{-r2, r2}, tolerance::formula) == "");
  CHECK(deviation(run(above, 2, 2, gdpo_sums), Vector{-h, h}, tolerance::formula) == "");
  for (const Vector& equal : {Vector{0, 0, 0, 0}, Vector{0, 1, 0, 1}, Vector{1, 1, 1, 1}}) {
    CHECK(all_zero(run(equal, 2, 2, gdpo::Grpo{})));
    CHECK(all_zero(run(equal, 2, 2, gdpo::Gdpo{})));
  }
}

TEST_CASE("the batch step keeps what GDPO gains, the same step inside the group loses it",
          "[paper]") {
  const Vector batch{0, 0, 0, 1, 0, 0, 1, 1};  // the sums are (-0.7, 0.7) and (-1.4, 1.4)
  const Vector sums = run(batch, 2, 2, gdpo_sums), advantages = run(batch, 2, 2, gdpo::Gdpo{});
  CHECK(std::abs(sums[3] / sums[1] - 2) < tolerance::formula);
  CHECK(std::abs(advantages[3] / advantages[1] - 2) < tolerance::formula);
  CHECK(deviation(advantages,
                  Vector{-std::sqrt(0.3), std::sqrt(0.3), -2 * std::sqrt(0.3), 2 * std::sqrt(0.3)},
                  tolerance::formula) == "");
  CHECK(deviation(run(batch, 2, 2, gdpo::per_group::gdpo), Vector{-h, h, -h, h},
                  tolerance::formula) == "");
  CHECK(deviation(run(batch, 2, 2, gdpo::Grpo{}), Vector{-h, h, -h, h}, tolerance::formula) == "");
  // In a batch of one group the batch step distinguishes nothing, and the report says so.
  gdpo::GroupReport report;
  CHECK(deviation(run({0, 0, 1, 1}, 2, 2, gdpo::Gdpo{}, &report), Vector{-h, h},
                  tolerance::formula) == "");
  CHECK(report.one_group);
}

TEST_CASE("the worked step of a GRPO tutorial", "[paper]") {
  // A number of the prose is compared to half of its last digit.
  const double digits = 5e-4;
  const Vector advantages = run({0.9, 0.3, -0.1, 0.7}, 1, 4, gdpo::textbook::grpo_numpy);
  CHECK(deviation(advantages, Vector{1.172, -0.391, -1.432, 0.651}, digits) == "");

  // Response 3 has two tokens with log ratios of 0.25 and -0.30. The range is 0.8 to 1.2, so both
  // ratios are outside.
  auto loss = gdpo::textbook::grpo_loss;
  loss.kl.beta = 0;
  const auto response = [&](const Vector& log_ratios, Vector& gradient) {
    const auto tokens = static_cast<gdpo::index_t>(log_ratios.size());
    const Vector old_logp(log_ratios.size(), -1.0);
    Vector logp;
    for (const double log_ratio : log_ratios) logp.push_back(-1 + log_ratio);
    gradient.assign(log_ratios.size(), gdpo::math::nan());
    gdpo::TokenBatch<double> batch;
    batch.logp = gdpo::view(std::as_const(logp).data(), 1, tokens);
    batch.old_logp = gdpo::view(old_logp.data(), 1, tokens);
    batch.advantages = gdpo::view(&advantages[2], 1);
    return loss(batch, gdpo::count(batch), gdpo::view(gradient.data(), 1, tokens));
  };
  Vector gradient;
  // The tutorial cuts 1.8388 off after three digits.
  CHECK(std::abs(-response({0.25}, gradient).loss - -1.838) < 1e-3);
  CHECK(std::abs(-response({-0.30}, gradient).loss - -1.146) < digits);
  const auto both = response({0.25, -0.30}, gradient);
  CHECK(std::abs(-both.loss - -1.492) < digits);
  // The first token takes the unclipped branch, whose derivative by the log-prob is -A r; the mean
  // over two tokens halves it. The second is clipped, so no gradient passes.
  CHECK(std::abs(gradient[0] - 0.919) < digits);
  CHECK(std::abs(gradient[0] + advantages[2] * std::exp(0.25) / 2) < tolerance::formula);
  CHECK(gradient[1] == 0);
  CHECK(both.metrics.clip_fraction_low.mean() == 0.5);
  CHECK(both.metrics.clip_fraction_high.mean() == 0);
  CHECK(both.metrics.clip_fraction.mean() == 0.5);
  CHECK(both.metrics.clip_fraction_any.mean() == 1);
  CHECK(std::abs(both.metrics.ratio.max - 1.284) < digits);
  CHECK(std::abs(both.metrics.ratio.min - 0.741) < digits);

  // The KL term of one token, in a batch where the surrogate is 0. A listing of the tutorial prints
  // 0.0078 for the same two log-probs; its prose and its formula give 0.0074.
  const Vector logp{-0.476}, ref_logp{-0.600}, no_advantage{0};
  gdpo::TokenBatch<double> token;
  token.logp = gdpo::view(logp.data(), 1, 1);
  token.old_logp = token.logp;
  token.ref_logp = gdpo::view(ref_logp.data(), 1, 1);
  token.advantages = gdpo::view(no_advantage);
  gradient.assign(1, 0);
  CHECK(gdpo::textbook::grpo_loss.kl.beta == 0.04);
  const auto kl =
      gdpo::textbook::grpo_loss(token, gdpo::count(token), gdpo::view(gradient.data(), 1, 1));
  CHECK(std::abs(kl.metrics.kl.mean() - 0.0074) < 5e-5);
  CHECK(std::abs(kl.metrics.kl.mean() - 0.0078) > 4e-4);
  CHECK(std::abs(kl.loss - 0.0003) < 5e-5);
}

TEST_CASE("a constant sum: two rewards cancel, three do not", "[paper]") {
  // Section 3.1 of the GDPO paper gives r1 = (1,1,0) and r2 = (0,0,1) as an example in which GDPO
  // differs from GRPO. It does not: the standardized rewards cancel there as well.
  CHECK(all_zero(run({1, 0, 1, 0, 0, 1}, 2, 3, gdpo_sums)));
  CHECK(all_zero(run({1, 0, 1, 0, 0, 1}, 2, 3, gdpo::Gdpo{})));
  gdpo::Gdpo weighted;
  weighted.weights = {1, 0.5};
  CHECK(!all_zero(run({1, 0, 1, 0, 0, 1}, 2, 3, weighted)));
  const Vector three{1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1};  // the rewards are 1100, 0010 and 0001
  const double a = std::sqrt(0.75) - 1;                    // -0.134
  CHECK(deviation(run(three, 3, 4, gdpo_sums), Vector{a, a, -a, -a}, tolerance::formula) == "");
  CHECK(std::abs(a + 0.134) < 5e-4);
  CHECK(all_zero(run(three, 3, 4, gdpo::Grpo{})));
}

TEST_CASE("GDPO can cancel a right answer against noise", "[paper]") {
  // Group 465 of the shipped rollouts: accuracy (0,0,0,1), attention (1,1,1,0.998). The
  // standardized rewards are opposite, z_2 = -z_1, up to the rounding of 0.998 and of the mean,
  // 2^-53, divided by the std of 0.001.
  Vector group{0, 1, 0, 1, 0, 1, 1, 0.998};
  const double rounding = 8 * tolerance::unit / 0.001;
  CHECK(deviation(run(group, 2, 4, gdpo_sums), Vector(4, 0.0), rounding) == "");
  const Vector other{1, 1, 0, 0, 0, 1, 1, 0};
  group.insert(group.end(), other.begin(), other.end());
  Vector both = run(group, 2, 4, gdpo::Gdpo{});
  CHECK(std::abs(both[4]) > 0.5);
  both.resize(4);
  CHECK(deviation(both, Vector(4, 0.0), rounding) == "");
  group.resize(8);
  CHECK(deviation(run(group, 2, 4, gdpo::Grpo{}), Vector{-0.5, -0.5, -0.5, 1.5},
                  1000 * tolerance::formula) == "");
}

TEST_CASE("a batch step weighted by tokens leans towards long rows", "[paper]") {
  // With lengths 10, 1000, 10, 10 and combined values +-0.7071 the advantages are 7.10 and -0.141
  // (quoted with three digits) instead of +-0.866.
  const Vector rewards{1, 0, 1, 0}, tokens{10, 1000, 10, 10};
  gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 1), gdpo::groups_of(2)};
  batch.tokens = gdpo::view(tokens);
  const Vector by_tokens = gdpo::advantages(gdpo::seq, batch, gdpo::verl::gdpo);
  CHECK(deviation(by_tokens, Vector{7.10, -0.141, 7.10, -0.141}, 5e-3) == "");
  CHECK(deviation(gdpo::advantages(gdpo::seq, batch, gdpo::Gdpo{}),
                  Vector{0.8660254, -0.8660254, 0.8660254, -0.8660254}, 5e-8) == "");
}

TEST_CASE("rewards one part in 100,000 apart keep unit scale", "[spread]") {
  // verl issue 6348: a floor under the variance turned +-0.6195 (+-0.6196 in float) into +-0.0050.
  const Vector rewards{1.00000, 1.00001};
  const double relative = 2e-16 / 1e-5;  // rounding of the rewards over their difference
  CHECK(deviation(run(rewards, 1, 2, gdpo::verl::grpo), Vector{-0.6195, 0.6195}, 5e-5) == "");
  CHECK(deviation(run(rewards, 1, 2, gdpo::Grpo{}), Vector{-h, h}, 4 * relative) == "");
  CHECK(deviation(run(rewards, 1, 2, gdpo::Gdpo{}), Vector{-h, h}, 4 * relative) == "");
  const std::vector<float> narrow{1.00000f, 1.00001f};
  const std::vector<float> advantages =
      gdpo::advantages(gdpo::view(narrow.data(), 2, 1), gdpo::groups_of(2), gdpo::verl::grpo);
  CHECK(deviation(advantages, Vector{-0.6196, 0.6196}, 2e-3) == "");  // 1.00001f is 1 + 1.0014e-5
  CHECK(deviation(gdpo::advantages(gdpo::view(narrow.data(), 2, 1), gdpo::groups_of(2)),
                  Vector{-h, h}, tolerance::to_float) == "");
}

TEST_CASE("half-precision rewards one step apart", "[spread]") {
  // OpenRLHF issue 1334: in bfloat16 arithmetic [1, 1, 1, 1.0078] gave [0, 0, 0, 2].
  const std::vector<gdpo::BFloat16> rewards{{0x3f80}, {0x3f80}, {0x3f80}, {0x3f81}};
  const std::vector<float> advantages =
      gdpo::advantages(gdpo::view(rewards.data(), 4, 1), gdpo::groups_of(4), gdpo::Grpo{});
  CHECK(deviation(advantages, Vector{-0.5, -0.5, -0.5, 1.5}, 2 * tolerance::to_float) == "");
}

TEST_CASE("an offset of 1e5, in double of 1e8, changes neither std nor advantages", "[spread]") {
  const Vector small{0, 1, 2, 5, 3, 3.5, 0.25, 1};
  gdpo::GroupReport plain, moved;
  for (const double offset : {1e5, 1e8}) {
    Vector large;
    for (const double x : small) large.push_back(x + offset);
    const double tolerance = tolerance::offset(offset, 1);
    CHECK(deviation(run(large, 1, 4, gdpo::Gdpo{}, &moved), run(small, 1, 4, gdpo::Gdpo{}, &plain),
                    tolerance) == "");
    CHECK(deviation(run(large, 1, 4, gdpo::trl::grpo), run(small, 1, 4, gdpo::trl::grpo),
                    tolerance) == "");
    CHECK(deviation(run(large, 1, 4, gdpo::Rloo{}), run(small, 1, 4, gdpo::Rloo{}),
                    4 * tolerance) == "");
    CHECK(std::abs(moved.reward_std - plain.reward_std) <= tolerance);
    CHECK(deviation(moved.group_std, plain.group_std, tolerance) == "");
    CHECK(std::abs(moved.rewards[0].std - plain.rewards[0].std) <= tolerance);
  }
  std::vector<float> narrow;
  // x + 1e5 is exact in float: its steps are 1/128 there.
  for (const double x : small) narrow.push_back(static_cast<float>(x + 1e5));
  CHECK(deviation(gdpo::advantages(gdpo::view(narrow.data(), 8, 1), gdpo::groups_of(4)),
                  run(small, 1, 4, gdpo::Gdpo{}), 2 * tolerance::to_float) == "");
}

TEST_CASE("leave-one-out of one odd reward among equal ones", "[spread]") {
  for (const double common : {0.35, 0.95, 0.4, 0.3}) {
    Vector x(7, common);
    x.push_back(1);
    const Vector a = run(x, 1, 8, gdpo::Rloo{});
    CHECK(a[7] == 1 - common);  // the others' mean is exactly their value
    for (std::size_t i = 0; i < 7; ++i)
      CHECK(std::abs(a[i] + (1 - common) / 7) <= tolerance::formula);
  }
}

}  // namespace paper_numbers_test
