// labels: sanitizers
// Each finding of gdpo::diagnose provoked by real calls of the library, and the same call without
// it; the thresholds; and what is not judged because it was not measured.
#include <algorithm>
#include <gdpo/diagnose.hpp>
#include <gdpo/value.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace diagnose_test {

namespace {

using gdpo::index_t;
using Findings = std::vector<gdpo::Finding>;
const double no = std::nan(""), inf = std::numeric_limits<double>::infinity();

/// Four completions of five tokens each, in which nothing is wrong: the ratios of two tokens are
/// outside the clip range, the others near 1.
struct Step {
  std::vector<double> logp = std::vector<double>(20, -1.0), old_logp = logp,
                      ref_logp = std::vector<double>(20, -1.2),
                      entropies = std::vector<double>(20, 0.7), advantages{1, -1, 0.5, -0.5},
                      row_weights{1, 1, 1, 1};
  std::vector<int> truncated{0, 1, 0, 0};

  Step() {
    for (double& x : old_logp) x -= 0.01;
    old_logp[3] = -1.5, old_logp[13] = -0.5;
  }
  gdpo::TokenBatch<double> batch() const {
    gdpo::TokenBatch<double> b;
    const auto tokens = [](const auto& x) { return gdpo::view(x.data(), 4, 5); };
    b.logp = tokens(logp), b.ref_logp = tokens(ref_logp);
    if (!old_logp.empty()) b.old_logp = tokens(old_logp);
    if (!entropies.empty()) b.entropies = tokens(entropies);
    if (!truncated.empty()) b.truncated = gdpo::view(truncated);
    b.advantages = gdpo::view(advantages), b.row_weights = gdpo::view(row_weights);
    return b;
  }
};

template <class Loss = gdpo::PolicyLoss<>>
gdpo::LossMetrics metrics_of(const Step& step, const Loss& loss = {}) {
  const gdpo::TokenBatch<double> batch = step.batch();
  return loss(batch, gdpo::count(batch)).metrics;
}

/// The report of rewards (N, C) in groups of two.
gdpo::GroupReport report_of(const std::vector<double>& rewards, index_t reward_count) {
  gdpo::GroupReport report;
  const auto rows = static_cast<index_t>(rewards.size()) / reward_count;
  gdpo::advantages(gdpo::view(rewards.data(), rows, reward_count), gdpo::groups_of(2), &report);
  return report;
}
gdpo::GroupReport healthy_report() { return report_of({1, 0.5, 0, 0.2, 1, 0.1, 0, 0.7}, 2); }

gdpo::DiagnoseSettings first_step() {
  gdpo::DiagnoseSettings settings;
  settings.first_step = true;
  return settings;
}

std::vector<std::string> names(const Findings& findings) {
  std::vector<std::string> names;
  for (const gdpo::Finding& f : findings)
    names.push_back(f.subject.empty() ? f.name : f.name + " " + f.subject);
  return names;
}
using Names = std::vector<std::string>;

/// The one finding that there should be. Its text has the figure and ends as a sentence.
gdpo::Finding only(const Findings& findings, const std::string& name, const std::string& figure) {
  REQUIRE(names(findings) == Names{name});
  const gdpo::Finding& f = findings[0];
  INFO(f.text);
  CHECK(f.text.find(figure) != std::string::npos);
  CHECK(f.text.back() == '.');
  CHECK(f.cause.back() == '.');
  return f;
}

bool near_to(double a, double b) { return std::abs(a - b) <= tolerance::formula; }

}  // namespace

