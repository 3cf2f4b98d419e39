// labels: sanitizers
// advantages_into and finish may write over the rewards: over a single reward, or over a column of
// several. The result has the bits of a call with memory of its own.
#include <cstring>
#include <gdpo/advantages.hpp>
#include <gdpo/constraint.hpp>
#include <limits>

#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/generators.hpp"
#include "support/renormed.hpp"

namespace in_place_test {

namespace {

using gdpo::index_t, gdpo::view, gdpo::View;
constexpr index_t group = 8;

/// Rewards of a few values, some of them missing; those of the first group are equal.
template <class T>
std::vector<T> rewards_of(Random& random, index_t rows, index_t columns) {
  std::vector<T> rewards(static_cast<std::size_t>(rows * columns));
  for (T& x : rewards)
    x = random.chance(0.1) ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(random.below(5));
  std::fill_n(rewards.begin(), group * columns, T(1));
  return rewards;
}

template <class T, class Groups, class Estimator, class Exec>
void check(const Exec& exec, const Groups& groups, const Estimator& estimator, index_t rows = 96) {
  Random random(7);
  std::vector<double> tokens(static_cast<std::size_t>(rows));
  for (double& n : tokens) n = 1 + random.below(20);
  for (const index_t columns : {1, 3}) {
    const std::vector<T> rewards = rewards_of<T>(random, rows, columns);
    const auto batch_of = [&](const T* data) {
      gdpo::RewardBatch<const T, Groups> batch{view(data, rows, columns), groups};
      batch.tokens = view(std::as_const(tokens));
      return batch;
    };
    std::vector<T> expected(static_cast<std::size_t>(rows));
    gdpo::Workspace workspace;
    gdpo::GroupReport apart, together;
    gdpo::advantages_into(exec, batch_of(rewards.data()), estimator, view(expected), workspace,
                          &apart);
    for (index_t c = 0; c < columns; ++c) {
      INFO(columns << " columns, over column " << c);
      std::vector<T> over = rewards;
      gdpo::advantages_into(exec, batch_of(over.data()), estimator,
                            View<T, 1>{over.data() + c, {rows}, {columns}}, workspace, &together);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < over.size(); ++i) {
        const auto column = static_cast<index_t>(i) % columns;
        const T& wanted =
            column == c ? expected[i / static_cast<std::size_t>(columns)] : rewards[i];
        wrong += std::memcmp(&over[i], &wanted, sizeof(T)) != 0;
      }
      CHECK(wrong == 0);
      CHECK(together.excluded_rewards == apart.excluded_rewards);
      REQUIRE(together.group_std.size() == apart.group_std.size());  // may be NaN
      CHECK(std::memcmp(together.group_std.data(), apart.group_std.data(),
                        apart.group_std.size() * sizeof(double)) == 0);
    }
  }
}
template <class T, class Estimator>
void check_all(const Estimator& estimator) {
  const auto groups = gdpo::groups_of(group);
  check<T>(gdpo::seq, groups, estimator);
  check<T>(gdpo::simd, groups, estimator);
  std::vector<int> ids;  // the groups interleave
  for (int i = 0; i < 96; ++i) ids.push_back(i % 12);
  check<T>(gdpo::simd, gdpo::by_id(ids), estimator);
}

}  // namespace

TEST_CASE("advantages may be written over the rewards", "[advantages]") {
  using namespace gdpo;
  check_all<float>(Gdpo{});
  check_all<double>(Gdpo{});
  check_all<float>(Grpo{});
  check_all<double>(Rloo{});
  check_all<double>(ShrunkGdpo{});  // reads the batch before the groups
  check_all<double>(GroupAdvantage<baseline::Median, scale::Mad>{});  // orders the values
  check_all<float>(renormed(GroupAdvantage<baseline::LeaveOneOut>{}, renorm::per_group()));
  check_all<double>(renormed(Gdpo{}, renorm::token_weighted_batch()));
  check_all<double>(Constrained<>{{}, {}, {{0, 0.5, 0.5}}});
  // As many numbers as make two threads worth it.
  check<float>(parallel(executors::pool(2)), groups_of(group), Gdpo{}, 2 * detail::worth_a_thread);
}

TEST_CASE("the second stage may be written over the rewards", "[advantages]") {
  Random random(3);
  constexpr index_t rows = 96;
  std::vector<double> over = rewards_of<double>(random, rows, 1), expected(rows);
  const gdpo::RewardBatch batch{view(over.data(), rows, 1), gdpo::groups_of(group)};
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::simd, batch, gdpo::Gdpo{}, view(expected), workspace);
  const auto moments = gdpo::first_stage(gdpo::simd, batch, gdpo::Gdpo{}, workspace);
  gdpo::finish(gdpo::simd, batch, gdpo::Gdpo{}, moments, view(over), workspace);
  CHECK(over == expected);
}

}  // namespace in_place_test
