#pragma once
// A step over the ranks of any communicator, compared with the step of one process. Each rank makes
// all the data from the seed, so it knows what has to come out for its own rows.
#include <cmath>
#include <gdpo/dist.hpp>
#include <gdpo/prepass.hpp>

#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace ranks {

/// Rows of one step: rewards of two kinds, tokens, and the rank of each row.
struct Step {
  std::vector<double> rewards, logp, old_logp, ref_logp, advantages;
  std::vector<long long> prompts;
  std::vector<int> numbers;
  std::vector<unsigned char> mask;
  std::vector<int> rank;
  static constexpr int width = 19;

  int rows() const { return static_cast<int>(prompts.size()); }
  /// Appends row i of another step.
  void add(const Step& from, int i) {
    const auto row = [i](auto& to, const auto& all, int n) {
      if (!all.empty()) to.insert(to.end(), all.begin() + i * n, all.begin() + (i + 1) * n);
    };
    row(rewards, from.rewards, 2), row(prompts, from.prompts, 1), row(numbers, from.numbers, 1);
    row(logp, from.logp, width), row(old_logp, from.old_logp, width);
    row(ref_logp, from.ref_logp, width), row(mask, from.mask, width);
    row(advantages, from.advantages, 1);
  }
  gdpo::RewardBatch<double, gdpo::ById> batch() const {
    return {gdpo::view(rewards.data(), rows(), 2), gdpo::by_id(prompts)};
  }
  gdpo::TokenBatch<double> tokens() const {
    gdpo::TokenBatch<double> b;
    const auto view_of = [this](const auto& of) { return gdpo::view(of.data(), rows(), width); };
    b.logp = view_of(logp), b.old_logp = view_of(old_logp), b.ref_logp = view_of(ref_logp);
    b.mask = view_of(mask);
    b.advantages = gdpo::view(advantages);
    return b;
  }
};

/// Rows in the order of (prompt, number), which one process would have. Some rewards are NaN, some
/// rows have no valid token, log-probs of masked tokens are NaN, and some ranks have no rows.
inline Step random_step(Random& random, int ranks) {
  Step s;
  const int busy = 1 + random.below(ranks);
  int number = 0;
  for (const long long prompt : {-4LL, 7LL, 90000000000LL}) {
    for (int k = 1 + random.below(6); k > 0; --k) {
      s.prompts.push_back(prompt), s.numbers.push_back(number++);
      s.rank.push_back((random.below(busy) + number % 2) % ranks);
      for (int c = 0; c < 2; ++c)
        s.rewards.push_back(random.chance(0.1) ? NAN : 0.25 * random.below(5));
      const bool masked = random.chance(0.15);
      for (int t = 0; t < Step::width; ++t) {
        const bool valid = !masked && random.chance(0.8);
        s.mask.push_back(valid);
        const double x = -3 * random.uniform();
        s.logp.push_back(valid ? x : NAN);
        s.old_logp.push_back(x + 0.5 * (random.uniform() - 0.5));
        s.ref_logp.push_back(x + 0.5 * (random.uniform() - 0.5));
      }
    }
  }
  return s;
}

