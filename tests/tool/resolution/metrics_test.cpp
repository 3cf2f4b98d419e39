// What is counted: clusters, ties, levels and statistics of rewards, on small logs worked out by
// hand and against plain loops.
#include "metrics.hpp"

#include <cmath>
#include <random>
#include <set>

#include "separated.hpp"
#include "statistics.hpp"
#include "support.hpp"

using namespace resolution;

TEST_CASE("Rounding goes to even at halves and knows no negative zero") {
  CHECK(rounded(0.5e-6, 1e6) == 0);
  CHECK(rounded(1.5e-6, 1e6) == 2e-6);
  CHECK_FALSE(std::signbit(rounded(-1e-9, 1e6)));
}

TEST_CASE("Clusters: a step above 1e-9 begins a new one") {
  const Clusters c = find_clusters({1, 0, 1 + 5e-10, 0, 1 + 9e-10, 3});
  CHECK(c.count == 3);
  CHECK(c.smallest_gap == Approx(1));
  CHECK(c.largest_noise == Approx(5e-10));
  CHECK(std::isnan(find_clusters({2, 2}).smallest_gap));
  CHECK(find_clusters({}).count == 0);
}

TEST_CASE("A cluster index gives one number to values that differ by noise, in any order") {
  ClusterIndex index;
  CHECK(index.number_of(0.5) == 0);
  CHECK(index.number_of(-0.5) == 1);
  CHECK(index.number_of(0.5 - 1e-15) == 0);
  CHECK(index.number_of(0.5 + 1e-15) == 0);
  CHECK(index.number_of(0.5 + 1e-6) == 2);
}

TEST_CASE("Counts of a small log, worked out by hand") {
  // Group x has different rewards and one tie, group y equal rewards, and group z rewards that
  // cancel.
  const Rollouts r =
      read("g,a,b\nx,1,0\nx,0,1\nx,1,1\ny,2,2\ny,2,2\nz,1,0\nz,0,1\n", columns("g", {"a", "b"}));
  const Measure measure(r, {});
  const Metrics m = measure.of({-0.5, -0.5 + 1e-9, 1, 0, 0, 0, 1e-7});
  CHECK(m.distinct_values == 3);
  CHECK(m.distinct_group_vectors_sorted == 2);  // that of x, and that of y and z
  CHECK(m.zero_groups == 2);
  CHECK(m.canceled_groups == std::vector<std::size_t>{2});
  CHECK(m.pairs_collapsed == 2);
  CHECK(m.collapse_rate == 0.5);
  CHECK(m.mean_levels_per_group == Approx(4.0 / 3));
  CHECK(m.cross_group_collapse_rate == Approx(1.0 / 3));
  CHECK(m.adv_absmax == 1);

  const RewardSummary& s = measure.rewards();
  CHECK(s.pairs == 5);
  CHECK(s.pairs_with_different_vectors == 4);
  CHECK(s.mean_vectors_per_group == Approx(2));
  CHECK(s.distinct_multisets == 3);
  CHECK(s.distinct_vectors == 4);
  CHECK(s.zero_variance_groups_sum == Approx(2.0 / 3));
  CHECK(s.zero_variance_groups_all == Approx(1.0 / 3));
  CHECK(s.equal_sum_groups == std::vector<std::size_t>{2});
  CHECK(s.group_sizes == std::vector<std::pair<std::size_t, std::size_t>>{{2, 2}, {3, 1}});
}

TEST_CASE("Tied pairs are those of comparing all pairs") {
  std::mt19937 random(7);
  std::string text = "g,a,b\n";
  constexpr int rows = 300;
  for (int i = 0; i < rows; ++i) {
    text += std::to_string(random() % 5) + "," + std::to_string(random() % 3) + "," +
            std::to_string(random() % 2) + "\n";
  }
  const Rollouts r = read(text, columns("g", {"a", "b"}));
  std::vector<double> advantages;
  // Chains of ties around the tolerance of 1e-6.
  for (int i = 0; i < rows; ++i) advantages.push_back(4e-7 * static_cast<double>(random() % 40));
  const Measure measure(r, {});
  std::size_t different = 0;
  std::size_t collapsed = 0;
  for (std::size_t g = 0; g < r.groups(); ++g) {
    for (std::size_t i = r.rows_of(g).begin; i < r.rows_of(g).end; ++i) {
      for (std::size_t j = i + 1; j < r.rows_of(g).end; ++j) {
        if (r.reward(i, 0) == r.reward(j, 0) && r.reward(i, 1) == r.reward(j, 1)) continue;
        ++different;
        collapsed += std::abs(advantages[i] - advantages[j]) <= 1e-6 ? 1 : 0;
      }
    }
  }
  CHECK(measure.rewards().pairs_with_different_vectors == different);
  CHECK(measure.of(advantages).pairs_collapsed == collapsed);
  CHECK(collapsed > 0);
}

