#include "measures.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace small_groups {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

double quotient(double a, double b) { return b > 0 ? a / b : 0; }
double quotient(std::size_t a, std::size_t b) {
  return quotient(static_cast<double>(a), static_cast<double>(b));
}

/// The squared length of the expectation of vectors x_b, without the bias that |mean x_b|^2 has:
/// the mean of <x_b, x_c> over all pairs b != c, from the sum of the vectors and that of their
/// squares.
double squared_expectation(double square_of_sum, double sum_of_squares, double n) {
  return (square_of_sum - sum_of_squares) / (n * (n - 1));
}

/// What the rewards of a batch are like, whatever the estimator makes of them.
struct RewardPairs {
  std::vector<unsigned char> differ;  ///< for each pair of a group, group after group
  std::size_t different = 0, flat_groups = 0;

  RewardPairs(const Bandits& b, const Sample& sample, std::size_t k) {
    const std::size_t count = b.rewards.size();
    for (std::size_t p = 0; p < b.prompts; ++p) {
      const std::size_t before = different;
      for (std::size_t i = p * k; i < (p + 1) * k; ++i) {
        const double* of_i = sample.rewards.data() + i * count;
        for (std::size_t j = p * k; j < i; ++j) {
          const bool same = std::equal(of_i, of_i + count, sample.rewards.data() + j * count);
          differ.push_back(same ? 0 : 1);
          different += same ? 0 : 1;
        }
      }
      flat_groups += different == before ? 1 : 0;
    }
  }
};

/// Sums over the batches of one estimator.
struct Tally {
  explicit Tally(const Bandits& b) : sum(b.prompts * b.arms), along(b.prompts), along2(b.prompts) {}

  std::vector<double> sum;  ///< of the estimates
  double squares = 0;       ///< of |g|^2
  /// By prompt: of <g, T> / |T| for the objective, and of its square.
  std::vector<double> along, along2;
  std::array<double, 3> cosines{};
  double prompt_cosines = 0;
  double effective = 0, peak = 0, top = 0;
  std::size_t dead = 0, tied = 0;
};

/// Lengths of the targets, of all prompts and of each.
struct Lengths {
  std::array<const std::vector<double>*, 3> targets;
  std::array<double, 3> all{};
  std::vector<double> of_prompt;  ///< of the objective
  std::size_t prompts = 0;        ///< whose gradient is not 0

  Lengths(const Bandits& b, const Targets& t)
      : targets{&t.objective, &t.standardized, &t.each}, of_prompt(b.prompts) {
    for (std::size_t j = 0; j < 3; ++j) {
      for (const double x : *targets[j]) all[j] += x * x;
      all[j] = std::sqrt(all[j]);
    }
    for (std::size_t p = 0; p < b.prompts; ++p) {
      for (std::size_t a = 0; a < b.arms; ++a)
        of_prompt[p] += t.objective[p * b.arms + a] * t.objective[p * b.arms + a];
      of_prompt[p] = std::sqrt(of_prompt[p]);
      prompts += of_prompt[p] > 0 ? 1 : 0;
    }
  }
};

/// Adds the gradient estimate of a batch: (1 / K) sum_i A_i (e_(a_i) - pi) by prompt.
void add_direction(const Bandits& b, const Lengths& lengths, const Sample& sample, std::size_t k,
                   const std::vector<double>& advantages, std::vector<double>& g, Tally& tally) {
  std::array<double, 3> dots{};
  double square = 0, prompt_cosines = 0;
  g.resize(b.arms);
  for (std::size_t p = 0; p < b.prompts; ++p) {
    double total = 0, magnitude = 0;
    for (std::size_t i = p * k; i < (p + 1) * k; ++i) {
      total += advantages[i];
      magnitude += std::fabs(advantages[i]);
    }
    for (std::size_t a = 0; a < b.arms; ++a) g[a] = -total * b.probability(p, a);
    for (std::size_t i = p * k; i < (p + 1) * k; ++i) g[sample.arms[i]] += advantages[i];
    std::array<double, 3> dot{};
    double length = 0;
    for (std::size_t a = 0; a < b.arms; ++a) {
      const double x = g[a] / static_cast<double>(k);
      const std::size_t at = p * b.arms + a;
      tally.sum[at] += x;
      length += x * x;
      for (std::size_t j = 0; j < 3; ++j) dot[j] += x * (*lengths.targets[j])[at];
    }
    square += length;
    for (std::size_t j = 0; j < 3; ++j) dots[j] += dot[j];
    if (lengths.of_prompt[p] > 0) {
      const double along = dot[0] / lengths.of_prompt[p];
      tally.along[p] += along;
      tally.along2[p] += along * along;
      // Where all completions are the same arm, advantages that sum to 0 leave a rounding error.
      const double rounding = 1e-12 * magnitude / static_cast<double>(k);
      if (std::sqrt(length) > rounding) prompt_cosines += along / std::sqrt(length);
    }
  }
  tally.squares += square;
  for (std::size_t j = 0; j < 3; ++j)
    tally.cosines[j] += quotient(dots[j], std::sqrt(square) * lengths.all[j]);
  tally.prompt_cosines += quotient(prompt_cosines, static_cast<double>(lengths.prompts));
}

