// labels: long
// Advantages on several threads have the bits of one thread, for every estimator, grouping and
// number of threads.
#include <gdpo/runtime.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <map>
#include <memory>
#ifdef _OPENMP
#include <gdpo/with/openmp.hpp>
#endif

#include "support/allocations.hpp"
#include "support/archetypes.hpp"
#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/renormed.hpp"
#include "support/tolerance.hpp"

namespace parallel_test {

namespace {

using gdpo::index_t;

/// The pools of 1 to 7 workers, which all tests share.
gdpo::ThreadPool& pool(int workers) {
  static std::vector<std::unique_ptr<gdpo::ThreadPool>> pools = [] {
    std::vector<std::unique_ptr<gdpo::ThreadPool>> all;
    for (int n = 1; n <= 7; ++n) all.push_back(std::make_unique<gdpo::ThreadPool>(n));
    return all;
  }();
  return *pools[static_cast<std::size_t>(workers - 1)];
}

/// Ragged groups of consecutive rows, enough for each of `workers` to get detail::worth_a_thread
/// numbers. There are constant groups, missing entries, unused rows, and every column that a policy
/// may read.
struct Input {
  std::vector<double> rewards, tokens, penalty, weights, external;
  std::vector<float> narrow;
  std::vector<unsigned char> valid;
  std::vector<int> offsets{0}, ids;
  index_t rows = 0, reward_count;

  Input(Random& random, int workers, bool with_valid) : reward_count(1 + random.below(10)) {
    const int largest = random.pick({2, 8, 16, 40});
    const double missing = random.pick({0.0, 0.0, 0.002, 0.1});
    const bool equal_groups = random.chance(0.5), constants = random.chance(0.5);
    const index_t least = workers * gdpo::detail::worth_a_thread;
    while (rows * reward_count < least) {
      const int members = equal_groups ? largest : 1 + random.below(largest);
      const bool constant = constants && random.chance(0.2);
      for (int k = 0; k < members; ++k) {
        ids.push_back(static_cast<int>(offsets.size()) * 7 % 1009);  // some groups share an id
        for (index_t c = 0; c < reward_count; ++c) {
          rewards.push_back(random.chance(missing) ? std::nan("")
                            : constant             ? 0.3
                                                   : random_reward(random, 2));
        }
      }
      rows += members;
      offsets.push_back(static_cast<int>(rows));
      if (random.chance(0.02)) offsets.push_back(static_cast<int>(rows));  // an empty group
    }
    narrow.assign(rewards.begin(), rewards.end());
    for (index_t i = 0; i < rows; ++i) {
      tokens.push_back(random.below(40));
      penalty.push_back(0.125 * random.below(9));
      weights.push_back(1 + random.below(3));
      external.push_back(random.uniform());
      if (with_valid) valid.push_back(random.chance(0.9));
    }
  }
  template <class Groups>
  gdpo::RewardBatch<double, Groups> batch(const Groups& groups) const {
    gdpo::RewardBatch<double, Groups> b{gdpo::view(rewards.data(), rows, reward_count), groups};
    b.tokens = gdpo::view(tokens);
    b.penalty = gdpo::view(penalty);
    b.weights = gdpo::view(weights);
    b.baseline = gdpo::view(external);
    if (!valid.empty()) b.valid = gdpo::view(valid);
    return b;
  }
};

/// Everything that a call gives: advantages, combined values and, where asked for, the report.
struct Outcome {
  std::vector<double> out, sums, numbers;

