// Calls from rewards of rows or turns to advantages of tokens: OutcomeAdvantage, the optimal token
// baseline, place_turns_into.
#include <gdpo/value.hpp>
#include <reference/naive.hpp>
#include <reference/naive_token_baseline.hpp>
#include <reference/naive_value.hpp>

#include "fuzz/token_arrays.hpp"

namespace fuzz {
namespace {

/// One of the numbers, or, if hostile, one that nobody means.
double setting(Trial& t, std::initializer_list<double> options) {
  return t.in.hostile(12) ? odd_number(t.in) : t.in.pick(options);
}

// ---- advantages_and_returns_into from rewards of rows ----

template <class S, class Exec>
void outcome(Trial& t) {
  TokenRows b(t);
  gdpo::OutcomeAdvantage<gdpo::Rloo, gdpo::TokenAdvantage<gdpo::returns::RewardToGo>> e;
  e.placement = t.in.pick({gdpo::Placement::LastStep, gdpo::Placement::EveryToken});
  e.tokens.returns.gamma = setting(t, {1, 0.5, 0});
  t.need(e.tokens.returns.gamma >= 0 && e.tokens.returns.gamma <= 1, "returns.gamma");
  const bool last = e.placement == gdpo::Placement::LastStep;
  b.give_marks();
  b.give_offsets();
  Numbers<S> of_tokens;
  if (last ? t.in.chance(48) : t.in.hostile(24))
    b.give<S>(of_tokens, [&] { return t.in.number(); });
  Written<S> advantages, returns;
  if (!t.in.hostile(8)) b.give_output(advantages);
  if (!t.in.chance(64)) b.give_output(returns);
  AnyColumn<double> row_rewards;
  if (t.in.hostile(24)) row_rewards = b.row_column([&] { return t.in.number(); });
  index_t size = b.completions;
  if (t.in.hostile(24)) size = odd_extent(t.in, size);
  const auto rewards = t.filled<double, 2>({b.prompts * b.completions, t.in.pick<index_t>({1, 2})},
                                           [&] { return t.in.chance(12) ? nan : t.in.number(); });

  b.need_one_shape(
      [&](const auto& visit) {
        visit(of_tokens), visit(b.mask), visit(advantages), visit(returns);
      },
      EmptyArrays::OfTheShape);
  t.need(advantages.shaped || of_tokens.shaped || b.mask.shaped || !returns.shaped, "advantages");
  t.need(row_rewards.constructible && !row_rewards.present, "no batch.row_rewards");
  t.need(last || !of_tokens.given, "no batch.rewards");
  t.need(rewards.sound(), "rewards");
  t.need(size >= 1, "groups");
  if (t.well_formed()) {
    t.need(rewards.extent(0) == b.rows, "as many rewards as rows");
    t.need(rewards.extent(0) % size == 0, "full groups");
    t.need(advantages.given || b.tokens == 0, "advantages");
  }
  t.leave_out_if(t.well_formed() && b.too_long());
  t.leave_out_if(rewards.large() && rewards.shape.sound());
  gdpo::OutcomeWorkspace<S> workspace;
  if (!t.make_call({"gdpo::advantages_and_returns_into", "gdpo::advantages", "gdpo::groups_of",
                    "gdpo::Column"},
                   [&] {
                     const gdpo::RewardBatch rows{rewards.view(), gdpo::GroupsOf{size}};
                     gdpo::ReturnBatch<S> batch;
                     batch.mask = b.mask.view, batch.rewards = of_tokens.view;
                     batch.row_rewards = row_rewards.make(), batch.offsets = b.offsets.make();
                     gdpo::advantages_and_returns_into(Exec{}, rows, batch, e, advantages.make(),
                                                       returns.make(), workspace);
                   }))
    return;
  if (b.tokens == 0) return;

  naive::Settings rloo;
  rloo.baseline = naive::Baseline::LeaveOneOut, rloo.scale = naive::Scale::None;
  rloo.combine = naive::Combine::SumThenNormalize, rloo.renorm = naive::Renorm::None;
  naive::Data data;
  data.rows = static_cast<int>(b.rows), data.reward_count = static_cast<int>(rewards.extent(1));
  data.rewards = rewards.numbers();
  for (index_t i = 0; i < b.rows; ++i) data.ids.push_back(i / size);
  const naive::Result of_rows = naive::advantages(rloo, data);
  naive::ReturnsSettings settings;
  settings.gae = false, settings.gamma = static_cast<real>(e.tokens.returns.gamma);
  constexpr real unit = std::is_same_v<S, float> ? 2.4e-7L : 1e-14L;
  const std::vector<double> a = advantages.now();
  std::vector<double> g;
  if (returns.given) g = returns.now();
  for (index_t i = 0; i < b.rows; ++i) {
    const real of_row = of_rows.advantages[static_cast<std::size_t>(i)];
    naive::ReturnsRow row;
    for (index_t j = 0; j < b.length(i); ++j) {
      const std::size_t k = b.at(i, j);
      row.valid.push_back(b.valid(k));
      row.rewards.push_back(!last             ? of_row
                            : of_tokens.given ? static_cast<real>(of_tokens.numbers[k])
                                              : 0);
      row.values.push_back(0), row.penalties.push_back(0);
    }
    if (last) row.row_reward = of_row;
    const naive::ReturnsResult expected = naive::returns_of_row(row, settings);
    for (index_t j = 0; j < b.length(i); ++j) {
      const std::size_t k = b.at(i, j), in_row = static_cast<std::size_t>(j);
      const real wanted = b.valid(k) ? expected.advantages[in_row] : 0,
                 tolerance = b.valid(k) ? unit * (64 + std::fabs(wanted)) : 0;
      t.compare("advantage of a token", a[k], wanted, tolerance);
      if (returns.given) t.compare("return", g[k], wanted, tolerance);
    }
  }
}

// ---- optimal_token_baseline_into ----

template <class S, class Exec>
void token_baseline(Trial& t) {
  TokenRows b(t);
  gdpo::OptimalTokenBaseline s;
  naive::TokenBaselineSettings expected_settings;
  s.eps = setting(t, {0, 0.5, 1e-8});
  t.need(s.eps >= 0 && std::isfinite(s.eps), "eps");
  const bool ordinal = t.in.chance(128), all = t.in.chance(128), raw = t.in.chance(128);
  s.place = ordinal ? gdpo::BaselinePlace::Ordinal : gdpo::BaselinePlace::Column;
  s.members = all ? gdpo::BaselineMembers::All : gdpo::BaselineMembers::NonEmpty;
  s.tail = raw ? gdpo::BaselineTail::Raw : gdpo::BaselineTail::Cancel;
  expected_settings.eps = static_cast<real>(s.eps), expected_settings.ordinal = ordinal;
  expected_settings.all_members = all, expected_settings.raw_tail = raw;
  b.give_marks();
  b.give_offsets();
  Numbers<S> returns, logp, squares, weights;
  Written<S> advantages;
  if (!t.in.hostile(12)) b.give<S>(returns, [&] { return t.in.number(); });
  if (!t.in.hostile(12)) b.give<S>(logp, [&] { return 0.5 * (t.in.number() - 2); });
  // With squares above 1 every weight is above 0, so that no divisor cancels.
  if (!t.in.hostile(12)) b.give<S>(squares, [&] { return t.in.below(4) == 3 ? 1.5 : 1.25; });
  if (t.in.chance(64)) b.give<S>(weights, [&] { return 0.5 * (1 + t.in.below(3)); });
  if (!t.in.hostile(8)) b.give_output(advantages);
  index_t size = b.completions;
  if (t.in.hostile(24)) size = odd_extent(t.in, size);

  b.need_one_shape(
      [&](const auto& visit) {
        visit(returns), visit(logp), visit(squares), visit(weights), visit(b.mask);
        visit(advantages);
      },
      EmptyArrays::OfTheShape);
  t.need(size >= 1, "groups");
  if (t.well_formed()) {
    t.need(b.rows % size == 0, "full groups");
    t.need(b.tokens == 0 || (returns.given && logp.given && squares.given && advantages.given),
           "returns, logp, sum_pi_squared, advantages");
  }
  t.leave_out_if(t.well_formed() && b.too_long());
  gdpo::TokenBaselineWorkspace<S> workspace;
  if (!t.make_call({"gdpo::optimal_token_baseline_into", "gdpo::groups_of", "gdpo::Column"}, [&] {
        gdpo::TokenBaselineBatch<S> batch;
        batch.returns = returns.view, batch.logp = logp.view, batch.sum_pi_squared = squares.view;
        batch.weights = weights.view, batch.mask = b.mask.view, batch.offsets = b.offsets.make();
        gdpo::optimal_token_baseline_into(Exec{}, batch, gdpo::GroupsOf{size}, s, advantages.make(),
                                          workspace);
      }))
    return;
  if (b.tokens == 0) return;
  const std::vector<double> got = advantages.now();
  for (index_t first = 0; first < b.rows; first += size) {
    std::vector<naive::TokenBaselineRow> group(static_cast<std::size_t>(size));
    for (index_t m = 0; m < size; ++m) {
      naive::TokenBaselineRow& row = group[static_cast<std::size_t>(m)];
      for (index_t j = 0; j < b.length(first + m); ++j) {
        const std::size_t k = b.at(first + m, j);
        row.valid.push_back(b.valid(k));
        row.returns.push_back(static_cast<real>(returns.numbers[k]));
        row.logp.push_back(static_cast<real>(logp.numbers[k]));
        row.sum_pi_squared.push_back(static_cast<real>(squares.numbers[k]));
        if (weights.given) row.weights.push_back(static_cast<real>(weights.numbers[k]));
      }
    }
    const auto expected = naive::optimal_token_baseline(group, expected_settings);
    constexpr real unit = std::is_same_v<S, float> ? 1e-6L : 1e-12L;
    for (index_t m = 0; m < size; ++m) {
      for (index_t j = 0; j < b.length(first + m); ++j) {
        const std::size_t k = b.at(first + m, j);
        t.compare("advantage", got[k],
                  expected[static_cast<std::size_t>(m)][static_cast<std::size_t>(j)],
                  b.valid(k) ? unit : 0);
      }
    }
  }
}

// ---- place_turns_into ----

/// What stands at each position of a row: its turns are listed from the last to the first.
std::vector<real> placed(const std::vector<bool>& valid, const std::vector<double>& rewards,
                         double gamma) {
  std::vector<std::size_t> ends;
  for (std::size_t j = 0; j < valid.size(); ++j) {
    if (valid[j] && (j + 1 == valid.size() || !valid[j + 1])) ends.push_back(j);
  }
  std::vector<real> out(valid.size());
  for (std::size_t k = 0; k < ends.size(); ++k) {
    real factor = 1;
    for (std::size_t l = k; l < ends.size() && factor > 0; ++l) {
      out[ends[k]] += factor * static_cast<real>(rewards[l]);
      factor *= static_cast<real>(gamma);
    }
  }
  return out;
}
std::size_t turns_of(const std::vector<bool>& valid) {
  std::size_t turns = 0;
  for (std::size_t j = 0; j < valid.size(); ++j)
    turns += valid[j] && (j + 1 == valid.size() || !valid[j + 1]);
  return turns;
}

template <class S>
void place_turns(Trial& t) {
  const index_t rows = t.in.below(4), width = t.in.below(7);
  const auto rewards = t.filled<double, 2>({rows, t.in.pick<index_t>({3, 4, 2})},
                                           [&] { return t.in.chance(6) ? nan : t.in.number(); });
  const bool packed = t.in.chance(96);
  const double gamma = setting(t, {0, 1, 0.5});
  t.need(gamma >= 0 && gamma <= 1, "gamma");
  t.need(rewards.sound(), "turn_rewards");
  std::vector<std::vector<bool>> valid;
  const auto need_turns = [&] {
    for (const auto& row : valid) {
      t.need(static_cast<index_t>(turns_of(row)) <= rewards.extent(1), "a reward for each turn");
    }
  };
  const auto compare = [&](const std::vector<double>& got) {
    const std::vector<double> all = rewards.numbers();
    std::size_t next = 0;
    for (std::size_t i = 0; i < valid.size(); ++i) {
      const auto columns = static_cast<std::size_t>(rewards.extent(1));
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i * columns);
      for (const real x :
           placed(valid[i], {begin, begin + static_cast<std::ptrdiff_t>(columns)}, gamma)) {
        t.compare("reward of a position", got[next++], x, 1e-6L * std::fabs(x));
      }
    }
  };
  if (packed) {
    std::vector<index_t> bounds{0};
    for (index_t i = 0; i < rows; ++i) bounds.push_back(bounds.back() + t.in.below(5));
    const std::array<index_t, 1> tokens{bounds.back()};
    const auto mask = t.filled<int, 1>(tokens, [&] { return t.in.below(4) - 1; });
    const auto out = t.output<S, 1>(tokens);
    if (t.in.hostile(48)) {
      const auto k = static_cast<std::size_t>(t.in.below(static_cast<int>(bounds.size())));
      bounds[k] = odd_extent(t.in, bounds[k]);
    }
    std::size_t next = 0;
    const auto offsets = column_of<index_t, std::int64_t>(t, std::array<index_t, 1>{rows + 1}, [&] {
      return bounds[std::min(next++, bounds.size() - 1)];
    });
    t.need(mask.sound(), "mask");
    t.need(out->sound() && same_shape(*out, mask), "out");
    t.need(offsets.present && offsets.size == static_cast<real>(rewards.extent(0)) + 1, "offsets");
    t.leave_out_if(mask.large() || offsets.large || rewards.large());
    if (t.well_formed() && !mask.large() && !offsets.large) {
      const std::vector<real>& at = offsets.integers;
      bool ordered = at[0] == 0 && at.back() == static_cast<real>(mask.extent(0));
      for (std::size_t i = 1; i < at.size(); ++i) ordered = ordered && at[i] >= at[i - 1];
      t.need(ordered, "offsets");
      const std::vector<double> marks = mask.numbers();
      for (std::size_t i = 1; ordered && i < at.size(); ++i) {
        valid.emplace_back();
        for (auto k = static_cast<std::size_t>(at[i - 1]); k < static_cast<std::size_t>(at[i]); ++k)
          valid.back().push_back(marks[k] != 0);
      }
      need_turns();
    }
    if (!t.make_call({"gdpo::place_turns_into", "gdpo::Column"}, [&] {
          gdpo::place_turns_into(rewards.view(), mask.view(), offsets.make(), out->view(), gamma);
        }))
      return;
    return compare(out->numbers());
  }
  const auto mask = t.filled<unsigned char, 2>({rows, width}, [&] { return t.in.below(4) < 3; });
  const auto out = t.output<S, 2>({rows, width});
  t.need(mask.sound() && mask.extent(0) == rewards.extent(0), "mask");
  t.need(out->sound() && same_shape(*out, mask), "out");
  t.leave_out_if(mask.large() || rewards.large());
  if (t.well_formed() && !mask.large()) {
    const std::vector<double> marks = mask.numbers();
    std::size_t next = 0;
    for (index_t i = 0; i < mask.extent(0); ++i) {
      valid.emplace_back();
      for (index_t j = 0; j < mask.extent(1); ++j) valid.back().push_back(marks[next++] != 0);
    }
    need_turns();
  }
  if (!t.make_call({"gdpo::place_turns_into"}, [&] {
        gdpo::place_turns_into(rewards.view(), mask.view(), out->view(), gamma);
      }))
    return;
  compare(out->numbers());
}

}  // namespace

const std::vector<Case>& outcome_cases() {
  using gdpo::Seq, gdpo::Simd;
  static const std::vector<Case> cases{{"outcome", outcome<float, Simd>},
                                       {"outcome", outcome<double, Seq>},
                                       {"token_baseline", token_baseline<float, Simd>},
                                       {"token_baseline", token_baseline<double, Seq>},
                                       {"place_turns", place_turns<float>}};
  return cases;
}

}  // namespace fuzz
