#include "laws.hpp"

#include <algorithm>
#include <cmath>

namespace small_groups {
namespace {

/// Prompts without rewards. An arm's probability is proportional to the cube of a uniform number,
/// so that a few arms of a prompt are likely and the others are not.
Bandits bandits_of(std::size_t prompts, std::vector<Reward> rewards, Random& random) {
  Bandits b;
  b.prompts = prompts;
  b.arms = arms_of_a_prompt;
  b.rewards = std::move(rewards);
  b.means.resize(prompts * b.arms * b.rewards.size());
  b.scales.assign(prompts * b.rewards.size(), 1);
  for (std::size_t p = 0; p < prompts; ++p) {
    double sum = 0;
    for (std::size_t a = 0; a < b.arms; ++a) {
      const double u = random.uniform();
      b.policy.push_back(u * u * u);
      sum += b.policy.back();
    }
    for (std::size_t a = 0; a < b.arms; ++a) b.policy[p * b.arms + a] /= sum;
  }
  return b;
}

double& mean(Bandits& b, std::size_t prompt, std::size_t arm, std::size_t reward) {
  return b.means[(prompt * b.arms + arm) * b.rewards.size() + reward];
}

/// Gives the arms of a prompt success rates with this expectation under the policy. The odds of an
/// arm are u / (1 - u) times a factor of the prompt, which is found by bisection.
void set_rates(Bandits& b, std::size_t prompt, double expected, Random& random) {
  std::vector<double> odds;
  for (std::size_t a = 0; a < b.arms; ++a) {
    const double u = random.uniform();
    odds.push_back(u / (1 - u));
  }
  double low = 0x1p-60;
  double high = 0x1p60;
  for (int step = 0; step < 100; ++step) {
    const double factor = std::sqrt(low * high);
    double rate = 0;
    for (std::size_t a = 0; a < b.arms; ++a) {
      const double o = factor * odds[a];
      mean(b, prompt, a, 0) = o / (1 + o);
      rate += b.probability(prompt, a) * mean(b, prompt, a, 0);
    }
    (rate < expected ? low : high) = factor;
  }
}

/// Gives the arms of all prompts nearly normal means, in units of the prompt's noise: a part of
/// standard deviation 2 that the arms of a prompt share, since some prompts are easier than others,
/// and one of standard deviation 1 that is the arm's own.
void set_normal_means(Bandits& b, std::size_t reward, Random& random) {
  for (std::size_t p = 0; p < b.prompts; ++p) {
    const double scale = b.scale(p, reward);
    const double shared = 2 * random.normal();
    for (std::size_t a = 0; a < b.arms; ++a)
      mean(b, p, a, reward) = scale * (shared + random.normal());
  }
}

Bandits binary(std::size_t prompts, double low, double high, Random& random) {
  Bandits b = bandits_of(prompts, {{Draw::Bernoulli, 1}}, random);
  for (std::size_t p = 0; p < prompts; ++p)
    set_rates(b, p, low + (high - low) * random.uniform(), random);
  return b;
}

Bandits binary_and_continuous(std::size_t prompts, Random& random) {
  Bandits b = bandits_of(prompts, {{Draw::Bernoulli, 1}, {Draw::Normal, 1}}, random);
  for (std::size_t p = 0; p < prompts; ++p) {
    b.scales[2 * p + 1] = 0.25;
    set_rates(b, p, 0.1 + 0.8 * random.uniform(), random);
  }
  set_normal_means(b, 1, random);
  return b;
}

/// One continuous reward. octaves: the scale of a prompt's reward is 2 to a power from -octaves to
/// octaves.
Bandits continuous(std::size_t prompts, Draw noise, std::size_t octaves, Random& random) {
  Bandits b = bandits_of(prompts, {{noise, 1}}, random);
  for (double& scale : b.scales) {
    const int power = static_cast<int>(random.below(2 * octaves + 1)) - static_cast<int>(octaves);
    scale = std::ldexp(1.0, power);
  }
  set_normal_means(b, 0, random);
  return b;
}

Bandits pair_of_rewards(std::size_t prompts, double correlation, Random& random) {
  Bandits b = bandits_of(prompts, {{Draw::Normal, 1}, {Draw::Normal, 0.5}}, random);
  b.correlation = correlation;
  const double rest = std::sqrt(1 - correlation * correlation);
  set_normal_means(b, 0, random);
  set_normal_means(b, 1, random);
  for (std::size_t p = 0; p < prompts; ++p) {
    for (std::size_t a = 0; a < b.arms; ++a) {
      double& second = mean(b, p, a, 1);
      second = correlation * mean(b, p, a, 0) + rest * second;
    }
  }
  return b;
}

/// Groups of a log as prompts: the arms are the completions of the group, all equally likely.
Bandits resampled(const Log& log, std::size_t prompts, Random& random) {
  std::vector<std::size_t> chosen(log.groups());
  for (std::size_t g = 0; g < chosen.size(); ++g) chosen[g] = g;
  prompts = std::min(prompts, chosen.size());
  Bandits b;
  b.prompts = prompts;
  b.rewards.assign(log.columns, Reward{});
  for (std::size_t p = 0; p < prompts; ++p) {
    std::swap(chosen[p], chosen[p + random.below(chosen.size() - p)]);
    b.arms = std::max(b.arms, log.begins[chosen[p] + 1] - log.begins[chosen[p]]);
  }
  b.policy.assign(prompts * b.arms, 0);
  b.means.assign(prompts * b.arms * log.columns, 0);
  b.scales.assign(prompts * log.columns, 1);
  for (std::size_t p = 0; p < prompts; ++p) {
    const std::size_t first = log.begins[chosen[p]];
    const std::size_t arms = log.begins[chosen[p] + 1] - first;
    for (std::size_t a = 0; a < arms; ++a) {
      b.policy[p * b.arms + a] = 1 / static_cast<double>(arms);
      for (std::size_t c = 0; c < log.columns; ++c)
        mean(b, p, a, c) = log.rewards[(first + a) * log.columns + c];
    }
  }
  return b;
}

struct SyntheticLaw {
  const char* name;
  const char* description;
  Bandits (*make)(std::size_t prompts, Random& random);
};

constexpr SyntheticLaw synthetic[] = {
    {"binary_10", "a binary reward, a tenth of a prompt's completions succeed",
     [](std::size_t n, Random& r) { return binary(n, 0.1, 0.1, r); }},
    {"binary_50", "a binary reward, half of a prompt's completions succeed",
     [](std::size_t n, Random& r) { return binary(n, 0.5, 0.5, r); }},
    {"binary_90", "a binary reward, nine tenths of a prompt's completions succeed",
     [](std::size_t n, Random& r) { return binary(n, 0.9, 0.9, r); }},
    {"binary_mixed", "a binary reward, 2 % to 98 % of a prompt's completions succeed",
     [](std::size_t n, Random& r) { return binary(n, 0.02, 0.98, r); }},
    {"binary_and_normal", "a binary reward (10 % to 90 %) plus a normal one of scale 0.25",
     [](std::size_t n, Random& r) { return binary_and_continuous(n, r); }},
    {"normal", "a normal reward of one scale",
     [](std::size_t n, Random& r) { return continuous(n, Draw::Normal, 0, r); }},
    {"normal_scales", "a normal reward, the prompts' scales are 1/8 to 8",
     [](std::size_t n, Random& r) { return continuous(n, Draw::Normal, 3, r); }},
    {"student_t2", "noise of Student's t with 2 degrees of freedom: symmetric, without variance",
     [](std::size_t n, Random& r) { return continuous(n, Draw::StudentT2, 0, r); }},
    {"pareto", "noise of Pareto's law with index 4: skewed, with variance, without kurtosis",
     [](std::size_t n, Random& r) { return continuous(n, Draw::Pareto, 0, r); }},
    {"pair_m100", "two normal rewards of weights 1 and 0.5, correlation -1",
     [](std::size_t n, Random& r) { return pair_of_rewards(n, -1, r); }},
    {"pair_m50", "two normal rewards of weights 1 and 0.5, correlation -0.5",
     [](std::size_t n, Random& r) { return pair_of_rewards(n, -0.5, r); }},
    {"pair_0", "two normal rewards of weights 1 and 0.5, correlation 0",
     [](std::size_t n, Random& r) { return pair_of_rewards(n, 0, r); }},
    {"pair_50", "two normal rewards of weights 1 and 0.5, correlation 0.5",
     [](std::size_t n, Random& r) { return pair_of_rewards(n, 0.5, r); }},
    {"pair_100", "two normal rewards of weights 1 and 0.5, correlation 1",
     [](std::size_t n, Random& r) { return pair_of_rewards(n, 1, r); }},
};

}  // namespace

const std::vector<Law>& all_laws() {
  static const std::vector<Law> laws = [] {
    std::vector<Law> all;
    for (const SyntheticLaw& s : synthetic) all.push_back({s.name, s.description, "", {}});
    all.push_back({"vlm",
                   "the log vlm_dapo_rollouts.csv resampled: four rewards",
                   "vlm_dapo_rollouts.csv",
                   {"accuracy", "format", "length_penalty", "attention"}});
    all.push_back({"wmt21",
                   "the log wmt21_ted_mqm_ende.csv resampled: four rewards",
                   "wmt21_ted_mqm_ende.csv",
                   {"accuracy", "fluency", "style", "terminology"}});
    all.push_back({"gsm8k",
                   "the log gsm8k_solutions.csv resampled: three binary rewards",
                   "gsm8k_solutions.csv",
                   {"correct", "format", "integer"}});
    return all;
  }();
  return laws;
}

Logs read_logs(const std::vector<Law>& laws, const std::string& folder) {
  Logs logs;
  for (const Law& law : laws) {
    if (!law.file.empty()) logs[law.file] = read_log(folder + "/" + law.file, law.columns);
  }
  return logs;
}

Bandits make_bandits(const Law& law, std::size_t prompts, Random random, const Logs& logs) {
  if (!law.file.empty()) return resampled(logs.at(law.file), prompts, random);
  return std::find_if(std::begin(synthetic), std::end(synthetic),
                      [&](const SyntheticLaw& s) { return law.name == s.name; })
      ->make(prompts, random);
}

}  // namespace small_groups
