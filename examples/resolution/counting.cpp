#include "counting.hpp"

#include <algorithm>
#include <functional>
#include <set>

#include "clusters.hpp"
#include "estimators.hpp"
#include "progress.hpp"
#include "words.hpp"

namespace resolution {
namespace {

constexpr std::size_t groups_per_batch = 8192;

/// All multisets of `size` reward vectors out of the 2^rewards vectors of binary rewards. A
/// multiset is written as a non-decreasing sequence of numbers; the bits of a number are the
/// rewards of a vector.
class Multisets {
 public:
  Multisets(std::size_t rewards, std::size_t size)
      : last_((std::size_t{1} << rewards) - 1), numbers_(size, 0) {}

  const std::vector<std::size_t>& numbers() const { return numbers_; }

  /// Moves on to the next sequence in lexicographic order; false after the last.
  bool next() {
    std::size_t i = numbers_.size();
    while (i > 0 && numbers_[i - 1] == last_) --i;
    if (i == 0) return false;
    std::fill(numbers_.begin() + static_cast<std::ptrdiff_t>(i) - 1, numbers_.end(),
              numbers_[i - 1] + 1);
    return true;
  }

 private:
  std::size_t last_;
  std::vector<std::size_t> numbers_;
};

/// The binomial coefficient C(n, k), for the small arguments of the experiment.
std::size_t binomial(std::size_t n, std::size_t k) {
  std::size_t value = 1;
  for (std::size_t i = 1; i <= k; ++i) value = value * (n - k + i) / i;
  return value;
}

/// Collects the distinct multisets of advantages that one estimator gives.
class Seen {
 public:
  void add(const std::vector<double>& advantages, std::size_t group_size) {
    for (std::size_t row = 0; row < advantages.size(); row += group_size) {
      multiset_.clear();
      for (std::size_t i = 0; i < group_size; ++i)
        multiset_.push_back(values_.number_of(advantages[row + i]));
      std::sort(multiset_.begin(), multiset_.end());
      multisets_.insert(multiset_);
    }
  }
  std::size_t count() const { return multisets_.size(); }

 private:
  ClusterIndex values_;
  std::vector<int> multiset_;
  std::set<std::vector<int>> multisets_;
};

/// The table of counts over `sizes`; `count` does the work for one size.
CountTable table_over(const std::vector<std::size_t>& sizes,
                      const std::vector<std::string>& estimators,
                      const std::function<Count(std::size_t)>& count) {
  CountTable table;
  table.sizes = sizes;
  for (const std::string& name : estimators) table.series.push_back({name, {}});
  for (const std::size_t size : sizes) {
    const Count result = count(size);
    table.reward_multisets.push_back(result.reward_multisets);
    for (std::size_t i = 0; i < estimators.size(); ++i)
      table.series[i].counts.push_back(result.distinct[i]);
  }
  return table;
}

std::vector<std::size_t> range(std::size_t first, std::size_t last) {
  std::vector<std::size_t> values;
  for (std::size_t v = first; v <= last; ++v) values.push_back(v);
  return values;
}

/// The last counts of a table, largest first: "GDPO 497, GRPO 121, out of 969". `verb` and `unit`
/// stand before and after the first count.
std::string last_counts(const CountTable& table, const std::string& verb, const std::string& unit) {
  std::vector<const CountTable::Series*> series;
  for (const auto& s : table.series) series.push_back(&s);
  std::stable_sort(series.begin(), series.end(), [](const auto* a, const auto* b) {
    return a->counts.back() > b->counts.back();
  });
  std::string text;
  for (const auto* s : series) {
    const std::string label = describe(s->estimator).label;
    const std::string count = grouped(s->counts.back());
    text += s == series.front() ? label + verb + count + unit : ", " + label + " " + count;
  }
  return text + ", out of " + grouped(table.reward_multisets.back());
}

}  // namespace

Count count_multisets(std::size_t rewards, std::size_t group_size,
                      const std::vector<std::string>& estimators) {
  Count count;
  std::vector<Seen> seen(estimators.size());
  std::vector<double> batch;
  Progress progress(
      "counting n = " + std::to_string(rewards) + ", G = " + std::to_string(group_size),
      binomial((std::size_t{1} << rewards) + group_size - 1, group_size), "reward group");
  const auto flush = [&] {
    for (std::size_t i = 0; i < estimators.size(); ++i) {
      seen[i].add(advantages_before_batch_step(estimators[i], batch, rewards, group_size),
                  group_size);
    }
    batch.clear();
    progress.update_at(count.reward_multisets, 0, Progress::Clock::now());
  };
  Multisets multisets(rewards, group_size);
  do {
    for (const std::size_t number : multisets.numbers()) {
      for (std::size_t k = 0; k < rewards; ++k)
        batch.push_back(static_cast<double>((number >> k) & 1U));
    }
    if (++count.reward_multisets % groups_per_batch == 0) flush();
  } while (multisets.next());
  if (!batch.empty()) flush();
  for (const Seen& s : seen) count.distinct.push_back(s.count());
  return count;
}

Counting count_all(const std::vector<std::string>& estimators) {
  Counting counting;
  counting.by_group_size = table_over(range(2, 16), estimators, [&](std::size_t group_size) {
    return count_multisets(counting.rewards, group_size, estimators);
  });
  counting.by_rewards = table_over(range(2, 6), estimators, [&](std::size_t rewards) {
    return count_multisets(rewards, counting.group_size, estimators);
  });
  return counting;
}

std::string count_answer(const Counting& counting) {
  const CountTable& sizes = counting.by_group_size;
  const CountTable& rewards = counting.by_rewards;
  return "With " + counted(counting.rewards, "binary reward") + " and " +
         counted(sizes.sizes.back(), "completion") + " in a group " +
         last_counts(sizes, " can give ", " different groups of advantages") +
         " different groups of rewards. With " + counted(rewards.sizes.back(), "reward") + " and " +
         counted(counting.group_size, "completion") + ": " + last_counts(rewards, " ", "") + ".";
}

const char* const count_meaning =
    "Groups of rewards that get the same advantages are alike to the policy: the more different "
    "groups of advantages an estimator can give, the more of the differences between rewards "
    "reaches the policy.";

const char* const count_definition =
    "Counted: distinct multisets {A_1 .. A_G} of advantages (the order of the rollouts does not "
    "matter) over all 2^(n G) assignments of n binary rewards to G rollouts; the all-zero multiset "
    "counts once; before the batch step, which does not change "
    "the count. Values closer than 1e-9 are one value.";

}  // namespace resolution
