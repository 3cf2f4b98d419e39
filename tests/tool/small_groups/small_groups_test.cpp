// Checks the tool small_groups (bench/small_groups): its exact gradients against the definition,
// its measures against numbers by hand, what it draws, its reports and its options. Tests on random
// numbers draw them from fixed keys, so that they are the same on every machine.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../../../examples/resolution/errors.hpp"
#include "../../support/catch.hpp"
#include "options.hpp"
#include "reports.hpp"

using namespace small_groups;
using Catch::Matchers::ContainsSubstring;

namespace {

Law law_of(const std::string& name) {
  for (const Law& law : all_laws()) {
    if (law.name == name) return law;
  }
  FAIL("no law " + name);
  return {};
}

Estimator estimator_of(const std::string& name) {
  for (const Estimator& e : all_estimators()) {
    if (e.name == name) return e;
  }
  FAIL("no estimator " + name);
  return {};
}

Bandits bandits_of(const std::string& law, std::size_t prompts, std::uint64_t seed = 5) {
  const Logs logs = read_logs({law_of(law)}, GDPO_SMALL_GROUPS_DATA);
  return make_bandits(law_of(law), prompts, Random(seed), logs);
}

/// An estimator of the test: `f` makes the advantages of a batch.
template <class F>
Estimator made_of(const F& f) {
  Estimator e;
  e.name = "own";
  e.make = [f] { return Estimator::Run(f); };
  return e;
}

/// Prompts with two arms that are equally likely, whose rewards are always 0 and 1.
Bandits coins(std::size_t prompts) {
  Bandits b;
  b.prompts = prompts;
  b.arms = 2;
  b.rewards = {Reward{}};
  b.policy.assign(2 * prompts, 0.5);
  b.scales.assign(prompts, 1);
  for (std::size_t p = 0; p < prompts; ++p) b.means.insert(b.means.end(), {0.0, 1.0});
  return b;
}

Numbers numbers_of(const Bandits& b, const Estimator& e, std::size_t k, std::size_t batches,
                   std::uint64_t seed = 9) {
  return measure(b, {e}, k, batches, [&](std::size_t i) { return Random(seed, i); })
      .estimators.front();
}

/// The message of the UserError that a call throws; fails where it throws none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const resolution::UserError& error) {
    return error.what();
  }
  FAIL("no error");
  return "";
}

Parsed parse(std::initializer_list<const char*> arguments) {
  std::vector<const char*> argv{"small_groups"};
  argv.insert(argv.end(), arguments);
  return parse_options(static_cast<int>(argv.size()), argv.data());
}
Options options(std::initializer_list<const char*> arguments) {
  const Parsed parsed = parse(arguments);
  REQUIRE(parsed.options);
  return *parsed.options;
}
std::string option_error(std::initializer_list<const char*> arguments) {
  return error_of([&] { parse(arguments); });
}

Results small_run(std::initializer_list<const char*> arguments, int threads = 1) {
  const Options o = options(arguments);
  return run(o.settings, o.laws, o.estimators, read_logs(o.laws, o.data), threads);
}

}  // namespace

// ---- exact gradients ----

TEST_CASE("Exact gradients are derivatives of expected rewards by the logits") {
  for (const char* name : {"binary_mixed", "binary_and_normal", "pair_m50", "wmt21"}) {
    INFO(name);
    const Bandits b = bandits_of(name, 3);
    const Targets targets = targets_of(b);
    // The expected weighted sum of prompt p after logit a has grown by h.
    const auto objective = [&](std::size_t p, std::size_t a, double h) {
      double sum = 0, total = 0;
      for (std::size_t j = 0; j < b.arms; ++j) {
        const double weight = b.probability(p, j) * (j == a ? std::exp(h) : 1);
        total += weight;
        for (std::size_t c = 0; c < b.rewards.size(); ++c)
          sum += weight * b.rewards[c].weight * b.mean(p, j, c);
      }
      return sum / total;
    };
    // Central differences: h^2 / 6 times a third derivative of some 40 at most, and rounding.
    const double h = 1e-4;
    for (std::size_t p = 0; p < b.prompts; ++p) {
      for (std::size_t a = 0; a < b.arms; ++a) {
        const double quotient = (objective(p, a, h) - objective(p, a, -h)) / (2 * h);
        CHECK(targets.objective[p * b.arms + a] == Approx(quotient).margin(1e-7));
      }
    }
  }
}

