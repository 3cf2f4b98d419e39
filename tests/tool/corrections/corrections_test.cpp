// Checks the tool corrections (bench/corrections): its exact gradients against all sequences one by
// one, its engines against their definition, what it measures against what is known exactly, its
// reports and its options. Tests on random numbers draw them from fixed keys, so that they are the
// same on every machine.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "../../../examples/resolution/errors.hpp"
#include "../../support/catch.hpp"
#include "measure.hpp"
#include "options.hpp"
#include "reports.hpp"

using namespace corrections;
using Catch::Matchers::ContainsSubstring;

namespace {

Sampler sampler_of(const std::string& name) {
  for (const Sampler& s : all_samplers()) {
    if (s.name == name) return s;
  }
  FAIL("no sampler " + name);
  return {};
}

/// Calls f(steps, total) for every sequence of the task.
template <class F>
void for_each_sequence(const Task& task, const F& f) {
  std::vector<std::size_t> tokens(task.length, 0);
  for (;;) {
    std::vector<std::size_t> steps;
    int total = 0;
    std::size_t context = 0;
    for (const std::size_t token : tokens) {
      steps.push_back(at(context, token));
      total += task.score[steps.back()];
      context = token + 1;
    }
    f(steps, total);
    std::size_t t = 0;
    while (t < task.length && ++tokens[t] == vocabulary) tokens[t++] = 0;
    if (t == task.length) return;
  }
}

/// sum over sequences of weight(steps) (R - baseline) sum_t d log p, from the definition.
template <class Weight>
Table gradient_of_all(const Task& task, double baseline, const Weight& weight) {
  Table out{};
  for_each_sequence(task, [&](const std::vector<std::size_t>& steps, int total) {
    const double w = weight(steps) * ((total >= task.needed ? 1.0 : 0.0) - baseline);
    for (const std::size_t step : steps) {
      const std::size_t c = step / vocabulary;
      out[step] += w;
      for (std::size_t a = 0; a < vocabulary; ++a) out[at(c, a)] -= w * task.policy[at(c, a)];
    }
  });
  return out;
}

double product_of(const Table& kernel, const std::vector<std::size_t>& steps) {
  double product = 1;
  for (const std::size_t step : steps) product *= kernel[step];
  return product;
}

/// The largest difference of two tables.
double distance(const Table& a, const Table& b) {
  double largest = 0;
  for (std::size_t k = 0; k < a.size(); ++k) largest = std::max(largest, std::fabs(a[k] - b[k]));
  return largest;
}

Parsed parsed(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "corrections");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

TEST_CASE("exact gradients are those of all sequences") {
  const Task task = make_task(3, Random(7));
  const Engine engine = make_engine(sampler_of("flips"), task, Random(8));
  const Table mean = engine.mean(), weighed = engine.weighed(task.policy);
  // 1e-13: sums of 1728 numbers below 1.
  for (const Table& kernel : {task.policy, mean, weighed}) {
    for (const double baseline : {0.0, 0.4}) {
      const Table all = gradient_of_all(
          task, baseline, [&](const auto& steps) { return product_of(kernel, steps); });
      CHECK(distance(expected_gradient(task, kernel, baseline), all) < 1e-13);
    }
  }
  double reward = 0;
  for_each_sequence(task, [&](const std::vector<std::size_t>& steps, int total) {
    if (total >= task.needed) reward += product_of(mean, steps);
  });
  CHECK(std::fabs(mean_reward(task, mean) - reward) < 1e-13);
}

TEST_CASE("with the policy as the kernel it is the derivative of the mean reward") {
  const Task task = make_task(20, Random(3));
  const Table gradient = expected_gradient(task, task.policy, 0.3);
  CHECK(distance(gradient, expected_gradient(task, task.policy, 0)) < 1e-12);
  CHECK(mean_reward(task, task.policy) >= 0.5);
  for (const std::size_t k : {std::size_t{0}, at(3, 4), at(12, 11)}) {
    const double h = 1e-5;
    Table up = task.logits, down = task.logits;
    up[k] += h, down[k] -= h;
    const double quotient =
        (mean_reward(task, softmax(up)) - mean_reward(task, softmax(down))) / (2 * h);
    CHECK(std::fabs(quotient - gradient[k]) < 1e-8);  // h^2 of the third derivative, and 1e-16 / h
  }
}

TEST_CASE("engines are what their samplers say") {
  const Task task = make_task(8, Random(1));
  for (const Sampler& sampler : all_samplers()) {
    CAPTURE(sampler.name);
    const Engine engine = make_engine(sampler, task, Random(2));
    const Table mean = engine.mean();
    for (std::size_t c = 0; c < contexts; ++c) {
      double sum = 0;
      for (std::size_t a = 0; a < vocabulary; ++a) sum += mean[at(c, a)];
      CHECK(std::fabs(sum - 1) < 1e-12);
    }
    // Weighed by the product of all ratios, sequences come from the policy: of the tokens that are
    // drawn at all, and where log-probs are those that tokens are drawn with.
    const Table weighed = engine.weighed(task.policy);
    for (std::size_t k = 0; k < weighed.size(); ++k) {
      if (sampler.reports_all || mean[k] <= 0) continue;
      CHECK(std::fabs(weighed[k] - task.policy[k]) < 1e-12);
    }
    CHECK((distance(mean, task.policy) > 1e-4));
  }
}

TEST_CASE("top-p keeps the smallest set with that probability") {
  const Task task = make_task(8, Random(1));
  const Engine engine = make_engine(sampler_of("top_p_90"), task, Random(2));
  REQUIRE(engine.states.size() == 1);
  const Table& kept = engine.states[0].sampled;
  for (std::size_t c = 0; c < contexts; ++c) {
    double sum = 0, least = 1, most_left_out = 0;
    for (std::size_t a = 0; a < vocabulary; ++a) {
      const double p = task.policy[at(c, a)];
      if (kept[at(c, a)] > 0) {
        sum += p, least = std::min(least, p);
      } else {
        most_left_out = std::max(most_left_out, p);
      }
    }
    CHECK(sum >= 0.9);
    CHECK(sum - least < 0.9);
    CHECK(least >= most_left_out);
  }
  const Engine full = make_engine(sampler_of("top_p_95_full"), task, Random(2));
  CHECK(distance(full.states[0].reported, task.policy) < 1e-15);
}

TEST_CASE("means over batches tend to what is known exactly") {
  for (const char* name : {"bf16_fixed", "flips", "stale", "top_p_90", "top_p_95_full"}) {
    CAPTURE(name);
    const Task task = make_task(12, Random(5));
    const Engine engine = make_engine(sampler_of(name), task, Random(6));
    const Exact exact = make_exact(task, engine);
    std::vector<std::vector<gdpo::runtime::Prepass>> passes;
    for (const std::size_t c : {std::size_t{0}, std::size_t{1}})
      passes.push_back(passes_of(all_corrections()[c]));
    const Chunk chunk = measure(task, engine, exact, passes, 150, 64, Random(9));
    for (const std::size_t c : {std::size_t{0}, std::size_t{1}}) {
      const Sums& sums = chunk.sums[c];
      const Table mean = plus({}, 1.0 / 150, sums.gradient);
      const Table off = plus(mean, -1, c == 0 ? exact.none : exact.product);
      const double variance = (sums.squares / 150 - dot(mean, mean)) / 150;
      // |off|^2 has the mean `variance`; a sum of about a hundred squares is rarely twice its mean.
      CHECK(dot(off, off) < 2 * variance);
      CHECK(dot(off, off) > 0);
    }
  }
}

TEST_CASE("the library is given what the engine reports") {
  // A hand-made engine: q is p with the tokens in reverse.
  const Task task = make_task(4, Random(11));
  Engine engine;
  Table other = task.policy;
  for (std::size_t c = 0; c < contexts; ++c)
    std::reverse(other.begin() + static_cast<std::ptrdiff_t>(at(c, 0)),
                 other.begin() + static_cast<std::ptrdiff_t>(at(c, 0) + vocabulary));
  engine.states.push_back({1, other, other});
  const Exact exact = make_exact(task, engine);
  CHECK(distance(exact.product, exact.gradient) < 1e-12);
  // A token weight is exact where a sequence is one token long, and there it is the product.
  const Task one = make_task(1, Random(11));
  const Exact of_one = make_exact(one, engine);
  std::vector<std::vector<gdpo::runtime::Prepass>> passes{{}};
  for (const char* lines : {"importance statistic=sequence_sum", "importance", "gate min=0.5",
                            "importance + gate min=0.5"})
    passes.push_back(passes_of({"", lines}));
  const Chunk chunk = measure(one, engine, of_one, passes, 3, 64, Random(12));
  CHECK(distance(chunk.sums[1].gradient, chunk.sums[2].gradient) == 0);
  CHECK(chunk.sums[1].dropped == 0);
  CHECK(chunk.sums[1].effective < 3);
  CHECK(chunk.sums[0].effective == 3);
  // A mask without a weight: what is left counts whole, so its effective share is what it keeps.
  CHECK(chunk.sums[3].dropped > 0);
  CHECK(std::fabs(chunk.sums[3].effective + chunk.sums[3].dropped - 3) < 1e-12);
  CHECK(chunk.sums[4].dropped == chunk.sums[3].dropped);
  CHECK(distance(chunk.sums[4].gradient, chunk.sums[3].gradient) > 0);
}

TEST_CASE("what agrees with no correction has its bias, without an interval") {
  Settings settings;
  settings.policies = 2, settings.chunks = 4, settings.batches = 2, settings.sequences = 8;
  Sampler sampler = sampler_of("stale");
  sampler.length = 10;
  const Results results = run(settings, {sampler},
                              {all_corrections()[0],
                               all_corrections()[1],
                               {"wide", "gate max=100"},
                               {"weight", "importance"},
                               {"all", "gate max=1e-9"}},
                              1);
  REQUIRE(results.cases.size() == 1);
  const std::vector<Measured>& all = results.cases[0].corrections;
  CHECK(all[0].exact);
  CHECK(all[0].bias.value > 0.01);
  CHECK(all[1].exact);
  CHECK(all[1].bias.value < 1e-9);  // the product is unbiased
  CHECK_FALSE(all[2].exact);
  CHECK(std::fabs(all[2].bias.value - all[0].bias.value) < 1e-9);
  CHECK(all[2].bias.high - all[2].bias.low < 1e-6);
  CHECK(all[2].gain.value == 0);
  CHECK(all[2].variance == all[0].variance);
  CHECK(all[3].bias.high > all[3].bias.low);
  // All tokens dropped: the bias is the gradient itself.
  CHECK(all[4].dropped == 1);
  CHECK(std::fabs(all[4].bias.value - 1) < 1e-9);
  CHECK(std::fabs(all[4].length) < 1e-9);
  CHECK(all[4].cosine == 0);
  CHECK(all[4].effective == 0);

  const std::string text = to_markdown(results);
  CHECK_THAT(text, ContainsSubstring("<!-- table: stale -->"));
  CHECK_THAT(text, ContainsSubstring("(exact)"));
  CHECK(text.find("table: gain") == std::string::npos);  // a part has no summary
  const auto json = nlohmann::json::parse(to_json(results));
  CHECK(json["samplers"]["stale"]["corrections"]["none"]["exact"] == true);
  CHECK(json["samplers"]["stale"]["corrections"]["wide"]["gain"]["value"] == 0.0);
  CHECK(json["corrections"]["weight"] == "importance");
}

TEST_CASE("every correction of the list is a line that the library takes") {
  CHECK(all_corrections()[0].lines.empty());
  CHECK(all_corrections()[1].lines == "importance statistic=sequence_sum");
  for (const Correction& c : all_corrections()) {
    CAPTURE(c.name);
    CHECK(passes_of(c).empty() == c.lines.empty());
  }
  CHECK(passes_of({"", "importance + gate max=2"}).size() == 2);
  CHECK_THROWS_AS(passes_of({"", "importance + trl::nothing"}), gdpo::invalid_input);
}

TEST_CASE("options") {
  const Options all = *parsed({}).options;
  CHECK(all.samplers.size() == all_samplers().size());
  CHECK(all.corrections.size() == all_corrections().size());
  const Options part = *parsed({"--only", "icepop,stale", "--line", "importance clip.hi=1.5",
                                "--policies", "3", "--seed", "9"})
                            .options;
  REQUIRE(part.samplers.size() == 1);
  CHECK(part.samplers[0].name == "stale");
  REQUIRE(part.corrections.size() == 2);
  CHECK(part.corrections[1].lines == "importance clip.hi=1.5");
  CHECK(part.settings.policies == 3);
  CHECK(part.settings.seed == 9);
  CHECK_THAT(parsed({"--list"}).text, ContainsSubstring("bf16_long"));
  CHECK_THROWS_AS(parsed({"--only", "nobody"}), resolution::UserError);
  CHECK_THROWS_AS(parsed({"--batches", "0"}), resolution::UserError);
  CHECK_THROWS_AS(parsed({"--line", "importance clip.hi=x"}), gdpo::invalid_input);
}
