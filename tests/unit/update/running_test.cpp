// labels: sanitizers
// What keeps a state over the steps of a run: RunningMoments, EmaBaseline, ReturnScale. Against
// plain formulas in long double; partitions into steps and ranks; states that were saved.
#include <cmath>
#include <cstdint>
#include <gdpo/advantages.hpp>
#include <gdpo/presets/prime_rl.hpp>
#include <gdpo/update/ema_baseline.hpp>
#include <gdpo/update/return_scale.hpp>
#include <gdpo/update/running_moments.hpp>
#include <gdpo/with/nlohmann_json.hpp>
#include <map>

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/thread_ranks.hpp"
#include "support/tolerance.hpp"

namespace running_test {

namespace {

using gdpo::EmaState;
using gdpo::index_t;
using gdpo::Moments;
using gdpo::ReturnScaleState;
using gdpo::update::EmaBaseline;
using gdpo::update::measure;
using gdpo::update::ReturnScale;
using gdpo::update::RunningMoments;
using Vector = std::vector<double>;
using real = long double;
constexpr double infinity = std::numeric_limits<double>::infinity();
const double missing = std::nan("");
constexpr std::uint64_t rounds = few_rounds ? 20 : 100;

/// The state after it was written as JSON and read again.
template <class State>
State through_json(const State& state) {
  return nlohmann::json::parse(nlohmann::json(state).dump()).template get<State>();
}
Moments measured(const Vector& x) { return measure(gdpo::view(x)); }
std::string same_moments(const Moments& a, const Moments& b) {
  return difference(
      Vector{static_cast<double>(a.n), a.weight, a.mean, a.mean_low, a.m2, a.min, a.max},
      Vector{static_cast<double>(b.n), b.weight, b.mean, b.mean_low, b.m2, b.min, b.max});
}
Vector random_rewards(Random& random, int n) {
  Vector x;
  const int kind = random.below(4);
  for (int i = 0; i < n; ++i) x.push_back(random_reward(random, kind));
  return x;
}
/// Cuts numbers into consecutive parts, some of them empty.
std::vector<Vector> parts_of(Random& random, const Vector& all, int parts) {
  std::vector<Vector> cut(static_cast<std::size_t>(parts));
  std::size_t part = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    while (part + 1 < cut.size() && random.chance(0.2)) ++part;
    cut[part].push_back(all[i]);
  }
  return cut;
}
/// |got - expected| is at most the share `tolerance` of the largest magnitude.
bool near(real got, real expected, real tolerance, real size) {
  return std::fabs(got - expected) <= tolerance * size;
}

}  // namespace

TEST_CASE("running moments: by hand", "[update]") {
  const RunningMoments running{1, 0.5, 0, 2};
  Moments state;
  // Before the first step rewards stay as they are.
  CHECK((running.rule(state).mean == 0 && running.rule(state).std == 1));
  CHECK(running.std(state) == 0);
  CHECK(running.update(state, measured(Vector{1, 3})));
  CHECK((state.mean == 2 && running.std(state) == 1));
  CHECK(running.update(state, measured(Vector{6, 8, 2, missing})));
  CHECK((state.n == 5 && state.mean == 4));
  CHECK(running.std(state) == Approx(std::sqrt(34.0 / 5)));
  Vector rewards{4, 4 + 3.4, -100, missing};
  gdpo::update::shape_rewards(gdpo::view(rewards), {}, running.rule(state));
  CHECK(rewards[0] == 0);
  CHECK(rewards[1] == Approx(3.4 / (std::sqrt(34.0 / 5) + 0.5)));
  CHECK((rewards[2] == -2 && std::isnan(rewards[3])));
  // Half of the past: {0, 2} with the weight 1, then 5 and 5 with the weight 2.
  Moments half;
  const RunningMoments forgets{0.5};
  forgets.update(half, measured(Vector{0, 2}));
  forgets.update(half, measured(Vector{5, 5}));
  CHECK((half.n == 4 && half.weight == 3 && half.min == 0 && half.max == 5));
  CHECK(half.mean == Approx(11.0 / 3));
  CHECK(half.m2 == Approx(1 + 16.0 * 2 / 3));
  // Equal rewards have no spread: what divides is eps, or nothing.
  Moments equal;
  running.update(equal, measured(Vector{0.1, 0.1, 0.1}));
  CHECK((running.std(equal) == 0 && running.rule(equal).std == 0.5));
  CHECK(RunningMoments{1, 0}.rule(equal).std == 1);
}