TEST_CASE("Standardized gradients are divided by the standard deviation of what is drawn") {
  for (const char* name : {"binary_and_normal", "pair_m50", "pair_50", "gsm8k", "pareto"}) {
    INFO(name);
    const Bandits b = bandits_of(name, 2);
    const Targets targets = targets_of(b);
    const std::size_t k = 200000, rewards = b.rewards.size();
    Random random(77);
    Sample sample;
    draw(b, k, random, sample);
    for (std::size_t p = 0; p < b.prompts; ++p) {
      // Moments of each reward and, last, of the weighted sum.
      std::vector<double> sum(rewards + 1), square(rewards + 1);
      for (std::size_t i = p * k; i < (p + 1) * k; ++i) {
        double total = 0;
        for (std::size_t c = 0; c <= rewards; ++c) {
          const double r = c < rewards ? sample.rewards[i * rewards + c] : total;
          if (c < rewards) total += b.rewards[c].weight * r;
          sum[c] += r, square[c] += r * r;
        }
      }
      const auto n = static_cast<double>(k);
      const auto sigma = [&](std::size_t c) {
        return std::sqrt(std::max(0.0, square[c] / n - sum[c] / n * sum[c] / n));
      };
      for (std::size_t a = 0; a < b.arms; ++a) {
        const std::size_t at = p * b.arms + a;
        double each = 0;
        for (std::size_t c = 0; c < rewards; ++c) {
          double expected = 0;
          for (std::size_t j = 0; j < b.arms; ++j)
            expected += b.probability(p, j) * b.mean(p, j, c);
          if (sigma(c) > 1e-6) {
            each +=
                b.rewards[c].weight * b.probability(p, a) * (b.mean(p, a, c) - expected) / sigma(c);
          }
        }
        const double whole = sigma(rewards) > 1e-6 ? targets.objective[at] / sigma(rewards) : 0;
        // A sigma of k draws is off by 1 / sqrt(2 k) = 0.2 % where rewards are normal; Pareto's
        // fourth moment is infinite, and 2 % were seen.
        CHECK(targets.standardized[at] == Approx(whole).epsilon(0.05).margin(1e-3));
        CHECK(targets.each[at] == Approx(each).epsilon(0.05).margin(2e-3));
      }
    }
  }
}

TEST_CASE("RLOO has no bias, Dr.GRPO one of (K - 1) / K") {
  const std::size_t k = 3, batches = 20000;
  const Bandits b = bandits_of("pair_m50", 2);  // with weights 1 and 0.5
  const Targets targets = targets_of(b);
  std::vector<Estimator::Run> runs{estimator_of("rloo").make(), estimator_of("dr_grpo").make()};
  std::vector<double> sum(b.policy.size()), square(b.policy.size()), other(b.policy.size());
  std::vector<double> advantages;
  Sample sample;
  for (std::size_t batch = 0; batch < batches; ++batch) {
    Random random(31, batch);
    draw(b, k, random, sample);
    for (auto* into : {&sum, &other}) {
      runs[into == &sum ? 0 : 1](b, sample, k, advantages);
      std::vector<double> g(b.policy.size());
      for (std::size_t i = 0; i < advantages.size(); ++i) {
        const std::size_t p = i / k;
        for (std::size_t a = 0; a < b.arms; ++a) {
          const double score = (sample.arms[i] == a ? 1.0 : 0.0) - b.probability(p, a);
          g[p * b.arms + a] += advantages[i] * score / static_cast<double>(k);
        }
      }
      for (std::size_t j = 0; j < g.size(); ++j) {
        (*into)[j] += g[j];
        if (into == &sum) square[j] += g[j] * g[j];
      }
    }
  }
  const auto n = static_cast<double>(batches);
  for (std::size_t j = 0; j < sum.size(); ++j) {
    const double mean = sum[j] / n;
    // Five standard errors of the mean; 32 components are compared.
    const double error = std::sqrt((square[j] / n - mean * mean) / n);
    CHECK(std::fabs(mean - targets.objective[j]) < 5 * error + 1e-12);
    CHECK(other[j] / n == Approx(mean * 2 / 3).margin(1e-12));
  }
}

// ---- measures ----