TEST_CASE("nothing is found in a healthy step, nor where nothing was measured", "[diagnose]") {
  const Findings both = gdpo::diagnose(metrics_of(Step{}), healthy_report());
  CHECK(names(both).empty());
  CHECK(gdpo::to_text(both).empty());
  CHECK(gdpo::diagnose(metrics_of(Step{})).empty());
  CHECK(gdpo::diagnose(healthy_report()).empty());
  // The first step of a run, on-policy.
  Step first;
  first.old_logp = first.ref_logp = first.logp;
  CHECK(names(gdpo::diagnose(metrics_of(first), healthy_report(), first_step())).empty());

  gdpo::DiagnoseSettings strict = first_step();
  strict.clip_fraction_min = 1, strict.clip_fraction_max = 1;
  strict.first_entropy = 100, strict.entropy_share = 1, strict.dead_groups = 0;
  CHECK(gdpo::diagnose(gdpo::LossMetrics{}, gdpo::GroupReport{}, strict).empty());
  strict.first_step = false;
  CHECK(gdpo::diagnose(gdpo::LossMetrics{}, strict).empty());
  const auto bare = gdpo::with_metrics<gdpo::metrics::None>(gdpo::grpo_loss);
  CHECK(names(gdpo::diagnose(metrics_of(Step{}, bare), strict)).empty());
  Step without;
  without.entropies.clear(), without.truncated.clear();
  CHECK(gdpo::diagnose(metrics_of(without)).empty());
  CHECK(gdpo::diagnose(report_of({}, 2), strict).empty());
}

TEST_CASE("another temperature shows in the first step, though the mean ratio is 1", "[diagnose]") {
  // Two tokens in the vocabulary. The rollout sampled with 0.8 and 0.2; the trainer computes 0.95
  // and 0.05. Of 20 sampled tokens, 16 are the likelier one, so the mean ratio is exactly 1.
  Step step;
  for (std::size_t k = 0; k < 20; ++k) {
    const bool likelier = k % 5 != 0;
    step.old_logp[k] = std::log(likelier ? 0.8 : 0.2);
    step.logp[k] = std::log(likelier ? 0.95 : 0.05);
  }
  const gdpo::LossMetrics m = metrics_of(step);
  CHECK(near_to(m.ratio.mean(), 1));
  gdpo::DiagnoseSettings settings = first_step();
  const gdpo::Finding f = only(gdpo::diagnose(m, settings), "first_step_ratio", "off 1 by 0.5287");
  CHECK(near_to(f.figure, std::sqrt(-2 * (0.8 * std::log(0.95 / 0.8) + 0.2 * std::log(0.25)))));
  CHECK(f.bound == 0.1);
  settings.first_step_ratio = 0.53;
  CHECK(gdpo::diagnose(m, settings).empty());
  CHECK(names(gdpo::diagnose(m)) == Names{});  // 20 % are clipped, which is no finding later on
}

TEST_CASE("tokens that were not sampled move the mean ratio", "[diagnose]") {
  Step step;
  for (std::size_t k = 0; k < 20; ++k) step.old_logp[k] = step.logp[k] - 0.12;
  const gdpo::Finding f =
      only(gdpo::diagnose(metrics_of(step), first_step()), "first_step_ratio", "0.1275");
  CHECK(near_to(f.figure, std::exp(0.12) - 1));
  // The rounding of a 16-bit model is below the bound.
  for (std::size_t k = 0; k < 20; ++k) step.old_logp[k] = step.logp[k] + (k % 2 ? 0.01 : -0.01);
  CHECK(gdpo::diagnose(metrics_of(step), first_step()).empty());
}

TEST_CASE("a share of clipped tokens outside the healthy range", "[diagnose]") {
  Step step;
  for (const std::size_t k : {0u, 1u, 2u, 5u, 6u, 7u}) step.old_logp[k] = -1.5;  // six of 20 high
  step.old_logp[13] = -1.01;
  const gdpo::Finding many = only(gdpo::diagnose(metrics_of(step)), "clip_fraction", "35 % of");
  CHECK(near_to(many.figure, 0.35));
  CHECK(many.bound == 0.25);
  // With metrics::Means only those that the clip holds are known: not those of row 1, with A < 0.
  const auto means = gdpo::with_metrics<gdpo::metrics::Means>(gdpo::grpo_loss);
  CHECK(gdpo::diagnose(metrics_of(step, means)).empty());  // four of 20
  gdpo::DiagnoseSettings settings;
  settings.clip_fraction_max = 0.15;
  CHECK(only(gdpo::diagnose(metrics_of(step, means), settings), "clip_fraction", "20 %").bound ==
        0.15);

  // No share is too small, unless the caller knows a bound for this run.
  Step still;
  still.old_logp.assign(20, -1.01);
  CHECK(gdpo::diagnose(metrics_of(still)).empty());
  settings = {};
  settings.clip_fraction_min = 0.05;
  const gdpo::Finding few =
      only(gdpo::diagnose(metrics_of(still), settings), "clip_fraction", "0 % of");
  CHECK(few.figure == 0);
  CHECK(few.bound == 0.05);
  CHECK(few.cause != many.cause);
  // On-policy the ratios are 1, and in the first step they should be.
  gdpo::DiagnoseSettings first = first_step();
  first.clip_fraction_min = 0.05;
  CHECK(gdpo::diagnose(metrics_of(still), first).empty());
  still.old_logp.clear();
  CHECK(gdpo::diagnose(metrics_of(still), settings).empty());
  settings.clip_fraction_min = 0;
  still.old_logp.assign(20, -1.01);
  CHECK(gdpo::diagnose(metrics_of(still), settings).empty());
}