/// What differs from one process: "" if nothing does.
template <class Comm, class Estimator, class Loss>
std::string difference_from_one_process(const Comm& comm, const Estimator& estimator,
                                        const Loss& loss, std::uint64_t seed) {
  Random random(seed);
  Step whole = random_step(random, comm.size());
  // One process.
  gdpo::GroupReport whole_report;
  whole.advantages = gdpo::advantages(gdpo::seq, whole.batch(), estimator, &whole_report);
  const gdpo::Normalizer counts = gdpo::count(whole.tokens());
  std::vector<double> whole_gradient(whole.logp.size());
  const auto gradient_of = [](std::vector<double>& g) {
    return gdpo::view(g.data(), static_cast<int>(g.size()) / Step::width, Step::width);
  };
  const gdpo::LossResult expected = loss(whole.tokens(), counts, gradient_of(whole_gradient));

  // This rank, with its own rows in an order of its own.
  std::vector<int> own;
  for (int i = 0; i < whole.rows(); ++i) {
    if (whole.rank[static_cast<std::size_t>(i)] == comm.rank()) own.push_back(i);
  }
  random.shuffle(own);
  Step mine, wanted;
  for (const int i : own) mine.add(whole, i), wanted.add(whole, i);
  const auto all = gdpo::dist::gather_rows(comm, mine.batch(), gdpo::view(mine.numbers));
  gdpo::GroupReport report;
  mine.advantages = all.own(gdpo::advantages(gdpo::seq, all.batch(), estimator, &report));
  gdpo::Normalizer local;
  if (mine.rows() > 0) local = gdpo::count(mine.tokens());
  const gdpo::Normalizer merged = gdpo::dist::all_merge(comm, local);
  std::vector<double> gradient(mine.logp.size()), wanted_gradient;
  for (const int i : own) {
    const auto begin = whole_gradient.begin() + i * Step::width;
    wanted_gradient.insert(wanted_gradient.end(), begin, begin + Step::width);
  }
  const gdpo::LossResult result = gdpo::dist::all_merge(
      comm, gdpo::dist::agree(comm, [&] {
        return mine.rows() > 0 ? loss(mine.tokens(), merged, gradient_of(gradient))
                               : gdpo::LossResult{};
      }));

  std::string text = difference(mine.advantages, wanted.advantages);
  if (!text.empty()) text = "advantages " + text;
  text += difference(gradient, wanted_gradient);
  if (merged.tokens != counts.tokens || merged.rows != counts.rows ||
      merged.non_empty_rows != counts.non_empty_rows)
    text += " counts";
  const double size = std::fabs(expected.policy_loss) + std::fabs(expected.kl_loss) + 1;
  for (const auto part : {&gdpo::LossResult::loss, &gdpo::LossResult::policy_loss,
                          &gdpo::LossResult::kl_loss, &gdpo::LossResult::entropy_loss}) {
    if (!(std::fabs(result.*part - expected.*part) <= 1e-12 * size)) text += " loss";
  }
  const auto same = [](double a, double b) { return same_bits(a, b) || a == b; };
  const gdpo::Metric &a = result.metrics.ratio, &b = expected.metrics.ratio;
  if (!same(a.min, b.min) || !same(a.max, b.max) || !same(a.count, b.count) ||
      !same(a.row_min, b.row_min))
    text += " ranges";
  const auto keys = report.to_map(), whole_keys = whole_report.to_map();
  bool same_report = keys.size() == whole_keys.size() && report.rows == whole_report.rows &&
                     report.groups == whole_report.groups &&
                     report.excluded_rewards == whole_report.excluded_rewards &&
                     report.degenerate == whole_report.degenerate &&
                     report.pairs == whole_report.pairs &&
                     same_bits(report.within_squares, whole_report.within_squares);
  for (std::size_t c = 0; same_report && c < report.rewards.size(); ++c)
    same_report = same_bits(report.rewards[c].explained, whole_report.rewards[c].explained);
  for (const auto& [key, value] : whole_keys) {
    const auto found = keys.find(key);
    same_report = same_report && found != keys.end() && same_bits(found->second, value);
  }
  if (!same_report) text += " report";
  return text;
}

/// The law for random steps, on the ranks of `comm`. Returns what differs on this rank.
template <class Comm>
std::string broken_law(const Comm& comm, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const auto seed = static_cast<std::uint64_t>(100 * comm.size() + round);
    const auto check = [&](const auto& estimator, const auto& loss) {
      const std::string text = difference_from_one_process(comm, estimator, loss, seed);
      return text.empty() ? text : "seed " + std::to_string(seed) + ": " + text;
    };
    std::string text = check(gdpo::Gdpo{}, gdpo::dapo_loss);
    text += check(gdpo::Grpo{}, gdpo::grpo_loss);
    text += check(gdpo::Rloo{}, gdpo::gspo_loss);
    // What reads the whole batch.
    gdpo::GroupAdvantage<gdpo::baseline::BatchMean> of_batch;
    of_batch.scale.of = gdpo::scale::Of::BatchRms;
    of_batch.clip = {-1.5, 1.5};
    text += check(of_batch, gdpo::dapo_loss);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace ranks
