// labels: none
// GiGPO is the sum of two estimators over two groupings: compared with the oracle on random batches
// of steps, on every execution; limits, memory and refusals.
#include <gdpo/advantage/gigpo.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/product.hpp"
#include "support/tolerance.hpp"

namespace gigpo_test {

namespace {

using gdpo::index_t;
using Ids = std::vector<long long>;
using Vector = std::vector<double>;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct Steps {
  naive::Data data;  // a row a step; ids: the tasks
  Ids episodes, states;

  /// Refers to this object.
  gdpo::RewardBatch<double, gdpo::ById> batch() const {
    gdpo::RewardBatch<double, gdpo::ById> b{
        gdpo::view(data.rewards.data(), data.rows, data.reward_count), gdpo::by_id(data.ids)};
    if (!data.valid.empty()) b.valid = gdpo::view(data.valid);
    return b;
  }
};

Steps random_steps(Random& random, double missing) {
  Steps s;
  s.data = random_batch(random, 1 + random.below(4), 9, 1 + random.below(2), missing);
  const Ids names = random_ids(random, 4 * s.data.rows);
  std::map<long long, int> task;
  for (const long long id : s.data.ids) task.emplace(id, static_cast<int>(task.size()));
  for (int i = 0; i < s.data.rows; ++i) {
    s.episodes.push_back(names[at(task[s.data.ids[at(i)]] * 3 + random.below(3))]);
    s.states.push_back(random.below(3) - 1);
    if (missing > 0) s.data.valid.push_back(random.chance(0.8));
  }
  return s;
}

/// The formulas, in long double.
Vector expected(const Steps& s, const naive::Settings& settings, double omega, double gamma,
                bool pool, double& sensitivity) {
  const naive::Data& d = s.data;
  std::vector<int> episode_of;
  const naive::Data episodes = naive::rollouts(d, s.episodes, naive::Take::Sum, episode_of);
  naive::Data steps = d;
  std::map<std::pair<long long, long long>, long long> names;
  for (int i = 0; i < d.rows; ++i) {
    const std::pair<long long, long long> name{pool ? 0 : d.ids[at(i)], s.states[at(i)]};
    steps.ids[at(i)] = names.emplace(name, static_cast<long long>(names.size())).first->second;
    for (int c = 0; c < d.reward_count; ++c) {
      long double sum = 0, factor = 1;
      bool any = false;
      for (int j = i; j < d.rows; ++j) {
        if (s.episodes[at(j)] != s.episodes[at(i)]) continue;
        if (j > i && !d.valid.empty() && d.valid[at(j)] == 0) continue;
        const double reward = d.rewards[at(j * d.reward_count + c)];
        // Step i itself is at power 0, whether it is used or not.
        if (!std::isnan(reward) && factor > 0) sum += factor * reward, any = true;
        factor *= gamma;
      }
      steps.rewards[at(i * d.reward_count + c)] = any ? static_cast<double>(sum) : std::nan("");
    }
  }
  const naive::Result e = naive::advantages(settings, episodes),
                      t = naive::advantages(settings, steps);
  sensitivity = static_cast<double>((std::max)(e.sensitivity, t.sensitivity));
  Vector out;
  for (int i = 0; i < d.rows; ++i) {
    out.push_back(static_cast<double>(e.advantages[at(episode_of[at(i)])] +
                                      static_cast<long double>(omega) * t.advantages[at(i)]));
  }
  return out;
}

template <class Estimator>
void check_oracle(std::uint64_t first_seed) {
  int compared = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + 300; ++seed) {
    Random random(seed);
    const Steps s = random_steps(random, random.pick({0.0, 0.2}));
    gdpo::Gigpo<Estimator> gigpo;
    gigpo.omega = random.pick({0.0, 0.5, 1.0, -2.0});
    gigpo.gamma = random.pick({0.0, 0.5, 1.0});
    gigpo.pool_states = random.chance(0.5);
    INFO("seed " << seed);
    double sensitivity = 0;
    const Vector wanted = expected(s, product::settings_of(gigpo.episode), gigpo.omega, gigpo.gamma,
                                   gigpo.pool_states, sensitivity);
    if (!std::isfinite(sensitivity)) continue;
    ++compared;
    const auto batch = s.batch();
    gdpo::GigpoWorkspace<double, gdpo::ById> workspace;
    const auto run = [&](const auto& exec) {
      Vector out(wanted.size());
      gdpo::gigpo_into(exec, batch, gdpo::view(s.episodes), gdpo::view(s.states), gigpo,
                       gdpo::view(out), workspace);
      return out;
    };
    const Vector got = run(gdpo::seq);
    // Rewards are multiples of 1/4 or of order 1, and the returns have one rounding a step, which
    // the estimators take for a change of their input.
    const double allowed = 64 * tolerance::chain * (1 + sensitivity) * (1 + std::abs(gigpo.omega));
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(wanted[i])) {
        CHECK(std::isnan(got[i]));
      } else {
        CHECK(std::abs(got[i] - wanted[i]) <= allowed);
      }
    }
    CHECK(difference(run(gdpo::simd), got) == "");
    CHECK(difference(run(gdpo::parallel(executors::pool(2))), got) == "");
    CHECK(difference(gdpo::gigpo(batch, gdpo::view(s.episodes), gdpo::view(s.states), gigpo),
                     got) == "");
  }
  CHECK(compared > 100);
}

}  // namespace