TEST_CASE("The slope of RLOO is 1, that of Dr.GRPO (K - 1) / K, and both have no bias") {
  const Bandits b = bandits_of("normal", 8);
  std::vector<double> slopes, cosines;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Numbers rloo = numbers_of(b, estimator_of("rloo"), 4, 50, seed);
    const Numbers dr_grpo = numbers_of(b, estimator_of("dr_grpo"), 4, 50, seed);
    CHECK(dr_grpo[Slope] == Approx(0.75 * rloo[Slope]).epsilon(1e-12));
    for (const Measure m : {Cosine, MeanCosine, RelativeVariance, PromptCosine, EffectiveShare})
      CHECK(dr_grpo[m] == Approx(rloo[m]).epsilon(1e-9));
    slopes.push_back(rloo[Slope]);
    cosines.push_back(rloo[MeanCosine]);
  }
  // Five standard errors over 40 seeds; half_width is 2.02 of them.
  CHECK(std::fabs(interval_of(slopes).mean - 1) < 2.5 * interval_of(slopes).half_width);
  CHECK(std::fabs(interval_of(cosines).mean - 1) < 2.5 * interval_of(cosines).half_width);
  CHECK(interval_of(slopes).half_width < 0.05);
}

TEST_CASE("With two arms and one prompt every batch with a signal has cosine 1") {
  const Bandits b = coins(1);
  for (const char* name : {"grpo", "grpo_shrunk", "rloo", "median_mad", "gdpo", "trimmed"}) {
    INFO(name);
    const Numbers x = numbers_of(b, estimator_of(name), 2, 400);
    CHECK(x[Cosine] == Approx(1 - x[Dead]).epsilon(1e-12));
    CHECK(x[CosineStandardized] == Approx(x[Cosine]).epsilon(1e-12));
    CHECK(x[PromptCosine] == Approx(x[Cosine]).epsilon(1e-12));
    CHECK(x[Dead] == Approx(0.5).margin(0.125));  // five standard errors of 400 throws
    CHECK(x[Within] == Approx(1).epsilon(1e-12));
    // The length of E g is estimated without bias, so that its square is off by the relative
    // variance, 1, over the number of batches.
    for (const Measure m : {MeanCosine, MeanStandardized, MeanEach, Weighing})
      CHECK(x[m] == Approx(1).margin(0.002));
    CHECK(x[Tied] == 0);
  }
}

TEST_CASE("What is measured of the distribution, by hand") {
  // Two groups of two; the second gets nothing although its rewards differ in every second batch.
  const Bandits b = coins(2);
  const Estimator e =
      made_of([](const Bandits&, const Sample&, std::size_t, std::vector<double>& out) {
        out = {3, -1, 0, 0};
      });
  const Numbers x = numbers_of(b, e, 2, 100);
  CHECK(x[EffectiveShare] == Approx(100.0 / 82 / 4));
  CHECK(x[Peak] == Approx(3 / std::sqrt(2.5)));
  CHECK(x[TopShare] == 1);
  CHECK(x[Dead] == 0.5);
  // Groups of the second kind tie all their pairs; the first prompt's never tie.
  std::size_t different[2] = {0, 0};
  for (std::size_t batch = 0; batch < 100; ++batch) {
    Random random(9, batch);
    Sample sample;
    draw(b, 2, random, sample);
    for (std::size_t p = 0; p < 2; ++p)
      different[p] += sample.rewards[2 * p] != sample.rewards[2 * p + 1] ? 1 : 0;
  }
  CHECK(x[Tied] == Approx(static_cast<double>(different[1]) /
                          static_cast<double>(different[0] + different[1])));

  // 300 groups: the top hundredth are three of them.
  const Estimator one_large =
      made_of([](const Bandits&, const Sample& sample, std::size_t, std::vector<double>& out) {
        out.assign(sample.arms.size(), 1);
        for (std::size_t i = 0; i < 8; i += 2) out[i] = 4;
      });
  CHECK(numbers_of(coins(300), one_large, 2, 3)[TopShare] == Approx(3 * 17.0 / (4 * 17 + 2 * 296)));
}