  template <class Exec, class Batch, class Estimator>
  Outcome(const Exec& exec, const Batch& batch, const Estimator& estimator,
          gdpo::Workspace& workspace, gdpo::GroupReport* report)
      : out(static_cast<std::size_t>(batch.rewards.extent[0])) {
    gdpo::advantages_into(exec, batch, estimator, gdpo::view(out), workspace, report);
    sums.assign(workspace.sums().data, workspace.sums().data + workspace.sums().extent[0]);
    if (!report) return;
    const auto add = [this](auto... x) { (numbers.push_back(static_cast<double>(x)), ...); };
    const gdpo::GroupReport& r = *report;
    for (const auto& c : r.rewards) add(c.n, c.mean, c.std, c.min, c.max, c.zero_std_groups);
    add(r.rows, r.groups, r.smallest_group, r.largest_group, r.singletons, r.excluded_rewards,
        r.infinite_rewards);
    add(r.excluded_rows, r.unused_rows, r.reward_mean, r.reward_std, r.reward_std_mean_of_groups,
        r.combined_std);
    add(r.zero_std_group_rows);
    for (const auto flag : r.degenerate) add(flag);
    for (const auto flag : r.reward_degenerate) add(flag);
    for (const double std : r.group_std) add(std);
  }
};

std::string difference_of(const Outcome& a, const Outcome& b) {
  return difference(a.out, b.out) + difference(a.sums, b.sums) + difference(a.numbers, b.numbers);
}

/// Compares targets. All calls share one workspace, so that what an earlier call leaves behind is
/// shown not to matter.
template <class Batch, class Estimator>
void check_parallel(const Batch& batch, const Estimator& estimator, int workers) {
  static gdpo::Workspace workspace;
  gdpo::GroupReport report, parallel_report;
  const Outcome one(gdpo::seq, batch, estimator, workspace, &report);
  const Outcome many(gdpo::parallel(pool(workers)), batch, estimator, workspace, &parallel_report);
  CHECK(difference_of(one, many) == "");
  const Outcome lanes(gdpo::simd, batch, estimator, workspace, nullptr);
  CHECK(difference(one.out, lanes.out) + difference(one.sums, lanes.sums) == "");
}

/// An executor in which the last worker runs first, and so does all the work.
struct LastFirst {
  int concurrency() const { return 2; }
  template <class F>
  void for_each(index_t n, const F& f) const {
    while (n > 0) f(--n);
  }
};

/// An executor that must not be used.
struct Untouched {
  int concurrency() const { return 8; }
  template <class F>
  void for_each(index_t, const F&) const {
    FAIL("not worth a thread");
  }
};

}  // namespace

TEST_CASE("every named estimator gives on several threads the bits of one", "[parallel]") {
  std::uint64_t seed = 0;
  // Of each type and what its renormalization runs over, which names share.
  std::map<std::pair<std::size_t, gdpo::RenormOver>, int> names;
  for (const std::string& name : gdpo::runtime::estimator_names()) {
    // The first name of a kind takes every round, the others one each: they are other numbers in
    // the same code.
    const auto named = gdpo::runtime::estimator(name);
    const auto over = std::visit([](const auto& e) { return e.renorm.over; }, named);
    const int before = names[{named.index(), over}]++;
    for (int round = 0; round < 3; ++round) {
      Random random(++seed);
      if (before > 0 && round != before % 3) continue;
      if (few_rounds && seed % 4 != 0) continue;
      const int workers = 2 + random.below(6);
      const Input input(random, workers, round == 2);
      INFO("seed " << seed << ", " << name << ", " << input.rows << " rows of "
                   << input.reward_count << ", " << workers << " workers");
      std::visit(
          [&](auto estimator) {
            for (index_t c = 0; round == 1 && c < input.reward_count; ++c) {
              estimator.weights = {
                  std::vector<double>(static_cast<std::size_t>(input.reward_count), 0.5)};
              estimator.weights[c] = c % 3 == 1 ? 0 : 2;
            }
            check_parallel(input.batch(gdpo::by_offsets(input.offsets)), estimator, workers);
            check_parallel(input.batch(gdpo::by_id(input.ids)), estimator, workers);
          },
          gdpo::runtime::estimator(name));
    }
  }
}

TEST_CASE("policies that read members, columns and the batch give the same bits on several threads",
          "[parallel]") {
  using namespace archetype;
  using gdpo::GroupAdvantage;
  for (std::uint64_t seed = 1; seed <= (few_rounds ? 2 : 4); ++seed) {
    Random random(seed);
    const int workers = 2 + random.below(6);
    const Input input(random, workers, seed % 2 == 0);
    INFO("seed " << seed << ", " << workers << " workers");
    const auto batch = input.batch(gdpo::by_offsets(input.offsets));
    check_parallel(batch, GroupAdvantage<gdpo::baseline::Median, gdpo::scale::Mad>{}, workers);
    check_parallel(batch, GroupAdvantage<RowWeighted, LeaveOneOutStd>{}, workers);
    check_parallel(batch,
                   renormed(GroupAdvantage<gdpo::baseline::External, gdpo::scale::NonzeroShare,
                                           gdpo::combine::SumThenNormalize>{},
                            gdpo::renorm::batch()),
                   workers);
    check_parallel(batch, renormed(GroupAdvantage<LengthWeighted>{}, gdpo::renorm::per_group()),
                   workers);
    gdpo::Gdpo settings;
    settings.penalty = {0.1, 0};
    settings.gates = {{0, input.reward_count - 1, 0.5}};
    settings.missing = {gdpo::MissingEntry::Zero, gdpo::MissingRow::Keep};
    settings.singleton = gdpo::Singleton::Raw;
    check_parallel(batch, settings, workers);
    gdpo::Grpo sums;
    sums.penalty.coef = 0.1;
    check_parallel(batch, sums, workers);
  }
}

namespace {

template <class T>
void check_threads(int group) {
  Random random(static_cast<std::uint64_t>(group));
  const index_t rows = 3600 * 16, reward_count = 3;
  std::vector<T> rewards(static_cast<std::size_t>(rows * reward_count));
  for (T& x : rewards) x = static_cast<T>(random.uniform());
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), rows, reward_count),
                                gdpo::groups_of(group)};
  using Numbers = std::vector<T>;
  Numbers one(static_cast<std::size_t>(rows)), many(one);
  gdpo::Workspace workspace;
  const auto check = [&](const auto& estimator) {
    gdpo::advantages_into(gdpo::seq, batch, estimator, gdpo::view(one), workspace);
    for (int workers = 1; workers <= 7; workers += few_rounds ? 3 : 1) {
      INFO("groups of " << group << ", " << workers << " threads");
      gdpo::advantages_into(gdpo::parallel(pool(workers)), batch, estimator, gdpo::view(many),
                            workspace);
      CHECK(difference(one, many) == "");
#ifdef _OPENMP
      gdpo::advantages_into(gdpo::parallel(gdpo::OpenMp{workers}), batch, estimator,
                            gdpo::view(many), workspace);
      CHECK(difference(one, many) == "");
#endif
    }
  };
  check(gdpo::Grpo{});
  gdpo::GroupAdvantage<gdpo::baseline::None, gdpo::scale::None, gdpo::combine::SumThenNormalize>
      shifted;
  shifted.renorm = gdpo::renorm::batch(1, 1e-4);
  check(shifted);  // without a baseline, weight, mean and spread of the batch all reach the numbers
  check(gdpo::Gdpo{});
  CHECK(difference(one, gdpo::advantages(gdpo::parallel(pool(3)), batch)) == "");
  CHECK(difference(one, gdpo::advantages(gdpo::simd, batch, gdpo::Gdpo{})) == "");
  gdpo::GroupReport report;
  CHECK(difference(one, gdpo::advantages(gdpo::parallel(pool(3)), batch, &report)) == "");
  CHECK(report.groups == rows / group);
}

}  // namespace

