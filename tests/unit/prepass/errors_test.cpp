// labels: sanitizers
// The messages of wrong calls of prepare(): the function, the argument, what was given and what is
// needed.
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace errors_test {

namespace {

namespace prepass = gdpo::prepass;
using gdpo::Reach;

struct Batch {
  std::vector<float> logp = std::vector<float>(6, -1.0f);
  std::vector<double> advantages{1, -1};
  gdpo::TokenBatch<float> batch;
  gdpo::PrepassMemory<float> memory;
  Batch() {
    batch.logp = gdpo::view(logp.data(), 2, 3);
    batch.advantages = gdpo::view(advantages);
  }
  Batch(const Batch&) = delete;
  template <class... Passes>
  std::string operator()(const Passes&... passes) {
    return message_of([&] { gdpo::prepare(batch, memory, passes...); });
  }
};
constexpr double inf = std::numeric_limits<double>::infinity(),
                 nan_ = std::numeric_limits<double>::quiet_NaN();

prepass::TopEntropy top(double quantile, double threshold = inf) {
  prepass::TopEntropy pass;
  pass.quantile = quantile, pass.threshold = threshold;
  return pass;
}

}  // namespace

TEST_CASE("arrays that a pre-pass needs and does not find", "[prepass][errors]") {
  Batch x;
  CHECK(x(prepass::Overlong{}) ==
        "gdpo::prepare: overlong.truncated: given no column; needed: one flag for each "
        "row (not 0: dropped)");
  CHECK(x(prepass::DegenerateGroups{{}, Reach::Surrogate}) ==
        "gdpo::prepare: degenerate_groups.degenerate: given no column; needed: one flag "
        "for each row (not 0: "
        "dropped)");
  const std::vector<int> three{1, 0, 1};
  CHECK(x(prepass::Overlong{gdpo::view(three)}) ==
        "gdpo::prepare: overlong.truncated: given 3 entries; needed: one for each of the "
        "2 rows");
  CHECK(x(prepass::DegenerateGroups{gdpo::view(three), Reach::Mask}) ==
        "gdpo::prepare: degenerate_groups.degenerate: given 3 entries; needed: one for "
        "each of the 2 rows");
  for (const double threshold : {inf, 1.0}) {
    CHECK(x(top(0.5, threshold)) ==
          "gdpo::prepare: batch.entropies: given no array; needed: the entropy of each token, "
          "because of "
          "prepass::TopEntropy");
  }
  CHECK(x(prepass::Gate{}) ==
        "gdpo::prepare: batch.rollout_logp: given no array; needed: the sampling policy's "
        "log-probs, because of "
        "prepass::Gate on Pair::Mismatch");
  CHECK(x(prepass::Importance{}) ==
        "gdpo::prepare: batch.rollout_logp: given no array; needed: the sampling policy's "
        "log-probs, because of "
        "prepass::Importance");

  gdpo::TokenBatch<float> without = x.batch;
  without.advantages = {};
  without.rollout_logp = x.batch.logp;
  for (const auto when : {prepass::When::NegativeAdvantage, prepass::When::Outward}) {
    prepass::Gate occasional;
    occasional.when = when;
    CHECK(message_of([&] { gdpo::prepare(without, x.memory, occasional); }) ==
          "gdpo::prepare: batch.advantages, batch.token_advantages: given neither; needed: one of "
          "them, because of "
          "prepass::Gate::when");
  }
  CHECK(message_of([&] { gdpo::prepare(without, x.memory, prepass::Gate{}); }) == "no error");

  // A pre-pass that is off, or whose settings do without an array, does not miss it.
  prepass::Gate gate;
  gate.pair = prepass::Pair::Drift;
  CHECK(x(gate) == "no error");
  gate.pair = prepass::Pair::Update;
  CHECK(x(gate) == "no error");
  prepass::TopEntropy off;
  off.reach = Reach::None;
  CHECK(x(off, prepass::DegenerateGroups{}) == "no error");
}

TEST_CASE("settings of pre-passes out of range", "[prepass][errors]") {
  Batch x;
  CHECK(x(top(1.5)) == "gdpo::prepare: top_entropy.quantile: given 1.5; needed: 0 to 1");
  CHECK(x(top(-0.25)) == "gdpo::prepare: top_entropy.quantile: given -0.25; needed: 0 to 1");
  CHECK_THAT(x(top(nan_)), Catch::Matchers::ContainsSubstring("top_entropy.quantile: given nan"));
  CHECK(x(top(0.5, nan_)) ==
        "gdpo::prepare: top_entropy.threshold: given nan; needed: a number (nats, or infinity: the "
        "batch's own quantile)");

  const std::string order = "given 2 and 1; needed: lo < hi (infinite: off)";
  prepass::Gate gate;
  gate.min = 2, gate.max = 1;
  CHECK(x(gate) ==
        "gdpo::prepare: gate.min, gate.max: given 2 and 1; needed: min < max "
        "(infinite: off)");
  gate = {};
  gate.max = nan_;
  CHECK(x(gate) == "gdpo::prepare: gate.max: given nan; needed: a number");
  gate = {};
  gate.clamp = {2, 1};
  CHECK(x(gate) == "gdpo::prepare: gate.clamp.lo, gate.clamp.hi: " + order);
  gate = {};
  gate.count_eps = -1;
  CHECK(x(gate) ==
        "gdpo::prepare: gate.count_eps: given -1; needed: a finite number of at least 0");

  prepass::Importance importance;
  importance.clamp = {2, 1};
  CHECK(x(importance) == "gdpo::prepare: importance.clamp.lo, importance.clamp.hi: " + order);
  importance = {};
  importance.clip = {2, 1};
  CHECK(x(importance) == "gdpo::prepare: importance.clip.lo, importance.clip.hi: " + order);
  importance = {};
  importance.count_eps = inf;
  CHECK(x(importance) ==
        "gdpo::prepare: importance.count_eps: given inf; needed: a finite number of at "
        "least 0");

  importance = {};
  importance.reach = Reach::Mask;
  CHECK(x(importance) ==
        "gdpo::prepare: importance.reach: given mask, which only takes tokens out; needed: "
        "surrogate or surrogate_and_kl: its weights are no mask");

  // A number that is no enumerator.
  gate = {};
  gate.when = static_cast<prepass::When>(9);
  CHECK(x(gate) ==
        "gdpo::prepare: gate.when: given 9, which is no enumerator; needed: one of always, "
        "negative_advantage, outward");
  prepass::DegenerateGroups groups;
  groups.reach = static_cast<Reach>(9);
  CHECK_THAT(x(groups),
             Catch::Matchers::ContainsSubstring("degenerate_groups.reach: given 9, which is no"));

  // Settings are checked whether a pre-pass is on or off, first or last.
  importance.reach = Reach::None;
  importance.count_eps = inf;
  CHECK_THAT(x(prepass::DegenerateGroups{}, importance),
             Catch::Matchers::ContainsSubstring("importance.count_eps"));
}

TEST_CASE("the batch is checked under the name of prepare", "[prepass][errors]") {
  Batch x;
  gdpo::PrepassMemory<float> memory;
  CHECK(message_of([&] { gdpo::prepare(gdpo::TokenBatch<float>{}, memory, prepass::Gate{}); }) ==
        "gdpo::prepare: batch: given no array of tokens and no offsets; needed: a mask, offsets or "
        "log-probs, which say how many tokens the rows have");
  x.batch.rollout_logp = gdpo::view(x.logp.data(), 3, 2);
  CHECK(x(prepass::Gate{}) ==
        "gdpo::prepare: batch.rollout_logp: given (3, 2); needed: (2, 3), the shape of batch.logp");
  x.batch.rollout_logp = {};
  x.batch.logp = gdpo::view(x.logp);
  CHECK_THAT(x(), Catch::Matchers::ContainsSubstring("gdpo::prepare: batch.offsets"));
}

TEST_CASE("an error of prepare leaves the batch as it was", "[prepass][errors]") {
  Batch x;
  x.batch.rollout_logp = gdpo::view(x.logp.data(), 2, 3);
  const std::vector<int> flags{1, 0};
  CHECK(x(prepass::Overlong{gdpo::view(flags)}, top(0.5)) != "no error");
  CHECK(gdpo::count(x.batch).tokens == 6);
  CHECK(!x.batch.mask);
  CHECK(!x.batch.weights);
  CHECK(x(prepass::Overlong{gdpo::view(flags)}) == "no error");  // the memory can still be used
}

}  // namespace errors_test
