// Calls that shape rewards by their group, and of the objects that keep a state over the steps of a
// run.
#include <gdpo/update/ema_baseline.hpp>
#include <gdpo/update/return_scale.hpp>
#include <gdpo/update/running_moments.hpp>
#include <gdpo/update/shape_groups.hpp>

#include "fuzz/groupings.hpp"

namespace fuzz {
namespace {

/// One of the numbers, or, if hostile, one that nobody means.
double setting(Trial& t, std::initializer_list<double> options) {
  return t.in.hostile(12) ? odd_number(t.in) : t.in.pick(options);
}
bool at_least_0(double x) { return x >= 0 && std::isfinite(x); }
real as_real(double x) { return static_cast<real>(x); }
std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// A column of flags or numbers for all rows, or none.
template <class Value>
AnyColumn<double> maybe(Trial& t, unsigned of_256, index_t rows, const Value& value) {
  return t.in.chance(of_256) ? numbers_column(t, rows, 1, value) : AnyColumn<double>{};
}
bool used(const AnyColumn<double>& valid, index_t i) {
  return !valid.present || valid.numbers[at(i)] != 0;
}

// ---- shape_rewards by group ----

/// Kimi's length reward, and then a price of tokens by the share of right answers.
template <class T, class Grouping>
void shape_groups(Trial& t) {
  namespace shaping = gdpo::update::shaping;
  const Grouping groups(t);
  const auto rewards =
      t.in_place<T, 1>({groups.rows}, [&] { return t.in.chance(12) ? nan : t.in.number(); });
  const std::vector<double> before = rewards->numbers();
  const index_t rows = rewards->extent(0);
  const bool odd = t.in.hostile(24);
  const auto lengths = maybe(t, 240, groups.rows, [&] {
    return odd && t.in.chance(64) ? odd_number(t.in) : t.in.below(10);
  });
  const auto valid = maybe(t, 64, groups.rows, [&] { return t.in.below(4) < 3; });
  shaping::RelativeLength by_length;
  by_length.weight = setting(t, {1, 0.5, 0}), by_length.right = setting(t, {0, 0.25});
  shaping::SolveRateLength by_rate;
  by_rate.alpha = setting(t, {0.25, 0}), by_rate.right = setting(t, {0, 0.5});
  t.need(at_least_0(by_length.weight) && at_least_0(by_rate.alpha), "a weight");
  t.need(std::isfinite(by_length.right) && std::isfinite(by_rate.right), "right");
  t.need(rewards->sound() && !rewards->repeats(), "rewards");
  t.need(rows <= 1 || !rewards->large(), "a stride that is not 0");
  t.need(groups.fits(rows), "groups");
  t.need(lengths.fits(rows) && (lengths.present || rows == 0), "lengths");
  t.need(valid.fits(rows), "valid");
  for (const double n : lengths.numbers) t.need(at_least_0(n), "counts");
  t.leave_out_if(groups.large());
  gdpo::update::ShapedRewards result;
  if (!t.make_call(
          {"gdpo::update::shape_rewards", "gdpo::by_id", "gdpo::groups_of", "gdpo::Column"}, [&] {
            shaping::Columns columns;
            columns.lengths = lengths.make(), columns.valid = valid.make();
            result = gdpo::update::shape_rewards(rewards->view(), groups.make(), columns, by_length,
                                                 by_rate);
          }))
    return;
  std::map<long long, std::vector<index_t>> members;
  index_t missing = 0;
  for (index_t i = 0; i < rows; ++i) {
    members[groups.group(i)].push_back(i);
    missing += std::isnan(before[at(i)]);
  }
  t.compare("missing", static_cast<real>(result.missing), static_cast<real>(missing), 0);
  const std::vector<double> after = rewards->numbers();
  for (const auto& [group, all] : members) {
    real low = as_real(infinity), high = -low, n = 0, right = 0;
    const auto enters = [&](index_t i) { return used(valid, i) && !std::isnan(before[at(i)]); };
    const auto share_of = [&](index_t i) {
      real share = 0.5L - (as_real(lengths.numbers[at(i)]) - low) / (high - low);
      if (!(before[at(i)] > by_length.right)) share = std::fmin(share, 0.0L);
      return high > low ? as_real(before[at(i)]) + as_real(by_length.weight) * share
                        : as_real(before[at(i)]);
    };
    for (const index_t i : all) {
      if (!enters(i)) continue;
      low = std::fmin(low, as_real(lengths.numbers[at(i)]));
      high = std::fmax(high, as_real(lengths.numbers[at(i)]));
    }
    bool decided = true;  // whether no rounding decides which answers are right
    for (const index_t i : all) {
      if (!enters(i)) continue;
      const real x = share_of(i) - as_real(by_rate.right);
      ++n, right += x > 0, decided = decided && (x == 0 ? !(high > low) : std::fabs(x) > 1e-12L);
    }
    for (const index_t i : all) {
      if (std::isnan(before[at(i)]) || n == 0 || !decided) {
        if (n == 0) t.compare("no used row", after[at(i)], as_real(before[at(i)]), 0);
        continue;
      }
      const real price = as_real(by_rate.alpha) * std::fmax(right, 1.0L) / n,
                 x = share_of(i) - price * as_real(lengths.numbers[at(i)]);
      t.compare("reward", after[at(i)], x,
                (std::is_same_v<T, float> ? 1e-6L : 1e-13L) * (8 + std::fabs(x)));
    }
  }
}

// ---- RunningMoments ----

void running_moments(Trial& t) {
  gdpo::update::RunningMoments running;
  running.decay = setting(t, {1, 0.5, 0.75}), running.eps = setting(t, {0.25, 1e-8, 0});
  running.ddof = t.in.hostile(12) ? -1 : t.in.below(2);
  running.bound = t.in.hostile(12) ? t.in.pick({-1.0, nan}) : t.in.pick({infinity, 2.0});
  t.need(running.decay > 0 && running.decay <= 1, "decay");
  t.need(at_least_0(running.eps) && running.ddof >= 0 && running.bound >= 0, "settings");
  gdpo::Moments state;
  std::vector<std::array<real, 2>> seen;  // numbers and their weights
  const int steps = 1 + t.in.below(3);
  bool moves = true;
  if (t.in.hostile(24)) {
    state.n = 1, state.weight = 1;
    double* const of[] = {&state.mean, &state.m2, &state.weight};
    *of[t.in.below(3)] = t.in.pick({nan, infinity});
    state.min = state.max = state.mean;
    t.need(false, "a state of finite numbers");
  }
  for (int s = 0; s < steps; ++s) {
    const index_t rows = t.in.below(5);
    const auto values = numbers_column(t, rows, 1, [&] {
      return t.in.chance(12) ? t.in.pick({nan, infinity, nan}) : t.in.number();
    });
    const auto valid = maybe(t, 64, rows, [&] { return t.in.below(4) < 3; });
    const real size = values.constructible ? values.size : 0;
    t.need(values.constructible && size >= 0 && size <= most_elements, "values");
    t.need(values.present || size == 0, "values");
    t.need(valid.constructible && (!valid.present || valid.size == size), "valid");
    t.leave_out_if(values.large);
    if (!t.make_call(
            {"gdpo::update::RunningMoments::update", "gdpo::update::measure", "gdpo::Column"}, [&] {
              const auto step = gdpo::update::measure(values.make(), valid.make());
              moves = running.update(state, step);
            }))
      return;
    std::vector<std::array<real, 2>> now = seen;
    for (auto& [x, weight] : now) weight *= as_real(running.decay);
    bool finite = true;
    index_t there = 0;
    for (std::size_t i = 0; i < values.numbers.size(); ++i) {
      const double x = values.numbers[i];
      if (std::isnan(x) || !used(valid, static_cast<index_t>(i))) continue;
      finite = finite && std::isfinite(x), ++there;
      now.push_back({as_real(x), 1});
    }
    t.compare("moves", moves, there > 0 && finite, 0);
    if (there > 0 && finite) seen = now;
  }
  real weight = 0, mean = 0, squares = 0;
  for (const auto& [x, w] : seen) weight += w, mean += w * x;
  if (weight > 0) mean /= weight;
  for (const auto& [x, w] : seen) squares += w * (x - mean) * (x - mean);
  t.compare("n", static_cast<real>(state.n), static_cast<real>(seen.size()), 0);
  t.compare("weight", state.weight, weight, 1e-13L * weight);
  if (weight > 0) t.compare("mean", state.mean, mean, 1e-13L * 4);
  const real dof = weight - running.ddof;
  if (dof > 1e-6L || weight == 0)
    t.compare("std", running.std(state), weight > 0 ? std::sqrt(squares / dof) : 0, 1e-6L);
}

// ---- EmaBaseline ----

template <class T>
void ema_baseline(Trial& t) {
  gdpo::update::EmaBaseline ema;
  ema.decay = setting(t, {0.5, 0, 0.75}), ema.start = setting(t, {0, 0.5});
  t.need(ema.decay >= 0 && ema.decay < 1 && std::isfinite(ema.start), "settings");
  gdpo::EmaState state;
  if (t.in.chance(64)) state.baseline = {1, -1}, state.updates = {3, 1};
  if (t.in.hostile(24)) {
    state.baseline.push_back(t.in.pick({0.5, nan, infinity}));
    if (t.in.chance(128)) state.updates.push_back(0);
  }
  t.need(state.updates.size() == state.baseline.size(), "a count for each baseline");
  for (const double b : state.baseline) t.need(std::isfinite(b), "finite baselines");
  const index_t rows = t.in.below(7);
  const auto rewards = numbers_column(t, rows, 1, [&] {
    return t.in.chance(12) ? t.in.pick({nan, infinity}) : t.in.number();
  });
  const bool odd = t.in.hostile(24);
  const auto roles = column_of<index_t, std::int64_t>(t, std::array<index_t, 1>{rows}, [&] {
    return odd && t.in.chance(64) ? t.in.pick<index_t>({-1, index_t{1} << 20, index_t{1} << 40})
                                  : index_t{t.in.below(4)};
  });
  const auto valid = maybe(t, 64, rows, [&] { return t.in.below(4) < 3; });
  const auto out = t.output<T, 1>({rows});
  const index_t n = out->extent(0);
  t.need(out->sound(), "out");
  t.need(
      rewards.constructible && rewards.size == static_cast<real>(n) && (rewards.present || n == 0),
      "rewards");
  t.need(roles.constructible && roles.size == static_cast<real>(n) && (roles.present || n == 0),
         "roles");
  t.need(valid.fits(n), "valid");
  for (const real r : roles.integers) t.need(r >= 0 && r < 0x1p20L, "roles");
  t.leave_out_if(out->large() || roles.large || rewards.large);
  const gdpo::EmaState before = state;
  if (!t.make_call({"gdpo::update::EmaBaseline::baselines_into", "gdpo::Column"}, [&] {
        ema.baselines_into(state, rewards.make(), roles.make(), out->view(), valid.make());
      })) {
    if (t.outcome.did == Did::Refused &&
        (state.updates != before.updates || state.baseline.size() != before.baseline.size()))
      t.fail("refused, but moved");
    return;
  }
  std::map<index_t, real> baseline;
  for (std::size_t r = 0; r < before.baseline.size(); ++r)
    baseline[static_cast<index_t>(r)] = as_real(before.baseline[r]);
  const std::vector<double> got = out->numbers();
  for (index_t i = 0; i < n; ++i) {
    const auto role = static_cast<index_t>(roles.integers[at(i)]);
    real& b = baseline.emplace(role, as_real(ema.start)).first->second;
    t.compare("baseline", got[at(i)], b, 1e-6L);
    const double x = rewards.numbers[at(i)];
    if (std::isfinite(x) && used(valid, i))
      b = as_real(ema.decay) * b + (1 - as_real(ema.decay)) * as_real(x);
  }
  for (const auto& [role, b] : baseline) t.compare("state", state.baseline[at(role)], b, 1e-12L);
}

// ---- ReturnScale ----

void return_scale(Trial& t) {
  gdpo::update::ReturnScale scale;
  scale.gamma = setting(t, {0.5, 1, 0}), scale.eps = setting(t, {0.25, 1e-8});
  scale.prior = setting(t, {1e-4, 0, 1});
  t.need(scale.gamma >= 0 && scale.gamma <= 1, "gamma");
  t.need(at_least_0(scale.eps) && at_least_0(scale.prior), "eps and prior");
  gdpo::ReturnScaleState state;
  const index_t episodes = 1 + t.in.below(4);
  if (t.in.chance(64)) state.returns.assign(at(episodes), 0.5);
  if (t.in.hostile(24)) state.returns.push_back(t.in.pick({nan, 0.5, infinity}));
  const auto rewards =
      numbers_column(t, episodes, 1, [&] { return t.in.chance(12) ? nan : t.in.number(); });
  const auto ended = maybe(t, 96, episodes, [&] { return t.in.below(2); });
  t.need(rewards.constructible && rewards.size >= 0 && rewards.size <= most_elements, "rewards");
  t.need(rewards.present || rewards.size == 0, "rewards");
  const bool is_new = state.returns.empty();
  t.need(is_new || rewards.size == static_cast<real>(state.returns.size()), "as many episodes");
  t.need(ended.constructible && (!ended.present || ended.size == rewards.size), "ended");
  for (const double g : state.returns) t.need(std::isfinite(g), "a finite state");
  t.leave_out_if(rewards.large);
  const std::vector<double> before = state.returns;
  if (!t.make_call({"gdpo::update::ReturnScale::observe", "gdpo::update::ReturnScale::update",
                    "gdpo::Column"},
                   [&] {
                     const gdpo::Moments step = scale.observe(state, rewards.make(), ended.make());
                     scale.update(state, step);
                   }))
    return;
  real n = 0, sum = 0, squares = 0;
  for (std::size_t e = 0; e < rewards.numbers.size(); ++e) {
    const double r = rewards.numbers[e];
    real g = is_new ? 0 : as_real(before[e]);
    if (!std::isnan(r))
      g = as_real(scale.gamma) * g + as_real(r), n += 1, sum += g, squares += g * g;
    if (ended.present && ended.numbers[e] != 0) g = 0;
    t.compare("return", state.returns[e], g, 1e-13L);
  }
  t.compare("numbers", static_cast<real>(state.moments.n), n, 0);
  const real prior = as_real(scale.prior), weight = n + prior;
  if (weight == 0) return;
  const real mean = sum / weight, variance = (squares + prior) / weight - mean * mean;
  const real std = std::sqrt(variance + as_real(scale.eps));
  if (std > 1e-6L) t.compare("scale", scale.scale(state), std, 1e-9L);
}

}  // namespace

const std::vector<Case>& state_cases() {
  static const std::vector<Case> cases{{"shape_rewards, groups", shape_groups<float, OfSize>},
                                       {"shape_rewards, groups", shape_groups<double, SameId<int>>},
                                       {"RunningMoments", running_moments},
                                       {"EmaBaseline", ema_baseline<float>},
                                       {"ReturnScale", return_scale}};
  return cases;
}

}  // namespace fuzz
