// labels: sanitizers
// The findings about sampling engine and trainer, and about terms and corrections without an
// effect: each provoked by calls of the library, and the same call without it.
#include <gdpo/diagnose.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace mismatch_findings_test {

namespace {

using Names = std::vector<std::string>;

/// Eight rows of five tokens, whose engine differs by about 1 % as engines of equal precision do.
struct Step {
  std::vector<double> old_logp, rollout_logp, logp, ref_logp, weights, kl_weights,
      advantages{1, -1, 0.5, -0.5, 1, -1, 0.5, -0.5};
  Step() {
    Random random(7);
    for (int k = 0; k < 40; ++k) {
      old_logp.push_back(-3 * random.uniform());
      rollout_logp.push_back(old_logp.back() + 0.02 * (random.uniform() - 0.5));
      logp.push_back(old_logp.back() + 0.1 * (random.uniform() - 0.5));
      ref_logp.push_back(old_logp.back() + 0.2 * (random.uniform() - 0.5));
    }
  }
  gdpo::TokenBatch<double> batch() const {
    gdpo::TokenBatch<double> b;
    const auto tokens = [](const auto& x) { return gdpo::view(x.data(), 8, 5); };
    b.logp = tokens(logp), b.old_logp = tokens(old_logp), b.rollout_logp = tokens(rollout_logp);
    b.ref_logp = tokens(ref_logp), b.advantages = gdpo::view(advantages);
    if (!weights.empty()) b.weights = tokens(weights);
    if (!kl_weights.empty()) b.kl_weights = tokens(kl_weights);
    return b;
  }
};

Names names(const std::vector<gdpo::Finding>& findings) {
  Names names;
  for (const gdpo::Finding& f : findings) {
    names.push_back(f.subject.empty() ? f.name : f.name + " " + f.subject);
    INFO(f.text);
    CHECK(f.text.back() == '.');
    CHECK(f.cause.back() == '.');
  }
  return names;
}
Names found(const Step& step, const gdpo::DiagnoseSettings& settings = {}) {
  return names(gdpo::diagnose(gdpo::mismatch(step.batch()), settings));
}
gdpo::DiagnoseSettings whole_step() {
  gdpo::DiagnoseSettings settings;
  settings.whole_step = true;
  return settings;
}
template <class Loss>
Names found_in_loss(const Step& step, const Loss& loss, const gdpo::DiagnoseSettings& settings) {
  const gdpo::TokenBatch<double> batch = step.batch();
  return names(gdpo::diagnose(loss(batch, gdpo::count(batch)).metrics, settings));
}

}  // namespace

TEST_CASE("nothing is found where engine and trainer are near, nor in an empty report",
          "[diagnose]") {
  CHECK(found(Step{}).empty());
  CHECK(found(Step{}, whole_step()).empty());
  CHECK(gdpo::diagnose(gdpo::MismatchReport{}, whole_step()).empty());
}

TEST_CASE("a mismatch that is too large, by KL and by probabilities", "[diagnose]") {
  Step step;
  for (std::size_t k = 0; k < 40; ++k) step.rollout_logp[k] += k % 2 == 0 ? 0.7 : -0.7;
  CHECK(found(step) == Names{"rollout_mismatch kl", "rollout_mismatch probability"});
  gdpo::DiagnoseSettings settings;
  settings.rollout_kl = 1, settings.mult_prob_error = 3;
  CHECK(found(step, settings).empty());
  // k1 cancels here: the rule looks at k3 as well.
  CHECK(std::fabs(gdpo::mismatch(step.batch()).kl()) < 0.01);
}

TEST_CASE("log-probs that the engine has not given", "[diagnose]") {
  Step step;
  step.rollout_logp[3] = std::nan("");
  const auto findings = gdpo::diagnose(gdpo::mismatch(step.batch()));
  REQUIRE(names(findings) == Names{"missing_rollout"});
  CHECK(findings[0].text.find("2.5 % of the valid tokens, 1 of them") == 0);
}

TEST_CASE("a low effective sample size, of the weights or else of the ratios", "[diagnose]") {
  Step step;
  step.weights.assign(40, 0.01), step.weights[0] = 2;
  CHECK(found(step) == Names{"effective_sample_size weights"});
  step.weights.clear();
  step.rollout_logp[0] = step.old_logp[0] - 5;
  gdpo::DiagnoseSettings settings;
  settings.rollout_kl = settings.mult_prob_error = gdpo::math::infinity;
  CHECK(found(step, settings) == Names{"effective_sample_size ratios"});
}

TEST_CASE("a correction that takes out more than half", "[diagnose]") {
  Step step;
  step.weights.assign(40, 1);
  for (std::size_t k = 0; k < 21; ++k) step.weights[k] = 0;
  CHECK(found(step) == Names{"dropped"});
  step.weights[0] = 1;
  CHECK(found(step).empty());
  // The same by the mask.
  const Step all;
  gdpo::prepass::Gate gate;
  gate.reach = gdpo::Reach::Mask, gate.max = 1;
  gdpo::PrepassMemory<double> memory;
  const gdpo::TokenBatch<double> batch = all.batch();
  const auto report = gdpo::mismatch(gdpo::prepare(batch, memory, gate));
  CHECK((names(gdpo::diagnose(report)) == Names{"dropped"}) == (report.masked > 20));
  CHECK(report.masked > 0);
}

TEST_CASE("a correction that has changed nothing in a whole step", "[diagnose]") {
  Step step;
  step.weights.assign(40, 1);
  CHECK(found(step, whole_step()) == Names{"no_effect weights"});
  CHECK(found(step).empty());  // of a part of a step it may well be
  step.weights[9] = 0.5;
  CHECK(found(step, whole_step()).empty());
  step.rollout_logp = step.old_logp;
  CHECK(found(step, whole_step()) == Names{"no_effect rollout_logp"});
}

TEST_CASE("a KL term that adds nothing, and a surrogate that is 0", "[diagnose]") {
  for (const bool means : {false, true}) {
    Step step;
    bool whole = false;
    const auto run = [&](double beta) {
      auto loss = gdpo::grpo_loss;
      loss.kl.beta = beta;
      const gdpo::DiagnoseSettings settings = whole ? whole_step() : gdpo::DiagnoseSettings{};
      return means ? found_in_loss(step, gdpo::with_metrics<gdpo::metrics::Means>(loss), settings)
                   : found_in_loss(step, loss, settings);
    };
    CHECK(run(0.04).empty());
    CHECK(run(0).empty());
    step.kl_weights.assign(40, 0);
    CHECK(run(0.04) == Names{"no_effect kl"});
    CHECK(run(0).empty());
    step.kl_weights[7] = 1;
    CHECK(run(0.04).empty());
    step.weights.assign(40, 0);
    CHECK(run(0.04).empty());  // of a part of a step it may well be
    whole = true;
    CHECK(run(0.04) == Names{"no_effect surrogate"});
    step.weights[7] = 1;
    CHECK(run(0.04).empty());
  }
}

TEST_CASE("thresholds out of their range are refused", "[diagnose]") {
  gdpo::DiagnoseSettings settings;
  settings.mult_prob_error = 0.5;
  CHECK(message_of([&] {
          gdpo::diagnose(gdpo::MismatchReport{}, settings);
        }).find("gdpo::diagnose: settings.mult_prob_error: given 0.5") == 0);
  settings = {}, settings.dropped = 2;
  CHECK(message_of([&] {
          gdpo::diagnose(gdpo::MismatchReport{}, settings);
        }).find("gdpo::diagnose: settings.dropped: given 2") == 0);
}

}  // namespace mismatch_findings_test
