// labels: lanes
// What is not read may hold anything: NaN, inf and 1e38 there change no bit of any other output.
// There is no tolerance.
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/product.hpp"
#include "support/tolerance.hpp"

namespace poison_test {

namespace {

const double poisons[] = {std::nan(""), std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity(), 1e38, -1e308};

/// Calls visit(settings) for every type of estimator with every treatment of missing entries, and
/// for every preset.
template <class Visit>
void for_each_estimator(const Visit& visit) {
  product::for_each_type([&](const naive::Settings& e) {
    for (const naive::Entry entry :
         {naive::Entry::Skip, naive::Entry::Zero, naive::Entry::Propagate}) {
      naive::Settings with = e;
      with.entry = entry;
      visit(with);
    }
  });
  for (const product::Preset& preset : product::presets()) visit(preset.settings);
}

}  // namespace

TEST_CASE("poison in a reward of weight 0 changes no bit", "[poison]") {
  Random random(21);
  for (int round = 0; round < 4; ++round) {
    naive::Data data = random_batch(random, 4, 6, 4, round % 2 ? 0.1 : 0.0);
    add_columns(random, data);
    if (round < 2) data.valid.clear();
    for_each_estimator([&](naive::Settings e) {
      e.weights = {1, 0, -0.5, 0};
      // TRL's rule asks a reward of weight 0 too whether the row has one.
      if (e.row == naive::Row::ExcludeUnscored) e.row = naive::Row::Exclude;
      const product::Outcome clean = product::advantages(e, data);
      INFO(product::describe(e));
      for (const double poison : poisons) {
        naive::Data poisoned = data;
        for (int i = 0; i < data.rows; ++i) {
          poisoned.rewards[static_cast<std::size_t>(4 * i + 1)] = poison;
          if (random.chance(0.5)) poisoned.rewards[static_cast<std::size_t>(4 * i + 3)] = poison;
        }
        const product::Outcome outcome = product::advantages(e, poisoned);
        if (difference(clean.advantages, outcome.advantages) != "")
          CHECK(difference(clean.advantages, outcome.advantages) == "");
        if (difference(clean.sums, outcome.sums) != "")
          CHECK(difference(clean.sums, outcome.sums) == "");
      }
    });
  }
  SUCCEED();
}

TEST_CASE("poison in unused rows changes no bit of the others", "[poison]") {
  Random random(22);
  for (int round = 0; round < 4; ++round) {
    naive::Data data = random_batch(random, 4, 8, 3, round % 2 ? 0.1 : 0.0);
    add_columns(random, data);
    for_each_estimator([&](naive::Settings e) {
      if (round >= 2) {
        e.penalty_coef = 0.5;
        e.penalty_reward = e.combine == naive::Combine::SumThenNormalize ? -1 : 1;
      }
      const product::Outcome clean = product::advantages(e, data);
      gdpo::GroupReport clean_report;
      product::advantages(e, data, &clean_report);
      INFO(product::describe(e));
      for (const double poison : poisons) {
        naive::Data poisoned = data;
        for (int i = 0; i < data.rows; ++i) {
          if (data.valid[static_cast<std::size_t>(i)] != 0) continue;
          for (int c = 0; c < 3; ++c) {
            if (c == 0 || random.chance(0.7))
              poisoned.rewards[static_cast<std::size_t>(3 * i + c)] = poison;
          }
          poisoned.penalty[static_cast<std::size_t>(i)] = poison;
        }
        gdpo::GroupReport report;
        product::Outcome outcome = product::advantages(e, poisoned, &report), expected = clean;
        for (int i = 0; i < data.rows; ++i) {
          if (data.valid[static_cast<std::size_t>(i)] != 0) continue;
          for (product::Outcome* o : {&outcome, &expected})
            o->advantages[static_cast<std::size_t>(i)] = o->sums[static_cast<std::size_t>(i)] = 0;
        }
        if (difference(expected.advantages, outcome.advantages) != "")
          CHECK(difference(expected.advantages, outcome.advantages) == "");
        if (difference(expected.sums, outcome.sums) != "")
          CHECK(difference(expected.sums, outcome.sums) == "");
        const auto numbers = [](const gdpo::GroupReport& r) {
          std::vector<double> all{r.reward_mean,
                                  r.reward_std,
                                  r.reward_std_mean_of_groups,
                                  r.combined_std,
                                  static_cast<double>(r.excluded_rewards),
                                  static_cast<double>(r.infinite_rewards),
                                  static_cast<double>(r.singletons)};
          for (const gdpo::RewardReport& c : r.rewards)
            all.insert(all.end(),
                       {c.mean, c.std, c.min, c.max, c.zero_std_groups, static_cast<double>(c.n)});
          all.insert(all.end(), r.group_std.begin(), r.group_std.end());
          return all;
        };
        if (difference(numbers(clean_report), numbers(report)) != "")
          CHECK(difference(numbers(clean_report), numbers(report)) == "");
        CHECK(clean_report.degenerate == report.degenerate);
        CHECK(clean_report.reward_degenerate == report.reward_degenerate);
      }
    });
  }
}

TEST_CASE("columns that no policy reads change no bit", "[poison]") {
  Random random(23);
  naive::Data data = random_batch(random, 5, 6, 3, 0.1);
  add_columns(random, data);
  const gdpo::View<const double, 2> rewards =
      gdpo::view(data.rewards.data(), data.rows, data.reward_count);
  const std::vector<double> clean = gdpo::advantages(rewards, gdpo::by_id(data.ids));
  for (const double poison : poisons) {
    const std::vector<double> column(static_cast<std::size_t>(data.rows), poison);
    gdpo::RewardBatch batch{rewards, gdpo::by_id(data.ids)};
    batch.baseline = batch.penalty = batch.weights = gdpo::view(column);
    batch.tokens = gdpo::view(data.tokens);
    CHECK(difference(clean, gdpo::advantages(gdpo::seq, batch, gdpo::Gdpo{})) == "");
  }
}

TEST_CASE(
    "a gate's condition is read where its reward has weight 0, its reward where it fails is not",
    "[poison]") {
  // Rows 1 and 2 fail the condition, so what reward 1 holds there is not read.
  const double inf = std::numeric_limits<double>::infinity();
  gdpo::Grpo e;
  e.gates = {gdpo::Gate{1, 0, 0.5}};
  e.weights = {0, 1};
  const auto run = [&](double x, double y) {
    const std::vector<double> rewards{1, 3, 0, x, 0, y, 1, 1};
    return gdpo::advantages(gdpo::view(rewards.data(), 4, 2), gdpo::groups_of(4), e);
  };
  const std::vector<double> clean = run(0, 0);
  CHECK(clean[0] > 1);
  CHECK(difference(clean, run(inf, -1e308)) == "");
  CHECK(difference(clean, run(7, 1e38)) == "");
}

}  // namespace poison_test