TEST_CASE("Weights of prompts are told from directions inside prompts") {
  // Advantages 2 p + 1 times those of RLOO: no bias inside a prompt, but other weights.
  const Bandits b = bandits_of("binary_mixed", 3);
  const Targets t = targets_of(b);
  const Estimator e =
      made_of([rloo = estimator_of("rloo").make()](const Bandits& of, const Sample& sample,
                                                   std::size_t k, std::vector<double>& out) {
        rloo(of, sample, k, out);
        for (std::size_t i = 0; i < out.size(); ++i) out[i] *= static_cast<double>(2 * (i / k) + 1);
      });
  double dot = 0, length = 0, weighted = 0;
  for (std::size_t i = 0; i < t.objective.size(); ++i) {
    const double x = t.objective[i], f = static_cast<double>(2 * (i / b.arms) + 1);
    dot += f * x * x, length += x * x, weighted += f * x * f * x;
  }
  const Numbers x = numbers_of(b, e, 8, 20000);
  // The relative error of E g is about sqrt(variance / batches), below 1 %.
  CHECK(x[Weighing] == Approx(dot / std::sqrt(length * weighted)).epsilon(0.01));
  CHECK(x[Within] == Approx(1).epsilon(0.01));
  CHECK(x[MeanCosine] == Approx(x[Weighing] * x[Within]).epsilon(1e-12));
  CHECK(x[Slope] == Approx(dot / length).epsilon(0.02));
}

TEST_CASE("The relative variance is that of single batches about their mean, without bias") {
  // One completion with two arms: the advantage s for the better arm and -s for the other give the
  // estimate s (-1/2, 1/2).
  const Estimator e = made_of([calls = 0](const Bandits&, const Sample& sample, std::size_t,
                                          std::vector<double>& out) mutable {
    constexpr double lengths[] = {2, 2, -1, 1};
    out.assign(1, lengths[calls++ % 4] * (sample.arms[0] == 1 ? 1 : -1));
  });
  for (const std::size_t batches : {std::size_t{8}, std::size_t{400}}) {
    // s has mean 1 and mean square 2.5; over pairs of different batches, the mean product is this.
    const auto n = static_cast<double>(batches);
    const double product = (n * n - 2.5 * n) / (n * (n - 1));
    const Numbers x = numbers_of(coins(1), e, 1, batches);
    CHECK(x[RelativeVariance] == Approx((2.5 - product) / product).epsilon(1e-12));
    CHECK(x[MeanCosine] == Approx(1 / std::sqrt(product)).epsilon(1e-12));
    CHECK(x[Within] == Approx(1).epsilon(1e-12));
    CHECK(x[Cosine] == Approx(0.5).epsilon(1e-12));  // three of four point the right way
    // The exact gradient is (-1/4, 1/4).
    CHECK(x[Slope] == Approx(2).epsilon(1e-12));
  }
}

TEST_CASE("Advantages of zero have no direction") {
  const Estimator e = made_of([](const Bandits&, const Sample& sample, std::size_t,
                                 std::vector<double>& out) { out.assign(sample.arms.size(), 0); });
  const Numbers x = numbers_of(coins(2), e, 2, 10);
  for (const Measure m : {Cosine, PromptCosine, EffectiveShare, Peak, TopShare, Slope})
    CHECK(x[m] == 0);
  for (const Measure m : {MeanCosine, Weighing, Within, RelativeVariance}) CHECK(std::isnan(x[m]));
  CHECK(x[Dead] == 1);
  CHECK(x[Tied] == 1);
}

// ---- what is drawn ----

TEST_CASE("Random numbers are those of the key on every machine") {
  Random random(1, 2, 3);
  CHECK(random.uniform() == Random(1, 2, 3).uniform());
  CHECK(Random(1, 2, 3).uniform() != Random(1, 3, 2).uniform());
  double low = 1, high = 0, sum = 0, square = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double u = random.uniform(), z = random.normal();
    low = std::min(low, u), high = std::max(high, u);
    sum += z, square += z * z;
  }
  CHECK((low > 0 && low < 1e-3 && high < 1 && high > 0.999));
  // Five standard errors: 1 / sqrt(n) of the mean, sqrt(2 / n) of the variance.
  CHECK(sum / n == Approx(0).margin(0.016));
  CHECK(square / n == Approx(1).margin(0.023));
  CHECK(Random::number_of("") == 0xcbf29ce484222325U);  // FNV-1a's published values
  CHECK(Random::number_of("a") == 0xaf63dc4c8601ec8cU);
}