TEST_CASE("a narrow clip range says nothing about a policy that is near", "[diagnose]") {
  Step step;  // all ratios are about 0.99, and GSPO's range begins at 0.9997
  step.old_logp.assign(20, -0.99);
  const gdpo::LossMetrics m = metrics_of(step, gdpo::gspo_loss);
  CHECK(m.clip_fraction_any.mean() == 1);
  CHECK(gdpo::diagnose(m).empty());
  gdpo::DiagnoseSettings settings;
  settings.near_ratio = 0.009;
  only(gdpo::diagnose(m, settings), "clip_fraction", "100 % of");
}

TEST_CASE("a KL of exactly 0 after the first step", "[diagnose]") {
  Step step;
  step.ref_logp = step.logp;  // the reference is the policy
  only(gdpo::diagnose(metrics_of(step)), "kl_zero", "over 20 tokens");
  step.old_logp = step.logp;
  CHECK(gdpo::diagnose(metrics_of(step), first_step()).empty());
  only(gdpo::diagnose(metrics_of(step)), "kl_zero", "over 20 tokens");
  CHECK(gdpo::diagnose(metrics_of(step, gdpo::dapo_loss)).empty());  // has no KL term
  // One token is enough; terms of both signs that cancel are not 0 either.
  step.ref_logp[7] = -1.001;
  CHECK(gdpo::diagnose(metrics_of(step)).empty());
  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<gdpo::kl::K1>> k1;
  for (const std::size_t other : {17u, 8u}) {  // in another row, and in the same
    step.ref_logp = step.logp;
    step.ref_logp[7] = -0.5, step.ref_logp[other] = -1.5;
    const gdpo::LossMetrics m = metrics_of(step, k1);
    CHECK(m.kl.sum == 0);
    CHECK(gdpo::diagnose(m).empty());
  }
}

TEST_CASE("groups without a spread dominate the batch", "[diagnose]") {
  const std::vector<double> two_of_three{1, 1, 0, 0, 1, 0}, half{1, 1, 0, 1};
  const gdpo::Finding f =
      only(gdpo::diagnose(report_of(two_of_three, 1)), "dead_groups", "66.67 % of the groups");
  CHECK(near_to(f.figure, 2.0 / 3));
  CHECK(f.bound == 0.5);
  CHECK(gdpo::diagnose(report_of(half, 1)).empty());
  gdpo::DiagnoseSettings settings;
  settings.dead_groups = 0.49;
  only(gdpo::diagnose(report_of(half, 1), settings), "dead_groups", "50 %");

  // A group without any reward, as where a reward function failed, is not dead.
  const std::vector<double> failed{1, 0, no, no, no, no, 0, 1};
  CHECK(gdpo::diagnose(report_of(failed, 1)).empty());
  gdpo::GroupReport both = report_of(failed, 1);
  CHECK(both.empty_groups == 2);
  both = gdpo::merge(both, report_of(failed, 1));
  CHECK(both.empty_groups == 4);
  CHECK(gdpo::diagnose(both).empty());
  const std::vector<double> one_of_two{1, 1, no, no, no, no, 0, 1}, none{no, no, no, no};
  settings.dead_groups = 0.49;
  only(gdpo::diagnose(report_of(one_of_two, 1), settings), "dead_groups", "50 %");
  for (const gdpo::Finding& finding : gdpo::diagnose(report_of(none, 1)))
    CHECK(finding.name != "dead_groups");

  // Without a report, completions whose advantages are 0 are counted.
  Step step;
  step.advantages = {0, 0, 0, 1};
  only(gdpo::diagnose(metrics_of(step)), "dead_groups", "75 % of the completions");
  CHECK(gdpo::diagnose(metrics_of(step), healthy_report()).empty());
  step.advantages = {0, 0, 1, -1};
  CHECK(gdpo::diagnose(metrics_of(step)).empty());
}