TEST_CASE("running moments: any partition of a run gives the moments of the whole", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Vector all = random_rewards(random, 2 + random.below(200));
    const double shift = random.pick({0.0, 0.0, 1e5});
    for (double& x : all) x += shift;
    const RunningMoments running;
    const Moments whole = measure(gdpo::view(all));
    Moments state;
    for (const Vector& step : parts_of(random, all, 1 + random.below(12)))
      CHECK(running.update(state, measure(gdpo::view(step))) == !step.empty());
    CHECK((state.n == whole.n && state.weight == whole.weight));
    CHECK((state.min == whole.min && state.max == whole.max));
    CHECK(near(state.mean, whole.mean, tolerance::merge, std::fabs(whole.mean) + 1e-300));
    CHECK(near(running.std(state), running.std(whole), tolerance::merge, running.std(whole)));

    // The rows of a step in another order, and unused ones among them: the same bits.
    Vector mixed = all;
    Vector used(mixed.size(), 1.0);
    for (int k = 0; k < 3; ++k) mixed.push_back(infinity), used.push_back(0);
    mixed.push_back(missing), used.push_back(1);
    std::vector<std::size_t> order(mixed.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    random.shuffle(order);
    Vector moved, flags;
    for (const std::size_t i : order) moved.push_back(mixed[i]), flags.push_back(used[i]);
    CHECK(same_moments(measure(gdpo::view(moved), gdpo::view(flags)), whole) == "");
  }
}

TEST_CASE("running moments: the past fades by its decay", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const RunningMoments running{0.1 + 0.9 * random.uniform(), 0, random.below(2)};
    std::vector<Vector> steps;
    Moments state;
    for (int t = 0; t < 8; ++t) {
      steps.push_back(random_rewards(random, random.below(6)));
      running.update(state, measure(gdpo::view(steps.back())));
    }
    // Steps without numbers do not age the past.
    real weight = 0, mean = 0, square = 0, age = 1;
    std::vector<std::pair<real, real>> weighted;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      for (const double x : *step) weighted.emplace_back(age, x);
      if (!step->empty()) age *= running.decay;
    }
    for (const auto& [w, x] : weighted) weight += w, mean += w * x;
    if (weighted.empty()) continue;
    mean /= weight;
    for (const auto& [w, x] : weighted) square += w * (x - mean) * (x - mean);
    const real dof = weight - running.ddof;
    const real std = dof > 0 ? std::sqrt(square / dof) : 0;
    CHECK(near(state.weight, weight, 64 * tolerance::chain, weight));
    CHECK(near(state.mean, mean, 64 * tolerance::chain, 2));
    // weight - ddof may cancel digits.
    if (dof > 1e-3L || dof <= 0) CHECK(near(running.std(state), std, 1e-9L, 2 + std));
  }
}

TEST_CASE("running moments over ranks: all get the same bits, in rank order", "[update][dist]") {
  for (const int ranks : {1, 2, 5}) {
    Random random(static_cast<std::uint64_t>(ranks));
    const RunningMoments running{0.9};
    std::vector<Moments> states(static_cast<std::size_t>(ranks));
    Moments expected;
    for (int t = 0; t < 4; ++t) {
      const std::vector<Vector> rows = parts_of(random, random_rewards(random, 40), ranks);
      Moments step;
      for (const Vector& own : rows) step = merge(step, measure(gdpo::view(own)));
      running.update(expected, step);
      CHECK(test::on_ranks(ranks, [&](const test::ThreadRank& comm) {
              const auto r = static_cast<std::size_t>(comm.rank());
              running.update(states[r], gdpo::dist::all_merge(comm, measure(gdpo::view(rows[r]))));
            }) == std::vector<std::string>(static_cast<std::size_t>(ranks)));
      for (const Moments& state : states) CHECK(same_moments(state, expected) == "");
    }
  }
}