TEST_CASE("Rewards have the laws that they are said to have") {
  const std::size_t k = 200000;
  Sample sample;
  // Rewards around the means of the drawn arms, in units of their scale.
  const auto noise = [&](const char* law, std::size_t reward) {
    const Bandits b = bandits_of(law, 1);
    Random random(3);
    draw(b, k, random, sample);
    std::vector<double> e;
    for (std::size_t i = 0; i < k; ++i) {
      e.push_back(
          (sample.rewards[i * b.rewards.size() + reward] - b.mean(0, sample.arms[i], reward)) /
          b.scale(0, reward));
    }
    return e;
  };
  const auto moments = [](const std::vector<double>& x) {
    double sum = 0, square = 0;
    for (const double v : x) sum += v, square += v * v;
    const auto n = static_cast<double>(x.size());
    return std::pair(sum / n, square / n);
  };
  const auto share_below = [](const std::vector<double>& x, double limit) {
    return static_cast<double>(
               std::count_if(x.begin(), x.end(), [=](double v) { return v < limit; })) /
           static_cast<double>(x.size());
  };
  CHECK(moments(noise("normal", 0)).second == Approx(1).margin(0.02));
  CHECK(moments(noise("binary_and_normal", 1)).second == Approx(1).margin(0.02));
  // Student's t with two degrees of freedom: P(t < x) = 1/2 + x / (2 sqrt(x^2 + 2)).
  const std::vector<double> t = noise("student_t2", 0);
  CHECK(share_below(t, 0) == Approx(0.5).margin(0.006));
  CHECK(share_below(t, 1) == Approx(0.5 + 0.5 / std::sqrt(3)).margin(0.006));
  CHECK(share_below(t, -5) == Approx(0.5 - 2.5 / std::sqrt(27)).margin(0.003));
  // Pareto's with index 4: P(u^(-1/4) > x) = x^-4.
  const std::vector<double> pareto = noise("pareto", 0);
  CHECK(moments(pareto).first == Approx(0).margin(0.012));
  CHECK(moments(pareto).second == Approx(1).margin(0.1));
  CHECK(share_below(pareto, (2 - 4.0 / 3) * std::sqrt(4.5)) == Approx(15.0 / 16).margin(0.003));

  const auto correlation = [&](const char* law) {
    const std::vector<double> first = noise(law, 0), second = noise(law, 1);
    double product = 0;
    for (std::size_t i = 0; i < k; ++i) product += first[i] * second[i];
    return product / static_cast<double>(k);
  };
  CHECK(correlation("pair_m50") == Approx(-0.5).margin(0.015));
  CHECK(correlation("pair_0") == Approx(0).margin(0.012));
  CHECK(correlation("pair_50") == Approx(0.5).margin(0.015));
  const Bandits opposed = bandits_of("pair_m100", 2);
  Random random(8);
  draw(opposed, 50, random, sample);
  for (std::size_t i = 0; i < sample.rewards.size(); i += 2)
    CHECK(sample.rewards[i] == -sample.rewards[i + 1]);
}

TEST_CASE("Arms are drawn by the policy") {
  const Bandits b = bandits_of("normal", 2);
  const std::size_t k = 100000;
  Random random(4);
  Sample sample;
  draw(b, k, random, sample);
  for (std::size_t p = 0; p < b.prompts; ++p) {
    std::vector<double> share(b.arms);
    for (std::size_t i = p * k; i < (p + 1) * k; ++i)
      share[sample.arms[i]] += 1 / static_cast<double>(k);
    for (std::size_t a = 0; a < b.arms; ++a) {
      const double pi = b.probability(p, a);
      CHECK(share[a] == Approx(pi).margin(5 * std::sqrt(pi / static_cast<double>(k)) + 1e-9));
    }
  }
}

TEST_CASE("Prompts are what the laws say") {
  for (const Law& law : all_laws()) {
    INFO(law.name);
    const Bandits b = bandits_of(law.name, 8);
    for (std::size_t p = 0; p < b.prompts; ++p) {
      double sum = 0;
      for (std::size_t a = 0; a < b.arms; ++a) sum += b.probability(p, a);
      CHECK(sum == Approx(1).epsilon(1e-14));
    }
  }
  const auto rate = [](const Bandits& b, std::size_t p) {
    double r = 0;
    for (std::size_t a = 0; a < b.arms; ++a) r += b.probability(p, a) * b.mean(p, a, 0);
    return r;
  };
  for (std::size_t p = 0; p < 8; ++p) {
    CHECK(rate(bandits_of("binary_10", 8), p) == Approx(0.1).epsilon(1e-12));
    CHECK(rate(bandits_of("binary_90", 8), p) == Approx(0.9).epsilon(1e-12));
    const double mixed = rate(bandits_of("binary_mixed", 8), p);
    CHECK((mixed > 0.02 && mixed < 0.98));
    const double scale = bandits_of("normal_scales", 8).scale(p, 0);
    CHECK((scale >= 0.125 && scale <= 8 && std::log2(scale) == std::floor(std::log2(scale))));
  }
  // A log: completions of a group are arms, all equally likely, with the rewards of the log.
  const Log log = read_log(std::string(GDPO_SMALL_GROUPS_DATA) + "/gsm8k_solutions.csv",
                           {"correct", "format", "integer"});
  CHECK(log.groups() == 1319);
  const Bandits all = bandits_of("gsm8k", 5000);
  CHECK(all.prompts == 1319);
  CHECK(all.arms == 4);
  double logged = 0, drawn = 0;
  for (const double r : log.rewards) logged += r;
  for (const double r : all.means) drawn += r;
  CHECK(logged == drawn);
  const Bandits mixed = bandits_of("vlm", 614);
  CHECK(mixed.arms == 8);  // groups of 4 and of 8; the others' arms are never drawn
  Random random(6);
  Sample sample;
  draw(mixed, 50, random, sample);
  for (std::size_t i = 0; i < sample.arms.size(); ++i)
    CHECK(mixed.probability(i / 50, sample.arms[i]) > 0);
}

