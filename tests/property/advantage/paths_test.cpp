// labels: lanes
// The library has a fast path, which `simd` takes: groups side by side in lanes, with gaps where
// rewards are missing, rows are not used or groups are shorter. `seq` takes the general path, one
// group after the other. Both must give the same bits, and refuse the same reward first.
#include <gdpo/advantages.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace paths_test {

namespace {

/// Rewards of one kind for a whole batch, from plain ones to hard ones: constant groups, rewards
/// that cancel, offsets.
std::vector<double> batch_of(Random& random, int rows, int reward_count, int group) {
  std::vector<double> x(static_cast<std::size_t>(rows * reward_count));
  const int kind = random.below(6);
  const double offset = random.pick({0.0, 0.0, 0.1, 1e5, 1e8});
  for (int i = 0; i < rows; ++i) {
    for (int c = 0; c < reward_count; ++c) {
      double& value = x[static_cast<std::size_t>(i * reward_count + c)];
      const double* first = &x[static_cast<std::size_t>(i * reward_count)];
      switch (kind) {
        case 0:
          value = offset + random.below(2);
          break;
        case 1:
          value = offset + random.uniform();
          break;
        case 2:
          // The first two rewards cancel.
          value = c == 0 ? offset + 0.25 * random.below(5) : c == 1 ? 1 - (first[0] - offset) : 0.1;
          break;
        case 3:
          // Every other group is constant.
          value = i / group % 2 ? offset + 0.1 : random_reward(random, 3);
          break;
        case 4:
          value = random.chance(0.03) ? std::nan("") : 0.5 * random.below(3);
          break;
        default:
          value = 1 + (i % group == 0 ? 1e-5 : 0) * random.below(3);
          break;
      }
    }
  }
  return x;
}

template <class T, class Estimator>
void check_paths(const Estimator& estimator, std::uint64_t first_seed) {
  gdpo::Workspace workspace;
  for (std::uint64_t seed = first_seed; seed < first_seed + 400; ++seed) {
    Random random(seed);
    const int group = random.pick({1, 2, 3, 4, 7, 8, 16}), groups = 1 + random.below(11),
              reward_count = 1 + random.below(10);
    const int rows = group * groups;
    const std::vector<double> wide = batch_of(random, rows, reward_count, group);
    const std::vector<T> rewards(wide.begin(), wide.end());
    const std::vector<unsigned char> all(static_cast<std::size_t>(rows), 1);
    gdpo::RewardBatch batch{gdpo::view(rewards.data(), rows, reward_count), gdpo::groups_of(group)};
    using Result = gdpo::result_t<T>;
    std::vector<Result> fast(static_cast<std::size_t>(rows)), general(fast), one_by_one(fast);
    gdpo::GroupReport fast_report, general_report;
    gdpo::advantages_into(gdpo::simd, batch, estimator, gdpo::view(fast), workspace, &fast_report);
    const std::vector<double> fast_sums(workspace.sums().data, workspace.sums().data + rows);
    gdpo::advantages_into(gdpo::seq, batch, estimator, gdpo::view(one_by_one), workspace);
    batch.valid = gdpo::view(all);
    gdpo::advantages_into(gdpo::simd, batch, estimator, gdpo::view(general), workspace,
                          &general_report);
    const std::vector<double> general_sums(workspace.sums().data, workspace.sums().data + rows);
    INFO("seed " << seed << ", groups " << groups << " of " << group << ", rewards "
                 << reward_count);
    CHECK(difference(fast_sums, general_sums) == "");
    CHECK(difference(fast, general) == "");
    CHECK(difference(one_by_one, general) == "");
    CHECK(fast_report.degenerate == general_report.degenerate);
  }
}

/// A batch with everything that leaves gaps in lanes, and settings that change what is read.
template <class Estimator>
void check_gaps(std::uint64_t first_seed) {
  using gdpo::index_t;
  const auto size = [](index_t n) { return static_cast<std::size_t>(n); };
  for (std::uint64_t seed = first_seed; seed < first_seed + 300; ++seed) {
    Random random(seed);
    const index_t columns = 1 + random.below(random.pick({5, 5, 5, 20})),
                  longest = 1 + random.below(random.pick({3, 9, 9, 40}));
    std::vector<index_t> offsets{0};
    const bool ragged = random.chance(0.7);
    for (int groups = 1 + random.below(40); groups > 0; --groups)
      offsets.push_back(offsets.back() +
                        (ragged ? random.below(static_cast<int>(longest) + 2) : longest));
    if (random.chance(0.05)) offsets.push_back(offsets.back() + 300);
    const index_t rows = offsets.back();
    const int kind = random.below(4);
    const double missing = random.pick({0.0, 0.01, 0.2, 0.7}), infinite = random.pick({0, 0, 0, 1});
    std::vector<float> rewards, kl;
    std::vector<unsigned char> valid;
    for (index_t i = 0; i < rows * columns; ++i) {
      double x = kind == 3 ? static_cast<double>((i % columns + i / columns) % 2)
                           : random_reward(random, kind);
      if (random.chance(missing)) x = std::nan("");
      if (random.chance(0.02 * infinite)) x = random.pick({HUGE_VAL, -HUGE_VAL});
      rewards.push_back(static_cast<float>(x));
    }
    for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
      for (index_t i = (offsets[g] + 1) * columns;
           g % 3 == 0 && kind == 2 && i < offsets[g + 1] * columns; ++i)
        rewards[size(i)] = rewards[size(offsets[g] * columns + i % columns)];  // all tie
    }
    const double unused = random.pick({0.05, 0.4});
    for (index_t i = 0; i < rows; ++i) {
      kl.push_back(static_cast<float>(random.uniform()));
      valid.push_back(!random.chance(unused));
    }
    Estimator e;
    e.missing.entry = static_cast<gdpo::MissingEntry>(random.pick({0, 0, 1, 2, 3}));
    e.missing.row = static_cast<gdpo::MissingRow>(random.below(3));
    e.missing.infinite = static_cast<gdpo::InfiniteEntry>(random.below(4));
    e.missing.unused = static_cast<gdpo::UnusedRow>(random.below(2));
    e.singleton = static_cast<gdpo::Singleton>(random.below(5));
    const auto any = [&] { return static_cast<index_t>(random.below(static_cast<int>(columns))); };
    if (random.chance(0.3)) {
      std::vector<double> weights;
      for (index_t c = 0; c < columns; ++c)
        weights.push_back(random.chance(0.25) ? 0.0 : random.uniform() - 0.3);
      e.weights = weights;
    }
    if (random.chance(0.3)) e.gates = {{any(), any(), random.uniform()}};
    if (random.chance(0.2)) e.gates = {{0, any(), random.uniform()}, {0, any(), random.uniform()}};
    if (random.chance(0.3)) e.reward_clip = {0.2, 0.8};
    if (random.chance(0.2)) {
      e.penalty.coef = 0.3;
      e.penalty.reward =
          std::is_same_v<decltype(e.combine), gdpo::combine::NormalizeThenSum> ? any() : -1;
    }
    const bool has_valid = random.chance(0.4), report = random.chance(0.5);
    const auto check = [&](const auto& groups) {
      gdpo::RewardBatch batch{gdpo::view(rewards.data(), rows, columns), groups};
      batch.penalty = gdpo::view(kl);
      if (has_valid) batch.valid = gdpo::view(valid);
      const auto call = [&](const auto& exec, gdpo::GroupReport& r, std::string& message) {
        std::vector<double> out(size(rows), 7);
        gdpo::Workspace workspace;
        try {
          if (report) {
            gdpo::advantages_into(exec, batch, e, gdpo::view(out), workspace, &r);
          } else {
            gdpo::advantages_into(exec, batch, e, gdpo::view(out), workspace);
          }
          const auto sums = workspace.sums();
          out.insert(out.end(), sums.data, sums.data + rows);
          // The sign of a NaN is what the compiler makes of a formula.
          for (double& x : out) x = std::isnan(x) ? std::nan("") : x;
        } catch (const gdpo::invalid_input& error) {
          message = error.what();
        }
        return out;
      };
      gdpo::GroupReport of_fast, of_general;
      std::string fast_message, general_message;
      const std::vector<double> fast = call(gdpo::simd, of_fast, fast_message),
                                general = call(gdpo::seq, of_general, general_message);
      CHECK(fast_message == general_message);
      CHECK(difference(fast, general) == "");
      if (fast_message.empty()) CHECK(of_fast.degenerate == of_general.degenerate);
    };
    INFO("seed " << seed << ", rewards " << columns << ", rows " << rows);
    check(gdpo::by_offsets(offsets));
    if (!ragged && rows % longest == 0) check(gdpo::groups_of(longest));
    std::vector<int> ids(size(rows));
    for (std::size_t g = 0; g + 1 < offsets.size(); ++g)
      std::fill(ids.begin() + offsets[g], ids.begin() + offsets[g + 1], static_cast<int>(g));
    random.shuffle(ids);
    check(gdpo::by_id(ids));
  }
}

}  // namespace