TEST_CASE("groups without a spread, each by its cause", "[diagnose]") {
  const auto cause_of = [](const gdpo::GroupReport& r) {
    return only(gdpo::diagnose(r), "dead_groups", "100 % of the groups").cause;
  };
  const auto report = [](const auto& estimator, const std::vector<double>& rewards,
                         index_t reward_count, index_t size = 2) {
    gdpo::GroupReport r;
    const auto rows = static_cast<index_t>(rewards.size()) / reward_count;
    gdpo::advantages(gdpo::view(rewards.data(), rows, reward_count), gdpo::groups_of(size),
                     estimator, &r);
    return r;
  };
  // Each reward differs within each group, and their sum does not.
  const std::vector<double> canceled{1, 0, 0, 1, 1, 0, 0, 1};
  const std::string of_canceled = cause_of(report(gdpo::Grpo{}, canceled, 2));
  CHECK(of_canceled.find("cancel each other") != std::string::npos);
  CHECK(cause_of(report(gdpo::Gdpo{}, canceled, 2)) == of_canceled);
  // All rewards are equal.
  gdpo::GroupReport r = report(gdpo::Grpo{}, {1, 1, 1, 1, 0, 0, 0, 0}, 2);
  Findings found = gdpo::diagnose(r);
  REQUIRE(names(found) == Names{"dead_groups", "silent_reward 0", "silent_reward 1"});
  CHECK(found[0].cause.find("too hard or too easy") != std::string::npos);
  // The one reward that differs has weight 0.
  gdpo::Grpo last_only;
  last_only.weights = {0, 1};
  found = gdpo::diagnose(report(last_only, {1, 3, 0, 3, 1, 2, 0, 2}, 2));
  REQUIRE(!found.empty());
  CHECK(found[0].cause == of_canceled);
  CHECK(found[0].text.find("although rewards differ within 2.") != std::string::npos);
  // One completion a prompt.
  found = gdpo::diagnose(report(gdpo::Grpo{}, {1, 0, 0.5}, 1, 1));
  REQUIRE(!found.empty());
  CHECK(found[0].cause.find("group size") != std::string::npos);
  // The largest part has its say: one group of three is canceled.
  found = gdpo::diagnose(report(gdpo::Grpo{}, {1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0}, 2));
  REQUIRE(!found.empty());
  CHECK(found[0].cause.find("too hard or too easy") != std::string::npos);
  // Metrics alone do not tell.
  Step step;
  step.advantages = {0, 0, 0, 0};
  CHECK(only(gdpo::diagnose(metrics_of(step)), "dead_groups", "100 %").cause.find("report") !=
        std::string::npos);
}

TEST_CASE("every completion has reached the length limit", "[diagnose]") {
  Step step;
  step.truncated = {1, 1, 1, 1};
  const gdpo::Finding f = only(gdpo::diagnose(metrics_of(step)), "all_truncated", "100 %");
  CHECK((f.figure == 1 && f.bound == 1));
  step.truncated[2] = 0;
  CHECK(gdpo::diagnose(metrics_of(step)).empty());
  gdpo::DiagnoseSettings settings;
  settings.truncated = 0.75;
  only(gdpo::diagnose(metrics_of(step), settings), "all_truncated", "75 %");
}