TEST_CASE("one to seven threads, groups of one size", "[parallel]") {
  for (const int group : {2, 8, 16}) {
    check_threads<float>(group);
    check_threads<double>(group);
  }
}

TEST_CASE("one group decides for all, whichever worker meets it", "[parallel]") {
  const index_t rows = 20000, reward_count = 2;
  Random random(7);
  std::vector<double> rewards(static_cast<std::size_t>(rows * reward_count));
  for (double& x : rewards) x = random.uniform();
  std::vector<int> offsets{0};
  while (offsets.back() < rows)
    offsets.push_back(std::min(offsets.back() + 8, static_cast<int>(rows)));
  std::vector<double> one(static_cast<std::size_t>(rows)), many(one);
  const auto check = [&](const gdpo::Gdpo& estimator) {
    const gdpo::RewardBatch batch{gdpo::view(rewards.data(), rows, reward_count),
                                  gdpo::by_offsets(offsets)};
    gdpo::Workspace workspace;
    gdpo::advantages_into(gdpo::seq, batch, estimator, gdpo::view(one), workspace);
    gdpo::advantages_into(gdpo::parallel(LastFirst{}), batch, estimator, gdpo::view(many),
                          workspace);
    CHECK(difference(one, many) == "");
  };
  gdpo::Gdpo raw;
  raw.singleton = gdpo::Singleton::Raw;
  // A group of one, because of which the mean is subtracted everywhere.
  offsets.insert(offsets.begin() + 1000, offsets[1000] - 1);
  check(raw);
  offsets.erase(offsets.begin() + 1000);
  // A row without rewards is excluded: it is in no sum and gets 0.
  rewards[8000] = rewards[8001] = std::nan("");
  check(gdpo::Gdpo{});
  CHECK(one[4000] == 0);
}