TEST_CASE("Slices that are equal have one number") {
  const std::vector<double> values{1, 2, 2, 1, 1, 2, 3};
  const SliceNumbers numbers = number_slices(values, {0, 2, 4, 6, 6, 7, 7});
  CHECK(numbers.of == std::vector<std::uint32_t>{0, 1, 0, 2, 3, 2});
  CHECK(numbers.count == 4);
  CHECK(number_slices(std::vector<std::uint32_t>{7, 7}, {0, 1, 2}).count == 1);
}

TEST_CASE("Missing rewards leave the statistics and differ from every value") {
  const Rollouts r = read("g,a,b\nx,1,\nx,1,0\nx,,\nx,3,0\n", columns("g", {"a", "b"}));
  const Measure measure(r, {});
  const RewardSummary& s = measure.rewards();
  CHECK(s.missing() == 3);
  CHECK(s.excluded_rows == 1);
  CHECK(s.per_reward[0].mean == Approx(5.0 / 3));
  CHECK(s.per_reward[1].zero_variance_groups == 1);
  CHECK(s.distinct_vectors == 3);  // the completion without any reward has none

  const Comparison c = compare(r, {}, default_estimators());
  for (const auto& result : c.results) {
    CHECK(result.advantages[2] == 0);
    for (const double a : result.advantages) CHECK(std::isfinite(a));
  }
}

TEST_CASE("A reward of weight 0 is described, and seen by nothing else") {
  const Rollouts r = read("g,a,b\nx,1,1\nx,1,0\nx,,1\n", columns("g", {"a", "b"}));
  Settings settings;
  settings.weights = {1, 0};
  const Measure measure(r, settings);
  const RewardSummary& s = measure.rewards();
  CHECK(s.excluded_rows == 1);
  CHECK(s.zero_variance_groups_sum == 1);
  CHECK(s.zero_variance_groups_all == 1);
  CHECK(s.per_reward[1].zero_variance_groups == 0);
  CHECK(s.distinct_vectors == 1);
  CHECK(s.uniform_groups == 1);
  CHECK(measure.rewarded() == std::vector<char>{1, 1, 0});
  for (const std::string& name : default_estimators()) {
    const Metrics m = measure.of(advantages(name, settings, r));
    CHECK(m.zero_groups == 1);
    CHECK(m.canceled_groups.empty());  // its completions have the same rewards
  }
}

TEST_CASE("A completion without any reward is in no pair, tie or group") {
  const Comparison c = compare(
      read("g,a\np,1\np,0\np,0.5\np,\nq,1\nq,0\nq,0.5\nq,\nnone,\nnone,\n", columns("g", {"a"})),
      {}, default_estimators());
  CHECK(c.rewards.excluded_rows == 4);
  CHECK(c.rewards.groups == 2);
  CHECK(c.rewards.pairs == 6);
  CHECK(c.rewards.pairs_with_different_vectors == 6);
  CHECK(c.rewards.distinct_vectors == 3);
  CHECK(c.rewards.mean_vectors_per_group == 3);
  CHECK(c.rewards.zero_variance_groups_all == 0);
  CHECK(c.rewards.per_reward[0].missing == 4);
  for (const auto& result : c.results) {
    INFO(result.info.name);
    CHECK(result.metrics.pairs_collapsed == 0);
    CHECK(result.metrics.zero_groups == 0);
    CHECK(result.metrics.distinct_values == 3);
    CHECK(result.metrics.mean_levels_per_group == 3);
    CHECK(result.metrics.mean_corr_with_each_reward[0] == Approx(1));
  }
}