// ---- intervals, runs and reports ----

TEST_CASE("Intervals by hand") {
  CHECK(interval_of({1, 2, 3}).mean == 2);
  CHECK(interval_of({1, 2, 3}).half_width == Approx(4.3027 / std::sqrt(3)));
  CHECK(std::isnan(interval_of({1}).half_width));
  CHECK(std::isnan(interval_of({1, std::nan("")}).mean));
  // Beyond the table of quantiles: 2.0211 with 40 degrees of freedom.
  std::vector<double> x(41, 0.0);
  x[0] = 41;
  CHECK(interval_of(x).half_width == Approx(2.0211).epsilon(1e-4));
}

TEST_CASE("The numbers do not depend on threads, and those of a law not on the others") {
  const std::initializer_list<const char*> all = {
      "--quick", "--prompts", "4", "--batches", "4", "--only", "normal,gsm8k,grpo,gdpo_shrunk"};
  const std::string one = to_json(small_run(all, 1));
  CHECK(one == to_json(small_run(all, 2)));
  const Results whole = small_run(all);
  const Results part = small_run({"--quick", "--prompts", "4", "--batches", "4", "--k", "4",
                                  "--only", "gsm8k,grpo,gdpo_shrunk"});
  for (std::size_t e = 0; e < 2; ++e) {
    CHECK(part.cells[0][0].values(e, Cosine) == whole.cells[1][1].values(e, Cosine));
    CHECK(part.cells[0][0].values(e, Peak) == whole.cells[1][1].values(e, Peak));
  }
  CHECK_FALSE(whole.complete);
  const std::string other =
      to_json(small_run({"--quick", "--prompts", "4", "--batches", "4", "--seed", "2", "--only",
                         "normal,gsm8k,grpo,gdpo_shrunk"}));
  CHECK(nlohmann::json::parse(one)["laws"] != nlohmann::json::parse(other)["laws"]);
}

TEST_CASE("The best, and what cannot be told from it") {
  Cell cell;
  for (const double noise : {-0.01, 0.0, 0.01}) {
    Numbers a{}, b{}, c{};
    a[Cosine] = 0.5 + noise, b[Cosine] = 0.5 + noise + 1e-15, c[Cosine] = 0.499 - noise;
    cell.by_seed.push_back({a, b, c});
  }
  CHECK(cell.best(Cosine) == 0);  // b is a with another rounding
  CHECK(cell.among_best(0, Cosine));
  CHECK(cell.among_best(1, Cosine));
  CHECK(cell.among_best(2, Cosine));  // 0.001 with an interval of 0.05
  for (auto& seed : cell.by_seed) seed[2][Cosine] = seed[0][Cosine] - 0.001;
  CHECK_FALSE(cell.among_best(2, Cosine));  // the same difference at every seed
  CHECK(cell.differences(0, 2, Cosine).front() == Approx(0.001));
}