TEST_CASE("on several threads nothing is allocated after the first call", "[parallel][workspace]") {
  Random random(5);
  const Input input(random, 4, false);
  const auto batch = input.batch(gdpo::by_offsets(input.offsets));
  const auto check = [&](const auto& estimator) {
    gdpo::Workspace workspace;
    gdpo::GroupReport report;
    std::vector<double> out(static_cast<std::size_t>(input.rows));
    const auto call = [&](gdpo::GroupReport* to) {
      gdpo::advantages_into(gdpo::parallel(pool(4)), batch, estimator, gdpo::view(out), workspace,
                            to);
    };
    call(&report);
    const std::vector<double> first = out;
    const long before = counted::allocations;
    for (int k = 0; k < 5; ++k) call(&report);
    for (int k = 0; k < 5; ++k) call(nullptr);
    const long after = counted::allocations;
    CHECK(after == before);
    CHECK(difference(out, first) == "");
  };
  check(gdpo::Gdpo{});
  check(gdpo::Rloo{});
  check(gdpo::per_group::gdpo);
  check(gdpo::verl::gdpo);
}

TEST_CASE("an error comes out of several threads as it comes out of one", "[parallel][errors]") {
  Random random(6);
  Input input(random, 6, false);
  // Sets rewards in three places of the batch, which are in different units of work.
  const auto set = [&](double row, double value) {
    for (const double at : {row, row + 0.1, row + 0.2}) {
      const auto i = static_cast<index_t>(at * static_cast<double>(input.rows));
      input.rewards[static_cast<std::size_t>(i * input.reward_count)] = value;
    }
  };
  for (double& x : input.rewards) x = std::isnan(x) ? 0 : x;
  std::vector<double> out(static_cast<std::size_t>(input.rows), 7);
  const auto message = [&](const auto& exec, const auto& batch, const auto& estimator) {
    gdpo::Workspace workspace;
    return message_of(
        [&] { gdpo::advantages_into(exec, batch, estimator, gdpo::view(out), workspace); });
  };
  const auto check = [&](const auto& batch, const auto& estimator, const std::string& part) {
    const std::string one = message(gdpo::seq, batch, estimator);
    CHECK(one.find(part) != std::string::npos);
    for (int workers = 2; workers <= 6; ++workers) {
      CHECK(message(gdpo::parallel(pool(workers)), batch, estimator) == one);
    }
    CHECK(out == std::vector<double>(out.size(), 7));
  };
  set(0.3, std::nan(""));
  gdpo::Grpo reject;
  reject.missing.entry = gdpo::MissingEntry::Reject;
  check(input.batch(gdpo::by_offsets(input.offsets)), reject, "missing.entry is Reject");
  set(0.3, 0);

  std::vector<int> pairs{0};  // groups of two, and a few of one
  while (pairs.back() < input.rows) {
    const bool alone = pairs.back() % 2 == 0 && pairs.size() % 500 == 499;
    pairs.push_back(std::min(pairs.back() + (alone ? 1 : 2), static_cast<int>(input.rows)));
  }
  gdpo::Gdpo pairwise;
  pairwise.singleton = gdpo::Singleton::Error;
  check(input.batch(gdpo::by_offsets(pairs)), pairwise, "one used row in group");
}

TEST_CASE("small batches stay on the calling thread", "[parallel]") {
  const std::vector<float> rewards(1024 * 3, 0.5f);
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 1024, 3), gdpo::groups_of(8)};
  CHECK(gdpo::advantages(gdpo::parallel(Untouched{}), batch) == std::vector<float>(1024, 0.f));
}

}  // namespace parallel_test
