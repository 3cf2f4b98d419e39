// Calls with rewards in groups: advantages and per_row.
#include <gdpo/advantages.hpp>
#include <support/row_settings.hpp>
#include <support/tolerance.hpp>

#include "fuzz/groupings.hpp"

namespace fuzz {
namespace {

// ---- advantages ----

/// Whether an estimator reads the tokens or the baselines of the rows.
template <class Estimator>
bool reads_tokens(const Estimator& e) {
  return e.renorm.over == gdpo::RenormOver::Tokens ||
         std::is_same_v<decltype(Estimator::baseline), gdpo::baseline::LengthWeighted>;
}
template <class Estimator>
constexpr bool reads_baselines =
    std::is_same_v<decltype(Estimator::baseline), gdpo::baseline::External>;

/// Sets weights, gates and a penalty, and says what they need.
template <class Estimator>
void choose_settings(Trial& t, Estimator& e, index_t reward_count, index_t rows,
                     const AnyColumn<double>& penalty) {
  constexpr bool sums_first = std::is_same_v<decltype(e.combine), gdpo::combine::SumThenNormalize>;
  choose_weights_and_gates(t, e, reward_count);
  if constexpr (reads_baselines<Estimator>) {
    using gdpo::EpsAt;
    e.scale.eps_at = t.in.pick(
        {EpsAt::StdOrOne, EpsAt::Std, EpsAt::None, EpsAt::Var, EpsAt::ClampStd, EpsAt::ClampVar});
    e.scale.eps = t.in.hostile(12) ? odd_number(t.in) : 0.25;
    t.need(e.scale.eps >= 0 && std::isfinite(e.scale.eps), "scale.eps");
  }
  if (t.in.chance(48)) {
    e.penalty.coef = t.in.hostile(32) ? odd_number(t.in) : 0.25;
    e.penalty.reward = sums_first ? -1 : 0;
    if (t.in.hostile(32)) e.penalty.reward = odd_extent(t.in, e.penalty.reward);
    t.need(std::isfinite(e.penalty.coef), "penalty.coef");
    if (e.penalty.coef != 0) {
      t.need(penalty.present || rows == 0, "batch.penalty");
      t.need(sums_first ? e.penalty.reward == -1
                        : e.penalty.reward >= 0 && e.penalty.reward < reward_count,
             "penalty.reward");
    }
  }
}

template <class T, class Result>
void compare_advantages(Trial& t, const naive::Settings& settings, const naive::Data& data,
                        const Result& got) {
  const naive::Result expected = naive::advantages(settings, data);
  if (std::isinf(expected.sensitivity)) return;  // rounding decides between 0 and 1 / 0
  t.compare("rows", static_cast<real>(got.size()), static_cast<real>(data.rows), 0);
  for (std::size_t i = 0; i < got.size(); ++i) {
    real tolerance = tolerance::chain * expected.sensitivity;
    if (std::is_same_v<gdpo::result_t<T>, float>)
      tolerance += tolerance::to_float * (1 + std::fabs(expected.advantages[i]));
    t.compare("advantage", got[i], expected.advantages[i], tolerance);
  }
}

/// Rewards of T in groups, by both forms of the call.
template <class T, class Grouping, class Estimator, class Exec,
          gdpo::RenormOver Over = Estimator{}.renorm.over>
void advantages(Trial& t) {
  using Result = gdpo::result_t<T>;
  const Grouping groups(t);
  const index_t reward_count = t.in.pick<index_t>({2, 1, 3, 1, 2, 0});
  const auto reward = [&] {
    const double x = t.in.number();
    return std::is_integral_v<T> ? 4 * x : t.in.chance(6) ? nan : x;
  };
  Estimator e;
  if (Over == gdpo::RenormOver::None) e.renorm = gdpo::renorm::none();
  if (Over == gdpo::RenormOver::Tokens) e.renorm = gdpo::renorm::token_weighted_batch();
  const bool with_tokens = reads_tokens(e);
  naive::Data data;
  const auto give_data = [&](const auto& rewards, index_t rows, index_t columns) {
    data.rows = static_cast<int>(rows), data.reward_count = static_cast<int>(columns);
    data.rewards = rewards.numbers();
    for (index_t i = 0; i < rows; ++i) data.ids.push_back(groups.group(i));
  };
  const auto need_groups = [&](index_t rows) {
    t.need(groups.fits(rows), "groups");
    t.leave_out_if(groups.large());
  };

  if (t.in.chance(96)) {  // the short form, of one reward or several
    std::vector<Result> result;
    if (t.in.chance(96)) {
      const auto rewards = t.filled<T, 1>({groups.rows}, reward);
      t.need(rewards.sound(), "rewards");
      need_groups(rewards.extent(0));
      choose_settings(t, e, 1, rewards.extent(0), {});
      t.leave_out_if(rewards.large() && rewards.sound());  // the result would be as large
      if (with_tokens || reads_baselines<Estimator>)
        t.need(rewards.extent(0) == 0, "a batch with tokens or baselines");
      if (!t.make_call({"gdpo::advantages", "gdpo::by_id", "gdpo::groups_of"},
                       [&] { result = gdpo::advantages(rewards.view(), groups.make(), e); }))
        return;
      give_data(rewards, rewards.extent(0), 1);
    } else {
      const auto rewards = t.filled<T, 2>({groups.rows, reward_count}, reward);
      t.need(rewards.sound(), "rewards");
      need_groups(rewards.extent(0));
      choose_settings(t, e, rewards.extent(1), rewards.extent(0), {});
      t.leave_out_if(rewards.large() && rewards.shape.sound());
      if (with_tokens || reads_baselines<Estimator>)
        t.need(rewards.extent(0) == 0, "a batch with tokens or baselines");
      if (!t.make_call({"gdpo::advantages", "gdpo::by_id", "gdpo::groups_of"},
                       [&] { result = gdpo::advantages(rewards.view(), groups.make(), e); }))
        return;
      give_data(rewards, rewards.extent(0), rewards.extent(1));
    }
    return compare_advantages<T>(t, product::settings_of(e), data, result);
  }

  const auto rewards = t.filled<T, 2>({groups.rows, reward_count}, reward);
  const index_t rows = rewards.extent(0);
  const auto out = t.output<Result, 1>({groups.rows});
  AnyColumn<double> tokens, valid, penalty, baselines;
  const bool halves = groups.rows % 2 == 0;
  const auto column = [&](AnyColumn<double>& to, const auto& value) {
    to = numbers_column(t, halves ? groups.rows / 2 : groups.rows, halves ? 2 : 1, value);
    t.need(to.fits(rows), "a column");
  };
  if (t.in.chance(96) || with_tokens) {
    const bool odd = t.in.hostile(32);
    column(tokens, [&] { return odd && t.in.chance(64) ? odd_number(t.in) : t.in.below(9); });
    if (tokens.present && tokens.fits(rows)) {
      for (const double n : tokens.numbers) t.need(n >= 0 && std::isfinite(n), "a count");
    }
  }
  if (t.in.chance(64)) column(valid, [&] { return t.in.below(4) < 3; });
  if (t.in.chance(64)) column(penalty, [&] { return t.in.below(4); });
  if (reads_baselines<Estimator> && !t.in.hostile(24))
    column(baselines, [&] { return t.in.chance(6) ? nan : t.in.number(); });
  t.need(rewards.sound(), "rewards");
  t.need(out->sound() && out->extent(0) == rows, "out");
  need_groups(rows);
  choose_settings(t, e, rewards.extent(1), rows, penalty);
  if (with_tokens) t.need(tokens.present || rows == 0, "batch.tokens");
  if (reads_baselines<Estimator>) t.need(baselines.present || rows == 0, "batch.baseline");
  t.leave_out_if((t.well_formed() || out->extent(0) == rows) && rewards.large() &&
                 rewards.shape.sound());
  gdpo::Workspace workspace;
  gdpo::GroupReport report;
  const bool reports = t.in.chance(64);
  if (!t.make_call({"gdpo::advantages", "gdpo::by_id", "gdpo::groups_of", "gdpo::Column"}, [&] {
        gdpo::RewardBatch batch{rewards.view(), groups.make()};
        batch.tokens = tokens.make(), batch.valid = valid.make(), batch.penalty = penalty.make();
        batch.baseline = baselines.make();
        gdpo::advantages_into(Exec{}, batch, e, out->view(), workspace,
                              reports ? &report : nullptr);
      }))
    return;
  give_data(rewards, rows, rewards.extent(1));
  if (tokens.present) data.tokens = tokens.numbers;
  if (valid.present) data.valid = valid.numbers;
  if (penalty.present) data.penalty = penalty.numbers;
  if (baselines.present) data.external = baselines.numbers;
  compare_advantages<T>(t, product::settings_of(e), data, out->numbers());
  if (reports) t.compare("rows", static_cast<real>(report.rows), static_cast<real>(rows), 0);
}

using LengthWeighted = gdpo::GroupAdvantage<gdpo::baseline::LengthWeighted, gdpo::scale::None,
                                            gdpo::combine::SumThenNormalize>;
using External = gdpo::GroupAdvantage<gdpo::baseline::External>;

// ---- per_row ----

template <class Grouping>
void per_row(Trial& t) {
  const Grouping groups(t);
  index_t rows = t.in.hostile(24) ? odd_extent(t.in, groups.rows) : groups.rows;
  const bool fits = groups.fits(rows);
  t.need(rows >= 0 && rows <= most_elements, "rows");
  t.need(fits, "groups");
  const index_t wanted = groups.fits(groups.rows) ? groups.count(groups.rows) : 3;
  const auto values = t.input<float, 1>({std::min<index_t>(wanted, 64)});
  t.need(values.sound() && fits && values.extent(0) == groups.count(rows), "values");
  t.leave_out_if(groups.large() || (t.well_formed() && rows > most_work));
  std::vector<float> result;
  if (!t.make_call({"gdpo::per_row", "gdpo::by_id", "gdpo::groups_of"},
                   [&] { result = gdpo::per_row(groups.make(), rows, values.view()); }))
    return;
  t.compare("rows", static_cast<real>(result.size()), static_cast<real>(rows), 0);
  const std::vector<double> x = values.numbers();
  for (index_t i = 0; i < rows; ++i) {
    t.compare("value of a row", result[static_cast<std::size_t>(i)],
              static_cast<real>(x[static_cast<std::size_t>(groups.group(i))]), 0);
  }
}

}  // namespace

const std::vector<Case>& group_cases() {
  using gdpo::Seq, gdpo::Simd;
  constexpr auto None = gdpo::RenormOver::None, Tokens = gdpo::RenormOver::Tokens;
  static const std::vector<Case> cases{
      {"advantages, groups_of", advantages<float, OfSize, gdpo::Gdpo, Simd>},
      {"advantages, groups_of", advantages<double, OfSize, gdpo::Gdpo, Seq, Tokens>},
      {"advantages, by_offsets", advantages<double, Between<std::int32_t>, gdpo::Grpo, Seq>},
      {"advantages, by_offsets", advantages<int, Between<std::int64_t>, gdpo::Rloo, Simd>},
      {"advantages, by_offsets", advantages<float, Between<std::uint64_t>, gdpo::DrGrpo, Simd>},
      {"advantages, by_offsets", advantages<double, Between<std::int64_t>, LengthWeighted, Simd>},
      {"advantages, by_id", advantages<float, SameId<std::int32_t>, External, Seq, None>},
      {"advantages, by_id", advantages<int, SameId<std::int64_t>, gdpo::Gdpo, Seq>},
      {"advantages, by_id", advantages<double, SameId<signed char>, gdpo::Grpo, Simd>},
      {"per_row", per_row<OfSize>},
      {"per_row", per_row<Between<std::int64_t>>},
      {"per_row", per_row<SameId<int>>}};
  return cases;
}

}  // namespace fuzz