TEST_CASE("The JSON has the numbers of the tables") {
  const Results results = small_run({"--quick", "--prompts", "4", "--batches", "4", "--only",
                                     "binary_mixed,vlm,grpo,grpo_shrunk,rloo"});
  const auto json = nlohmann::json::parse(to_json(results));
  const Shown shown;
  std::istringstream lines(to_markdown(results, shown));
  std::string law, line;
  std::size_t compared = 0;
  bool details = false;
  std::vector<std::string> header;
  const auto cells_of = [](const std::string& row) {
    std::vector<std::string> cells;
    std::istringstream in(row.substr(1));
    for (std::string cell; std::getline(in, cell, '|');) {
      cell.erase(std::remove_if(cell.begin(), cell.end(),
                                [](char c) { return c == ' ' || c == '*' || c == '`'; }),
                 cell.end());
      cells.push_back(cell);
    }
    return cells;
  };
  // A cell shows a number of the JSON if it is that number, rounded.
  const auto check = [&](const std::string& cell, const nlohmann::json& of) {
    INFO(law << ": " << cell << " and " << of);
    if (of["mean"].is_null()) {
      CHECK(cell == "-");
      return;
    }
    const bool percent = cell.back() == '%';
    const std::size_t point = cell.find('.');
    const std::size_t digits = cell.size() - point - 1 - (percent ? 1 : 0);
    const double unit = std::pow(10.0, -static_cast<double>(digits)) / (percent ? 100 : 1);
    double value = 0;
    std::istringstream(cell) >> value;
    CHECK(std::fabs(value / (percent ? 100 : 1) - of["mean"].get<double>()) < 0.50001 * unit);
    ++compared;
  };
  while (std::getline(lines, line)) {
    if (line.rfind("<!-- table: ", 0) == 0) {
      law = line.substr(12, line.find(' ', 12) - 12);
      details = law.size() > 3 && law.substr(law.size() - 3) == "_k4";
      if (details) law.resize(law.size() - 3);
      header.clear();
    }
    if (line[0] != '|' || line.rfind("| ---", 0) == 0) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (header.empty()) {
      header = cells;
      continue;
    }
    std::istringstream names(cells[0]);
    for (std::string name; std::getline(names, name, ',');) {
      for (std::size_t c = 1; c < cells.size(); ++c) {
        if (name.find("groupswith") == 0 || name.find("95%") == 0) continue;
        const auto& of_law = json["laws"][law]["k"];
        if (details) {
          const auto& numbers = of_law["4"]["estimators"][name];
          for (const MeasureInfo& info : measure_info) {
            std::string heading = info.heading;
            heading.erase(std::remove(heading.begin(), heading.end(), ' '), heading.end());
            if (heading == header[c] && cells[c].rfind("under", 0) != 0)
              check(cells[c], numbers[info.name]);
          }
          continue;
        }
        const auto& numbers = of_law[header[c].substr(2)]["estimators"][name];
        std::istringstream parts(cells[c]);
        std::size_t measure = Cosine;
        for (std::string part; std::getline(parts, part, '/');)
          check(part, numbers[measure_info[measure++].name]);
      }
    }
  }
  CHECK(compared > 2 * 3 * 12);
  const auto& at = json["laws"]["vlm"]["k"]["2"];
  const auto mean = [&](const char* estimator) {
    return at["estimators"][estimator]["cosine"]["mean"].get<double>();
  };
  CHECK(at["stabilized_less_plain"]["grpo_shrunk"]["cosine"]["mean"].get<double>() ==
        Approx(mean("grpo_shrunk") - mean("grpo")).margin(1e-12));
  CHECK(mean("grpo_shrunk") != mean("grpo"));
}

TEST_CASE("Shortfalls by hand") {
  const Results results = small_run(
      {"--quick", "--prompts", "4", "--batches", "4", "--only", "binary_mixed,normal,grpo,rloo"});
  for (std::size_t e = 0; e < 2; ++e) {
    double sum = 0, largest = 0;
    for (std::size_t l = 0; l < 2; ++l) {
      const Cell& cell = results.cells[l][1];
      const double grpo = cell.interval(0, Cosine).mean, rloo = cell.interval(1, Cosine).mean;
      const double missing = std::max(grpo, rloo) - (e == 0 ? grpo : rloo);
      sum += missing / 2, largest = std::max(largest, missing);
    }
    CHECK(shortfall(results, 1, e, Cosine).mean == Approx(sum).margin(1e-12));
    CHECK(shortfall(results, 1, e, Cosine).largest == Approx(largest).margin(1e-12));
  }
}

TEST_CASE("Every stabilized estimator names the plain one") {
  for (const Estimator& e : all_estimators()) {
    INFO(e.name);
    const bool stabilized = e.formula.find("ShrunkStd") != std::string::npos;
    CHECK(stabilized == !e.plain.empty());
    if (!stabilized) continue;
    std::string formula = e.formula;
    formula.replace(formula.find("ShrunkStd"), 9, "StdDev");
    CHECK(estimator_of(e.plain).formula == formula);
    CHECK(estimator_of(e.plain).each_reward == e.each_reward);
  }
}