TEST_CASE("a state that was saved goes on with the same bits", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const RunningMoments running{random.pick({1.0, 0.97})};
    const EmaBaseline ema{random.uniform(), 0.25};
    const ReturnScale scale{random.uniform()};
    Moments m1, m2;
    EmaState e1, e2;
    ReturnScaleState r1, r2;
    for (int t = 0; t < 12; ++t) {
      const Vector x = random_rewards(random, 6);
      std::vector<int> roles;
      for (int i = 0; i < 6; ++i) roles.push_back(random.below(1 + t));
      Vector b1(6), b2(6), ended{0, 0, 1, 0, 0, 1};
      m2 = through_json(m2), e2 = through_json(e2), r2 = through_json(r2);
      running.update(m1, measure(gdpo::view(x))), running.update(m2, measure(gdpo::view(x)));
      ema.baselines_into(e1, gdpo::view(x), gdpo::view(roles), gdpo::view(b1));
      ema.baselines_into(e2, gdpo::view(x), gdpo::view(roles), gdpo::view(b2));
      scale.update(r1, scale.observe(r1, gdpo::view(x), gdpo::view(ended)));
      scale.update(r2, scale.observe(r2, gdpo::view(x), gdpo::view(ended)));
      CHECK(same_moments(m1, m2) == "");
      CHECK(difference(b1, b2) == "");
      CHECK(difference(e1.baseline, e2.baseline) == "");
      CHECK(e1.updates == e2.updates);
      CHECK(same_moments(r1.moments, r2.moments) == "");
      CHECK(difference(r1.returns, r2.returns) == "");
      CHECK(same_bits(scale.scale(r1), scale.scale(r2)));
    }
  }
  CHECK(message_of([] { nlohmann::json::parse("{\"n\": 3}").get<Moments>(); }) ==
        "gdpo::Moments from JSON: weight: given nothing; needed: what to_json() wrote");
  CHECK(message_of([] { nlohmann::json::parse("{\"baseline\": 3}").get<EmaState>(); }) ==
        "gdpo::EmaState from JSON: baseline: given 3; needed: a list");
  CHECK(message_of([] {
          nlohmann::json::parse("{\"baseline\": [1], \"updates\": [0.5]}").get<EmaState>();
        }) == "gdpo::EmaState from JSON: updates: given 0.5; needed: a whole number");
  // JSON has null for NaN and infinity.
  nlohmann::json spoiled = measured(Vector{1, 2});
  spoiled["m2"] = missing;
  spoiled = nlohmann::json::parse(spoiled.dump());
  CHECK(message_of([&] { spoiled.get<Moments>(); }) ==
        "gdpo::Moments from JSON: m2: given null; needed: a number");
  CHECK(message_of([] {
          nlohmann::json::parse("{\"baseline\": [null], \"updates\": [1]}").get<EmaState>();
        }) == "gdpo::EmaState from JSON: baseline: given null; needed: a number");
  CHECK(message_of([] {
          nlohmann::json::parse("{\"moments\": {\"n\": 0}, \"returns\": [\"1\"]}")
              .get<ReturnScaleState>();
        }) == "gdpo::ReturnScaleState from JSON: returns: given \"1\"; needed: a number");
  CHECK(message_of([] { nlohmann::json::parse("[]").get<Moments>(); }) ==
        "gdpo::Moments from JSON: n: given nothing; needed: what to_json() wrote");
  CHECK(message_of([] { nlohmann::json::parse("{}").get<ReturnScaleState>(); }) ==
        "gdpo::ReturnScaleState from JSON: moments: given nothing; needed: what to_json() wrote");
}