TEST_CASE("inputs that are not finite, each with its place", "[diagnose]") {
  Step step;
  step.logp[7] = no;
  gdpo::Finding f = only(gdpo::diagnose(metrics_of(step)), "non_finite logp", ": 1, the first");
  CHECK(f.text.find("in row 1, token 2.") != std::string::npos);
  CHECK((f.figure == 1 && f.bound == 0));
  step.old_logp[15] = step.old_logp[16] = -inf;
  CHECK(names(gdpo::diagnose(metrics_of(step))) == Names{"non_finite logp", "non_finite old_logp"});
  Step weighted;
  weighted.row_weights[3] = inf;
  f = only(gdpo::diagnose(metrics_of(weighted)), "non_finite weights", "in row 3");
  // Rewards: infinite ones are counted by the report, and missing ones are no finding.
  f = only(gdpo::diagnose(report_of({1, 0, inf, 0, 1, no, 0, 1}, 1)), "non_finite rewards",
           "Infinite rewards: 1.");
  CHECK(gdpo::diagnose(report_of({1, 0, 2, 0, 1, 0, 1, no}, 1)).empty());
}

TEST_CASE("inputs that are not finite, each with a cause that fits it", "[diagnose]") {
  const auto cause = [](const char* input, const auto& change) {
    Step step;
    change(step);
    gdpo::PolicyLoss<> loss;
    loss.kl.beta = 0.1;
    return only(gdpo::diagnose(metrics_of(step, loss)), std::string("non_finite ") + input, ": ")
        .cause;
  };
  const auto has = [](const std::string& text, const char* words) {
    INFO(text);
    CHECK(text.find(words) != std::string::npos);
  };
  has(cause("logp", [](Step& s) { s.logp[7] = no; }), "probability 0");
  has(cause("old_logp", [](Step& s) { s.old_logp[7] = no; }), "policy of the rollout");
  has(cause("ref_logp", [](Step& s) { s.ref_logp[7] = no; }), "reference");
  has(cause("advantages", [](Step& s) { s.advantages[1] = inf; }), "infinite reward");
  has(cause("weights", [](Step& s) { s.row_weights[1] = inf; }), "importance ratio");
  has(cause("entropies", [](Step& s) { s.entropies[1] = no; }), "0 times infinity");
  // The report knows which rewards made the advantages so.
  Step step;
  const gdpo::GroupReport infinite = report_of({1, 0, inf, 0, 1, 0, 1, 0}, 1);
  CHECK(infinite.infinite_rewards == 1);
  step.advantages[1] = no;
  Findings found = gdpo::diagnose(metrics_of(step), infinite);
  REQUIRE(names(found) == Names{"non_finite advantages", "non_finite rewards"});
  has(found[0].cause, "Infinite rewards, of which the report counts 1");
  found = gdpo::diagnose(metrics_of(step), report_of({1, 0, no, 0, 1, 0, 1, 0}, 1));
  REQUIRE(names(found) == Names{"non_finite advantages"});
  has(found[0].cause, "Missing rewards (NaN), of which the report counts 1");
}

TEST_CASE("counts of a result that do not fit", "[diagnose]") {
  const Step step;
  const gdpo::TokenBatch<double> batch = step.batch();
  const gdpo::Normalizer n = gdpo::count(batch);
  gdpo::LossResult r = gdpo::dapo_loss(batch, n);
  gdpo::DiagnoseSettings whole;
  whole.whole_step = true;
  CHECK(gdpo::diagnose(r, whole).empty());
  CHECK(gdpo::diagnose(r, healthy_report(), whole).empty());
  r.normalizer.tokens = 5;  // as from a device, which does not refuse it
  const gdpo::Finding f =
      only(gdpo::diagnose(r), "counts tokens", "20 tokens and was divided by 5");
  CHECK((f.figure == 4 && f.bound == 1));
  CHECK(names(gdpo::diagnose(r, healthy_report())) == Names{"counts tokens"});
  r.normalizer.tokens = 40;
  CHECK(gdpo::diagnose(r).empty());  // a micro-batch of a step
  only(gdpo::diagnose(r, whole), "counts tokens", "divided by 40");
  // Counts that do not divide may be anything, and so may `given`, but for what was added twice.
  r.over = -1;
  CHECK(gdpo::diagnose(r, whole).empty());
  r.over = static_cast<index_t>(gdpo::Over::Given);
  for (const double given : {3.5, 20.0, 33.0, 48.5}) {
    r.normalizer.given = given;
    CHECK(gdpo::diagnose(r, whole).empty());
  }
  r.normalizer.given = 60;
  only(gdpo::diagnose(r, whole), "counts given", "exactly 3 times as many");
  CHECK(gdpo::diagnose(r).empty());
}