TEST_CASE("the fast path and the general path give the same bits", "[paths]") {
  check_paths<double>(gdpo::Gdpo{}, 1);
  gdpo::Gdpo weighted;
  check_paths<float>(weighted, 2001);
  check_paths<double>(gdpo::Grpo{}, 4001);
  check_paths<double>(gdpo::before_renorm(gdpo::Gdpo{}), 6001);
}

TEST_CASE("gaps in lanes change no bit", "[paths]") {
  namespace baseline = gdpo::baseline;
  namespace scale = gdpo::scale;
  using gdpo::GroupAdvantage, gdpo::combine::NormalizeThenSum, gdpo::combine::SumThenNormalize;
  check_gaps<gdpo::Gdpo>(8001);
  check_gaps<gdpo::Grpo>(9001);
  check_gaps<gdpo::Rloo>(10001);
  check_gaps<GroupAdvantage<baseline::LeaveOneOut, scale::LeaveOneOutStd, NormalizeThenSum>>(11001);
  check_gaps<GroupAdvantage<baseline::LeaveOneOut, scale::LeaveOneOutStd, SumThenNormalize>>(12001);
  check_gaps<GroupAdvantage<baseline::SecondBest, scale::StdDev, NormalizeThenSum>>(13001);
  check_gaps<GroupAdvantage<baseline::ShiftedMean, scale::StdDev, NormalizeThenSum>>(14001);
  check_gaps<GroupAdvantage<baseline::None, scale::None, SumThenNormalize>>(15001);
  check_gaps<GroupAdvantage<baseline::Median, scale::Mad, NormalizeThenSum>>(16001);
  check_gaps<GroupAdvantage<baseline::WinsorizedMean, scale::Iqr, SumThenNormalize>>(17001);
  check_gaps<GroupAdvantage<baseline::LeaveOneOut, scale::Mad, NormalizeThenSum>>(18001);
}

}  // namespace paths_test