/// Adds how the advantages of a batch are distributed.
void add_distribution(const RewardPairs& pairs, std::size_t k,
                      const std::vector<double>& advantages, std::vector<double>& of_groups,
                      Tally& tally) {
  double squares = 0, fourths = 0, largest = 0;
  of_groups.clear();
  std::size_t pair = 0;
  for (std::size_t first = 0; first < advantages.size(); first += k) {
    double of_group = 0;
    for (std::size_t i = first; i < first + k; ++i) {
      const double a = advantages[i], a2 = a * a;
      of_group += a2;
      fourths += a2 * a2;
      largest = std::max(largest, std::fabs(a));
      for (std::size_t j = first; j < i; ++j, ++pair) {
        const bool tie = std::fabs(a - advantages[j]) <= tie_tolerance;
        tally.tied += tie && pairs.differ[pair] != 0 ? 1 : 0;
      }
    }
    of_groups.push_back(of_group);
    squares += of_group;
    tally.dead += of_group == 0 ? 1 : 0;
  }
  const auto rows = static_cast<double>(advantages.size());
  const std::size_t top = std::max<std::size_t>(1, of_groups.size() / 100);
  std::partial_sort(of_groups.begin(), of_groups.begin() + static_cast<std::ptrdiff_t>(top),
                    of_groups.end(), [](double a, double b) { return a > b; });
  double in_top = 0;
  for (std::size_t i = 0; i < top; ++i) in_top += of_groups[i];
  tally.effective += quotient(squares * squares, fourths) / rows;
  tally.peak += quotient(largest, std::sqrt(squares / rows));
  tally.top += quotient(in_top, squares);
}

/// The numbers of all batches together.
Numbers numbers_of(const Lengths& lengths, const Tally& tally, std::size_t batches,
                   std::size_t prompts, std::size_t different_pairs) {
  const auto n = static_cast<double>(batches);
  double square_of_sum = 0;
  std::array<double, 3> dots{};
  for (std::size_t i = 0; i < tally.sum.size(); ++i) {
    square_of_sum += tally.sum[i] * tally.sum[i];
    for (std::size_t j = 0; j < 3; ++j) dots[j] += tally.sum[i] / n * (*lengths.targets[j])[i];
  }
  const double expectation2 = squared_expectation(square_of_sum, tally.squares, n);
  const double expectation = expectation2 > 0 ? std::sqrt(expectation2) : unknown;
  // E g projected on the vectors that weigh the exact gradients of the prompts anyhow.
  double projected2 = 0, along = 0;
  for (std::size_t p = 0; p < prompts; ++p) {
    projected2 += squared_expectation(tally.along[p] * tally.along[p], tally.along2[p], n);
    along += tally.along[p] / n * lengths.of_prompt[p];
  }
  const double projected = projected2 > 0 ? std::sqrt(projected2) : unknown;

  Numbers x;
  for (std::size_t j = 0; j < 3; ++j) {
    x[Cosine + j] = tally.cosines[j] / n;
    x[MeanCosine + j] = dots[j] / (lengths.all[j] * expectation);
  }
  x[Weighing] = along / (lengths.all[0] * projected);
  x[Within] = projected / expectation;
  x[Slope] = dots[0] / (lengths.all[0] * lengths.all[0]);
  x[RelativeVariance] = (tally.squares / n - expectation2) / (expectation * expectation);
  x[PromptCosine] = tally.prompt_cosines / n;
  x[EffectiveShare] = tally.effective / n;
  x[Peak] = tally.peak / n;
  x[TopShare] = tally.top / n;
  x[Dead] = quotient(tally.dead, batches * prompts);
  x[Tied] = quotient(tally.tied, different_pairs);
  for (double& v : x) v = std::isfinite(v) ? v : unknown;
  return x;
}

}  // namespace

const std::array<MeasureInfo, measures> measure_info = {{
    {"cosine", "cosine"},
    {"cosine_standardized", "cosine, standardized"},
    {"cosine_each", "cosine, each"},
    {"mean_cosine", "mean's cosine"},
    {"mean_cosine_standardized", "mean's cosine, standardized"},
    {"mean_cosine_each", "mean's cosine, each"},
    {"weighing", "weighing"},
    {"within", "within"},
    {"slope", "slope"},
    {"relative_variance", "relative variance"},
    {"prompt_cosine", "prompt cosine"},
    {"effective_share", "effective share"},
    {"peak", "peak"},
    {"top_share", "top group"},
    {"dead", "dead"},
    {"tied", "tied"},
}};

Measured measure(const Bandits& bandits, const std::vector<Estimator>& estimators, std::size_t k,
                 std::size_t batches, const std::function<Random(std::size_t batch)>& random_of) {
  const Targets targets = targets_of(bandits);
  const Lengths lengths(bandits, targets);
  std::vector<Estimator::Run> runs;
  for (const Estimator& e : estimators) runs.push_back(e.make());
  std::vector<Tally> tallies(estimators.size(), Tally(bandits));
  std::vector<double> advantages, gradient, of_groups;
  Sample sample;
  std::size_t different_pairs = 0, flat = 0;
  for (std::size_t batch = 0; batch < batches; ++batch) {
    Random random = random_of(batch);
    draw(bandits, k, random, sample);
    const RewardPairs pairs(bandits, sample, k);
    different_pairs += pairs.different;
    flat += pairs.flat_groups;
    for (std::size_t e = 0; e < runs.size(); ++e) {
      runs[e](bandits, sample, k, advantages);
      add_direction(bandits, lengths, sample, k, advantages, gradient, tallies[e]);
      add_distribution(pairs, k, advantages, of_groups, tallies[e]);
    }
  }
  Measured measured;
  measured.flat = quotient(flat, batches * bandits.prompts);
  for (const Tally& tally : tallies) {
    measured.estimators.push_back(
        numbers_of(lengths, tally, batches, bandits.prompts, different_pairs));
  }
  return measured;
}

}  // namespace small_groups