TEST_CASE("a baseline by role: by hand", "[update]") {
  const EmaBaseline ema{0.5, 2};
  EmaState state;
  const Vector x{4, missing, 8, 1, infinity, 6}, valid{1, 1, 1, 1, 1, 0};
  const std::vector<std::int64_t> roles{0, 0, 0, 3, 3, 3};
  Vector out(6);
  ema.baselines_into(state, gdpo::view(x), gdpo::view(roles), gdpo::view(out), gdpo::view(valid));
  CHECK(out == Vector{2, 3, 3, 2, 1.5, 1.5});
  CHECK(state.baseline == Vector{5.5, 2, 2, 1.5});
  CHECK(state.updates == std::vector<std::int64_t>{2, 0, 0, 1});
  // Over the rewards.
  EmaState other;
  Vector both = x;
  ema.baselines_into(other, gdpo::view(both), gdpo::view(roles), gdpo::view(both),
                     gdpo::view(valid));
  CHECK(both == out);
  CHECK(other.baseline == state.baseline);
  // As the caller's baseline.
  gdpo::RewardBatch batch{gdpo::view(x.data(), 1), gdpo::groups_of(1)};
  batch.baseline = gdpo::view(state.baseline.data(), 1);
  CHECK(gdpo::advantages(gdpo::seq, batch, gdpo::prime_rl::rae_advantage)[0] == -1.5);
}

TEST_CASE("a baseline by role: laws", "[update][dist]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int n = 1 + random.below(40);
    const EmaBaseline ema{random.uniform(), random.pick({0.0, 0.5})};
    Vector x = random_rewards(random, n), valid;
    std::vector<int> roles;
    for (int i = 0; i < n; ++i) {
      roles.push_back(random.below(4)), valid.push_back(random.chance(0.9));
      if (random.chance(0.1)) x[static_cast<std::size_t>(i)] = missing;
    }
    EmaState whole;
    Vector expected(x.size());
    ema.baselines_into(whole, gdpo::view(x), gdpo::view(roles), gdpo::view(expected),
                       gdpo::view(valid));
    // The sum over the past, from the formula: (1 - d) sum_k d^(n - 1 - k) x_k + d^n start.
    std::map<int, Vector> past;
    for (std::size_t i = 0; i < x.size(); ++i) {
      Vector& p = past[roles[i]];
      real b = 0, share = 1;
      for (auto k = p.rbegin(); k != p.rend(); ++k)
        b += (1 - real(ema.decay)) * share * real(*k), share *= real(ema.decay);
      b += share * real(ema.start);
      CHECK(near(expected[i], b, 64 * tolerance::formula, 2));
      if (valid[i] != 0 && !std::isnan(x[i])) p.push_back(x[i]);
    }
    // A batch in two calls, and one row at a time: the same bits.
    for (const int cut : {random.below(n + 1), 1}) {
      EmaState state;
      Vector out(x.size());
      for (int first = 0; first < n;) {
        const int count = std::min(cut == 1 ? 1 : first == 0 && cut > 0 ? cut : n, n - first);
        const auto at = [&](const auto& v) { return gdpo::view(v.data() + first, count); };
        ema.baselines_into(state, at(x), at(roles), gdpo::view(out.data() + first, count),
                           at(valid));
        first += count;
      }
      CHECK(difference(out, expected) == "");
      CHECK(difference(state.baseline, whole.baseline) == "");
    }
    // Rows of different roles may change places.
    std::vector<std::size_t> order(x.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return roles[a] < roles[b]; });
    Vector moved, flags, moved_expected, out(x.size());
    std::vector<int> moved_roles;
    for (const std::size_t i : order) {
      moved.push_back(x[i]), flags.push_back(valid[i]), moved_roles.push_back(roles[i]);
      moved_expected.push_back(expected[i]);
    }
    EmaState state;
    ema.baselines_into(state, gdpo::view(moved), gdpo::view(moved_roles), gdpo::view(out),
                       gdpo::view(flags));
    CHECK(difference(out, moved_expected) == "");

    // Rows on three ranks, gathered by their number: every rank goes on with the same state.
    constexpr int ranks = 3;
    std::vector<std::vector<std::size_t>> own(ranks);
    for (std::size_t i = 0; i < x.size(); ++i)
      own[static_cast<std::size_t>(random.below(ranks))].push_back(i);
    std::vector<Vector> got(ranks), wanted(ranks);
    std::vector<EmaState> states(ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      for (const std::size_t i : own[r]) wanted[r].push_back(expected[i]);
    CHECK(test::on_ranks(ranks, [&](const test::ThreadRank& comm) {
            const auto r = static_cast<std::size_t>(comm.rank());
            Vector table, mine;  // reward and role
            std::vector<int> ids, keys;
            for (const std::size_t i : own[r]) {
              table.insert(table.end(), {x[i], static_cast<double>(roles[i])});
              mine.push_back(valid[i]), ids.push_back(0), keys.push_back(static_cast<int>(i));
            }
            gdpo::RewardBatch batch{
                gdpo::view(table.data(), static_cast<index_t>(own[r].size()), 2), gdpo::by_id(ids)};
            batch.valid = gdpo::view(mine);
            const auto all = gdpo::dist::gather_rows(comm, batch, gdpo::view(keys));
            const auto rows = all.batch();
            std::vector<int> every_role;
            for (index_t i = 0; i < all.rows(); ++i)
              every_role.push_back(static_cast<int>(rows.rewards(i, 1)));
            Vector every(every_role.size());
            ema.baselines_into(states[r], gdpo::column<const double>(rows.rewards, 0),
                               gdpo::view(every_role), gdpo::view(every), rows.valid);
            got[r] = all.own(every);
          }) == std::vector<std::string>(ranks));
    for (std::size_t r = 0; r < ranks; ++r) {
      CHECK(difference(got[r], wanted[r]) == "");
      CHECK(difference(states[r].baseline, whole.baseline) == "");
    }
  }
}

