// labels: lanes
// The library has a fast path through groups without missing entries, which `simd` takes, and a
// general one. `seq` takes the general path, and so does `simd` where `valid` flags are given (here
// all are 1). Both paths must give the same bits.
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

}  // namespace

TEST_CASE("the fast path and the general path give the same bits", "[paths]") {
  check_paths<double>(gdpo::Gdpo{}, 1);
  gdpo::Gdpo weighted;
  check_paths<float>(weighted, 2001);
  check_paths<double>(gdpo::Grpo{}, 4001);
  check_paths<double>(gdpo::before_renorm(gdpo::Gdpo{}), 6001);
}

}  // namespace paths_test