TEST_CASE("Rows without any reward change no count, wherever they stand") {
  std::mt19937 random(11);
  for (int log = 0; log < 40; ++log) {
    std::string with = "b,g,a,c,n\n";
    std::string without = with;
    for (int i = 0; i < 40; ++i) {
      const auto text = [&](unsigned values) { return std::to_string(random() % values); };
      // "r" and "s" are groups of such rows alone, and batch 2 may have no others.
      const std::string batch = text(3);
      const bool rewarded = batch != "2" && random() % 3 != 0;
      const std::string group =
          rewarded ? std::string(1, "pq"[random() % 2]) : std::string(1, "pqrs"[random() % 4]);
      const std::string rewards =
          rewarded ? text(2) + "," + (random() % 4 == 0 ? "" : text(3)) : std::string(",");
      const std::string row =
          batch + "," + group + "," + rewards + "," + (rewarded ? text(9) : "") + "\n";
      with += row;
      if (rewarded) without += row;
    }
    INFO(with);
    const Columns wanted = columns("g", {"a", "c"}, "n", {"b"});
    const Comparison x = compare(read(with, wanted), {}, default_estimators());
    const Comparison y = compare(read(without, wanted), {}, default_estimators());
    const RewardSummary &s = x.rewards, &t = y.rewards;
    CHECK(s.groups == t.groups);
    CHECK(s.single_groups == t.single_groups);
    CHECK(s.pairs == t.pairs);
    CHECK(s.pairs_with_different_vectors == t.pairs_with_different_vectors);
    CHECK(s.distinct_vectors == t.distinct_vectors);
    CHECK(s.distinct_multisets == t.distinct_multisets);
    CHECK(s.distinct_multisets_within_batches == t.distinct_multisets_within_batches);
    CHECK(s.uniform_groups == t.uniform_groups);
    CHECK(s.equal_sum_groups.size() == t.equal_sum_groups.size());
    CHECK(s.zero_variance_groups_sum == t.zero_variance_groups_sum);
    CHECK(s.zero_variance_groups_all == t.zero_variance_groups_all);
    for (std::size_t k = 0; k < 2; ++k) {
      CHECK(s.per_reward[k].mean == t.per_reward[k].mean);
      CHECK(s.per_reward[k].zero_variance_groups == t.per_reward[k].zero_variance_groups);
    }
    CHECK(x.length->zero_share == y.length->zero_share);
    CHECK(x.length->sign_changed_share == y.length->sign_changed_share);
    CHECK(separated_groups(x).size() == separated_groups(y).size());
    for (std::size_t b = 0; b < y.rollouts.batches(); ++b) {
      CHECK(x.curves.length[b] == y.curves.length[b]);
      CHECK(x.curves.zero_variance_groups_all[b] == y.curves.zero_variance_groups_all[b]);
    }
    for (std::size_t e = 0; e < x.results.size(); ++e) {
      const Metrics &m = x.results[e].metrics, &n = y.results[e].metrics;
      INFO(x.results[e].info.name);
      CHECK(m.distinct_values == n.distinct_values);
      CHECK(m.distinct_values_within_batches == n.distinct_values_within_batches);
      CHECK(m.distinct_group_vectors_sorted == n.distinct_group_vectors_sorted);
      CHECK(m.zero_groups == n.zero_groups);
      CHECK(m.pairs_collapsed == n.pairs_collapsed);
      CHECK(m.mean_levels_per_group == n.mean_levels_per_group);
      CHECK(m.cross_group_collapse_rate == n.cross_group_collapse_rate);
      CHECK(m.adv_std == Approx(n.adv_std));
      CHECK(m.clusters.count == n.clusters.count);
      REQUIRE(m.canceled_groups.size() == n.canceled_groups.size());
      for (std::size_t i = 0; i < m.canceled_groups.size(); ++i) {
        CHECK(x.rollouts.group_name(m.canceled_groups[i]) ==
              y.rollouts.group_name(n.canceled_groups[i]));
      }
    }
  }
}

TEST_CASE("Conditions act on the rewards before they are compared, as in the library") {
  const Rollouts r =
      read("g,a,b\nx,1,5\nx,0,5\nx,0,7\nx,,6\nx,1,\nx,0,\n", columns("g", {"a", "b"}));
  Settings settings;
  settings.given = {{1, 0, 1}};
  const std::vector<double> gated = Measure(r, settings).gated();
  CHECK(gated[1] == 5);
  CHECK(gated[3] == 0);
  CHECK(gated[5] == 0);
  CHECK(std::isnan(gated[7]));
  CHECK(std::isnan(gated[9]));
  CHECK(gated[11] == 0);

  // The same rewards gated beforehand give the same advantages.
  Rollouts beforehand = r;
  beforehand.rewards = gated;
  for (const std::string& name : default_estimators())
    CHECK(advantages(name, settings, r) == advantages(name, {}, beforehand));
}

TEST_CASE("An estimator over tokens needs lengths") {
  const Rollouts r = read("g,a\nx,1\nx,0\n", columns("g", {"a"}));
  const std::string message = error_of([&] { compare(r, {}, {"verl::gdpo"}); });
  CHECK(message ==
        "estimator verl::gdpo weights completions by their number of tokens: name that column with "
        "--length");
}

TEST_CASE("Every estimator of the library runs on a real log") {
  const Rollouts r = read_data("vlm_dapo_rollouts.csv", {"accuracy", "format"}, "completion_chars");
  const Comparison c = compare(r, {}, all_estimators());
  CHECK(c.results.size() == all_estimators().size());
  for (const auto& result : c.results) {
    INFO(result.info.name);
    CHECK(result.metrics.distinct_values > 1);
    CHECK(std::isfinite(result.metrics.adv_std));
  }
}