TEST_CASE("the scale of returns: against the formula", "[update][dist]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int episodes = 1 + random.below(5), steps = 1 + random.below(30);
    const ReturnScale scale{random.uniform(), 1e-8, random.pick({0.0, 1e-4, 2.0}), 10};
    std::vector<real> sums(static_cast<std::size_t>(episodes), 0), seen;
    ReturnScaleState state;
    std::vector<ReturnScaleState> ranks(static_cast<std::size_t>(episodes));  // one episode each
    for (int t = 0; t < steps; ++t) {
      Vector x = random_rewards(random, episodes), ended;
      for (int e = 0; e < episodes; ++e) {
        const auto i = static_cast<std::size_t>(e);
        if (random.chance(0.1)) x[i] = missing;
        ended.push_back(random.chance(0.2));
        if (!std::isnan(x[i])) {
          sums[i] = real(scale.gamma) * sums[i] + real(x[i]);
          seen.push_back(sums[i]);
        }
        if (ended[i] != 0) sums[i] = 0;
      }
      scale.update(state, scale.observe(state, gdpo::view(x), gdpo::view(ended)));
      CHECK(test::on_ranks(episodes, [&](const test::ThreadRank& comm) {
              const auto r = static_cast<std::size_t>(comm.rank());
              const Moments mine = scale.observe(ranks[r], gdpo::view(x.data() + r, 1),
                                                 gdpo::view(ended.data() + r, 1));
              scale.update(ranks[r], gdpo::dist::all_merge(comm, mine));
            }) == std::vector<std::string>(ranks.size()));
      real weight = scale.prior, mean = 0, square = scale.prior;
      for (const real g : seen) mean += g, square += g * g, ++weight;
      if (weight == 0) continue;
      mean /= weight;
      const real expected = std::sqrt(square / weight - mean * mean + real(scale.eps));
      // E[x^2] - E[x]^2 of returns below 400 in long double, and eps below it.
      CHECK(near(scale.scale(state), expected, 1e-7L, 1 + expected));
      for (const ReturnScaleState& one : ranks) {
        CHECK(same_moments(one.moments, ranks[0].moments) == "");
        CHECK(near(scale.scale(one), scale.scale(state), tolerance::merge, scale.scale(state)));
      }
    }
    for (std::size_t e = 0; e < ranks.size(); ++e)
      CHECK(same_bits(ranks[e].returns[0], state.returns[e]));
    Vector x{3, -1e9};
    gdpo::update::shape_rewards(gdpo::view(x), {}, scale.rule(state));
    CHECK(x[0] == std::min(3 / scale.scale(state), 10.0));
    CHECK(x[1] == -10);
  }
  // Before the first step: the prior alone, or nothing.
  CHECK(ReturnScale{}.scale({}) == std::sqrt(1 + 1e-8));
  CHECK(ReturnScale{0.9, 0, 0}.scale({}) == 1);
  // An infinite reward starts its episode anew.
  ReturnScaleState state;
  const Vector x{infinity, 1}, y{1, 1};
  const ReturnScale scale{0.5};
  CHECK(scale.observe(state, gdpo::view(x)).n == 1);
  CHECK(scale.observe(state, gdpo::view(y)).n == 2);
  CHECK(state.returns == Vector{1, 1.5});
}