// ---- options and logs ----

TEST_CASE("Defaults, --quick and the other options") {
  const Options o = options({});
  CHECK(o.settings.ks == std::vector<std::size_t>{2, 3, 4, 8, 16});
  CHECK(o.settings.seeds == 20);
  CHECK(o.laws.size() == all_laws().size());
  CHECK(o.estimators.size() == all_estimators().size());
  CHECK(o.shown.detail_k == 4);
  const Options quick = options({"--quick", "--seeds", "5"});
  CHECK(quick.settings.seeds == 5);
  CHECK(quick.settings.ks == std::vector<std::size_t>{2, 4});
  const Options all =
      options({"--k", "8,3", "--batches", "7", "--prompts", "9", "--seed", "11", "--only",
               "rloo,normal", "--threads", "2", "--data", "d", "--json", "j", "--print", "laws"});
  CHECK(all.settings.ks == std::vector<std::size_t>{8, 3});
  CHECK(all.settings.batches == 7);
  CHECK(all.settings.prompts == 9);
  CHECK(all.settings.seed == 11);
  CHECK(all.laws.front().name == "normal");
  CHECK(all.estimators.front().name == "rloo");
  CHECK(all.threads == 2);
  CHECK(all.data == "d");
  CHECK(all.json == "j");
  CHECK(all.shown.detail_k == 8);
  CHECK((all.shown.laws && !all.shown.summary && !all.shown.details));
  CHECK_THAT(parse({"--help"}).text, ContainsSubstring("--batches"));
  CHECK_THAT(parse({"--list"}).text, ContainsSubstring("student_t2"));
}

TEST_CASE("Options that make no sense are refused in words") {
  CHECK_THAT(option_error({"--k", "1"}), ContainsSubstring("--k: Value 1 not in range"));
  CHECK_THAT(option_error({"--k", "2,2"}), ContainsSubstring("--k: a number is given twice"));
  CHECK_THAT(option_error({"--seeds", "1"}), ContainsSubstring("--seeds"));
  CHECK_THAT(option_error({"--batches", "1"}), ContainsSubstring("--batches"));
  CHECK_THAT(option_error({"--prompts", "0"}), ContainsSubstring("--prompts"));
  CHECK_THAT(option_error({"--threads", "0"}), ContainsSubstring("--threads"));
  CHECK_THAT(option_error({"--seed", "x"}), ContainsSubstring("--seed"));
  CHECK_THAT(option_error({"--print", "all"}), ContainsSubstring("--print"));
  CHECK_THAT(option_error({"--detail-k", "5"}),
             ContainsSubstring("--detail-k: 5 is not among --k"));
  CHECK_THAT(option_error({"--only", "grpo,nobody"}),
             ContainsSubstring("no law or estimator \"nobody\"; the names are \"binary_10\""));
  CHECK_THAT(option_error({"--what"}), ContainsSubstring("--what"));
  CHECK_THAT(option_error({"file"}), ContainsSubstring("file"));
}

TEST_CASE("A log that cannot be used is refused with file and line") {
  namespace fs = std::filesystem;
  const std::string path = (fs::temp_directory_path() / "gdpo_small_groups_log.csv").string();
  const auto error = [&](const std::string& text) {
    std::ofstream(path) << text;
    const std::string message = error_of([&] { read_log(path, {"a"}); });
    fs::remove(path);
    CHECK_THAT(message, ContainsSubstring(path));
    return message.substr(path.size());
  };
  CHECK(error("") == ": cannot be read; --data names the folder of the logs");
  CHECK(error("group,b\n1,2\n") == ":1: there is no column \"a\"");
  CHECK(error("g,a\n1,2\n") == ":1: there is no column \"group\"");
  CHECK(error("group,a\n") == ": there are no completions");
  CHECK(error("group,a\n1,2\n1\n") == ":3: this row has 1 cell, the header has 2");
  CHECK(error("group,a\n1,2x\n") == ":2: \"2x\" is not a number");
  std::ofstream(path) << "group,b,a\n7,1,2\n7,1,3\n4,1,5\n7,1,6\n";
  const Log log = read_log(path, {"a"});
  fs::remove(path);
  CHECK(log.begins == std::vector<std::size_t>{0, 2, 3, 4});
  CHECK(log.rewards == std::vector<double>{2, 3, 5, 6});
}
