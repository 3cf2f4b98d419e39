// Calls with rewards in groups that need more than groups: rollouts, gigpo and explain.
#include <gdpo/advantage/explain.hpp>
#include <gdpo/advantage/gigpo.hpp>
#include <gdpo/advantages.hpp>
#include <reference/naive.hpp>
#include <support/tolerance.hpp>

#include "fuzz/groupings.hpp"

namespace fuzz {
namespace {

/// Rewards in groups, with an optional column of used rows.
template <class T, class Grouping>
struct Rows {
  const Grouping groups;
  const Array<T, 2> rewards;
  index_t rows, reward_count;
  AnyColumn<double> valid;

  explicit Rows(Trial& t)
      : groups(t),
        rewards(t.filled<T, 2>({groups.rows, t.in.pick<index_t>({2, 1, 3, 1})},
                               [&] { return t.in.chance(12) ? nan : t.in.number(); })),
        rows(rewards.extent(0)),
        reward_count(rewards.extent(1)) {
    if (t.in.chance(64)) {
      valid = numbers_column(t, groups.rows, 1, [&] { return t.in.below(4) < 3; });
      t.need(valid.fits(rows), "valid");
    }
    t.need(rewards.sound(), "rewards");
    t.need(groups.fits(rows), "groups");
    t.leave_out_if(groups.large() || (rewards.large() && rewards.shape.sound()));
  }
  bool readable() const {
    return rewards.shape.sound() && !rewards.large() && groups.fits(rows) && !groups.large();
  }
  auto batch() const {
    gdpo::RewardBatch made{rewards.view(), groups.make()};
    made.valid = valid.make();
    return made;
  }
  naive::Data data() const {
    naive::Data d;
    d.rows = static_cast<int>(rows), d.reward_count = static_cast<int>(reward_count);
    d.rewards = rewards.numbers();
    for (index_t i = 0; i < rows; ++i) d.ids.push_back(groups.group(i));
    if (valid.present) d.valid = valid.numbers;
    return d;
  }
  /// Ids of rollouts, each of one group unless they are hostile.
  Array<std::int32_t, 1> ids(Trial& t) const {
    const bool inside = readable() && rows > 0, mixed = t.in.hostile(16);
    index_t next = 0;
    auto made = t.filled<std::int32_t, 1>({groups.rows}, [&] {
      const index_t i = next++;
      const long long group = inside && i < rows && !mixed ? groups.group(i) : 0;
      return static_cast<std::int32_t>(3 * group) + t.in.below(3);
    });
    t.need(made.sound() && made.extent(0) == rows, "ids");
    t.leave_out_if(made.large() && made.sound());  // it copies them
    if (inside && made.readable() && made.extent(0) == rows) {
      std::map<double, long long> group_of;
      const std::vector<double> all = made.numbers();
      for (index_t i = 0; i < rows; ++i) {
        const auto at = group_of.emplace(all[static_cast<std::size_t>(i)], groups.group(i)).first;
        t.need(at->second == groups.group(i), "rollouts of one group");
      }
    }
    return made;
  }
};
std::vector<long long> integers_of(const Array<std::int32_t, 1>& ids) {
  std::vector<long long> all;
  for (const double id : ids.numbers()) all.push_back(static_cast<long long>(id));
  return all;
}

// ---- rollouts ----

template <class T, class Grouping>
void rollouts(Trial& t) {
  const Rows<T, Grouping> r(t);
  const auto ids = r.ids(t);
  const auto k = static_cast<std::size_t>(t.in.below(5));
  constexpr gdpo::Take of[] = {gdpo::Take::Last, gdpo::Take::First, gdpo::Take::Sum,
                               gdpo::Take::Mean, gdpo::Take::Max};
  constexpr naive::Take expected_of[] = {naive::Take::Last, naive::Take::First, naive::Take::Sum,
                                         naive::Take::Mean, naive::Take::Max};
  AnyColumn<double> tokens;
  if (t.in.chance(64)) {
    tokens = numbers_column(t, r.groups.rows, 1, [&] { return t.in.below(9); });
    t.need(tokens.fits(r.rows), "tokens");
  }
  gdpo::Rollouts<T, decltype(r.groups.make())> got;
  if (!t.make_call({"gdpo::rollouts", "gdpo::by_id", "gdpo::groups_of", "gdpo::Column"}, [&] {
        auto batch = r.batch();
        batch.tokens = tokens.make();
        got = gdpo::rollouts(batch, ids.view(), of[k]);
      }))
    return;
  naive::Data data = r.data();
  if (tokens.present) data.tokens = tokens.numbers;
  std::vector<int> rollout_of;
  const naive::Data one = naive::rollouts(data, integers_of(ids), expected_of[k], rollout_of);
  t.compare("rollouts", static_cast<real>(got.count()), one.rows, 0);
  t.compare("rows", static_cast<real>(got.rows()), static_cast<real>(r.rows), 0);
  if (!t.outcome.failure.empty()) return;
  std::vector<double> numbers;
  for (int m = 0; m < one.rows; ++m) {
    numbers.push_back(m);
    for (int c = 0; c < one.reward_count; ++c) {
      const real x =
          static_cast<real>(one.rewards[static_cast<std::size_t>(m * one.reward_count + c)]);
      t.compare("reward", got.batch().rewards(m, c), x, 1e-7L * std::fabs(x));
    }
    const auto at = static_cast<std::size_t>(m);
    if (tokens.present) {
      const real x = static_cast<real>(one.tokens[at]);
      t.compare("tokens", got.batch().tokens(m), x, 1e-12L * x);
    }
    if (r.valid.present) t.compare("valid", got.batch().valid(m) != 0, one.valid[at] != 0, 0);
  }
  const std::vector<double> spread = got.spread(numbers);
  for (std::size_t i = 0; i < rollout_of.size(); ++i)
    t.compare("rollout of a row", spread[i], rollout_of[i], 0);
}

// ---- gigpo ----

/// The weighted sum less its mean in the group, which both terms are here.
naive::Settings of_dr_grpo() {
  naive::Settings s;
  s.scale = naive::Scale::None, s.combine = naive::Combine::SumThenNormalize;
  s.renorm = naive::Renorm::None;
  return s;
}
/// The discounted return of each step, by the sum that defines it.
void discount(naive::Data& d, const std::vector<int>& episode, double gamma) {
  const std::vector<double> rewards = d.rewards;
  const auto is_step = [&](int i) {
    return d.valid.empty() || d.valid[static_cast<std::size_t>(i)] != 0;
  };
  for (int i = 0; i < d.rows; ++i) {
    for (int c = 0; c < d.reward_count; ++c) {
      real sum = 0, factor = 1;
      bool any = false;
      for (int j = i; j < d.rows; ++j) {
        if (episode[static_cast<std::size_t>(j)] != episode[static_cast<std::size_t>(i)] ||
            (j > i && !is_step(j)))
          continue;
        const double x = rewards[static_cast<std::size_t>(j * d.reward_count + c)];
        if (!std::isnan(x) && factor > 0) sum += factor * static_cast<real>(x), any = true;
        factor *= static_cast<real>(gamma);
      }
      d.rewards[static_cast<std::size_t>(i * d.reward_count + c)] =
          any ? static_cast<double>(sum) : nan;
    }
  }
}

template <class Grouping, class Exec>
void gigpo(Trial& t) {
  const Rows<double, Grouping> r(t);
  const auto episodes = r.ids(t);
  const auto states =
      t.filled<std::int64_t, 1>({r.groups.rows}, [&] { return index_t{t.in.below(3)} << 40; });
  t.need(states.sound() && states.extent(0) == r.rows, "states");
  t.leave_out_if(states.large() && states.sound());
  gdpo::Gigpo<gdpo::DrGrpo> e;
  e.gamma = t.in.hostile(12) ? odd_number(t.in) : t.in.pick({1.0, 0.5, 0.0});
  e.omega = t.in.hostile(12) ? odd_number(t.in) : t.in.pick({1.0, -0.5, 0.0});
  e.pool_states = t.in.chance(96);
  t.need(e.gamma >= 0 && e.gamma <= 1, "gamma");
  t.need(std::isfinite(e.omega), "omega");
  const auto out = t.output<double, 1>({r.groups.rows});
  t.need(out->sound() && out->extent(0) == r.rows, "out");
  gdpo::GigpoWorkspace<double, decltype(r.groups.make())> workspace;
  if (!t.make_call({"gdpo::gigpo", "gdpo::rollouts", "gdpo::advantages", "gdpo::by_id",
                    "gdpo::groups_of", "gdpo::Column"},
                   [&] {
                     gdpo::gigpo_into(Exec{}, r.batch(), episodes.view(), states.view(), e,
                                      out->view(), workspace);
                   }))
    return;
  std::vector<int> episode;
  naive::Data steps = r.data();
  const naive::Data whole =
      naive::rollouts(steps, integers_of(episodes), naive::Take::Sum, episode);
  discount(steps, episode, e.gamma);
  const std::vector<double> state = states.numbers();
  for (int i = 0; i < steps.rows; ++i) {
    long long& id = steps.ids[static_cast<std::size_t>(i)];
    id = (e.pool_states ? 0 : 8 * id) + (std::llround(state[static_cast<std::size_t>(i)]) >> 40);
  }
  const naive::Result of_episodes = naive::advantages(of_dr_grpo(), whole),
                      of_steps = naive::advantages(of_dr_grpo(), steps);
  const std::vector<double> got = out->numbers();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const real step = e.omega == 0 ? 0 : static_cast<real>(e.omega) * of_steps.advantages[i];
    t.compare("advantage", got[i],
              of_episodes.advantages[static_cast<std::size_t>(episode[i])] + step, 1e-12L);
  }
}

// ---- explain ----

template <class T, class Grouping, class Estimator>
void explain(Trial& t) {
  const Rows<T, Grouping> r(t);
  Estimator e;
  choose_weights_and_gates(t, e, r.reward_count);
  const index_t count = r.readable() ? r.groups.count(r.rows) : 3;
  const index_t usual = count > 0 ? t.in.below(static_cast<int>(count)) : 0;
  const index_t group = t.in.hostile(24) ? odd_extent(t.in, usual) : usual;
  t.need(group >= 0 && group < count, "group");
  gdpo::Explanation got;
  if (!t.make_call({"gdpo::explain", "gdpo::by_id", "gdpo::groups_of", "gdpo::Column"},
                   [&] { got = gdpo::explain(r.batch(), e, group); }))
    return;
  const auto all = gdpo::advantages(gdpo::simd, r.batch(), e);
  std::vector<double> members;
  for (index_t i = 0; i < r.rows; ++i) {
    if (r.groups.group(i) == group) members.push_back(static_cast<double>(i));
  }
  t.compare("members", static_cast<real>(got.rows.size()), static_cast<real>(members.size()), 0);
  if (!t.outcome.failure.empty()) return;
  for (std::size_t k = 0; k < members.size(); ++k) {
    const auto row = static_cast<std::size_t>(members[k]);
    t.compare("row", static_cast<real>(got.rows[k]), static_cast<real>(row), 0);
    t.compare("advantage", got.advantage[k], static_cast<real>(all[row]), 0);
    if (got.equal || got.excluded[k]) continue;
    real sum = 0;
    for (const gdpo::ExplainedColumn& column : got.columns)
      if (!std::isnan(column.weighted[k])) sum += static_cast<real>(column.weighted[k]);
    t.compare("sum", got.sum[k], sum, 1e-12L * (1 + std::fabs(sum)));
  }
}

}  // namespace

const std::vector<Case>& rollout_cases() {
  using gdpo::Seq, gdpo::Simd;
  static const std::vector<Case> cases{
      {"rollouts", rollouts<float, OfSize>},
      {"rollouts", rollouts<double, SameId<std::int64_t>>},
      {"rollouts", rollouts<float, Between<std::int32_t>>},
      {"gigpo", gigpo<OfSize, Simd>},
      {"gigpo", gigpo<SameId<int>, Seq>},
      {"explain", explain<float, OfSize, gdpo::Gdpo>},
      {"explain", explain<double, SameId<int>, gdpo::Grpo>},
      {"explain", explain<double, Between<std::int64_t>, gdpo::Rloo>}};
  return cases;
}

}  // namespace fuzz