TEST_CASE("numbers that are not finite change no state", "[update]") {
  const RunningMoments running;
  Moments state = measured(Vector{1, 2, 4});
  const Moments before = state;
  for (const double bad : {infinity, -infinity, 1e308, 1e160}) {
    CHECK(running.update(state, measured(Vector{1, bad, -bad})) == false);
    CHECK(same_moments(state, before) == "");
  }
  CHECK(running.update(state, measured(Vector{missing})) == false);
  CHECK(running.update(state, Moments{}) == false);
  CHECK(same_moments(state, before) == "");
}

TEST_CASE("columns that are read are there", "[update]") {
  const gdpo::View<const double, 1> none{nullptr, {3}, {1}};
  const gdpo::View<const int, 1> no_roles{nullptr, {3}, {1}};
  const Vector three(3, 1.0);
  const std::vector<int> roles(3, 0);
  Vector out(3);
  EmaState ema;
  ReturnScaleState returns;
  CHECK(message_of([&] { measure(none); }) ==
        "gdpo::update::measure: values: given a null pointer; needed: (3) elements");
  CHECK(message_of([&] { ReturnScale{}.observe(returns, none); }) ==
        "gdpo::update::ReturnScale::observe: rewards: given a null pointer; needed: (3) elements");
  const std::string h = "gdpo::update::EmaBaseline::baselines_into: ";
  const auto baselines = [&](const gdpo::Column& rewards, const gdpo::IndexColumn& of_rows) {
    return message_of(
        [&] { EmaBaseline{}.baselines_into(ema, rewards, of_rows, gdpo::view(out)); });
  };
  CHECK(baselines(none, gdpo::view(roles)) ==
        h + "rewards: given a null pointer; needed: (3) elements");
  CHECK(baselines(gdpo::view(three), no_roles) ==
        h + "roles: given a null pointer; needed: (3) elements");
  CHECK(returns.returns.empty());
  CHECK(ema.baseline.empty());
}