TEST_CASE("log-probs that are none", "[diagnose]") {
  Step step;
  for (double& x : step.logp) x = std::exp(x);  // probabilities
  for (double& x : step.old_logp) x = std::exp(x);
  const gdpo::LossMetrics m = metrics_of(step, gdpo::dapo_loss);
  CHECK((m.positive_logp.rows == 4 && m.positive_logp.row_sum == 4));
  only(gdpo::diagnose(m), "positive_logp", "100 % of the rows");
  gdpo::DiagnoseSettings settings;
  settings.positive_logp = 1;
  CHECK(gdpo::diagnose(m, settings).empty());
  step = {};
  step.logp.assign(20, -0.0), step.old_logp.assign(20, 0.0);
  CHECK(gdpo::diagnose(metrics_of(step)).empty());
  // The ratio is 1 after an update.
  settings = {};
  settings.later_step = true;
  step = {};
  CHECK(gdpo::diagnose(metrics_of(step), settings).empty());
  step.old_logp.clear();
  only(gdpo::diagnose(metrics_of(step), settings), "ratio_one", "at 20 tokens");
  settings.first_step = true;
  CHECK(message_of([&] { gdpo::diagnose(metrics_of(step), settings); }) ==
        "gdpo::diagnose: settings.first_step, settings.later_step: given both; needed: at most one "
        "of them");
}

TEST_CASE("what a critic is given", "[diagnose]") {
  std::vector<double> values(20), returns(20), advantages(20);
  for (std::size_t k = 0; k < 20; ++k) {
    const auto x = static_cast<double>(k);
    values[k] = 0.3 + 0.01 * x, returns[k] = std::sin(x), advantages[k] = returns[k] - values[k];
  }
  const auto result = [&] {
    gdpo::ValueBatch<double> batch;
    batch.values = gdpo::view(values.data(), 4, 5),
    batch.returns = gdpo::view(returns.data(), 4, 5);
    return gdpo::ValueLoss<>{}(batch, gdpo::count(batch));
  };
  const auto policy = [&] {
    Step step;
    gdpo::TokenBatch<double> batch = step.batch();
    batch.advantages = {}, batch.token_advantages = gdpo::view(advantages.data(), 4, 5);
    return gdpo::dapo_loss(batch, gdpo::count(batch)).metrics;
  };
  CHECK(names(gdpo::diagnose(result(), policy())).empty());
  CHECK(names(gdpo::diagnose(result())).empty());
  advantages = returns;
  only(gdpo::diagnose(result(), policy()), "returns_are_advantages", "over 20 tokens");
  values.assign(20, 0.0);  // of a critic that begins they are the same
  CHECK(names(gdpo::diagnose(result(), policy())).empty());
  values[3] = no, returns[4] = inf;
  const Findings found = gdpo::diagnose(result());
  REQUIRE(names(found) == Names{"non_finite values", "non_finite returns"});
  CHECK(found[0].cause != found[1].cause);
  values.assign(20, 1), returns.assign(20, 2);
  gdpo::ValueLossResult r = result();
  r.normalizer.tokens = 10;
  only(gdpo::diagnose(r), "counts tokens", "20 tokens");
}

TEST_CASE("the entropy has collapsed", "[diagnose]") {
  Step step;
  step.entropies.assign(20, 0.04);
  const gdpo::Finding f = only(gdpo::diagnose(metrics_of(step)), "entropy_collapse", "0.04 nats");
  CHECK(near_to(f.figure, 0.04));
  CHECK(f.bound == 0.05);
  gdpo::DiagnoseSettings settings;
  settings.entropy_floor = 0.03;
  CHECK(gdpo::diagnose(metrics_of(step), settings).empty());
  settings.first_entropy = 1;  // 4 % of it are left, 6 % are wanted
  CHECK(near_to(only(gdpo::diagnose(metrics_of(step), settings), "entropy_collapse", "0.04").bound,
                0.06));
  settings.first_entropy = 0.6;
  CHECK(gdpo::diagnose(metrics_of(step), settings).empty());
}