TEST_CASE("GiGPO is what its formulas say", "[gigpo]") {
  check_oracle<gdpo::DrGrpo>(0);
  check_oracle<gdpo::Grpo>(1000);
}

TEST_CASE("without steps GiGPO is the estimator of episodes", "[gigpo]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const Steps s = random_steps(random, 0);
    INFO("seed " << seed);
    gdpo::Gigpo<> gigpo;
    gigpo.omega = 0;
    const auto batch = s.batch();
    const auto one = gdpo::rollouts(batch, gdpo::view(s.episodes), gdpo::Take::Sum);
    CHECK(difference(gdpo::gigpo(batch, gdpo::view(s.episodes), gdpo::view(s.states), gigpo),
                     one.spread(gdpo::advantages(gdpo::simd, one.batch(), gdpo::Grpo{}))) == "");
  }
}

TEST_CASE("numbers by hand, in place, in the memory of the call before", "[gigpo]") {
  // One task. Episode 1: states 7 and 8, rewards 0 and 1. Episode 2: states 7 and 8, rewards 2 and
  // -2. Sums 1 and 0; returns 0.5, 1, 1, -2 with gamma 0.5.
  Vector x{0, 1, 2, -2};
  const std::vector<int> episodes{1, 1, 2, 2}, states{7, 8, 7, 8};
  gdpo::Gigpo<gdpo::DrGrpo> gigpo;
  gigpo.gamma = 0.5, gigpo.omega = 2;
  gdpo::GigpoWorkspace<double, gdpo::GroupsOf> workspace;
  const auto step = [&] {
    x = {0, 1, 2, -2};
    gdpo::gigpo_into(gdpo::simd, gdpo::RewardBatch{gdpo::view(x), gdpo::groups_of(4)},
                     gdpo::view(episodes), gdpo::view(states), gigpo, gdpo::view(x), workspace);
  };
  step();
  CHECK(x == Vector{0, 3.5, 0, -3.5});
  CHECK(workspace.episodes().count() == 2);
  CHECK(workspace.steps().rewards(0, 0) == 0.5);
  const std::vector<double> before = x;
  const long allocated = counted::allocations;
  gdpo::gigpo_into(gdpo::simd, gdpo::RewardBatch{gdpo::view(before), gdpo::groups_of(4)},
                   gdpo::view(episodes), gdpo::view(states), gigpo, gdpo::view(x), workspace);
  CHECK(counted::allocations == allocated);
}

TEST_CASE("returns of infinite rewards show, also of both signs", "[gigpo]") {
  const double inf = HUGE_VAL;
  const Vector x{1, inf, -inf, 0, 2};
  const std::vector<int> episodes{1, 1, 1, 1, 2}, states{1, 2, 3, 4, 1};
  gdpo::GigpoWorkspace<double, gdpo::GroupsOf> workspace;
  Vector out(5);
  gdpo::gigpo_into(gdpo::simd, gdpo::RewardBatch{gdpo::view(x), gdpo::groups_of(5)},
                   gdpo::view(episodes), gdpo::view(states), gdpo::Gigpo<gdpo::DrGrpo>{},
                   gdpo::view(out), workspace);
  const auto& returns = workspace.steps().rewards;
  CHECK(Vector{returns(0, 0), returns(1, 0), returns(2, 0), returns(3, 0), returns(4, 0)} ==
        Vector{inf, inf, -inf, 0, 2});
  CHECK(workspace.episodes().batch().rewards(0, 0) == inf);
  for (const int row : {0, 1, 2, 3}) CHECK(!std::isfinite(out[static_cast<std::size_t>(row)]));
}

TEST_CASE("what GiGPO refuses", "[gigpo]") {
  const Vector x{0, 1, 2, -2};
  Vector out(4, 99);
  const std::vector<int> episodes{1, 1, 2, 2}, states{7, 8, 7, 8}, three{1, 2, 3},
      across{1, 2, 1, 2};
  const auto call = [&](const auto& e, const auto& s, gdpo::Gigpo<> gigpo) {
    return message_of([&] {
      gdpo::GigpoWorkspace<double, gdpo::GroupsOf> workspace;
      gdpo::gigpo_into(gdpo::simd, gdpo::RewardBatch{gdpo::view(x), gdpo::groups_of(2)},
                       gdpo::view(e), gdpo::view(s), gigpo, gdpo::view(out), workspace);
    });
  };
  CHECK(call(three, states, {}) ==
        "gdpo::gigpo: episodes: given 3 entries; needed: one for each of the 4 rows");
  CHECK(call(episodes, three, {}) ==
        "gdpo::gigpo: states: given 3 entries; needed: one for each of the 4 rows");
  CHECK(call(across, states, {}) ==
        "gdpo::gigpo: episodes: given rows 0 and 2 of rollout 1 in groups 0 and 1; needed: the "
        "rows of a rollout in one group");
  gdpo::Gigpo<> gigpo;
  gigpo.gamma = 2;
  CHECK(call(episodes, states, gigpo) == "gdpo::gigpo: gamma: given 2; needed: 0 to 1");
  gigpo.gamma = 1, gigpo.omega = HUGE_VAL;
  CHECK(call(episodes, states, gigpo).find("gdpo::gigpo: omega: given inf") == 0);
  gigpo.omega = 1, gigpo.step.scale.eps = -1;
  CHECK(call(episodes, states, gigpo).find("step.scale.eps") != std::string::npos);
  CHECK(out == Vector(4, 99));
}

}  // namespace gigpo_test