TEST_CASE("states and settings that do not fit are refused", "[update]") {
  Moments state;
  const Moments step = measured(Vector{1, 2});
  const auto refused = [&](const RunningMoments& running) {
    return message_of([&] { running.update(state, step); });
  };
  const std::string f = "gdpo::update::RunningMoments::update: ";
  CHECK(refused({0}) == f + "decay: given 0; needed: more than 0 and at most 1 (1: all steps count "
                            "the same)");
  CHECK_THAT(refused({1, -1}), Catch::Matchers::ContainsSubstring(f + "eps: given -1"));
  CHECK_THAT(refused({1, 0, -1}), Catch::Matchers::ContainsSubstring(f + "ddof: given -1"));
  CHECK_THAT(refused({1, 0, 0, missing}), Catch::Matchers::ContainsSubstring(f + "bound: given "));
  CHECK(state.n == 0);
  state = step, state.mean = infinity;
  CHECK_THAT(refused({}), Catch::Matchers::ContainsSubstring(
                              f + "state: given moments of 2 numbers, weight 2, mean inf"));
  // Every number of a state is looked at, also of an empty one.
  for (double Moments::*const member : {&Moments::weight, &Moments::mean, &Moments::mean_low,
                                        &Moments::m2, &Moments::min, &Moments::max}) {
    state = step, state.*member = missing;
    CHECK_THAT(refused({}), Catch::Matchers::ContainsSubstring(f + "state: given moments of 2"));
  }
  for (double Moments::*const member :
       {&Moments::weight, &Moments::mean, &Moments::mean_low, &Moments::m2}) {
    state = {}, state.*member = 1;
    CHECK_THAT(refused({}), Catch::Matchers::ContainsSubstring(f + "state: given moments of 0"));
  }
  state = step, state.n = -2;
  CHECK_THAT(refused({}), Catch::Matchers::ContainsSubstring(f + "state: given moments of -2"));
  // A step that no numbers have would spoil the state.
  for (double Moments::*const member : {&Moments::weight, &Moments::m2}) {
    state = step;
    Moments bad = step;
    bad.*member = -1;
    CHECK_THAT(message_of([&] { RunningMoments{}.update(state, bad); }),
               Catch::Matchers::ContainsSubstring(f + "step: given moments of 2 numbers"));
    bad = step, bad.n = -2;
    CHECK_THAT(message_of([&] { RunningMoments{}.update(state, bad); }),
               Catch::Matchers::ContainsSubstring(f + "step: given moments of -2 numbers"));
    CHECK(same_moments(state, step) == "");
  }
  const Vector three{1, 2, 3}, two{1, 0};
  CHECK(message_of([&] { measure(gdpo::view(three), gdpo::view(two)); }) ==
        "gdpo::update::measure: valid: given 2 entries; needed: one for each of the 3 rows");

  const std::string g = "gdpo::update::EmaBaseline::baselines_into: ";
  EmaState ema{};
  Vector out{7, 7, 7};
  const auto fails = [&](const EmaBaseline& e, const std::vector<int>& roles, const Vector& x) {
    const std::string message = message_of(
        [&] { e.baselines_into(ema, gdpo::view(x), gdpo::view(roles), gdpo::view(out)); });
    CHECK(out == Vector{7, 7, 7});
    return message;
  };
  CHECK_THAT(fails({1}, {0, 0, 0}, three),
             Catch::Matchers::ContainsSubstring(g + "decay: given 1"));
  CHECK_THAT(fails({0.5, infinity}, {0, 0, 0}, three),
             Catch::Matchers::ContainsSubstring(g + "start: given inf"));
  CHECK(fails({}, {0, 0}, three) ==
        g + "roles: given 2 entries; needed: one for each of the 3 rows");
  CHECK(fails({}, {0, 0, 0}, two) ==
        g + "roles: given 3 entries; needed: one for each of the 2 rows");
  CHECK(fails({}, {0, 0}, two) == g + "out: given 3 entries; needed: one for each of the 2 rows");
  CHECK(fails({}, {0, 1048576, 0}, three) ==
        g + "roles(1): given 1048576; needed: a number from 0 to below 1048576");
  CHECK(fails({}, {0, 0, -1}, three) ==
        g + "roles(2): given -1; needed: a number from 0 to below 1048576");
  CHECK(ema.baseline.empty());
  ema.baseline = {missing}, ema.updates = {1};
  CHECK_THAT(fails({}, {0, 0, 0}, three),
             Catch::Matchers::ContainsSubstring(g + "state.baseline[0]: given "));
  ema.baseline = {1, 2}, ema.updates = {3, -1};
  CHECK(fails({}, {0, 0, 0}, three) ==
        g + "state.updates[1]: given -1; needed: a count of at least 0");
  ema.baseline = {1}, ema.updates = {};
  CHECK(fails({}, {0, 0, 0}, three) ==
        g + "state: given 1 baselines and 0 counts; needed: one of each for every role");

  const std::string h = "gdpo::update::ReturnScale::observe: ";
  ReturnScaleState returns;
  const auto seen = [&](const ReturnScale& s, const Vector& x, const Vector& ended) {
    return message_of([&] { s.observe(returns, gdpo::view(x), gdpo::view(ended)); });
  };
  CHECK_THAT(seen({1.5}, three, three), Catch::Matchers::ContainsSubstring(h + "gamma: given 1.5"));
  CHECK_THAT(seen({1, -1}, three, three), Catch::Matchers::ContainsSubstring(h + "eps: given -1"));
  CHECK_THAT(seen({1, 0, -1}, three, three),
             Catch::Matchers::ContainsSubstring(h + "prior: given -1"));
  CHECK(seen({}, three, two) == h + "ended: given 2 entries; needed: one for each of the 3 rows");
  CHECK(returns.returns.empty());
  CHECK(seen({}, three, three) == "no error");
  CHECK(seen({}, two, two) ==
        h + "rewards: given 2 entries; needed: one for each of the 3 episodes");
  returns.returns[1] = infinity;
  CHECK(seen({}, three, three) == h + "state.returns[1]: given inf; needed: a finite number");
}

}  // namespace running_test