TEST_CASE("rewards that say nothing, by number and by name", "[diagnose]") {
  // Reward 0 tells completions apart, 1 is the same within each group, 2 has no value.
  const gdpo::GroupReport r = report_of({1, 5, no, 0, 5, no, 1, 7, no, 0, 7, no}, 3);
  const Findings findings = gdpo::diagnose(r);
  CHECK(names(findings) == Names{"silent_reward 1", "silent_reward 2"});
  CHECK(findings[0].text == "Groups in which reward 1 has a spread: 0 of 2.");
  CHECK(findings[1].text == "Groups in which reward 2 has a value: 0 of 2.");
  CHECK((findings[0].figure == 0 && findings[0].bound == 1));
  gdpo::DiagnoseSettings settings;
  settings.reward_names = {"correct", "format", "short"};
  CHECK(names(gdpo::diagnose(r, settings)) == Names{"silent_reward format", "silent_reward short"});
  // A spread in one group is enough.
  CHECK(gdpo::diagnose(report_of({1, 5, 0, 5, 1, 7, 0, 8}, 2)).empty());
}

TEST_CASE("one line for each finding; merged parts say what the whole says", "[diagnose]") {
  Step step;
  step.truncated = {1, 1, 1, 1};
  step.entropies.assign(20, 0.01);
  const gdpo::GroupReport a = report_of({1, 1, 0, 0}, 1), b = report_of({1, 0, 1, 1}, 1);
  const gdpo::LossMetrics m = metrics_of(step);
  const Findings findings = gdpo::diagnose(merge(m, m), merge(a, b));
  CHECK(names(findings) == Names{"all_truncated", "entropy_collapse", "dead_groups"});
  CHECK(findings[2].figure == 0.75);
  const std::string text = gdpo::to_text(findings);
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  CHECK(text.find("dead_groups: 75 % of the groups have no spread, so their advantages are 0. "
                  "Usual cause: Prompts") != std::string::npos);
  CHECK(gdpo::to_text(gdpo::diagnose(report_of({5, 5, 5, 5, 0, 1, 0, 1}, 1))) == "");
}

TEST_CASE("thresholds out of their range, and names that do not fit", "[diagnose][errors]") {
  using Settings = gdpo::DiagnoseSettings;
  const auto message = [](const auto& change) {
    Settings settings;
    change(settings);
    const std::string from_metrics =
        message_of([&] { gdpo::diagnose(gdpo::LossMetrics{}, settings); });
    CHECK(from_metrics == message_of([&] { gdpo::diagnose(gdpo::GroupReport{}, settings); }));
    return from_metrics;
  };
  const std::pair<double Settings::*, const char*> thresholds[] = {
      {&Settings::first_step_ratio, "first_step_ratio"},
      {&Settings::clip_fraction_min, "clip_fraction_min"},
      {&Settings::clip_fraction_max, "clip_fraction_max"},
      {&Settings::near_ratio, "near_ratio"},
      {&Settings::positive_logp, "positive_logp"},
      {&Settings::dead_groups, "dead_groups"},
      {&Settings::truncated, "truncated"},
      {&Settings::entropy_floor, "entropy_floor"},
      {&Settings::first_entropy, "first_entropy"},
      {&Settings::entropy_share, "entropy_share"}};
  for (const auto& [member, name] : thresholds) {
    for (const double value : {no, -0.1}) {
      const std::string what = message([&, m = member](Settings& s) { s.*m = value; });
      CHECK(what.find(std::string("gdpo::diagnose: settings.") + name + ": given ") == 0);
    }
  }
  CHECK(message([](Settings& s) { s.clip_fraction_min = 0.3; }) ==
        "gdpo::diagnose: settings.clip_fraction_min: given 0.29999999999999999; needed: at most "
        "settings.clip_fraction_max");
  CHECK(message([](Settings& s) { s.dead_groups = 1.5; }).find("needed: 0 to 1 (a share)") !=
        std::string::npos);
  Settings named;
  named.reward_names = {"a", "b", "c"};
  CHECK(message_of([&] { gdpo::diagnose(healthy_report(), named); }) ==
        "gdpo::diagnose: settings.reward_names: given 3 names; needed: 2, one for each reward, or "
        "none");
  CHECK(gdpo::diagnose(metrics_of(Step{}), named).empty());  // no report, no names to compare
}

}  // namespace diagnose_test
